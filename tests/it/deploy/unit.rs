//! `deploy/floodgate.service`, checked by systemd's own programs; no systemd has to run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use floodgate::config::{ConfigSources, Settings};
use tempfile::TempDir;

use super::read;
use crate::support::python::text;

/// Most exposure by `systemd-analyze security`, in tenths; an unconfined unit has 96.
const EXPOSURE_MAX: &str = "15";

/// The unit in a folder of its own, with the program of this build.
fn unit(folder: &Path, change: impl FnOnce(String) -> String) -> PathBuf {
    let file = folder.join("floodgate.service");
    let installed = "/usr/local/bin/floodgate";
    let text = read("floodgate.service");
    assert!(text.contains(installed));
    let text = change(text.replace(installed, env!("CARGO_BIN_EXE_floodgate")));
    std::fs::write(&file, text).unwrap();
    file
}

fn analyze(arguments: &[&str], unit: &Path) -> Output {
    let mut command = Command::new("systemd-analyze");
    command.args(arguments).arg(unit).output().unwrap()
}

#[test]
fn the_unit_is_valid() {
    let folder = TempDir::new().unwrap();
    let output = analyze(&["verify", "--man=no"], &unit(folder.path(), |text| text));
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output));
    let broken = |text: String| text.replace("NoNewPrivileges", "NoNewPrivilege");
    let output = analyze(&["verify", "--man=no"], &unit(folder.path(), broken));
    assert!(text(&output).contains("NoNewPrivilege"), "{}", text(&output));
}

#[test]
fn the_unit_is_confined() {
    let folder = TempDir::new().unwrap();
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    let check = ["security", "--offline=true", "--no-pager", threshold.as_str()];
    let output = analyze(&check, &unit(folder.path(), |text| text));
    assert!(output.status.success(), "{}", text(&output));
    let loose = |text: String| text.replace("CapabilityBoundingSet=\n", "");
    assert!(!analyze(&check, &unit(folder.path(), loose)).status.success());
}

/// Operators run their commands in other folders than the server.
#[test]
fn the_ledger_of_the_unit_is_an_absolute_path_in_its_folder() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/floodgate.toml");
    let sources = ConfigSources { file: Some(file), ..ConfigSources::default() };
    let settings = Settings::load(&sources).unwrap();
    let ledger = settings.ledger.sqlite_path().unwrap();
    assert!(ledger.starts_with("/var/lib/floodgate"), "{}", ledger.display());
    assert!(read("floodgate.service").contains("\nStateDirectory=floodgate\n"));
}

/// Without a database a process ends within milliseconds.
#[test]
fn the_unit_is_restarted_for_as_long_as_its_database_is_away() {
    let unit = read("floodgate.service");
    let head = unit.split_once("\n[Service]\n").unwrap().0;
    assert!(head.contains("\nStartLimitIntervalSec=0\n"), "{head}");
}

/// The unit ends a process later than the process ends itself.
#[test]
fn the_unit_waits_for_the_end() {
    let folder = TempDir::new().unwrap();
    let settings = Settings::with_ledger("sqlite://x");
    let end_ms = settings.shutdown.drain_ms + 3 * settings.shutdown.deadline_ms;
    let file = unit(folder.path(), |text| text);
    let unit = std::fs::read_to_string(file).unwrap();
    let number = |key: &str| -> u64 {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.parse().unwrap()
    };
    assert!(number("TimeoutStopSec=") * 1_000 > end_ms);
    let connections_max = settings.http.connections_max as u64;
    assert!(number("LimitNOFILE=") > connections_max);
}
