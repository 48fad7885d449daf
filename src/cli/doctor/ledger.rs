//! Checks of a SQLite ledger's file: readability, schema, lock.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::{CheckOutcome, Finding, disk, fail, ok};
use crate::config::Settings;
use crate::tier;

/// The first bytes of every SQLite file (SQLite file format, section 1.3.1).
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

pub(super) fn examine(settings: &Settings, running: bool) -> Vec<Finding> {
    let Some(file) = settings.ledger.sqlite_path() else {
        // Another kind of ledger has its own checks; a bad URL is a fault of the configuration.
        return Vec::new();
    };
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut findings = disk::examine(directory);
    findings.push(check_content(settings, file).on("ledger file"));
    // The process that owns the ledger locks this file.
    let lock = file.with_added_extension("lock");
    findings.push(check_lock(&lock, running).on("ledger lock"));
    findings
}

fn check_content(settings: &Settings, file: &Path) -> CheckOutcome {
    let shown = file.display();
    let mut head = Vec::new();
    let read = File::open(file).and_then(|open| open.take(16).read_to_end(&mut head));
    match read {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return ok(format!("{shown} does not exist yet; serve creates it"));
        }
        Err(error) => {
            let remedy = "let the user that runs floodgate read and write it";
            return fail(format!("{shown} cannot be read: {error}"), remedy);
        }
        // `serve` never leaves an empty file: a new ledger is renamed to its path when complete.
        Ok(0) => {
            let remedy = "restore it from a backup, or delete it if it never held a sale";
            return fail(format!("{shown} is empty: it lost its contents"), remedy);
        }
        Ok(_) if head != MAGIC => {
            let remedy = "point ledger.url to the ledger, or restore the file from a backup";
            return fail(format!("{shown} is not a SQLite database"), remedy);
        }
        Ok(_) => {}
    }
    match tier::pending_migrations(settings) {
        Ok(None) => ok(format!("{shown} has no tables yet; serve creates them")),
        Ok(Some(pending)) if pending.is_empty() => check_pages(settings, file),
        Ok(Some(pending)) => fail(
            format!("{shown} lacks migrations: {}", pending.join(", ")),
            "back the file up, then run `floodgate migrate`",
        ),
        Err(error) => damaged(&error.to_string()),
    }
}

/// Reads every page: a corrupt one would otherwise be found during the sale.
fn check_pages(settings: &Settings, file: &Path) -> CheckOutcome {
    match tier::check_ledger_pages(settings) {
        Ok(()) => {
            let detail = "opens, its schema is current, and every page can be read";
            ok(format!("{} {detail}", file.display()))
        }
        Err(error) => damaged(&error.to_string()),
    }
}

fn damaged(message: &str) -> CheckOutcome {
    fail(message, "do what the message says; copy the file before any repair")
}

fn check_lock(lock: &Path, running: bool) -> CheckOutcome {
    let shown = lock.display();
    let file = match File::open(lock) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return ok("no process has ever held it");
        }
        Err(error) => {
            let remedy = "let the user that runs floodgate read and write it";
            return fail(format!("{shown} cannot be opened: {error}"), remedy);
        }
    };
    // A lock that this acquires is released when `file` is dropped.
    match file.try_lock() {
        Ok(()) => ok("no process holds it"),
        Err(TryLockError::WouldBlock) if running => ok("held by the running server"),
        Err(TryLockError::WouldBlock) => fail(
            format!("another process holds {shown}, and no server answers at internal.bind"),
            format!("find it with `fuser {shown}`; one ledger has one server"),
        ),
        Err(TryLockError::Error(error)) => fail(
            format!("{shown} cannot be locked: {error}"),
            "keep the ledger on a local disk: locks do not work on every network file system",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn a_file_that_is_not_a_ledger_fails() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let settings = Settings::for_test(&format!("sqlite://{}", file.path().display()));
        let empty = check_content(&settings, file.path());
        assert_eq!(empty.status, Status::Fail, "serve refuses it, too: {empty:?}");
        assert!(empty.remedy.contains("restore it from a backup"), "{empty:?}");
        std::fs::write(file.path(), "these are notes, not orders").unwrap();
        let finding = check_content(&settings, file.path());
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.detail.contains("not a SQLite database"), "{finding:?}");
    }

    #[test]
    fn a_corrupt_page_fails() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("l.db");
        let settings = Settings::for_test(&format!("sqlite://{}", path.display()));
        tier::migrate(&settings).unwrap();
        assert_eq!(check_content(&settings, &path).status, Status::Ok);

        let mut bytes = std::fs::read(&path).unwrap();
        let last_page = bytes.len() - 4096;
        bytes[last_page..].fill(0xa5);
        std::fs::write(&path, bytes).unwrap();
        let finding = check_content(&settings, &path);
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.detail.contains("restore it from a backup"), "{finding:?}");
    }

    #[test]
    fn a_held_lock_passes_only_when_our_server_runs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(check_lock(file.path(), false).status, Status::Ok);
        let held = File::open(file.path()).unwrap();
        held.lock().unwrap();
        assert_eq!(check_lock(file.path(), false).status, Status::Fail);
        assert_eq!(check_lock(file.path(), true).status, Status::Ok);
        drop(held);
        assert_eq!(check_lock(file.path(), false).status, Status::Ok);
        assert_eq!(check_lock(Path::new("/nowhere/x.lock"), false).status, Status::Ok);
    }
}
