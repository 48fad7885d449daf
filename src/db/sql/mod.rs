//! The SQL ledger, shared by all databases: the same tables and transactions.
//!
//! The portable queries are declared in `*queries.rs`, [`Database`] is the interface of the
//! database-specific parts, and [`SqlLedger`] implements the ledger with both: reader threads and
//! writer threads. A write is one transaction, which checks the writer's fencing token.

use std::sync::Arc;

use diesel::QueryResult;
use diesel::result::{DatabaseErrorKind, Error as Diesel};
use tokio::sync::Semaphore;

use super::Error;
use super::workers::Workers;
use crate::runtime::clock::SharedClock;
use crate::runtime::progress;

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
mod verbs;

pub use audit_queries::AuditQueries;
pub use database::Database;
pub use dead_letter_queries::DeadLetterQueries;
pub use life_queries::LifeQueries;
pub use order_queries::OrderQueries;
pub use order_writer::QuotaClaim;
pub use payment_queries::PaymentQueries;
pub use queries::Queries;
pub use repair_queries::RepairQueries;
pub use retention_queries::RetentionQueries;
pub use sale_queries::SaleQueries;
pub use verbs::VerbQueries;

/// A ledger in an SQL database.
pub struct SqlLedger<D> {
    readers: Workers<D>,
    /// Scans that may run at once.
    scans: Arc<Semaphore>,
    /// With their fencing token; `None`: opened for reading only.
    pub(super) writers: Option<(Workers<D>, WriterFence)>,
    /// Timestamps the rows.
    clock: SharedClock,
}

impl<D: Database> SqlLedger<D> {
    /// The ledger of these threads; `num_readers` is the number of reader threads.
    pub(super) fn new(
        readers: Workers<D>,
        num_readers: usize,
        writers: Option<(Workers<D>, WriterFence)>,
        clock: &SharedClock,
    ) -> Self {
        let scans = Arc::new(Semaphore::new(num_readers.saturating_sub(1).max(1)));
        Self { readers, scans, writers, clock: Arc::clone(clock) }
    }

    fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&mut D) -> Result<T, Error> + Send + 'static,
    ) -> impl Future<Output = Result<T, Error>> + Send {
        let job = move |conn: &mut D| {
            conn.limit_job();
            job(conn)
        };
        self.readers.run(operation, job)
    }

    /// Reads all rows of a SKU, without a limit for the whole job; the visitor may end it early.
    /// One reader is left for all other reads, unless there is only one.
    async fn read_all<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&mut D) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        // The scans before this one, and its statements, have limits of their own.
        progress::of_long_calls(async {
            // Never closed.
            let permit = Arc::clone(&self.scans).acquire_owned().await;
            let job = move |conn: &mut D| {
                // Until the job ends: it occupies its reader also when its caller has gone.
                let _permit = permit;
                conn.limit_statements();
                job(conn)
            };
            self.readers.run_long(operation, job).await
        })
        .await
    }

    /// The job reads the time itself, because it may have waited in the queue.
    async fn write<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&mut D, WriterFence, &SharedClock) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let Some((writers, fence)) = &self.writers else {
            return Err(Error::ReadOnly { operation });
        };
        let (fence, clock) = (*fence, Arc::clone(&self.clock));
        let job = move |conn: &mut D| {
            conn.limit_job();
            job(conn, fence, &clock)
        };
        writers.run(operation, job).await
    }

    /// Runs a write transaction with the time at its beginning.
    async fn write_at<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&mut D, i64) -> Result<TransactionEnd<T>, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.write(operation, move |conn, fence, clock| {
            in_transaction(conn, fence, |conn| job(conn, clock.wall_ms()))
        })
        .await
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

/// Converts rows, and leaves out those that are not readable: one of them must not delay the others
/// for ever. Each is logged.
fn readable_rows<R, T>(
    rows: impl IntoIterator<Item = R>,
    convert: impl Fn(R) -> Result<T, Error>,
) -> Vec<T> {
    let log = |error: &Error| tracing::error!(%error, "ledger: row left out");
    rows.into_iter().filter_map(|row| convert(row).inspect_err(log).ok()).collect()
}

/// The items after a cursor, `limit` of them unless there are no more: a row that cannot be read is
/// left out, and hides none behind it. `page` returns the items of up to so many rows, and the
/// cursor of the last row unless no row follows.
fn filled<T, C>(
    limit: u32,
    after: Option<C>,
    mut page: impl FnMut(Option<C>, u32) -> Result<(Vec<T>, Option<C>), Error>,
) -> Result<Vec<T>, Error> {
    let (mut items, mut next) = page(after, limit)?;
    while next.is_some() {
        let missing = limit.saturating_sub(u32::try_from(items.len()).unwrap_or(u32::MAX));
        if missing == 0 {
            break;
        }
        let (more, last) = page(next, missing)?;
        items.extend(more);
        next = last;
    }
    Ok(items)
}

/// The cursor of the last row of a full page.
fn last_of<R, C>(rows: &[R], limit: u32, cursor: impl FnOnce(&R) -> C) -> Option<C> {
    let is_full = u32::try_from(rows.len()).is_ok_and(|num| num >= limit);
    rows.last().filter(|_| is_full).map(cursor)
}

/// The name of the token that every write checks.
pub const WRITER: &str = "writer";

/// Attempts of a write that concurrent writers interfere with, before its caller has to retry it.
const ATTEMPTS_MAX: u32 = 3;

/// Which other processes may write a ledger that this process opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// No other process.
    Exclusive,
    /// Every process that opens the ledger as `Shared`.
    Shared,
}

impl WriteMode {
    /// The writer's token after the ledger is opened in this mode, in SQL. An odd token belongs to
    /// the one process that took it, an even token to all that share it: only an exclusive opening,
    /// and the first shared one after it, changes the token.
    fn next_token(self) -> &'static str {
        match self {
            Self::Exclusive => "token + 1 + token % 2",
            Self::Shared => "token + token % 2",
        }
    }

    /// The write mode of the process with this token.
    pub(super) fn of_token(token: i64) -> Self {
        if token % 2 == 0 { Self::Shared } else { Self::Exclusive }
    }
}

/// The writer's token at the time when this process opened the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterFence(Option<i64>);

impl WriterFence {
    /// Disables the check, for the transaction that takes the token.
    const OPEN: Self = Self(None);

    /// Takes the writer's token and fences every process with another one.
    pub fn take<D: Database>(conn: &mut D, mode: WriteMode) -> Result<Self, Error> {
        let raise = |conn: &mut D| {
            Ok(TransactionEnd::Commit(Self(Some(conn.raise_token(WRITER, mode.next_token())?))))
        };
        let taken = in_transaction(conn, Self::OPEN, raise);
        taken.map_err(|error| error.during("taking the writer's token"))
    }

    /// `Fenced` when another process changed the token; part of the transaction that writes.
    fn check<D: Database>(self, conn: &mut D) -> Result<(), Error> {
        let Some(ours) = self.0 else { return Ok(()) };
        let found = conn.writer_token();
        let found =
            found.map_err(|error| Error::from(error).during("checking the writer's token"))?;
        if found == ours { Ok(()) } else { Err(Error::Fenced { ours, found }) }
    }
}

/// How a write transaction ends.
#[derive(Debug)]
pub enum TransactionEnd<T> {
    Commit(T),
    /// A result without writes, not an error.
    RollBack(T),
}

impl TransactionEnd<bool> {
    /// Ends with whether every row was written; otherwise none is.
    fn commit_if(is_written: bool) -> Self {
        if is_written { Self::Commit(true) } else { Self::RollBack(false) }
    }
}

/// Runs `job` in one write transaction, after the check of the fencing token.
///
/// Does not use diesel's transactions: they roll back when COMMIT fails and report only the first
/// error, but the error of COMMIT decides between *refused* and *unknown*.
///
/// # Errors
/// `Refused`, `Fenced` and those of the job: nothing was written. `NotConfirmed`: unknown.
pub fn in_transaction<D: Database, T>(
    conn: &mut D,
    fence: WriterFence,
    job: impl FnOnce(&mut D) -> Result<TransactionEnd<T>, Error>,
) -> Result<T, Error> {
    conn.batch_execute(D::BEGIN)?;
    let end = fence.check(conn).and_then(|()| job(conn));
    // Crash here [before_commit]: the transaction has no effect; the database rolls it back, and
    // the sender resubmits the intents.
    match end {
        Ok(TransactionEnd::Commit(value)) => match conn.batch_execute("COMMIT") {
            // Crash here [after_commit]: the rows are durable, but the sender has no result; the
            // resubmitted intents find their orders by request id.
            Ok(()) => Ok(value),
            Err(error) => Err(conn.failed_commit(error)),
        },
        Ok(TransactionEnd::RollBack(value)) => {
            conn.batch_execute("ROLLBACK")?;
            Ok(value)
        }
        Err(error) => {
            // The error may have rolled back the transaction or only the statement, so a failed
            // ROLLBACK is ignored; the connection is closed anyway.
            conn.batch_execute("ROLLBACK").ok();
            Err(error)
        }
    }
}

/// Retries a write that returns `None` because of a concurrent one, `ATTEMPTS_MAX` times in all;
/// then fails with an error of class `Retry`. `concurrent` names the concurrent writes.
fn retry_concurrent<T>(
    concurrent: &str,
    mut write: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    for _ in 0..ATTEMPTS_MAX {
        if let Some(result) = write()? {
            return Ok(result);
        }
    }
    let message = Box::new(format!("{concurrent} were written concurrently each time"));
    Err(Diesel::DatabaseError(DatabaseErrorKind::SerializationFailure, message).into())
}

/// What an INSERT returned; `None`: unique violation, nothing was written.
fn inserted<T>(result: QueryResult<T>) -> QueryResult<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Diesel::DatabaseError(DatabaseErrorKind::UniqueViolation, _)) => Ok(None),
        Err(error) => Err(error),
    }
}
