//! The write transaction, and the fencing token that it checks.

use diesel::QueryResult;
use diesel::result::{DatabaseErrorKind, Error as Diesel};

use super::Database;
use crate::db::Error;

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
    pub(in crate::db) fn of_token(token: i64) -> Self {
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
    pub(super) fn commit_if(is_written: bool) -> Self {
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
