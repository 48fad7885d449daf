//! Opens a ledger: checks the file, migrates it, and starts the threads.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::r2d2::{ConnectionManager, Pool};

use super::connection::{
    ConnectionAccess, ReaderSetup, Tuning, checkpoint, connect, number_cell, quick_check,
    text_cell, uri,
};
use super::file::{self, InstanceLock, cannot_open};
use crate::db::Error;
use crate::db::migrate::{self, SchemaStatus};
use crate::db::sql::{Database, SqlLedger, WriteMode, WriterFence, WriterThreads};
use crate::db::workers::{Connect, ConnectionSource, Workers};
use crate::runtime::clock::{SharedClock, SystemClock};

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
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            readers: 2,
            job_queue_max: 1024,
            busy_timeout_ms: 5_000,
            job_deadline_ms: 10_000,
            cache_kib: 16_384,
            create: true,
            size_max_kib: 0,
            clock: SystemClock::shared(),
        }
    }

    fn tuning(&self) -> Tuning {
        Tuning {
            busy_timeout: Duration::from_millis(self.busy_timeout_ms),
            cache_kib: self.cache_kib,
            size_max_kib: self.size_max_kib,
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
    let (path, tuning) = (&options.path, options.tuning());
    file::check_directory(path)?;
    let lock = InstanceLock::take(path)?;
    let mut migrated = Vec::new();
    if file::exists(path)? {
        file::check_writable(path)?;
        if !file::has_log(path) {
            file::check_complete(path)?;
        }
    } else if options.create {
        migrated = file::create(path, &tuning)?;
    } else {
        return cannot_open(format!(
            "there is no ledger at {}: correct ledger.url, or start `floodgate serve`, which makes \
             one",
            path.display()
        ));
    }
    let mut conn = connect(path, ConnectionAccess::Write, &tuning)?;
    let explain = |error| explain_refusal(path, error);
    migrate::schema_status(&mut conn).map_err(explain)?.check_not_newer()?;
    check_readable(path, &mut conn)?;
    migrated.extend(migrate::run(&mut conn).map_err(explain)?);
    Ok(LockedFile { migrated, conn, lock })
}

impl SqlLedger<SqliteConnection> {
    /// Opens the ledger for writing and brings its schema up to date. Blocks.
    ///
    /// # Errors
    /// `CannotOpen` with the cause and the remedy: missing directory, not a database, truncated or
    /// damaged, not writable, open in another process, schema of a newer program.
    pub fn open(options: &OpenOptions) -> Result<Self, Error> {
        let (path, tuning) = (&options.path, options.tuning());
        let LockedFile { lock, mut conn, migrated } = lock_and_migrate(options)?;
        let fence = WriterFence::take(&mut conn, WriteMode::Exclusive)
            .map_err(|error| explain_refusal(path, error))?;

        let connect: Connect<SqliteConnection> = {
            let (path, tuning) = (path.clone(), tuning.clone());
            Arc::new(move || {
                // Moves the lock into the writer thread, so that it is held until the last write.
                let _held = &lock;
                connect(&path, ConnectionAccess::Write, &tuning)
            })
        };
        let workers = Workers::start(
            vec!["ledger-writer".to_owned()],
            ConnectionSource::<ConnectionManager<_>>::Own { first: Some(conn), connect },
            options.job_queue_max,
            Duration::from_millis(options.job_deadline_ms),
        )?;
        Ok(Self {
            readers: start_readers(options, ConnectionAccess::Read)?,
            writers: Some(WriterThreads { workers, fence }),
            migrated,
            clock: Arc::clone(&options.clock),
        })
    }

    /// Opens the ledger for reading only, also while a server has it open; takes no lock and writes
    /// nothing. Ignores `create`. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, also for an older or newer schema.
    pub fn open_for_reading(options: &OpenOptions) -> Result<Self, Error> {
        Self::schema_status(options)?.check_current()?;
        let readers = start_readers(options, ConnectionAccess::ReadOnly)?;
        let clock = Arc::clone(&options.clock);
        Ok(Self { readers, writers: None, migrated: Vec::new(), clock })
    }

    /// Brings the schema up to date, closes the file, and returns the applied migrations by full
    /// name. Blocks.
    pub fn migrate(options: &OpenOptions) -> Result<Vec<String>, Error> {
        lock_and_migrate(options).map(|file| file.migrated)
    }

    /// Compares the schema of an existing ledger with this program's. Read-only. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, as [`Self::open`]; a newer schema is not an error here.
    pub fn schema_status(options: &OpenOptions) -> Result<SchemaStatus, Error> {
        let path = &options.path;
        if !file::exists(path)? {
            return cannot_open(format!(
                "there is no ledger at {}: correct ledger.url",
                path.display()
            ));
        }
        if !file::has_log(path) {
            file::check_complete(path)?;
        }
        let mut conn = connect(path, ConnectionAccess::ReadOnly, &options.tuning())?;
        migrate::schema_status(&mut conn).map_err(|error| explain_refusal(path, error))
    }

    /// Checks every page of the file for damage, also while a server has it open; opening reads
    /// only the start of each table. Takes about 0.4 s per million orders, plus the time to read
    /// the file if it is not cached. Blocks.
    ///
    /// # Errors
    /// `CannotOpen` with the damage.
    pub fn check_pages(options: &OpenOptions) -> Result<(), Error> {
        Self::schema_status(options)?;
        let path = &options.path;
        let mut conn = connect(path, ConnectionAccess::ReadOnly, &options.tuning())?;
        let found =
            quick_check(&mut conn).map_err(|error| file::explain(path, &error.to_string()))?;
        if found == "ok" {
            Ok(())
        } else {
            Err(file::explain(path, &format!("malformed: {found}")))
        }
    }
}

fn start_readers(
    options: &OpenOptions,
    access: ConnectionAccess,
) -> Result<Workers<SqliteConnection>, Error> {
    let readers = options.readers.max(1);
    let pool = Pool::builder()
        .max_size(u32::try_from(readers).unwrap_or(u32::MAX))
        .connection_timeout(Duration::from_millis(options.job_deadline_ms.max(1)))
        // Connections to a file do not break: a test would cost a statement per job.
        .test_on_check_out(false)
        .connection_customizer(Box::new(ReaderSetup(access, options.tuning())))
        .build(ConnectionManager::new(uri(&options.path, access)?));
    let pool = pool.or_else(|error| {
        let path = options.path.display();
        cannot_open(format!("the ledger {path} cannot be opened for reading: {error}"))
    })?;
    Workers::start(
        (0..readers).map(|number| format!("ledger-reader-{number}")).collect(),
        ConnectionSource::Pool(pool),
        options.job_queue_max,
        Duration::from_millis(options.job_deadline_ms),
    )
}

/// Enables the write-ahead log, checkpoints the log of the previous run, and reads the first row of
/// every table.
fn check_readable(path: &Path, conn: &mut SqliteConnection) -> Result<(), Error> {
    let explain = |error: diesel::result::Error| file::explain(path, &error.to_string());
    conn.batch_execute("PRAGMA journal_mode = WAL").map_err(explain)?;
    let mode = text_cell(conn, "SELECT journal_mode AS cell FROM pragma_journal_mode");
    if mode.map_err(explain)? != "wal" {
        return cannot_open(format!(
            "the ledger {} cannot keep a write-ahead log: it needs a local file system",
            path.display()
        ));
    }
    if checkpoint(conn).map_err(explain)? {
        file::check_complete(path)?;
    }
    for table in migrate::TABLES {
        if conn.has_table(table).map_err(explain)? {
            let sql = format!("SELECT COUNT(*) AS cell FROM (SELECT 1 FROM {table} LIMIT 1)");
            number_cell(conn, &sql).map_err(explain)?;
        }
    }
    Ok(())
}

/// Adds the remedy to an error of the database; other errors contain theirs.
fn explain_refusal(path: &Path, error: Error) -> Error {
    match error {
        Error::Refused { source, .. } => file::explain(path, &source.to_string()),
        other => other,
    }
}
