//! The database file: its lock, its checks, and its creation.
//!
//! Every error contains the cause and the remedy, for the operator on call.

use std::fmt::Display;
use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use diesel::sqlite::SqliteConnection;

use super::OpenOptions;
use super::connection::{ConnectionAccess, connect};
use crate::db::error::{cannot_open, explained};
use crate::db::sql::Queries;
use crate::db::{Error, migrate};

/// The ledger holds the orders of all buyers, and the key that signs request ids: no other user may
/// read it.
const OWNER_ONLY: u32 = 0o600;

/// Most bytes of a path in `SQLite` (its `MAX_PATHNAME`), and of a name in Linux.
const PATH_BYTES_MAX: usize = 512;
const NAME_BYTES_MAX: usize = 255;

/// Remedies of errors of the database while opening; the last one always matches.
const REMEDIES: &[(&[&str], &str)] = &[
    (&["locked"], "another program holds a lock on it (a backup, a database shell?): end that one"),
    (
        &["malformed"],
        "it is damaged or cut off: restore it from a backup, and look for a full or failing disk",
    ),
    (
        &["not a database"],
        "it is not a ledger, or it is damaged: if `head -c 99` shows the file of another program, \
         correct ledger.url, otherwise restore it from a backup",
    ),
    (
        &["readonly"],
        "it or its log beside it (-wal, -shm) is not writable for this user: change their owner",
    ),
    (&["full"], "the disk is full: make room; nothing was lost"),
    (&[""], "look at its owner and for a failing disk, or restore it from a backup"),
];

/// Adds the path and the remedy to an error of the database while opening.
pub(super) fn explain(path: &Path, error: impl Display) -> Error {
    explained(path.display(), &error.to_string(), REMEDIES)
}

/// `CannotOpen` of the ledger at `path`; `what` is the rest of the sentence, with the remedy.
fn refuse<T>(path: &Path, what: impl Display) -> Result<T, Error> {
    cannot_open(format!("the ledger {} {what}", path.display()))
}

/// `path` with a suffix appended to its file name.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The path of the file, whatever name leads there. Rejects a path that is too long for the files
/// beside it, a link to a missing file, and one of several names.
pub(super) fn real_path(path: &Path) -> Result<PathBuf, Error> {
    let real_path = fs::canonicalize(path).or_else(|_missing| std::path::absolute(path));
    let real_path = real_path.unwrap_or_else(|_no_folder| path.to_owned());
    let longest = with_suffix(&real_path, ".new-journal");
    let name = longest.file_name().unwrap_or_default();
    if longest.as_os_str().len() > PATH_BYTES_MAX || name.len() > NAME_BYTES_MAX {
        return refuse(path, "has a path that is too long: shorten ledger.url");
    }
    if let Ok(to) = fs::read_link(path)
        && matches!(path.try_exists(), Ok(false))
    {
        let remedy = "mount it, or correct ledger.url";
        return refuse(path, format!("is a link to {}, which is missing: {remedy}", to.display()));
    }
    if fs::metadata(path).is_ok_and(|it| it.is_file() && it.nlink() > 1) {
        return refuse(
            path,
            "has a second name (a hard link), and under each it would have a log of its own: copy \
             it instead, and remove one of the names",
        );
    }
    Ok(real_path)
}

/// Rejects a missing or read-only directory.
pub(super) fn check_directory(path: &Path) -> Result<(), Error> {
    let directory = directory(path);
    let metadata = fs::metadata(directory).or_else(|error| {
        cannot_open(format!(
            "the ledger's directory {} cannot be used: {error}; create it, or correct ledger.url",
            directory.display()
        ))
    })?;
    if metadata.permissions().readonly() {
        return cannot_open(format!(
            "the ledger's directory {} is read-only: the ledger keeps its log there; make it \
             writable for this user",
            directory.display()
        ));
    }
    Ok(())
}

/// The lock of the only process that has the ledger open for writing. Released when the value is
/// dropped and when the process is killed.
#[derive(Debug)]
pub(super) struct InstanceLock {
    _held: File,
}

impl InstanceLock {
    /// Takes the lock of the ledger at `path`, whatever name leads there.
    pub(super) fn take(path: &Path) -> Result<Self, Error> {
        let lock = with_suffix(&real_path(path)?, ".lock");
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(OWNER_ONLY);
        let open = options.open(&lock);
        let mut file = open.or_else(|error| {
            cannot_open(format!(
                "the lock file {} cannot be written: {error}; this user must be able to \
                 write it and its directory, which must not be mounted read-only",
                lock.display()
            ))
        })?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // The process id is optional in the message.
                file.read_to_string(&mut holder).ok();
                let holder = holder.trim();
                let process_id = if holder.is_empty() { "unknown" } else { holder };
                let path = path.display();
                return cannot_open(format!(
                    "another floodgate process (number {process_id}) has the ledger {path} open; \
                     stop that one first, or give this one a ledger.url of its own"
                ));
            }
            Err(TryLockError::Error(error)) => {
                return cannot_open(format!(
                    "the lock file {} cannot be locked: {error}; the ledger needs a local file \
                     system",
                    lock.display()
                ));
            }
        }
        // Ignores errors: the process id is only used in the message above.
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .ok();
        Ok(Self { _held: file })
    }
}

/// Whether the write-ahead log of the file is not empty.
pub(super) fn has_log(path: &Path) -> bool {
    fs::metadata(with_suffix(path, "-wal")).is_ok_and(|log| log.len() > 0)
}

/// Whether the file exists. A file without a log is valid, a log without its file is an error.
pub(super) fn exists(path: &Path) -> Result<bool, Error> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(true),
        Ok(_) => refuse(path, "is not a file: correct ledger.url"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if has_log(path) {
                return cannot_open(format!(
                    "the ledger {0} is missing but its log {0}-wal is there: the file was moved or \
                     deleted; put it back beside its log",
                    path.display()
                ));
            }
            Ok(false)
        }
        Err(error) => refuse(path, format_args!("cannot be read: {error}")),
    }
}

/// Device and number of the file at `path`.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Fails if the file at `path` is not the one that was opened: what is written to that one is gone
/// once it is closed.
pub(super) fn check_present(path: &Path, opened: Option<(u64, u64)>) -> Result<(), Error> {
    if opened.is_some() && identity(path) == opened {
        return Ok(());
    }
    refuse(
        path,
        "was deleted or replaced while it was open: do not stop its server before you did what \
         `floodgate doctor` says",
    )
}

/// Rejects a read-only file, even if this user could write it.
pub(super) fn check_writable(path: &Path) -> Result<(), Error> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.permissions().readonly()) {
        return refuse(path, "is read-only: make it writable for this user");
    }
    Ok(())
}

/// Rejects an empty file. `SQLite` takes it for a new database, and deletes a log beside it.
pub(super) fn check_not_empty(path: &Path) -> Result<(), Error> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() == 0) {
        return refuse(
            path,
            "is empty: it lost its contents (a new ledger is never empty); restore it from a \
             backup, or delete it if it never held a sale",
        );
    }
    Ok(())
}

/// Rejects a file that is shorter than the database says, unless its log may have the rest.
pub(super) fn check_whole(path: &Path, conn: &mut SqliteConnection) -> Result<(), Error> {
    let expected = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
    let expected = conn.number(expected)?;
    // After the count: without a log now, the file has all pages that were counted.
    if has_log(path) {
        return Ok(());
    }
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() >= expected.unsigned_abs() => Ok(()),
        Ok(metadata) => {
            let bytes = metadata.len();
            refuse(
                path,
                format_args!(
                    "is cut off: it has {bytes} bytes and should have {expected}; restore it from \
                     a backup, and look for a full or failing disk"
                ),
            )
        }
        Err(error) => refuse(path, format_args!("cannot be read: {error}")),
    }
}

/// Creates a ledger under a temporary name and renames it when it is complete, so that a file at
/// `path` is never incomplete. Returns the applied migrations.
pub(super) fn create(path: &Path, options: &OpenOptions) -> Result<Vec<String>, Error> {
    let temporary = with_suffix(path, ".new");
    let (journal, log) = (with_suffix(&temporary, "-journal"), with_suffix(&temporary, "-wal"));
    for leftover in [&temporary, &journal, &log] {
        // Left by a start that crashed here; if the removal fails, the next step reports it.
        fs::remove_file(leftover).ok();
    }
    // Made here, not by the database: its log and its shared memory get the mode of the file.
    let made = File::options().write(true).create_new(true).mode(OWNER_ONLY).open(&temporary);
    made.or_else(|error| {
        cannot_open(format!("the new ledger {} cannot be made: {error}", temporary.display()))
    })?;
    let mut conn = connect(&temporary, ConnectionAccess::Create, options)?;
    let migrated = migrate::run(&mut conn)?;
    drop(conn);
    // Crash here [creating]: only the file under the temporary name exists; the next start creates
    // it anew.
    let renamed = File::open(&temporary)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| File::open(directory(path)))
        .and_then(|directory| directory.sync_all());
    renamed.map(|()| migrated).or_else(|error| {
        cannot_open(format!("the new ledger {} cannot be made: {error}", path.display()))
    })
}
