//! Fencing tokens and secrets.

use async_trait::async_trait;

use super::transaction::inserted;
use super::{Database, SqlLedger, TransactionEnd, in_transaction};
use crate::db::{Error, Ledger};

/// The name of the token that every write checks.
pub const WRITER: &str = "writer";

/// The next value of a counter, in SQL.
pub(super) const INCREMENT: &str = "token + 1";

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
    pub(super) fn check<D: Database>(self, conn: &mut D) -> Result<(), Error> {
        let Some(ours) = self.0 else { return Ok(()) };
        let found = conn.writer_token();
        let found =
            found.map_err(|error| Error::from(error).during("checking the writer's token"))?;
        if found == ours { Ok(()) } else { Err(Error::Fenced { ours, found }) }
    }
}

#[async_trait]
impl<D: Database> Ledger for SqlLedger<D> {
    async fn secret(&self, name: &'static str) -> Result<Vec<u8>, Error> {
        if self.writers.is_none() {
            let stored = self.read("reading a secret", |conn| Ok(conn.secret_value(name)?)).await?;
            return stored.ok_or(Error::ReadOnly { operation: "creating a secret" });
        }
        self.write("creating a secret", move |conn, fence| secret(conn, fence, name)).await
    }

    async fn next_token(&self, name: &'static str) -> Result<i64, Error> {
        self.write("incrementing a token", move |conn, fence| {
            in_transaction(conn, fence, |conn| {
                Ok(TransactionEnd::Commit(conn.raise_token(name, INCREMENT)?))
            })
        })
        .await
    }

    async fn ping(&self) -> Result<(), Error> {
        self.read("pinging the ledger", |conn| Ok(conn.ping()?)).await
    }

    async fn close(&self) {
        // Readers first: an open reader prevents the checkpoint of the write-ahead log.
        self.readers.close().await;
        if let Some((writers, _)) = &self.writers {
            let cleanup = writers.run_long("closing", |conn| {
                conn.before_close();
                Ok(())
            });
            // Fails only when the ledger is closed already, or the clean-up panicked.
            cleanup.await.ok();
            writers.close().await;
        }
    }
}

fn secret<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    name: &'static str,
) -> Result<Vec<u8>, Error> {
    if let Some(stored) = conn.secret_value(name)? {
        return Ok(stored);
    }
    let mut generated = vec![0_u8; 32];
    getrandom::fill(&mut generated).map_err(|error| Error::Unstorable {
        what: format!("a secret: no randomness from the operating system ({error})"),
    })?;
    let store = |conn: &mut D| {
        Ok(TransactionEnd::commit_if(inserted(conn.insert_secret(name, &generated))?))
    };
    if in_transaction(conn, fence, store)? {
        return Ok(generated);
    }
    // Another process stored its secret first: that one is valid.
    conn.secret_value(name)?.ok_or_else(|| Error::Unreadable {
        what: format!("secret {name}: rejected as a duplicate, but not stored"),
    })
}
