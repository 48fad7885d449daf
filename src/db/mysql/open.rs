//! Opens a ledger and explains what prevents it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use r2d2::Pool;

use super::client::{MysqlConnection, connect};
use super::pool::{Manager, pool};
use super::session::{Session, SessionAccess};
use crate::db::Error;
use crate::db::migrate::{self, SchemaStatus};
use crate::db::sql::{Database, SqlLedger, TimeoutClass, WriteMode, WriterFence, WriterThreads};
use crate::db::workers::{ConnectionSource, Workers};
use crate::runtime::clock::{SharedClock, SystemClock};

/// How to open a ledger.
#[derive(Clone)]
pub struct MysqlOptions {
    /// `mysql://user:password@host:port/database`. Contains a password: must not be displayed.
    pub url: String,
    /// Number of writer threads.
    pub writers: usize,
    /// Number of reader threads.
    pub readers: usize,
    /// Maximum number of queued jobs, for writers and readers each.
    pub job_queue_max: usize,
    /// How long the caller of a job waits, milliseconds. A scan has no such limit while the server
    /// answers its statements.
    pub job_deadline_ms: u64,
    /// How long a statement waits for a row lock, seconds, at least 1.
    pub lock_wait_timeout_s: u64,
    /// Limit of a statement on the server, milliseconds.
    pub statement_timeout_ms: u64,
    /// Limit of an audit's statement, milliseconds: some statements read a whole SKU before they
    /// return. Also the wait for another process that migrates.
    pub audit_timeout_ms: u64,
    /// Limit of opening a connection, milliseconds.
    pub connect_timeout_ms: u64,
    /// Which other processes may write. Opening as `Exclusive` fences every other process; opening
    /// as `Shared` fences an exclusive one.
    pub writing: WriteMode,
    /// Timestamps the rows.
    pub clock: SharedClock,
}

impl MysqlOptions {
    /// The defaults of a server.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            writers: 4,
            readers: 2,
            job_queue_max: 1024,
            job_deadline_ms: 10_000,
            lock_wait_timeout_s: 5,
            statement_timeout_ms: 5_000,
            audit_timeout_ms: 60_000,
            connect_timeout_ms: 2_000,
            writing: WriteMode::Shared,
            clock: SystemClock::shared(),
        }
    }
}

fn check_and_migrate(session: &Arc<Session>) -> Result<(MysqlConnection, Vec<String>), Error> {
    let mut conn = connect(session)?;
    let migrated = conn.run_limited(TimeoutClass::Scan, |conn| {
        reject_foreign_tables(conn)?;
        migrate::run(conn)
    })?;
    Ok((conn, migrated))
}

/// Rejects a database in which another program created tables with our names.
fn reject_foreign_tables(conn: &mut MysqlConnection) -> Result<(), Error> {
    for table in migrate::TABLES {
        // In this order, because another process may be migrating: the table of the migrations is
        // created before every other table.
        if conn.has_table(table)? && !conn.has_table("__diesel_schema_migrations")? {
            let reason = format!(
                "the database has a table `{table}` of another program: give floodgate a database \
                 of its own"
            );
            return Err(Error::CannotOpen { reason });
        }
    }
    Ok(())
}

impl SqlLedger<MysqlConnection> {
    /// Opens the ledger for writing and brings its schema up to date. Blocks.
    ///
    /// # Errors
    /// `CannotOpen` with the cause and the remedy: server unreachable, unknown user or database,
    /// missing privileges, tables of another program, schema of a newer program.
    pub fn open(options: &MysqlOptions) -> Result<Self, Error> {
        let session = Session::new(options, SessionAccess::Write)?;
        on_own_thread(&session, || {
            let (mut conn, migrated) = check_and_migrate(&session)?;
            let take = |conn: &mut MysqlConnection| WriterFence::take(conn, options.writing);
            let fence = conn.run_limited(TimeoutClass::Caller, take)?;
            let (writers, readers) = (options.writers.max(1), options.readers.max(1));
            // One pool for all threads: each borrows at most one connection at a time.
            let pool = pool(&session, writers + readers);
            let workers = start(options, "ledger-writer", writers, &pool)?;
            let readers = start(options, "ledger-reader", readers, &pool)?;
            let clock = Arc::clone(&options.clock);
            Ok(Self { readers, writers: Some(WriterThreads { workers, fence }), migrated, clock })
        })
    }

    /// Opens the ledger for reading only; the server rejects writes of its sessions. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, also for an older or newer schema.
    pub fn open_for_reading(options: &MysqlOptions) -> Result<Self, Error> {
        Self::schema_status(options)?.check_current()?;
        let readers = options.readers.max(1);
        let pool = pool(&Session::new(options, SessionAccess::Read)?, readers);
        let readers = start(options, "ledger-reader", readers, &pool)?;
        let clock = Arc::clone(&options.clock);
        Ok(Self { readers, writers: None, migrated: Vec::new(), clock })
    }

    /// Brings the schema up to date and returns the applied migrations by full name. Blocks.
    pub fn migrate(options: &MysqlOptions) -> Result<Vec<String>, Error> {
        let session = Session::new(options, SessionAccess::Write)?;
        on_own_thread(&session, || check_and_migrate(&session).map(|(_, migrated)| migrated))
    }

    /// Compares the schema with this program's. Read-only. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, as [`Self::open`]; a newer schema is not an error here.
    pub fn schema_status(options: &MysqlOptions) -> Result<SchemaStatus, Error> {
        let session = Session::new(options, SessionAccess::Read)?;
        on_own_thread(&session, || {
            connect(&session)?.run_limited(TimeoutClass::Caller, migrate::schema_status)
        })
    }
}

fn start(
    options: &MysqlOptions,
    name: &str,
    threads: usize,
    pool: &Pool<Manager>,
) -> Result<Workers<MysqlConnection>, Error> {
    Workers::start(
        (0..threads).map(|number| format!("{name}-{number}")).collect(),
        ConnectionSource::Pool(pool.clone()),
        options.job_queue_max,
        Duration::from_millis(options.job_deadline_ms),
    )
}

/// Runs a job on its own thread, because a connection cannot be used on a thread of an asynchronous
/// runtime. Adds the address and the remedy to its error.
pub(super) fn on_own_thread<T: Send>(
    session: &Session,
    job: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let result = thread::scope(|scope| {
        let thread = thread::Builder::new().name("ledger-opening".to_owned());
        let Ok(running) = thread.spawn_scoped(scope, job) else {
            return cannot_open("no thread from the operating system: raise the thread limit");
        };
        running.join().unwrap_or_else(|_payload| cannot_open("opening it panicked"))
    });
    result.map_err(|error| explain(&session.address, error))
}

fn cannot_open<T>(reason: &str) -> Result<T, Error> {
    Err(Error::CannotOpen { reason: reason.to_owned() })
}

/// Adds the address and the remedy to an error of the server or the network while opening.
fn explain(address: &str, error: Error) -> Error {
    let message = match error {
        Error::Refused { source, .. } | Error::NotConfirmed { source, .. } => source.to_string(),
        Error::NoConnection { reason } | Error::CannotOpen { reason } => reason,
        other => return other,
    };
    let has = |text: &str| message.contains(text);
    let remedy = if has("to database") {
        "grant this user all rights on it: GRANT ALL ON database.* TO user"
    } else if has("Access denied") {
        "correct the user or the password in ledger.url"
    } else if has("Unknown database") {
        "create it: CREATE DATABASE name CHARACTER SET utf8mb4"
    } else if has("Too many connections") || has("max_user_connections") {
        "raise max_connections of the server, or lower ledger.writers and ledger.readers"
    } else if has("read-only") || has("READ ONLY") {
        "the server takes no writes: point ledger.url at the primary"
    } else if has("Connection refused") || has("no answer") || has("in time") || has("lookup") {
        "check that the server runs and no firewall blocks it, or correct ledger.url"
    } else if has("command denied") {
        "grant this user all rights on the database: GRANT ALL ON database.* TO user"
    } else {
        return Error::CannotOpen { reason: format!("the ledger {address}: {message}") };
    };
    Error::CannotOpen { reason: format!("the ledger {address}: {message}; {remedy}") }
}
