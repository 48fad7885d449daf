//! The ledger in one `SQLite` file.
//!
//! One writer thread and a few reader threads, blocking and separate from the actors. The file is
//! in write-ahead mode, so that readers and the writer do not wait for each other, and every commit
//! is flushed to the disk before its result is returned.
//!
//! On crash: the next start finds exactly the committed transactions. Two processes never write one
//! file: the lock of the first stops the second, and where locks do not work (network file systems)
//! the token taken by the second fences the first.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;

use self::connection::{ConnectionAccess, checkpoint, connect};
use self::file::InstanceLock;
use super::Error;
use super::error::cannot_open;
use super::migrate::{self, SchemaStatus};
use super::sql::{Queries, SqlLedger, WriteMode, WriterFence};
use super::workers::{Connector, Workers};
use crate::runtime::clock::{SharedClock, SystemClock};

mod connection;
mod database;
mod file;

/// A ledger in one `SQLite` file.
pub type SqliteLedger = SqlLedger<SqliteConnection>;

/// How to open a ledger.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// The database file.
    pub path: PathBuf,
    /// Number of reader threads, besides the one writer thread.
    pub readers: usize,
    /// Maximum number of queued jobs, for the writer and the readers each.
    pub job_queue_max: usize,
    /// How long a statement waits for a lock of another program, milliseconds.
    pub busy_timeout_ms: u64,
    /// How long the caller of a job waits, milliseconds. Scans have no limit.
    pub job_deadline_ms: u64,
    /// Page cache of each connection, KiB. Also limits the memory of an audit.
    pub cache_kib: u32,
    /// Create a missing file.
    pub create: bool,
    /// Maximum size of the file, KiB; at that size writes fail as on a full disk. 0: no limit.
    pub size_max_kib: u64,
    /// Timestamps the rows.
    pub clock: SharedClock,
}

impl OpenOptions {
    /// The defaults of a server; creates a missing file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            readers: 3,
            job_queue_max: 1024,
            busy_timeout_ms: 5_000,
            job_deadline_ms: 10_000,
            cache_kib: 16_384,
            create: true,
            size_max_kib: 0,
            clock: SystemClock::shared(),
        }
    }
}

/// A locked, checked and migrated file.
struct LockedFile {
    migrated: Vec<String>,
    /// Declared before `lock`, so that the connection is closed before the lock is released.
    conn: SqliteConnection,
    lock: InstanceLock,
}

fn lock_and_migrate(options: &OpenOptions) -> Result<LockedFile, Error> {
    let path = &options.path;
    file::check_directory(path)?;
    let lock = InstanceLock::take(path)?;
    let mut migrated = Vec::new();
    if file::exists(path)? {
        file::check_writable(path)?;
        file::check_not_empty(path)?;
        if !file::has_log(path) {
            SqliteLedger::schema_status(options)?;
        }
    } else if options.create {
        migrated = file::create(path, options)?;
    } else {
        return cannot_open(format!(
            "there is no ledger at {}: correct ledger.url, or start `floodgate serve`, which makes \
             one",
            path.display()
        ));
    }
    let mut conn = connect(path, ConnectionAccess::Write, options)?;
    let checked = check_and_migrate(path, &mut conn);
    migrated.extend(checked.map_err(|error| explain_refusal(path, error))?);
    Ok(LockedFile { migrated, conn, lock })
}

fn check_and_migrate(path: &Path, conn: &mut SqliteConnection) -> Result<Vec<String>, Error> {
    check_is_ledger(path, conn)?;
    migrate::schema_status(conn)?.check_not_newer()?;
    check_readable(path, conn)?;
    migrate::run(conn)
}

/// Rejects the database of another program by the tables in it.
fn check_is_ledger(path: &Path, conn: &mut SqliteConnection) -> Result<(), Error> {
    if conn.has_table(migrate::MIGRATIONS)? {
        return Ok(());
    }
    let tables = "SELECT coalesce(group_concat(name, ', '), 'none') FROM (SELECT name FROM \
                  sqlite_master WHERE type = 'table' ORDER BY name LIMIT 5)";
    let tables = conn.text(tables)?;
    cannot_open(format!(
        "{} is no ledger but a SQLite database of another program (tables: {tables}): set \
         ledger.url to the path of the ledger; nothing in that database was changed",
        path.display()
    ))
}

impl SqlLedger<SqliteConnection> {
    /// Opens the ledger for writing and brings its schema up to date. Blocks.
    ///
    /// # Errors
    /// `CannotOpen` also for a file that is damaged, open elsewhere, or of a newer program.
    pub fn open(options: &OpenOptions) -> Result<Self, Error> {
        let LockedFile { lock, mut conn, .. } = lock_and_migrate(options)?;
        let fence = WriterFence::take(&mut conn, WriteMode::Exclusive)
            .map_err(|error| explain_refusal(&options.path, error))?;
        let name = vec!["ledger-writer".to_owned()];
        let writers = start(options, name, ConnectionAccess::Write, conn, Some(lock))?;
        let readers = start_readers(options, ConnectionAccess::Read)?;
        Ok(Self::new(readers, options.readers, Some((writers, fence)), &options.clock))
    }

    /// Opens the ledger for reading only, also while a server has it open; takes no lock and writes
    /// nothing. Ignores `create`. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, also for an older or newer schema.
    pub fn open_for_reading(options: &OpenOptions) -> Result<Self, Error> {
        Self::schema_status(options)?.check_current()?;
        let readers = start_readers(options, ConnectionAccess::ReadOnly)?;
        Ok(Self::new(readers, options.readers, None, &options.clock))
    }

    /// Brings the schema up to date, closes the file, and returns the applied migrations by full
    /// name. Blocks.
    pub fn migrate(options: &OpenOptions) -> Result<Vec<String>, Error> {
        lock_and_migrate(options).map(|file| file.migrated)
    }

    /// Rejects a path that [`Self::open`] rejects whatever the file has.
    pub fn check_path(options: &OpenOptions) -> Result<(), Error> {
        file::real_path(&options.path).map(drop)
    }

    /// Compares the schema of an existing ledger with this program's. Read-only. Blocks.
    ///
    /// # Errors
    /// A newer schema is no error here; a database without the table of migrations is one.
    pub fn schema_status(options: &OpenOptions) -> Result<SchemaStatus, Error> {
        let path = &options.path;
        if !file::exists(path)? {
            return cannot_open(format!(
                "there is no ledger at {}: correct ledger.url",
                path.display()
            ));
        }
        file::check_not_empty(path)?;
        let mut conn = connect(path, ConnectionAccess::ReadOnly, options)?;
        let status = file::check_whole(path, &mut conn)
            .and_then(|()| check_is_ledger(path, &mut conn))
            .and_then(|()| migrate::schema_status(&mut conn));
        status.map_err(|error| explain_refusal(path, error))
    }

    /// Checks every page of the file for damage, also while a server has it open; opening reads
    /// only the start of each table. Takes about 0.4 s per million orders, plus the time to read
    /// the file if it is not cached. Blocks.
    pub fn check_pages(options: &OpenOptions) -> Result<(), Error> {
        Self::schema_status(options)?;
        let path = &options.path;
        let mut conn = connect(path, ConnectionAccess::ReadOnly, options)?;
        // `ok`, or the first damage found.
        let found = conn.text("PRAGMA quick_check(1)");
        let found = found.map_err(|error| file::explain(path, error))?;
        if found == "ok" {
            Ok(())
        } else {
            Err(file::explain(path, format_args!("malformed: {found}")))
        }
    }
}

fn start_readers(
    options: &OpenOptions,
    access: ConnectionAccess,
) -> Result<Workers<SqliteConnection>, Error> {
    let names = (0..options.readers.max(1)).map(|number| format!("ledger-reader-{number}"));
    let first = connect(&options.path, access, options)?;
    start(options, names.collect(), access, first, None)
}

fn start(
    options: &OpenOptions,
    names: Vec<String>,
    access: ConnectionAccess,
    first: SqliteConnection,
    lock: Option<InstanceLock>,
) -> Result<Workers<SqliteConnection>, Error> {
    let connected = options.clone();
    let connect = Box::new(move || {
        // Moves the lock into the writer thread, so that it is held until the last write.
        let _held = &lock;
        connect(&connected.path, access, &connected)
    });
    let (path, opened) = (options.path.clone(), file::identity(&options.path));
    let check = Box::new(move || file::check_present(&path, opened));
    // A connection to a file stays valid: a test would cost a statement per job.
    let (is_valid, idle_max, outages) = (|_: &mut _| true, Duration::MAX, Arc::default());
    let connector = Connector { connect, check, is_valid, idle_max, outages };
    let deadline = Duration::from_millis(options.job_deadline_ms);
    Workers::start(names, Some(first), connector, options.job_queue_max, deadline)
}

/// Enables the write-ahead log, checkpoints the log of the previous run, and reads the first row of
/// every table.
fn check_readable(path: &Path, conn: &mut SqliteConnection) -> Result<(), Error> {
    conn.batch_execute("PRAGMA journal_mode = WAL")?;
    if conn.text("PRAGMA journal_mode")? != "wal" {
        return cannot_open(format!(
            "the ledger {} cannot keep a write-ahead log: it needs a local file system",
            path.display()
        ));
    }
    checkpoint(conn)?;
    file::check_whole(path, conn)?;
    for table in migrate::TABLES {
        if conn.has_table(table)? {
            let sql = format!("SELECT COUNT(*) FROM (SELECT 1 FROM {table} LIMIT 1)");
            conn.number(&sql)?;
        }
    }
    Ok(())
}

/// Adds the remedy to an error of the database; other errors contain theirs.
fn explain_refusal(path: &Path, error: Error) -> Error {
    match error {
        Error::Refused { source, .. } => file::explain(path, source),
        other => other,
    }
}

#[cfg(test)]
mod durability_tests;
