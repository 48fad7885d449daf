//! The file itself: who has it, whether it is whole, and how a new one comes to be.
//!
//! Every refusal names the reason and the remedy: whoever reads it has been woken by it.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::connection::{ConnectionAccess, Tuning, connect};
use crate::db::{Error, migrate};

pub(super) fn cannot<T>(reason: String) -> Result<T, Error> {
    Err(Error::CannotOpen { reason })
}

/// What the database said at opening, and what that means to whoever has to mend it.
pub(super) fn explain(path: &Path, said: &str) -> Error {
    let remedy = if said.contains("locked") {
        "another program holds a lock on it (a backup, a database shell?): end that one"
    } else if said.contains("malformed") || said.contains("not a database") {
        "it is damaged: restore it from a backup, and look for a failing disk"
    } else if said.contains("readonly") {
        "it or its log beside it (-wal, -shm) is not writable for this user: change their owner"
    } else if said.contains("full") {
        "the disk is full: make room; nothing was lost"
    } else {
        "look at its owner and for a failing disk, or restore it from a backup"
    };
    Error::CannotOpen { reason: format!("the ledger {}: {said}; {remedy}", path.display()) }
}

/// `path` with something appended to its name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The directory of the ledger.
fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Refuses a directory that is missing or where nothing can be written.
pub(super) fn check_directory(path: &Path) -> Result<(), Error> {
    let directory = directory(path);
    let found = fs::metadata(directory).or_else(|error| {
        cannot(format!(
            "the ledger's directory {} cannot be used: {error}; create it, or correct ledger.url",
            directory.display()
        ))
    })?;
    if found.permissions().readonly() {
        return cannot(format!(
            "the ledger's directory {} is read-only: the ledger keeps its log there; make it \
             writable for this user",
            directory.display()
        ));
    }
    Ok(())
}

/// Says that this process, and no other, has the ledger open for writing. Ends with the value, also
/// when the process is killed.
#[derive(Debug)]
pub(super) struct InstanceLock {
    _held: File,
}

impl InstanceLock {
    /// Takes the lock of the ledger at `path`.
    pub(super) fn take(path: &Path) -> Result<Self, Error> {
        let lock = beside(path, ".lock");
        let open = File::options().read(true).write(true).create(true).truncate(false).open(&lock);
        let mut file = open.or_else(|error| {
            cannot(format!(
                "the lock file {} cannot be written: {error}; the directory must be writable for \
                 this user and not be mounted read-only",
                lock.display()
            ))
        })?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // The number only helps the reader; without it the message still stands.
                file.read_to_string(&mut holder).ok();
                let holder = holder.trim();
                let whose = if holder.is_empty() { "unknown" } else { holder };
                return cannot(format!(
                    "another floodgate process (number {whose}) has the ledger {} open; stop that \
                     one first, or give this one a ledger.url of its own",
                    path.display()
                ));
            }
            Err(TryLockError::Error(error)) => {
                return cannot(format!(
                    "the lock file {} cannot be locked: {error}; the ledger needs a local file \
                     system",
                    lock.display()
                ));
            }
        }
        // Only for the message above, so it may fail.
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .ok();
        Ok(Self { _held: file })
    }
}

/// Whether the log beside the file holds anything.
pub(super) fn has_log(path: &Path) -> bool {
    fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0)
}

/// Whether a ledger is there at all. A file without its log is fine, a log without its file is not.
pub(super) fn is_there(path: &Path) -> Result<bool, Error> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(_) => cannot(format!("the ledger {} is not a file: correct ledger.url", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if has_log(path) {
                return cannot(format!(
                    "the ledger {0} is missing but its log {0}-wal is there: the file was moved or \
                     deleted; put it back beside its log",
                    path.display()
                ));
            }
            Ok(false)
        }
        Err(error) => cannot(format!("the ledger {} cannot be read: {error}", path.display())),
    }
}

/// Refuses a file that somebody has made read-only, even where this user could write it.
pub(super) fn check_writable(path: &Path) -> Result<(), Error> {
    if fs::metadata(path).is_ok_and(|found| found.permissions().readonly()) {
        return cannot(format!(
            "the ledger {} is read-only: make it writable for this user",
            path.display()
        ));
    }
    Ok(())
}

/// Refuses a file that is not a database or lost its end. Only says something while the log is
/// empty: otherwise the log may hold what the file lacks.
pub(super) fn check_whole(path: &Path) -> Result<(), Error> {
    let read = || -> std::io::Result<(u64, Vec<u8>)> {
        let file = File::open(path)?;
        let mut header = Vec::with_capacity(HEADER_BYTES);
        let bytes = file.metadata()?.len();
        file.take(HEADER_BYTES as u64).read_to_end(&mut header)?;
        Ok((bytes, header))
    };
    let (bytes, header) = read().or_else(|error| {
        cannot(format!("the ledger {} cannot be read: {error}", path.display()))
    })?;
    if bytes == 0 {
        return cannot(format!(
            "the ledger {} is empty: it lost its contents (a new ledger is never empty); restore \
             it from a backup, or delete it if it never held a sale",
            path.display()
        ));
    }
    if !header.starts_with(MAGIC) {
        return cannot(format!(
            "{} is not a ledger: it is not a SQLite database; correct ledger.url, or restore the \
             file from a backup",
            path.display()
        ));
    }
    match expected_bytes(&header) {
        Some(expected) if expected <= bytes => Ok(()),
        Some(expected) => cannot(format!(
            "the ledger {} is cut off: it has {bytes} bytes and should have {expected}; restore it \
             from a backup, and look for a full or failing disk",
            path.display()
        )),
        None => cannot(format!(
            "the ledger {} has a damaged header: restore it from a backup",
            path.display()
        )),
    }
}

const HEADER_BYTES: usize = 100;
const MAGIC: &[u8] = b"SQLite format 3\0";

/// The size of the file by its own header
/// (<https://www.sqlite.org/fileformat2.html#the_database_header>); 0 when the header does not say.
fn expected_bytes(header: &[u8]) -> Option<u64> {
    let be32 = |at: usize| -> Option<u32> {
        header.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
    };
    let page: [u8; 2] = header.get(16..18)?.try_into().ok()?;
    let page_bytes = match u64::from(u16::from_be_bytes(page)) {
        1 => 65_536,
        bytes if bytes.is_power_of_two() && bytes >= 512 => bytes,
        _ => return None,
    };
    let (changes, pages, pages_as_of) = (be32(24)?, be32(28)?, be32(92)?);
    let known = changes == pages_as_of;
    Some(if known { page_bytes * u64::from(pages) } else { 0 })
}

/// Makes a ledger beside its place and moves it there when it is complete, so that a file at `path`
/// is never half made.
pub(super) fn create(path: &Path, tuning: &Tuning) -> Result<Vec<String>, Error> {
    let fresh = beside(path, ".new");
    for leftover in [fresh.clone(), beside(&fresh, "-journal"), beside(&fresh, "-wal")] {
        // What a start that died here has left; if it cannot go, the next step says so.
        fs::remove_file(leftover).ok();
    }
    let mut conn = connect(&fresh, ConnectionAccess::Create, tuning)?;
    let migrated = migrate::run(&mut conn)?;
    drop(conn);
    // Crash here [creating]: only the file under the temporary name exists; the next start makes it
    // anew.
    let moved = File::open(&fresh)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(&fresh, path))
        .and_then(|()| File::open(directory(path)))
        .and_then(|directory| directory.sync_all());
    moved.map(|()| migrated).or_else(|error| {
        cannot(format!("the new ledger {} cannot be made: {error}", path.display()))
    })
}
