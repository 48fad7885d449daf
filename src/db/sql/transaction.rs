//! The write transaction.

use diesel::QueryResult;
use diesel::result::{DatabaseErrorKind, Error as Diesel};

use super::{Database, WriterFence};
use crate::db::Error;

/// Attempts of a write that concurrent writers interfere with, before its caller has to retry it.
const ATTEMPTS_MAX: u32 = 3;

/// How a write transaction ends.
#[derive(Debug)]
pub enum TransactionEnd<T> {
    Commit(T),
    /// A result without writes, not an error.
    RollBack(T),
}

impl TransactionEnd<bool> {
    /// Ends with whether a row changed; without one there is nothing to commit.
    pub(super) fn commit_if(is_changed: bool) -> Self {
        if is_changed { Self::Commit(true) } else { Self::RollBack(false) }
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
pub(super) fn retry_concurrent<T>(
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

/// Whether the rows of an INSERT were written; `false`: unique violation.
pub(super) fn inserted(result: QueryResult<()>) -> QueryResult<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Diesel::DatabaseError(DatabaseErrorKind::UniqueViolation, _)) => Ok(false),
        Err(error) => Err(error),
    }
}
