//! The files of `deploy/` work: the unit is valid and confined, buyers buy through the proxy.

mod proxy;
mod unit;

/// A file of `deploy/`.
fn read(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
