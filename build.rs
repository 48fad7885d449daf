//! Rebuilds the crate when a migration changes: they are compiled in, and cargo cannot see that.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
