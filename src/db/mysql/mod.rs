//! The ledger in MySQL or MariaDB.
//!
//! A few writer and reader threads, blocking and separate from the actors, have a connection each.
//! Any number of processes may write one ledger if all of them open it as `Shared`: rows
//! are locked in key order, and the row of the stock, which every batch updates, is locked last and
//! therefore for the shortest time.
//!
//! On crash: the server rolls back uncommitted transactions, at the latest when the connection was
//! idle for longer than the limit of a job.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use self::client::connect;
use self::database::is_valid;
use self::session::{Session, SessionAccess};
use super::Error;
use super::error::{cannot_open, explained};
use super::migrate::{self, SchemaStatus};
use super::sql::{Database, Queries, SqlLedger, WriteMode, WriterFence};
use super::workers::{Connector, Workers};
use crate::net::{self, Trust};
use crate::runtime::clock::{SharedClock, SystemClock};

mod client;
mod database;
pub mod health;
mod session;

pub use self::client::MysqlConnection;

/// A ledger in MySQL or MariaDB.
pub type MysqlLedger = SqlLedger<MysqlConnection>;

/// An unused connection is closed after this time, earlier than servers and firewalls close it.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Remedies of errors of the server or the network while opening.
const REMEDIES: &[(&[&str], &str)] = &[
    (
        &["to database", "command denied"],
        "grant this user all rights on the database: GRANT ALL ON database.* TO user",
    ),
    (&["Access denied"], "correct the user or the password in ledger.url"),
    (&["Unknown database"], "create it: CREATE DATABASE name CHARACTER SET utf8mb4"),
    (
        &["Too many connections", "max_user_connections"],
        "raise max_connections of the server, or lower ledger.writers and ledger.readers",
    ),
    (&["read-only", "READ ONLY"], "the server takes no writes: point ledger.url at the primary"),
    (
        &["Connection refused", "no answer", "in time", "lookup"],
        "check that the server runs and no firewall blocks it, or correct ledger.url",
    ),
];

/// How to open a ledger.
#[derive(Clone)]
pub struct MysqlOptions {
    /// `mysql://user:password@host:port/database`. Contains a password: must not be displayed.
    pub url: String,
    /// Encrypts the connections: the authorities that the server's certificate may have.
    pub trust: Option<Trust>,
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
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            trust: None,
            writers: 4,
            readers: 3,
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

impl SqlLedger<MysqlConnection> {
    /// Opens the ledger for writing and brings its schema up to date. Blocks.
    ///
    /// # Errors
    /// `CannotOpen` also for tables of another program, and for the schema of a newer program.
    pub fn open(options: &MysqlOptions) -> Result<Self, Error> {
        let session = Session::new(options, SessionAccess::Write)?;
        on_own_thread(&session, || {
            let (mut conn, _) = check_and_migrate(&session)?;
            conn.limit_job();
            let fence = WriterFence::take(&mut conn, options.writing)?;
            let writers = start(options, "ledger-writer", options.writers, &session)?;
            let readers = start(options, "ledger-reader", options.readers, &session)?;
            Ok(Self::new(readers, options.readers, Some((writers, fence)), &options.clock))
        })
    }

    /// Opens the ledger for reading only; the server rejects writes of its sessions. Blocks.
    ///
    /// # Errors
    /// `CannotOpen`, also for an older or newer schema.
    pub fn open_for_reading(options: &MysqlOptions) -> Result<Self, Error> {
        Self::schema_status(options)?.check_current()?;
        let session = Session::new(options, SessionAccess::Read)?;
        let readers = start(options, "ledger-reader", options.readers, &session)?;
        Ok(Self::new(readers, options.readers, None, &options.clock))
    }

    /// Brings the schema up to date and returns the applied migrations by full name. Blocks.
    pub fn migrate(options: &MysqlOptions) -> Result<Vec<String>, Error> {
        let session = Session::new(options, SessionAccess::Write)?;
        on_own_thread(&session, || check_and_migrate(&session).map(|(_, migrated)| migrated))
    }

    /// Compares the schema with this program's. Read-only. Blocks.
    ///
    /// # Errors
    /// A newer schema is no error here.
    pub fn schema_status(options: &MysqlOptions) -> Result<SchemaStatus, Error> {
        let session = Session::new(options, SessionAccess::Read)?;
        on_own_thread(&session, || {
            let mut conn = connect(&session)?;
            conn.limit_job();
            migrate::schema_status(&mut conn)
        })
    }
}

/// Connects, and brings the schema up to date; returns the applied migrations by full name.
fn check_and_migrate(session: &Arc<Session>) -> Result<(MysqlConnection, Vec<String>), Error> {
    let mut conn = connect(session)?;
    conn.limit_statements();
    reject_foreign_tables(&mut conn)?;
    let migrated = migrate::run(&mut conn)?;
    Ok((conn, migrated))
}

/// Rejects a database in which another program created tables with our names.
fn reject_foreign_tables(conn: &mut MysqlConnection) -> Result<(), Error> {
    for table in migrate::TABLES {
        // In this order, because another process may be migrating.
        if conn.has_table(table)? && !conn.has_table(migrate::MIGRATIONS)? {
            return cannot_open(format!(
                "the database has a table `{table}` of another program: give floodgate a database \
                 of its own"
            ));
        }
    }
    Ok(())
}

fn start(
    options: &MysqlOptions,
    name: &str,
    threads: usize,
    session: &Arc<Session>,
) -> Result<Workers<MysqlConnection>, Error> {
    let names = (0..threads.max(1)).map(|number| format!("{name}-{number}")).collect();
    let (session, outages) = (Arc::clone(session), Arc::clone(&session.outages));
    let connect = Box::new(move || connect(&session));
    let check = Box::new(|| Ok(()));
    let connector = Connector { connect, check, is_valid, idle_max: IDLE_MAX, outages };
    let deadline = Duration::from_millis(options.job_deadline_ms);
    Workers::start(names, None, connector, options.job_queue_max, deadline)
}

/// Runs a job on its own thread, because a connection cannot be used on a thread of an asynchronous
/// runtime. Adds the address and the remedy to its error.
fn on_own_thread<T: Send>(
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

/// Adds the address and the remedy to an error of the server or the network while opening.
fn explain(address: &str, error: Error) -> Error {
    let message = match error {
        Error::Refused { source, .. } | Error::NotConfirmed { source, .. } => source.to_string(),
        Error::NoConnection { reason } | Error::CannotOpen { reason } => reason,
        other => return other,
    };
    let message = net::explain(message, "ledger.ca_file", "ledger.url");
    explained(address, &message, REMEDIES)
}
