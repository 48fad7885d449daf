//! What the writer's own connection keeps of a power cut. No kill of a process shows it: what the
//! operating system has been given survives that, flushed or not.

use diesel::connection::SimpleConnection;

use super::connection::{number_cell, text_cell};
use super::{OpenOptions, SqliteLedger};
use crate::db::Error;

/// `PRAGMA synchronous = FULL`: every COMMIT flushes the log before it is answered.
const FULL: i64 = 2;

/// Asks the connection that orders are written with.
async fn ask_writer(ledger: &SqliteLedger) -> (i64, String, i64) {
    let workers = &ledger.writers.as_ref().unwrap().workers;
    let ask = |conn: &mut _| {
        let number = |conn: &mut _, name: &str| {
            let sql = format!("SELECT {name} AS cell FROM pragma_{name}");
            number_cell(conn, &sql)
        };
        let mode = text_cell(conn, "SELECT journal_mode AS cell FROM pragma_journal_mode");
        Ok((number(conn, "synchronous")?, mode?, number(conn, "foreign_keys")?))
    };
    workers.run("asking", ask).await.unwrap()
}

#[tokio::test]
async fn a_commit_is_flushed_on_the_first_connection_and_on_its_successors() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = SqliteLedger::open(&OpenOptions::new(directory.path().join("ledger.db"))).unwrap();
    let expected = (FULL, "wal".to_owned(), 1);
    assert_eq!(ask_writer(&ledger).await, expected);

    // A job that fails costs the connection; the next one gets another.
    let workers = &ledger.writers.as_ref().unwrap().workers;
    let failed = workers.run::<(), _>("failing", |conn| {
        conn.batch_execute("PRAGMA synchronous = OFF")?;
        Err(Error::Full)
    });
    failed.await.unwrap_err();
    assert_eq!(ask_writer(&ledger).await, expected);
}
