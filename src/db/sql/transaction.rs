//! The write transaction.

use super::{Database, Fence};
use crate::db::Error;

/// How a write transaction ends.
#[derive(Debug)]
pub enum End<T> {
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
    fence: Fence,
    doing: &'static str,
    job: impl FnOnce(&mut D) -> Result<End<T>, Error>,
) -> Result<T, Error> {
    conn.batch_execute(D::BEGIN).map_err(Error::refused(doing))?;
    let done = fence.check(conn).and_then(|()| job(conn));
    // Crash here [before_commit]: nothing of this transaction counts; the database finds that out
    // by itself, and whoever asked asks again.
    match done {
        Ok(End::Commit(value)) => match conn.batch_execute("COMMIT") {
            // Crash here [after_commit]: the rows are durable and nobody was told; whoever asks
            // again finds them by request id.
            Ok(()) => Ok(value),
            Err(said) => Err(conn.failed_commit(doing, said)),
        },
        Ok(End::RollBack(value)) => {
            conn.batch_execute("ROLLBACK").map_err(Error::refused(doing))?;
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
