//! The database-specific parts of the ledger, implemented by the connection of each database.

use diesel::QueryResult;
use diesel::connection::SimpleConnection;
use diesel::result::Error as Diesel;
use diesel_migrations::EmbeddedMigrations;

use super::{
    AuditQueries, DeadLetterQueries, LifeQueries, OrderQueries, PaymentQueries, Queries,
    QuotaClaim, RepairQueries, RetentionQueries, SaleQueries, VerbQueries,
};
use crate::db::Error;
use crate::db::rows::NewOrder;
use crate::domain::Failure;

/// The migrations and the transactions of a database, and the statements that write orders.
pub trait Database:
    SimpleConnection
    + Queries
    + OrderQueries
    + LifeQueries
    + PaymentQueries
    + RepairQueries
    + RetentionQueries
    + SaleQueries
    + AuditQueries
    + DeadLetterQueries
    + VerbQueries
    + Send
    + 'static
{
    const MIGRATIONS: EmbeddedMigrations;
    /// The state of the ledger after a failed migration, for the error message.
    const AFTER_FAILED_MIGRATION: &'static str;
    /// The number of tables of one name. Parameter: the name.
    const TABLES_NAMED: &'static str;
    /// Begins a write transaction.
    const BEGIN: &'static str;
    /// The SQL condition of the unique index of request ids; lets the database use the index.
    /// Orders that the index omits are in slot 0 and are found by their buyer.
    const INDEXED_REQUESTS: &'static str;
    /// The SQL condition of the orders that the index omits; `None`: the index is complete.
    const UNINDEXED_REQUESTS: Option<&'static str>;
    /// Follows the table in a statement that searches along the primary key, if the database would
    /// choose another index.
    const BY_PRIMARY_KEY: &'static str;
    /// Follows the table in a statement that reads all orders without the index of request ids,
    /// which may be corrupt and may omit slot 0.
    const WITHOUT_REQUEST_INDEX: &'static str;
    /// Follows a SELECT that locks its rows until the transaction ends.
    const FOR_UPDATE: &'static str;
    /// Inserts a token with value 0 unless it exists. Parameter: the name.
    const INSERT_TOKEN: &'static str;
    /// Inserts a cursor, or moves it forward. Parameters: name, feed number.
    const RAISE_CURSOR: &'static str;

    /// Runs a job under the lock that serializes the migrations of this ledger; `CannotOpen` when
    /// another process does not release the lock in time. By default, for a database that locks
    /// itself, without another lock.
    fn with_migration_lock<T>(
        &mut self,
        job: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        job(self)
    }

    /// Limits all further statements together to the time that the caller of a job waits. By
    /// default, for a database whose connections cannot hang, no limit.
    fn limit_job(&mut self) {}

    /// Limits each further statement: the job reads all rows of a SKU. By default, for a database
    /// whose connections cannot hang, no limit.
    fn limit_statements(&mut self) {}

    /// Runs one statement with the longer limit of audits: the statement reads a whole SKU before
    /// it returns the first row.
    fn with_audit_limit<T>(
        &mut self,
        statement: impl FnOnce(&mut Self) -> QueryResult<T>,
    ) -> QueryResult<T> {
        statement(self)
    }

    /// The time of the server, epoch milliseconds. By default, for a database without a server,
    /// none.
    fn server_time_ms(&mut self) -> QueryResult<Option<i64>> {
        Ok(None)
    }

    /// Runs a job whose reads see one snapshot.
    fn snapshot<T>(&mut self, job: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error>;

    /// Classifies a failed COMMIT: `Refused`, nothing was written; `NotConfirmed`, the outcome is
    /// unknown.
    fn failed_commit(&mut self, error: Diesel) -> Error;

    /// The writer's token, which cannot change before the transaction ends.
    fn writer_token(&mut self) -> QueryResult<i64>;

    /// Writes orders, sorted by their key, and the event of their placement. Returns whether any of
    /// their requests has a recorded failure of any process, or any buyer of their SKUs has a bar:
    /// a concurrent transaction whose failure is not found here finds these orders. A unique
    /// violation is an error and may leave some orders written: the transaction must be rolled back
    /// then.
    fn insert_orders(&mut self, orders: &[NewOrder]) -> QueryResult<bool>;

    /// Whether any of these requests has a recorded failure of any process.
    fn any_failed(&mut self, requests: &[i64]) -> QueryResult<bool>;

    /// The requests of these failures, of at least one, that have orders of any process. The result
    /// stays valid until the transaction ends.
    fn ordered_among(&mut self, failures: &[Failure]) -> QueryResult<Vec<i64>>;

    /// Adds units to the buyers' quotas, sorted by their key; `false`: a quota is exceeded, and the
    /// transaction must be rolled back.
    fn take_quotas(&mut self, claims: &[QuotaClaim]) -> QueryResult<bool>;

    /// Takes units from several SKUs, sorted by their key; `false`: a SKU has fewer units, and the
    /// transaction must be rolled back.
    fn take_stocks(&mut self, units: &[(i32, i32)]) -> QueryResult<bool>;

    /// Cleans up before the last writer closes.
    fn before_close(&mut self) {}
}
