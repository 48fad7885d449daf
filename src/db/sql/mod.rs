//! The SQL ledger, shared by all databases: the same tables and transactions.
//!
//! The portable queries are declared in `*queries.rs`, [`Database`] is the interface of the
//! database-specific parts, and [`SqlLedger`] implements the ledger with both: reader threads and
//! writer threads.

use tokio::sync::Semaphore;

use super::Error;
use super::workers::Workers;
use crate::runtime::clock::SharedClock;

mod audit_queries;
mod database;
mod dead_letter_queries;
mod dead_letters;
mod life_queries;
mod order_changes;
mod order_life;
mod order_queries;
mod order_reader;
mod order_writer;
mod payment_follow_ups;
mod payment_queries;
mod payments;
mod queries;
mod repair_queries;
mod repairs;
mod retakes;
mod retention;
mod retention_queries;
mod sale_changes;
mod sale_queries;
mod sales;
pub(super) mod statements;
mod tokens;
mod transaction;
mod verbs;

pub use audit_queries::AuditQueries;
pub use database::{Database, RowVisitor, ScannedDatabase};
pub use dead_letter_queries::DeadLetterQueries;
pub use life_queries::LifeQueries;
pub use order_queries::OrderQueries;
pub use order_writer::QuotaClaim;
pub use payment_queries::PaymentQueries;
pub use queries::Queries;
pub use repair_queries::RepairQueries;
pub use retention_queries::RetentionQueries;
pub use sale_queries::SaleQueries;
pub use transaction::{TransactionEnd, WRITER, WriteMode, WriterFence, in_transaction};
pub use verbs::VerbQueries;

/// A ledger in an SQL database.
pub struct SqlLedger<D> {
    pub(super) readers: Workers<D>,
    /// Scans that may run at once.
    pub(super) scans: Semaphore,
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
    /// One reader is left for all other reads, unless there is only one.
    async fn read_all<T, F>(&self, operation: &'static str, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut D) -> Result<T, Error> + Send + 'static,
    {
        // Never closed.
        let _permit = self.scans.acquire().await;
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

/// Permits for the scans of a ledger with so many readers.
pub(super) fn scans(readers: usize) -> Semaphore {
    Semaphore::new(readers.saturating_sub(1).max(1))
}

fn convert_rows<R, T: TryFrom<R, Error = Error>>(rows: Vec<R>) -> Result<Vec<T>, Error> {
    rows.into_iter().map(T::try_from).collect()
}

/// Converts rows, and leaves out those that are not readable: one of them must not delay the others
/// for ever. Each is logged.
fn readable_rows<R, T>(
    rows: impl IntoIterator<Item = R>,
    convert: impl Fn(R) -> Result<T, Error>,
) -> Vec<T> {
    let log = |error: &Error| tracing::error!(%error, "ledger: row left out");
    rows.into_iter().filter_map(|row| convert(row).inspect_err(log).ok()).collect()
}
