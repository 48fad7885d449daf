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

mod dead_letter_queries;
mod dead_letters;
mod order_reader;
mod order_writer;
mod queries;
mod sales;
pub(super) mod statements;
mod tokens;
mod transaction;

pub use dead_letter_queries::DeadLetterQueries;
pub use order_writer::QuotaClaim;
pub use queries::{IN_LIST_MAX, Queries, SkuAndBuyer};
pub use tokens::{WRITER, WriteMode, WriterFence};
pub use transaction::{TransactionEnd, in_transaction};

/// A ledger in an SQL database.
pub struct SqlLedger<D> {
    pub(super) readers: Workers<D>,
    /// With their fencing token; `None`: opened for reading only.
    pub(super) writers: Option<(Workers<D>, WriterFence)>,
    /// Timestamps the rows.
    pub(super) clock: SharedClock,
}

impl<D: Database> SqlLedger<D> {
    async fn read<T, F>(&self, operation: &'static str, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut D) -> Result<T, Error> + Send + 'static,
    {
        let job = move |conn: &mut D| {
            conn.limit_job();
            job(conn)
        };
        self.readers.run(operation, job).await
    }

    /// Reads all rows of a SKU, without a limit for the whole job; the visitor may end it early.
    async fn read_all<T, F>(&self, operation: &'static str, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut D) -> Result<T, Error> + Send + 'static,
    {
        let job = move |conn: &mut D| {
            conn.limit_statements();
            job(conn)
        };
        self.readers.run_long(operation, job).await
    }

    async fn write<T, F>(&self, operation: &'static str, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut D, WriterFence) -> Result<T, Error> + Send + 'static,
    {
        let Some((writers, fence)) = &self.writers else {
            return Err(Error::ReadOnly { operation });
        };
        let fence = *fence;
        let job = move |conn: &mut D| {
            conn.limit_job();
            job(conn, fence)
        };
        writers.run(operation, job).await
    }
}

impl<D> std::fmt::Debug for SqlLedger<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlLedger").field("writes", &self.writers.is_some()).finish_non_exhaustive()
    }
}

fn convert_rows<R, T: TryFrom<R, Error = Error>>(rows: Vec<R>) -> Result<Vec<T>, Error> {
    rows.into_iter().map(T::try_from).collect()
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
    /// Inserts a token with value 0 unless it exists. Parameter: the name.
    const INSERT_TOKEN: &'static str;
    /// The number of tables of one name. Parameter: the name.
    const TABLES_NAMED: &'static str;
    /// Finds request ids with several orders. Does not use the index of request ids, which may be
    /// corrupt and may omit slot 0. The maximum number of rows follows.
    const REPEATED_REQUESTS: &'static str;

    /// Limits all further statements together to the time that the caller of a job waits. By
    /// default, and in the next method, for a database whose connections cannot hang, no limit.
    fn limit_job(&mut self) {}

    /// Limits each further statement: the job reads all rows of a SKU.
    fn limit_statements(&mut self) {}

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

    /// The writer's token, which cannot change before the transaction ends.
    fn writer_token(&mut self) -> QueryResult<i64>;

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
