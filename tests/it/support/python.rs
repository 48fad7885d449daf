//! Python programs of the tests, which `scripts/test-deps.sh` installs into `.venv`.

use std::path::Path;
use std::process::{Command, Output};

/// One of these programs.
pub fn program(name: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin").join(name);
    assert!(path.exists(), "{} is missing: scripts/test-deps.sh installs it", path.display());
    Command::new(path)
}

/// Both streams of a program's output.
pub fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}
