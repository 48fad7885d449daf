use super::super::Status::{Fail, Warn};
use super::super::tests::{assert_problem, problems};
use super::*;

#[test]
fn a_directory_is_probed_and_left_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(disk(directory.path()).len(), 3);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    let missing = disk(Path::new("/nowhere/at/all"));
    assert_problem(missing, "ledger directory", Fail, "-> mkdir -p /nowhere/at/all");
}

#[test]
fn little_space_and_a_slow_disk_are_reported() {
    let took = Duration::from_millis;
    let broken = || io::Error::other("bad");
    let fine = vec![free_space(Ok(5000 * MIB)), commit_latency(Ok(took(1)))];
    assert_eq!(problems(fine), []);
    assert_problem(vec![free_space(Ok(10 * MIB))], "free space", Fail, "10 MiB");
    assert_problem(vec![free_space(Ok(500 * MIB))], "free space", Warn, "500 MiB");
    assert_problem(vec![free_space(Err(broken()))], "free space", Warn, "`df`");
    assert_problem(vec![commit_latency(Ok(took(40)))], "commit latency", Warn, "40.00 ms");
    assert_problem(vec![commit_latency(Err(broken()))], "commit latency", Fail, "dmesg");
}

#[test]
fn a_file_that_is_not_a_readable_ledger_fails() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("l.db");
    let settings = Settings::with_ledger(&format!("sqlite://{}", path.display()));
    std::fs::write(&path, "these are notes, not orders").unwrap();
    let foreign = vec![content(&settings, &path, None)];
    assert_problem(foreign, "ledger file", Fail, "not a SQLite database");
    std::fs::remove_file(&path).unwrap();

    tier::migrate(&settings).unwrap();
    assert_eq!(problems(vec![content(&settings, &path, None)]), []);
    let mut bytes = std::fs::read(&path).unwrap();
    let last_page = bytes.len() - 4096;
    bytes[last_page..].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    let corrupt = vec![content(&settings, &path, None)];
    assert_problem(corrupt, "ledger file", Fail, "restore it from a backup");
}

#[test]
fn a_held_lock_passes_only_when_our_server_runs() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let found = |running| vec![lock(file.path(), running)];
    assert_eq!(problems(found(false)), []);
    let held = File::open(file.path()).unwrap();
    held.lock().unwrap();
    assert_problem(found(false), "ledger lock", Fail, "no server answers");
    assert_eq!(problems(found(true)), []);
    drop(held);
    assert_eq!(problems(found(false)), []);
    assert_eq!(problems(vec![lock(Path::new("/nowhere/x.lock"), false)]), []);
}
