//! Durability settings of the writer's connection. Killing a process cannot test them: the
//! operating system keeps written data, flushed or not.

use diesel::connection::SimpleConnection;
use diesel::sqlite::SqliteConnection;

use super::{OpenOptions, SqliteLedger};
use crate::db::Error;
use crate::db::sql::Queries;

/// `PRAGMA synchronous = FULL`: every COMMIT flushes the log before it returns.
const FULL: i64 = 2;

/// Reads the settings of the connection that writes orders.
async fn writer_settings(ledger: &SqliteLedger) -> (i64, String, i64) {
    let workers = &ledger.writers.as_ref().unwrap().0;
    let read = |conn: &mut SqliteConnection| {
        let mode = conn.text("SELECT journal_mode FROM pragma_journal_mode")?;
        let mut number = |name: &str| conn.number(&format!("SELECT {name} FROM pragma_{name}"));
        Ok((number("synchronous")?, mode, number("foreign_keys")?))
    };
    workers.run("reading settings", read).await.unwrap()
}

#[tokio::test]
async fn a_commit_is_flushed_on_the_first_connection_and_on_later_ones() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = SqliteLedger::open(&OpenOptions::new(directory.path().join("ledger.db"))).unwrap();
    let expected = (FULL, "wal".to_owned(), 1);
    assert_eq!(writer_settings(&ledger).await, expected);

    // A failed job closes the connection; the next job opens another.
    let workers = &ledger.writers.as_ref().unwrap().0;
    let failed = workers.run::<()>("failing", |conn| {
        conn.batch_execute("PRAGMA synchronous = OFF")?;
        Err(Error::Full)
    });
    failed.await.unwrap_err();
    assert_eq!(writer_settings(&ledger).await, expected);
}
