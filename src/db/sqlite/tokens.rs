//! Fencing tokens and secrets.

use diesel::prelude::*;

use super::connection::{End, write};
use crate::db::Error;
use crate::db::schema::{secrets, tokens};

/// The token whose holder is the one writer.
pub(super) const WRITER: &str = "writer";

/// The right to write: lost as soon as another process takes the next token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fence {
    token: i64,
}

impl Fence {
    /// Takes the next token of the writer; every earlier one is fenced from here on.
    pub(super) fn take(conn: &mut SqliteConnection) -> Result<Self, Error> {
        conn.immediate_transaction(|conn| count_up(conn, WRITER))
            .map(|token| Self { token })
            .map_err(Error::refused("taking the writer's token"))
    }

    /// Refuses when another process took a later token.
    pub(super) fn check(self, conn: &mut SqliteConnection) -> Result<(), Error> {
        let found = tokens::table
            .find(WRITER)
            .select(tokens::token)
            .first::<i64>(conn)
            .map_err(Error::refused("checking the writer's token"))?;
        if found == self.token { Ok(()) } else { Err(Error::Fenced { ours: self.token, found }) }
    }
}

fn count_up(conn: &mut SqliteConnection, name: &str) -> QueryResult<i64> {
    diesel::insert_or_ignore_into(tokens::table)
        .values((tokens::name.eq(name), tokens::token.eq(0)))
        .execute(conn)?;
    diesel::update(tokens::table.find(name))
        .set(tokens::token.eq(tokens::token + 1))
        .execute(conn)?;
    tokens::table.find(name).select(tokens::token).first(conn)
}

/// A number that no earlier call returned.
pub(super) fn next_token(
    conn: &mut SqliteConnection,
    fence: Fence,
    name: &'static str,
) -> Result<i64, Error> {
    const DOING: &str = "counting a token up";
    write(conn, fence, DOING, |conn| {
        count_up(conn, name).map(End::Commit).map_err(Error::refused(DOING))
    })
}

/// The secret of this name, if it was made.
pub(super) fn known_secret(
    conn: &mut SqliteConnection,
    name: &str,
) -> Result<Option<Vec<u8>>, Error> {
    secrets::table
        .find(name)
        .select(secrets::value)
        .first(conn)
        .optional()
        .map_err(Error::refused("reading a secret"))
}

/// The secret of this name, made at the first call.
pub(super) fn secret(
    conn: &mut SqliteConnection,
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
    write(conn, fence, DOING, |conn| {
        diesel::insert_into(secrets::table)
            .values((secrets::name.eq(name), secrets::value.eq(&fresh)))
            .execute(conn)
            .map(|_| End::Commit(fresh.clone()))
            .map_err(Error::refused(DOING))
    })
}
