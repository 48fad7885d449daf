//! Tokens, secrets and the canary, and the end of a ledger.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Database, SqlLedger, TransactionEnd, WriterFence, in_transaction, inserted};
use crate::db::{Error, Ledger};

/// The next value of a counter, in SQL.
pub(super) const INCREMENT: &str = "token + 1";

/// No order has the number 0. The transaction ends before anyone else reads the row.
const CANARY: &str = "\
    INSERT INTO order_events \
    (request_id, version, sku_no, buyer_id, kind, at_ms, actor, limit_back, num_orders) \
    VALUES (0, 0, 0, 0, 0, 0, '', 0, 0); \
    DELETE FROM order_events WHERE request_id = 0 AND version = 0";

#[async_trait]
impl<D: Database> Ledger for SqlLedger<D> {
    async fn secret(&self, name: &'static str) -> Result<Vec<u8>, Error> {
        if self.writers.is_none() {
            let stored = self.read("reading a secret", |conn| Ok(conn.secret_value(name)?)).await?;
            return stored.ok_or(Error::ReadOnly { operation: "creating a secret" });
        }
        self.write("creating a secret", move |conn, fence, _| secret(conn, fence, name)).await
    }

    async fn next_token(&self, name: &'static str) -> Result<i64, Error> {
        self.write_at("incrementing a token", move |conn, _| {
            Ok(TransactionEnd::Commit(conn.raise_token(name, INCREMENT)?))
        })
        .await
    }

    async fn commit_canary(&self) -> Result<(), Error> {
        self.write_at("committing the canary", |conn, _| {
            conn.batch_execute(CANARY)?;
            Ok(TransactionEnd::Commit(()))
        })
        .await
    }

    async fn time_ms(&self) -> Result<i64, Error> {
        let clock = Arc::clone(&self.clock);
        self.read("reading the ledger's time", move |conn| {
            Ok(conn.server_time_ms()?.unwrap_or_else(|| clock.wall_ms()))
        })
        .await
    }

    async fn ping(&self) -> Result<(), Error> {
        let ping = |conn: &mut D| {
            conn.limit_job();
            Ok(conn.ping()?)
        };
        self.readers.probe("pinging the ledger", ping).await
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
        let inserted = inserted(conn.insert_secret(name, &generated))?;
        Ok(TransactionEnd::commit_if(inserted.is_some()))
    };
    if in_transaction(conn, fence, store)? {
        return Ok(generated);
    }
    // Another process stored its secret first: that one is valid.
    conn.secret_value(name)?.ok_or_else(|| Error::Unreadable {
        what: format!("secret {name}: rejected as a duplicate, but not stored"),
    })
}
