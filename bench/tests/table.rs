//! The table measures, audits, and leaves no files behind. The tests do not assert speed.
#![cfg(test)]

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value as Json;

/// Directories of installed servers.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn table(directory: &Path, only: &str, path: &str) -> Json {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floodgate-bench"));
    command.args(["--table", "--json", "--rounds", "1", "--seconds", "1", "--only", only]);
    command.arg("--directory").arg(directory).current_dir(directory).env_clear().env("PATH", path);
    let output: Output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn goals_without_their_servers_are_named_and_not_skipped() {
    let [directory, programs] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    // It starts the servers.
    symlink("/usr/bin/setpriv", programs.path().join("setpriv")).unwrap();
    let path = programs.path().to_str().unwrap();
    let table = table(directory.path(), "S2,S3,S6,S10,S17,backlog", path);
    assert_eq!(table["rows"], Json::Array(Vec::new()));
    let named = table["not_measured"].to_string();
    for word in ["S2", "apt-get install redis-server", "S3", "apt-get install redis-tools", "S17"] {
        assert!(named.contains(word), "{named}");
    }
}

#[test]
fn gate_decisions_are_measured_with_an_audit_and_nothing_is_left_behind() {
    let directory = tempfile::tempdir().unwrap();
    let table = table(directory.path(), "S3", PATH);
    assert_eq!(table["void"], Json::Array(Vec::new()));
    let row = &table["rows"][0];
    assert_eq!(row["id"], "S3");
    assert!(row["ratio"]["median"].as_f64().unwrap() > 0.0, "{row}");
    assert!(row["batches"][0][1].as_f64().unwrap() > 10.0, "{row}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
