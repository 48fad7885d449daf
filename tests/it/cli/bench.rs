//! `floodgate bench --table` as a whole: that it measures, audits and leaves nothing behind. How
//! fast anything is decides nothing here.

use std::process::Output;

use serde_json::Value as Json;

use super::{code, floodgate, json};

/// Where servers are installed.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn bench(directory: &std::path::Path, only: &str, path: &str) -> Output {
    let place = directory.display().to_string();
    let words = ["bench", "--table", "--json", "--rounds", "1", "--seconds", "1"];
    let words = [&words[..], &["--directory", &place, "--only", only]].concat();
    floodgate(directory, &words).env("PATH", path).output().unwrap()
}

#[test]
fn goals_without_their_servers_are_named_and_not_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let output = bench(directory.path(), "S2,S3,S6,S10,S17,backlog", "/nowhere");
    assert_eq!(code(&output), 0, "{output:?}");
    let table = json(&output);
    assert_eq!(table["rows"], Json::Array(Vec::new()));
    let named = table["not_measured"].to_string();
    for word in ["S2", "apt-get install redis-server", "S3", "apt-get install redis-tools", "S17"] {
        assert!(named.contains(word), "{named}");
    }
}

#[test]
fn memory_of_redis_is_measured_after_an_audit_and_nothing_is_left_behind() {
    let directory = tempfile::tempdir().unwrap();
    let output = bench(directory.path(), "S15", PATH);
    assert_eq!(code(&output), 0, "{output:?}");
    let table = json(&output);
    assert_eq!(table["void"], Json::Array(Vec::new()));
    let row = &table["rows"][0];
    assert_eq!(row["id"], "S15");
    // Bytes, not time: the same on every machine.
    let ratio = row["ratio"]["median"].as_f64().unwrap();
    assert!((0.05..0.40).contains(&ratio), "{row}");
    assert!(row["batches"][0][1].as_f64().unwrap() > 10.0, "{row}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
