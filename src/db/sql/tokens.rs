//! Fencing tokens and secrets.

use diesel::result::{DatabaseErrorKind, Error as Diesel};

use super::{Database, End, write};
use crate::db::Error;

/// The token whose holder is the one writer.
pub const WRITER: &str = "writer";

/// The right to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// Any number of processes write.
    Shared,
    /// One process writes: lost as soon as another takes the next token of the writer.
    Sole(i64),
}

impl Fence {
    /// Takes the next token of the writer; every earlier one is fenced from here on.
    ///
    /// # Errors
    /// Those of [`write()`].
    pub fn take<D: Database>(conn: &mut D) -> Result<Self, Error> {
        count(conn, Self::Shared, "taking the writer's token", WRITER).map(Self::Sole)
    }

    /// Refuses when another process took a later token; part of the transaction that writes.
    pub(super) fn check<D: Database>(self, conn: &mut D) -> Result<(), Error> {
        let Self::Sole(ours) = self else { return Ok(()) };
        let found = conn.writer_token().map_err(Error::refused("checking the writer's token"))?;
        if found == ours { Ok(()) } else { Err(Error::Fenced { ours, found }) }
    }
}

/// A number that no earlier call returned.
pub(super) fn next_token<D: Database>(
    conn: &mut D,
    fence: Fence,
    name: &'static str,
) -> Result<i64, Error> {
    count(conn, fence, "counting a token up", name)
}

fn count<D: Database>(
    conn: &mut D,
    fence: Fence,
    doing: &'static str,
    name: &str,
) -> Result<i64, Error> {
    write(conn, fence, doing, |conn| {
        conn.count_up(name).map(End::Commit).map_err(Error::refused(doing))
    })
}

/// The secret of this name, if it was made.
pub(super) fn known_secret<D: Database>(
    conn: &mut D,
    name: &str,
) -> Result<Option<Vec<u8>>, Error> {
    conn.secret_value(name).map_err(Error::refused("reading a secret"))
}

/// The secret of this name, made at the first call.
pub(super) fn secret<D: Database>(
    conn: &mut D,
    fence: Fence,
    name: &'static str,
) -> Result<Vec<u8>, Error> {
    const DOING: &str = "making a secret";
    if let Some(known) = known_secret(conn, name)? {
        return Ok(known);
    }
    let mut fresh = vec![0_u8; 32];
    getrandom::fill(&mut fresh).map_err(|error| Error::Unstorable {
        what: format!("a secret: the operating system gives no randomness ({error})"),
    })?;
    let ours = write(conn, fence, DOING, |conn| match conn.insert_secret(name, &fresh) {
        Ok(()) => Ok(End::Commit(true)),
        Err(Diesel::DatabaseError(DatabaseErrorKind::UniqueViolation, _)) => {
            Ok(End::RollBack(false))
        }
        Err(source) => Err(Error::Refused { doing: DOING, source }),
    })?;
    if ours {
        return Ok(fresh);
    }
    // Another process was faster, and its secret is the one.
    known_secret(conn, name)?
        .ok_or_else(|| Error::Unreadable { what: format!("secret {name}: it is there and is not") })
}
