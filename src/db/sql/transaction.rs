//! The write transaction.

use diesel::QueryResult;
use diesel::result::{DatabaseErrorKind, Error as Diesel};

use super::{Database, WriterFence};
use crate::db::Error;

/// How often others may write the same rows in between before a write is given up; its caller tries
/// again.
const MEETINGS_MAX: u32 = 3;

/// How a write transaction ends.
#[derive(Debug)]
pub enum TransactionEnd<T> {
    /// Keep what was written.
    Commit(T),
    /// Take it back; that is an answer, not an error.
    RollBack(T),
}

/// Runs `job` in one write transaction, after the check that this process may still write.
///
/// The transaction is begun and ended by hand: diesel rolls back when COMMIT fails and reports only
/// the first error, but what COMMIT said is the difference between *refused* and *unknown*.
///
/// # Errors
/// `Refused`, `Fenced` and those of the job: nothing was written. `NotConfirmed`: unknown.
pub fn write<D: Database, T>(
    conn: &mut D,
    fence: WriterFence,
    job: impl FnOnce(&mut D) -> Result<TransactionEnd<T>, Error>,
) -> Result<T, Error> {
    conn.batch_execute(D::BEGIN)?;
    let done = fence.check(conn).and_then(|()| job(conn));
    // Crash here [before_commit]: nothing of this transaction counts; the database finds that out
    // by itself, and whoever asked asks again.
    match done {
        Ok(TransactionEnd::Commit(value)) => match conn.batch_execute("COMMIT") {
            // Crash here [after_commit]: the rows are durable and nobody was told; whoever asks
            // again finds them by request id.
            Ok(()) => Ok(value),
            Err(said) => Err(conn.failed_commit(said)),
        },
        Ok(TransactionEnd::RollBack(value)) => {
            conn.batch_execute("ROLLBACK")?;
            Ok(value)
        }
        Err(error) => {
            // Some failures have rolled back already, others only the statement; and the connection
            // is given up anyway.
            conn.batch_execute("ROLLBACK").ok();
            Err(error)
        }
    }
}

/// Repeats a write that others came in between (`None`), a few times.
pub(super) fn until_undisturbed<T>(
    by: &str,
    mut write: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    for _ in 0..MEETINGS_MAX {
        if let Some(done) = write()? {
            return Ok(done);
        }
    }
    let said = Box::new(format!("{by} kept coming in between"));
    Err(Diesel::DatabaseError(DatabaseErrorKind::SerializationFailure, said).into())
}

/// Whether rows were written; `false`: a unique key objects.
pub(super) fn are_new(written: QueryResult<()>) -> QueryResult<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(Diesel::DatabaseError(DatabaseErrorKind::UniqueViolation, _)) => Ok(false),
        Err(error) => Err(error),
    }
}
