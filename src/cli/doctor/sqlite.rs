//! Checks of a SQLite ledger: its directory and disk, its file, its lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::time::Duration;

use super::{Check, ms};
use crate::config::Settings;
use crate::runtime::clock::now_monotonic;
use crate::tier;

const MIB: u64 = 1024 * 1024;
/// Below this the write-ahead log of a busy sale may not fit: a failure.
const FREE_MIN: u64 = 100 * MIB;
/// Below this: a warning.
const FREE_COMFORTABLE: u64 = 1024 * MIB;

/// Measured writes: enough for a stable median, few enough for a slow disk.
const SYNCS: usize = 20;
/// One page of the ledger.
const BLOCK: [u8; 4096] = [0; 4096];
/// Above this the disk noticeably delays each group commit.
const SYNC_COMFORTABLE: Duration = Duration::from_millis(10);

/// The first bytes of every SQLite file (SQLite file format, section 1.3.1).
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

const NOT_ALLOWED: &str = "let the user that runs floodgate read and write it";

/// `ledger_answers`: the server at `internal.bind`, if one runs there.
pub(super) fn examine(settings: &Settings, ledger_answers: Option<bool>) -> Vec<Check> {
    let Some(file) = settings.ledger.sqlite_path() else {
        // Another kind of ledger has its own checks; a bad URL is a fault of the configuration.
        return Vec::new();
    };
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut checks = disk(directory.unwrap_or(Path::new(".")));
    checks.push(content(settings, file, ledger_answers));
    // The process that owns the ledger locks this file.
    checks.push(lock(&file.with_added_extension("lock"), ledger_answers.is_some()));
    checks
}

fn disk(directory: &Path) -> Vec<Check> {
    let (name, shown) = ("ledger directory", directory.display());
    let probe = tempfile::Builder::new().prefix(".floodgate-doctor-").tempfile_in(directory);
    match probe {
        Ok(probe) => {
            let disk = rustix::fs::statvfs(directory).map_err(io::Error::from);
            vec![
                check! { name; Ok "{shown} is writable" },
                free_space(disk.map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize))),
                commit_latency(median_sync(probe.as_file(), SYNCS)),
            ]
        }
        Err(error) => vec![check! { name;
            error.kind() == ErrorKind::NotFound => Fail "{shown} does not exist"
                -> "mkdir -p {shown}, or change ledger.url";
            else => Fail "cannot write into {shown}: {error}"
                -> "let the user that runs floodgate write there, or change ledger.url"
        }],
    }
}

fn free_space(free: io::Result<u64>) -> Check {
    let name = "free space";
    let free = match free {
        Ok(free) => free,
        Err(error) => {
            return check! { name;
                Warn "cannot be read: {error}" -> "check the ledger's directory with `df`"
            };
        }
    };
    let mib = free / MIB;
    let remedy = "free space on the ledger's disk, or move the ledger (ledger.url)";
    check! { name;
        free < FREE_MIN => Fail "{mib} MiB" -> "{remedy}";
        free < FREE_COMFORTABLE => Warn "{mib} MiB" -> "{remedy}";
        else => Ok "{mib} MiB"
    }
}

fn commit_latency(median: io::Result<Duration>) -> Check {
    let name = "commit latency";
    let median = match median {
        Ok(median) => median,
        Err(error) => {
            return check! { name;
                Fail "writing and syncing failed: {error}"
                -> "check the disk and its file system (dmesg)"
            };
        }
    };
    let took_ms = ms(median);
    check! { name;
        median > SYNC_COMFORTABLE => Warn "fdatasync takes {took_ms:.2} ms (median)"
            -> "buyers wait for it at each commit: use a local SSD for the ledger";
        else => Ok "fdatasync takes {took_ms:.2} ms (median)"
    }
}

/// Median time of `syncs` appends of one page, each with `fdatasync`.
pub fn median_sync(mut file: &File, syncs: usize) -> io::Result<Duration> {
    let mut taken = Vec::with_capacity(syncs);
    for _ in 0..syncs {
        let start = now_monotonic();
        file.write_all(&BLOCK)?;
        file.sync_data()?;
        taken.push(now_monotonic().saturating_duration_since(start));
    }
    taken.sort_unstable();
    taken.get(syncs / 2).copied().ok_or_else(|| io::Error::other("nothing was measured"))
}

fn content(settings: &Settings, file: &Path, ledger_answers: Option<bool>) -> Check {
    let (name, shown) = ("ledger file", file.display());
    if let Err(error) = tier::check_ledger_path(settings) {
        return check! { name; Fail "{error}" -> "do what the message says" };
    }
    let mut head = Vec::new();
    let opened = OpenOptions::new().read(true).write(true).open(file);
    match opened.and_then(|open| open.take(16).read_to_end(&mut head)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return missing(file, ledger_answers),
        Err(error) => {
            return check! { name; Fail "{shown} cannot be opened: {error}" -> "{NOT_ALLOWED}" };
        }
        Ok(_) => {}
    }
    let no_ledger = check! { name;
        // `serve` never leaves an empty file: a new ledger is renamed to its path when complete.
        head.is_empty() => Fail "{shown} is empty: it lost its contents"
            -> "restore it from a backup, or delete it if it never held a sale";
        head != MAGIC => Fail "{shown} is not a SQLite database"
            -> "point ledger.url to the ledger, or restore the file from a backup";
    };
    if no_ledger.is_some() {
        return no_ledger;
    }
    let read = tier::pending_migrations(settings).and_then(|pending| match pending {
        // A corrupt page would otherwise be found during the sale.
        Some(pending) if pending.is_empty() => {
            tier::check_ledger_pages(settings).map(|()| Some(pending))
        }
        pending => Ok(pending),
    });
    let read = read.map(|pending| pending.map(|names| names.join(", ")));
    check! { name;
        let Err(error) = &read =>
            Fail "{error}" -> "do what the message says; copy the file before any repair";
        let Ok(None) = &read => Ok "{shown} has no tables yet; serve creates them";
        let Some(names) = read.ok().flatten().filter(|names| !names.is_empty()) =>
            Fail "{shown} lacks migrations: {names}"
            -> "back the file up, then run `floodgate migrate`";
        else => Ok "{shown} opens, its schema is current, and every page can be read"
    }
}

/// The finding where no file is at the ledger's path.
fn missing(file: &Path, ledger_answers: Option<bool>) -> Check {
    let (shown, elsewhere) = (file.display(), elsewhere(file));
    let lock = file.with_added_extension("lock");
    let remedy = "do not stop the server: only it has the orders; it takes no more. Copy file and \
                  -wal from /proc/PID/fd (PID: `ss -ltnp`); `floodgate audit \
                  --set ledger.url=sqlite://COPY --set internal.bind=127.0.0.1:1`; then stop, put \
                  the copies in place, start";
    check! { "ledger file";
        matches!(try_lock(&lock), Ok(Err(TryLockError::WouldBlock))) =>
            Fail "{shown} is deleted, and a process still works on it" -> "{remedy}";
        ledger_answers == Some(false) =>
            Fail "{shown} is missing, and the ledger of the server at internal.bind does not \
                  answer: its file was deleted, or it is another one"
            -> "{remedy}";
        ledger_answers.is_some() =>
            Warn "{shown} is missing, and a server runs at internal.bind" -> "{elsewhere}";
        else => Ok "{shown} does not exist yet; serve creates it"
    }
}

/// The remedy where a server runs whose ledger is not at this path.
fn elsewhere(path: &Path) -> &'static str {
    if path.is_relative() {
        "the path is relative to this folder: run it in the server's working directory"
    } else {
        "give this command the configuration of that server"
    }
}

/// Takes the lock and releases it at once.
fn try_lock(path: &Path) -> io::Result<Result<(), TryLockError>> {
    File::open(path).map(|file| file.try_lock())
}

fn lock(path: &Path, running: bool) -> Check {
    let (locked, shown, elsewhere) = (try_lock(path), path.display(), elsewhere(path));
    let free = match &locked {
        Err(error) if error.kind() == ErrorKind::NotFound => Some("no process has ever held it"),
        Ok(Ok(())) => Some("no process holds it"),
        _ => None,
    };
    let is_held = matches!(locked, Ok(Err(TryLockError::WouldBlock)));
    check! { "ledger lock";
        let Some(detail) = free.filter(|_| running) =>
            Warn "{detail}: the server at internal.bind has another ledger, or the lock was deleted"
            -> "{elsewhere}";
        let Some(detail) = free => Ok "{detail}";
        is_held && running => Ok "held by the running server";
        is_held =>
            Fail "another process holds {shown}, and no server answers at internal.bind"
            -> "find it with `fuser {shown}`; one ledger has one server";
        let Err(error) = &locked => Fail "{shown} cannot be opened: {error}" -> "{NOT_ALLOWED}";
        let Ok(Err(TryLockError::Error(error))) = &locked =>
            Fail "{shown} cannot be locked: {error}"
            -> "keep the ledger on a local disk: locks do not work on every network file system";
    }
}

#[cfg(test)]
#[path = "sqlite_tests.rs"]
mod tests;
