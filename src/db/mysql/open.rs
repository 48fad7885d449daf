//! How a ledger is opened, and what is refused.

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
    /// `mysql://user:password@host:port/database`. Holds a password: not to be shown.
    pub url: String,
    /// Threads that write.
    pub writers: usize,
    /// Threads that read.
    pub readers: usize,
    /// Jobs that may wait for a thread, of each kind.
    pub job_queue_max: usize,
    /// After how long a job without an answer is given up, milliseconds. Scans have no limit as
    /// long as the server goes on answering.
    pub job_deadline_ms: u64,
    /// How long a statement waits for a row that another connection holds, seconds, at least 1.
    pub lock_wait_timeout_s: u64,
    /// How long a statement may take on the server, milliseconds.
    pub statement_timeout_ms: u64,
    /// How long a statement of an audit may take, milliseconds: some read a whole SKU before they
    /// answer. Also how long a start waits for another process that migrates.
    pub audit_timeout_ms: u64,
    /// How long making a connection may take, milliseconds.
    pub connect_timeout_ms: u64,
    /// Who else may write: the latest opening decides. Of processes that open it as `Exclusive`
    /// the last one writes; those that share it, and those that do not, end each other.
    pub writing: WriteMode,
    /// The time of rows.
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

/// Connects, checks and migrates.
fn prepare(session: &Arc<Session>) -> Result<(MysqlConnection, Vec<String>), Error> {
    let mut conn = connect(session)?;
    let migrated = conn.attend(TimeoutClass::Scan, |conn| {
        refuse_foreign_tables(conn)?;
        migrate::run(conn)
    })?;
    Ok((conn, migrated))
}

/// A database with tables of these names that no migration made is somebody else's.
fn refuse_foreign_tables(conn: &mut MysqlConnection) -> Result<(), Error> {
    for table in migrate::TABLES {
        // In this order: another process may be migrating, and then the list of migrations is there
        // before the first table.
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
    /// `CannotOpen` with the reason and the remedy: nobody listens, no such user or database, no
    /// right to it, tables of another program, schema of a newer program.
    pub fn open(options: &MysqlOptions) -> Result<Self, Error> {
        let session = Session::new(options, SessionAccess::Write)?;
        apart(&session, || {
            let (mut conn, migrated) = prepare(&session)?;
            let take = |conn: &mut MysqlConnection| WriterFence::take(conn, options.writing);
            let fence = conn.attend(TimeoutClass::Caller, take)?;
            let (writers, readers) = (options.writers.max(1), options.readers.max(1));
            // One pool for all: a thread has at most one connection at a time.
            let pool = pool(&session, writers + readers);
            let workers = start(options, "ledger-writer", writers, &pool)?;
            let readers = start(options, "ledger-reader", readers, &pool)?;
            let clock = Arc::clone(&options.clock);
            Ok(Self { readers, writers: Some(WriterThreads { workers, fence }), migrated, clock })
        })
    }

    /// Opens the ledger for reading only; its sessions cannot write. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, also when the schema is not the present one.
    pub fn open_for_reading(options: &MysqlOptions) -> Result<Self, Error> {
        Self::schema_standing(options)?.check_current()?;
        let readers = options.readers.max(1);
        let pool = pool(&Session::new(options, SessionAccess::Read)?, readers);
        let readers = start(options, "ledger-reader", readers, &pool)?;
        let clock = Arc::clone(&options.clock);
        Ok(Self { readers, writers: None, migrated: Vec::new(), clock })
    }

    /// Brings the schema up to date; what was applied, by full name. Blocks.
    pub fn migrate(options: &MysqlOptions) -> Result<Vec<String>, Error> {
        let session = Session::new(options, SessionAccess::Write)?;
        apart(&session, || prepare(&session).map(|(_, migrated)| migrated))
    }

    /// How the schema compares with this program's. Changes nothing. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, as [`Self::open`]; a newer schema is not an error here.
    pub fn schema_standing(options: &MysqlOptions) -> Result<SchemaStatus, Error> {
        let session = Session::new(options, SessionAccess::Read)?;
        apart(&session, || connect(&session)?.attend(TimeoutClass::Caller, migrate::standing))
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

/// Runs a job on a thread of its own, because connections cannot be used on one that runs an
/// asynchronous runtime; and says of a failure what can be done about it.
pub(super) fn apart<T: Send>(
    session: &Session,
    job: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let run = thread::scope(|scope| {
        let thread = thread::Builder::new().name("ledger-opening".to_owned());
        let Ok(running) = thread.spawn_scoped(scope, job) else {
            return cannot("the operating system gives no thread: raise the thread limit");
        };
        running.join().unwrap_or_else(|_payload| cannot("opening it panicked"))
    });
    run.map_err(|error| explain(&session.address, error))
}

fn cannot<T>(reason: &str) -> Result<T, Error> {
    Err(Error::CannotOpen { reason: reason.to_owned() })
}

/// What the server or the network said at opening, and what that means to whoever has to mend it.
fn explain(address: &str, error: Error) -> Error {
    let said = match error {
        Error::Refused { source, .. } | Error::NotConfirmed { source, .. } => source.to_string(),
        Error::NoConnection { reason } | Error::CannotOpen { reason } => reason,
        other => return other,
    };
    let is = |needle: &str| said.contains(needle);
    let remedy = if is("to database") {
        "grant this user all rights on it: GRANT ALL ON database.* TO user"
    } else if is("Access denied") {
        "correct the user or the password in ledger.url"
    } else if is("Unknown database") {
        "create it: CREATE DATABASE name CHARACTER SET utf8mb4"
    } else if is("Too many connections") || is("max_user_connections") {
        "raise max_connections of the server, or lower ledger.writers and ledger.readers"
    } else if is("read-only") || is("READ ONLY") {
        "the server takes no writes: point ledger.url at the primary"
    } else if is("Connection refused") || is("no answer") || is("in time") || is("lookup") {
        "look whether the server runs and a firewall lets it be reached, or correct ledger.url"
    } else if is("command denied") {
        "grant this user all rights on the database: GRANT ALL ON database.* TO user"
    } else {
        return Error::CannotOpen { reason: format!("the ledger {address}: {said}") };
    };
    Error::CannotOpen { reason: format!("the ledger {address}: {said}; {remedy}") }
}
