//! Fencing tokens and secrets.

use diesel::QueryResult;

use super::transaction::are_new;
use super::{Database, TransactionEnd, write};
use crate::db::Error;

/// The token that every write checks.
pub const WRITER: &str = "writer";

/// The next value of a counter.
const COUNT_UP: &str = "token + 1";

/// Who else may write a ledger that this process opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// No other process.
    Exclusive,
    /// Every process that opens it as `Shared`.
    Shared,
}

impl WriteMode {
    /// The writer's token after such an opening, in SQL. An odd token belongs to the one process
    /// that took it, an even one to all that share it: only an exclusive opening, and the first
    /// shared one after it, changes the token.
    fn next_token(self) -> &'static str {
        match self {
            Self::Exclusive => "token + 1 + token % 2",
            Self::Shared => "token + token % 2",
        }
    }

    /// How the holder of this token opened the ledger.
    pub(in crate::db) fn of_token(token: i64) -> Self {
        if token % 2 == 0 { Self::Shared } else { Self::Exclusive }
    }
}

/// The right to write: the writer's token as it was when this process opened the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterFence(Option<i64>);

impl WriterFence {
    /// Checks nothing: for the transaction that takes the token.
    pub(in crate::db) const OPEN: Self = Self(None);

    /// Takes the writer's token; every process with another one is fenced from here on.
    pub fn take<D: Database>(conn: &mut D, writing: WriteMode) -> Result<Self, Error> {
        let token = raise(conn, Self::OPEN, WRITER, writing.next_token());
        token
            .map(|token| Self(Some(token)))
            .map_err(|error| error.during("taking the writer's token"))
    }

    /// Refuses when another process changed the token; part of the transaction that writes.
    pub(super) fn check<D: Database>(self, conn: &mut D) -> Result<(), Error> {
        let Some(ours) = self.0 else { return Ok(()) };
        let found = conn.writer_token();
        let found =
            found.map_err(|said| Error::from(said).during("checking the writer's token"))?;
        if found == ours { Ok(()) } else { Err(Error::Fenced { ours, found }) }
    }
}

/// A number that no earlier call returned.
pub(super) fn next_token<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    name: &'static str,
) -> Result<i64, Error> {
    raise(conn, fence, name, COUNT_UP)
}

fn raise<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    name: &str,
    next: &'static str,
) -> Result<i64, Error> {
    write(conn, fence, |conn| Ok(TransactionEnd::Commit(conn.raise_token(name, next)?)))
}

/// Counts a token up; part of a transaction.
pub(super) fn count_up<D: Database>(conn: &mut D, name: &str) -> QueryResult<i64> {
    conn.raise_token(name, COUNT_UP)
}

/// The secret of this name, made at the first call.
pub(super) fn secret<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    name: &'static str,
) -> Result<Vec<u8>, Error> {
    if let Some(known) = conn.secret_value(name)? {
        return Ok(known);
    }
    let mut fresh = vec![0_u8; 32];
    getrandom::fill(&mut fresh).map_err(|error| Error::Unstorable {
        what: format!("a secret: the operating system gives no randomness ({error})"),
    })?;
    let ours = write(conn, fence, |conn| {
        let is_new = are_new(conn.insert_secret(name, &fresh))?;
        Ok(if is_new { TransactionEnd::Commit(true) } else { TransactionEnd::RollBack(false) })
    })?;
    if ours {
        return Ok(fresh);
    }
    // Another process was faster, and its secret is the one.
    conn.secret_value(name)?
        .ok_or_else(|| Error::Unreadable { what: format!("secret {name}: it is there and is not") })
}
