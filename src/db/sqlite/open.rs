//! How a ledger is opened: what is checked, in which order, and what is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::r2d2::{ConnectionManager, Pool};

use super::connection::{
    ConnectionAccess, ReaderSetup, Tuning, connect, fold_log, look_at_pages, number_cell,
    text_cell, uri,
};
use super::file::{self, InstanceLock, cannot};
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
    /// Threads that read; there is always one that writes.
    pub readers: usize,
    /// Jobs that may wait for a thread, of each kind.
    pub job_queue_max: usize,
    /// How long a statement waits for a lock of another program, milliseconds.
    pub busy_timeout_ms: u64,
    /// After how long a job without an answer is given up, milliseconds. Scans have no limit.
    pub job_deadline_ms: u64,
    /// Page cache of each connection, KiB. Bounds the memory of an audit, too.
    pub cache_kib: u32,
    /// Makes the file when it is missing.
    pub create: bool,
    /// Most KiB the file may have: orders are refused at that size as on a full disk. 0: no limit.
    pub size_max_kib: u64,
    /// The time of rows.
    pub clock: SharedClock,
}

impl OpenOptions {
    /// The defaults of a server: creates the file when it is missing.
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

/// A file that is locked, checked and up to date.
struct Prepared {
    migrated: Vec<String>,
    /// Closed before the lock is let go.
    conn: SqliteConnection,
    lock: InstanceLock,
}

/// Locks, checks, and migrates.
fn prepare(options: &OpenOptions) -> Result<Prepared, Error> {
    let (path, tuning) = (&options.path, options.tuning());
    file::check_directory(path)?;
    let lock = InstanceLock::take(path)?;
    let mut migrated = Vec::new();
    if file::is_there(path)? {
        file::check_writable(path)?;
        if !file::has_log(path) {
            file::check_whole(path)?;
        }
    } else if options.create {
        migrated = file::create(path, &tuning)?;
    } else {
        return cannot(format!(
            "there is no ledger at {}: correct ledger.url, or start `floodgate serve`, which makes \
             one",
            path.display()
        ));
    }
    let mut conn = connect(path, ConnectionAccess::Write, &tuning)?;
    let explained = |error| explained(path, error);
    migrate::standing(&mut conn).map_err(explained)?.check_not_newer()?;
    check_readable(path, &mut conn)?;
    migrated.extend(migrate::run(&mut conn).map_err(explained)?);
    Ok(Prepared { migrated, conn, lock })
}

impl SqlLedger<SqliteConnection> {
    /// Opens the ledger for writing and brings its schema up to date. Blocks.
    ///
    /// # Errors
    /// `CannotOpen` with the reason and the remedy: no such directory, not a database, cut off or
    /// damaged, not writable, open in another process, schema of a newer program.
    pub fn open(options: &OpenOptions) -> Result<Self, Error> {
        let (path, tuning) = (&options.path, options.tuning());
        let Prepared { lock, mut conn, migrated } = prepare(options)?;
        let fence = WriterFence::take(&mut conn, WriteMode::Exclusive)
            .map_err(|error| explained(path, error))?;

        let connect: Connect<SqliteConnection> = {
            let (path, tuning) = (path.clone(), tuning.clone());
            Arc::new(move || {
                // The writer's thread owns the lock: it ends after the last write, however it ends.
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

    /// Opens the ledger for reading only, whether a server has it open or not; takes no lock and
    /// writes nothing into it. `create` does not apply. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, also when the schema is not the present one.
    pub fn open_for_reading(options: &OpenOptions) -> Result<Self, Error> {
        Self::schema_standing(options)?.check_current()?;
        let readers = start_readers(options, ConnectionAccess::ReadOnly)?;
        let clock = Arc::clone(&options.clock);
        Ok(Self { readers, writers: None, migrated: Vec::new(), clock })
    }

    /// Brings the schema up to date and lets go of the file again; what was applied, by full name.
    /// Blocks.
    pub fn migrate(options: &OpenOptions) -> Result<Vec<String>, Error> {
        prepare(options).map(|prepared| prepared.migrated)
    }

    /// How the schema of an existing ledger compares with this program's. Changes nothing. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, as [`Self::open`]; a newer schema is not an error here.
    pub fn schema_standing(options: &OpenOptions) -> Result<SchemaStatus, Error> {
        let path = &options.path;
        if !file::is_there(path)? {
            return cannot(format!("there is no ledger at {}: correct ledger.url", path.display()));
        }
        if !file::has_log(path) {
            file::check_whole(path)?;
        }
        let mut conn = connect(path, ConnectionAccess::ReadOnly, &options.tuning())?;
        migrate::standing(&mut conn).map_err(|error| explained(path, error))
    }

    /// Looks at every page of the file, beside a running server or without one, for damage that
    /// opening does not see, which reads only the start of each table. Takes about 0.4 s for each
    /// million orders once the file is in memory, and the time to read it before. Blocks.
    pub fn check_pages(options: &OpenOptions) -> Result<(), Error> {
        Self::schema_standing(options)?;
        let path = &options.path;
        let mut conn = connect(path, ConnectionAccess::ReadOnly, &options.tuning())?;
        let found =
            look_at_pages(&mut conn).map_err(|error| file::explain(path, &error.to_string()))?;
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
        // A file does not hang up: asking first would cost a statement per job.
        .test_on_check_out(false)
        .connection_customizer(Box::new(ReaderSetup(access, options.tuning())))
        .build(ConnectionManager::new(uri(&options.path, access)?));
    let pool = pool.or_else(|error| {
        let path = options.path.display();
        cannot(format!("the ledger {path} cannot be opened for reading: {error}"))
    })?;
    Workers::start(
        (0..readers).map(|number| format!("ledger-reader-{number}")).collect(),
        ConnectionSource::Pool(pool),
        options.job_queue_max,
        Duration::from_millis(options.job_deadline_ms),
    )
}

/// Turns the log on, folds back what the last run left in it, and reads the start of every table.
fn check_readable(path: &Path, conn: &mut SqliteConnection) -> Result<(), Error> {
    let explain = |error: diesel::result::Error| file::explain(path, &error.to_string());
    conn.batch_execute("PRAGMA journal_mode = WAL").map_err(explain)?;
    let mode = text_cell(conn, "SELECT journal_mode AS cell FROM pragma_journal_mode");
    if mode.map_err(explain)? != "wal" {
        return cannot(format!(
            "the ledger {} cannot keep a write-ahead log: it needs a local file system",
            path.display()
        ));
    }
    if fold_log(conn).map_err(explain)? {
        file::check_whole(path)?;
    }
    for table in migrate::TABLES {
        if conn.has_table(table).map_err(explain)? {
            let some = format!("SELECT COUNT(*) AS cell FROM (SELECT 1 FROM {table} LIMIT 1)");
            number_cell(conn, &some).map_err(explain)?;
        }
    }
    Ok(())
}

/// A database's refusal, with what to do about it; other errors say so themselves.
fn explained(path: &Path, error: Error) -> Error {
    match error {
        Error::Refused { source, .. } => file::explain(path, &source.to_string()),
        other => other,
    }
}
