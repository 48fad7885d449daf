//! `floodgate bench` runs the program beside it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use super::code;
use super::scripted::stderr;

/// Runs a copy of the program that stands in `directory`.
fn bench(directory: &Path, flags: &[&str]) -> Output {
    let program = directory.join("floodgate");
    if !program.exists() {
        std::fs::copy(env!("CARGO_BIN_EXE_floodgate"), &program).unwrap();
    }
    Command::new(program).arg("bench").args(flags).output().unwrap()
}

#[test]
fn the_bench_gets_its_flags_and_its_exit_code_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let missing = bench(directory.path(), &[]);
    assert_eq!(code(&missing), 2, "{missing:?}");
    assert!(stderr(&missing).contains("cargo build --release -p floodgate-bench"), "{missing:?}");

    let script = directory.path().join("floodgate-bench");
    std::fs::write(&script, "#!/bin/sh\necho \"$*\"\nexit 1\n").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    for (flags, passed) in [
        (&["--rate", "5000", "--duration", "30"][..], "--rate 5000 --duration 30\n"),
        (&["--json", "--table"], "--table --json\n"),
        (&["--", "--help"], "--help\n"),
        (&[], "\n"),
    ] {
        let ran = bench(directory.path(), flags);
        assert_eq!(code(&ran), 1, "{ran:?}");
        assert_eq!(String::from_utf8(ran.stdout).unwrap(), passed);
    }
    let refused = bench(directory.path(), &["--set", "http.workers=2"]);
    assert_eq!(code(&refused), 2, "{refused:?}");
}
