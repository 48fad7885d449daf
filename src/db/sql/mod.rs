//! The SQL ledger, shared by all databases: the same tables and transactions.
//!
//! [`Queries`] are the portable queries, [`Database`] is the interface of the database-specific
//! parts, and [`SqlLedger`] implements the ledger with both: reader threads and writer threads.

use diesel::QueryResult;
use diesel::connection::SimpleConnection;
use diesel::result::Error as Diesel;
use diesel_migrations::EmbeddedMigrations;

use super::Error;
use super::rows::NewOrder;
use super::workers::Workers;
use crate::domain::{Failure, Order, SkuNo};
use crate::runtime::clock::SharedClock;

pub(super) mod audit;
mod dead_letter_queries;
mod dead_letters;
pub(super) mod examine;
mod failures;
mod ledger;
mod place;
mod queries;
mod sales;
pub(super) mod statements;
mod tokens;
mod transaction;

pub use dead_letter_queries::DeadLetterQueries;
pub use place::QuotaClaim;
pub use queries::{IN_LIST_MAX, Queries, SkuAndBuyer};
pub use tokens::{WRITER, WriteMode, WriterFence};
pub use transaction::{TransactionEnd, write};

/// A ledger in an SQL database.
pub struct SqlLedger<D> {
    pub(super) readers: Workers<D>,
    /// `None`: opened for reading only.
    pub(super) writers: Option<WriterThreads<D>>,
    pub(super) migrated: Vec<String>,
    /// Timestamps the rows.
    pub(super) clock: SharedClock,
}

/// The writer threads with their fencing token.
pub(super) struct WriterThreads<D> {
    pub(super) workers: Workers<D>,
    pub(super) fence: WriterFence,
}

/// The time limit of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutClass {
    /// The job is limited to the time that its caller waits.
    Caller,
    /// Only each statement is limited: the job reads all rows of a SKU.
    Scan,
}

/// Receives rows one at a time; returning `false` ends the scan early.
pub type RowVisitor<'a, T> = &'a mut dyn FnMut(T) -> bool;

/// The database-specific part of the ledger, implemented by its connection.
pub trait Database: SimpleConnection + Queries + DeadLetterQueries + Send + 'static {
    const MIGRATIONS: EmbeddedMigrations;
    /// The state of the ledger after a failed migration, for the error message.
    const AFTER_FAILED_MIGRATION: &'static str;
    /// Begins a write transaction.
    const BEGIN: &'static str;
    /// The SQL condition of the unique index of request ids; lets the database use the index.
    /// Orders that the index omits are in slot 0 and are found by their buyer.
    const INDEXED_REQUESTS: &'static str;
    /// The SQL condition of the orders that the index omits; `None`: the index is complete.
    const UNINDEXED_REQUESTS: Option<&'static str>;
    /// Finds request ids with several orders. Does not use the index of request ids, which may be
    /// corrupt and may omit slot 0. Parameter: the maximum number of rows.
    const REPEATED_REQUESTS: &'static str;

    /// Runs a job with the time limit of its class, and marks the connection for closing after an
    /// error. By default, for a database whose connections cannot hang, only runs the job.
    fn run_limited<T>(
        &mut self,
        _timeout_class: TimeoutClass,
        job: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        job(self)
    }

    /// Runs one statement of a scan with the longer limit of audits: the statement reads a whole
    /// SKU before it returns the first row.
    fn with_audit_limit<T>(
        &mut self,
        statement: impl FnOnce(&mut Self) -> QueryResult<T>,
    ) -> QueryResult<T> {
        statement(self)
    }

    /// Runs a job whose reads see one snapshot.
    fn snapshot<T>(&mut self, job: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error>;

    /// Classifies a failed COMMIT: `Refused`, nothing was written; `NotConfirmed`, the outcome is
    /// unknown.
    fn failed_commit(&mut self, error: Diesel) -> Error;

    /// Runs a job under the lock that serializes the migrations of this ledger; `CannotOpen` when
    /// another process does not release the lock in time.
    fn with_migration_lock<T>(
        &mut self,
        job: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        job(self)
    }

    fn has_table(&mut self, name: &str) -> QueryResult<bool>;

    /// The writer's token, which cannot change before the transaction ends.
    fn writer_token(&mut self) -> QueryResult<i64>;

    /// Sets a token to `next`, an SQL expression of its present value (0 for a new token), and
    /// returns it; part of a transaction.
    fn raise_token(&mut self, name: &str, next: &'static str) -> QueryResult<i64>;

    /// Writes orders, sorted by their key. A unique violation is an error and may leave some orders
    /// written: the transaction must be rolled back then.
    fn insert_orders(&mut self, orders: &[NewOrder]) -> QueryResult<()>;

    /// Whether any of these requests has a recorded failure of any process. A concurrent
    /// transaction whose failure is not found here finds the orders of this one.
    fn any_failed(&mut self, requests: &[i64]) -> QueryResult<bool>;

    /// The requests of these failures that have orders of any process. The result stays valid until
    /// the transaction ends.
    fn ordered_among(&mut self, failures: &[Failure]) -> QueryResult<Vec<i64>>;

    /// Adds units to the buyers' quotas, sorted by their key; `false`: a quota is exceeded, and the
    /// transaction must be rolled back.
    fn take_quotas(&mut self, claims: &[QuotaClaim]) -> QueryResult<bool>;

    /// Takes units from several SKUs, sorted by their key; `false`: a SKU has fewer units, and the
    /// transaction must be rolled back.
    fn take_stocks(&mut self, units: &[(i32, i32)]) -> QueryResult<bool> {
        for (sku, units) in units {
            if self.take_stock(*sku, *units)? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Visits the orders of a SKU by buyer and slot; part of a snapshot.
    fn each_order(&mut self, sku: SkuNo, visit: RowVisitor<'_, Order>) -> Result<(), Error>;

    /// Visits the recorded failures of a SKU by request; part of a snapshot.
    fn each_failure(&mut self, sku: SkuNo, visit: RowVisitor<'_, Failure>) -> Result<(), Error>;

    /// Cleans up before the last writer closes.
    fn before_close(&mut self) {}
}
