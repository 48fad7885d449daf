//! The files of `deploy/` work: the unit is valid and confined, buyers buy through the proxy.

mod proxy;
mod unit;

/// A process that was stopped with its machine has ended without an error.
#[test]
fn every_service_of_the_composition_starts_again_with_its_machine() {
    let composition = read("compose.yaml");
    let policies = composition.lines().filter_map(|line| line.trim().strip_prefix("restart: "));
    let (always, once): (Vec<_>, Vec<_>) = policies.partition(|policy| *policy == "always");
    assert_eq!((always.len(), once), (4, vec!["\"no\""]), "once: the migration");
}

/// The files that `compose.yaml` has its reader create.
#[test]
fn secrets_of_the_composition_are_in_no_commit_and_in_no_image() {
    assert!(read("compose.yaml").contains("> secrets/jwt"));
    for file in ["../.gitignore", "../.containerignore", "../.dockerignore"] {
        let ignored = read(file);
        for path in ["/secrets", "/.env", "/target"] {
            assert!(ignored.lines().any(|line| line == path), "{file}: {path}");
        }
    }
}

/// A file of `deploy/`.
fn read(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
