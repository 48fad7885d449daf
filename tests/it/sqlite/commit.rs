//! A COMMIT that fails: nothing was written, or the outcome is unknown.

use diesel::connection::SimpleConnection;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::BigInt;
use floodgate::db::sql::{TransactionEnd, WriteMode, WriterFence, in_transaction};
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{Error, ErrorClass};
use tempfile::TempDir;

/// A ledger with two more tables, whose connection has its writer's token.
struct Store {
    _directory: TempDir,
    conn: SqliteConnection,
    fence: WriterFence,
}

impl Store {
    fn with_parents_and_children() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = OpenOptions::new(directory.path().join("ledger.db"));
        SqliteLedger::migrate(&options).unwrap();
        let mut conn = SqliteConnection::establish(options.path.to_str().unwrap()).unwrap();
        conn.batch_execute(
            "PRAGMA foreign_keys = ON; CREATE TABLE parents (no INTEGER PRIMARY KEY); \
             CREATE TABLE children \
               (parent INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED)",
        )
        .unwrap();
        let fence = WriterFence::take(&mut conn, WriteMode::Exclusive).unwrap();
        Self { _directory: directory, conn, fence }
    }

    /// The error of a transaction that executes these statements and commits.
    fn commit(&mut self, statements: &str) -> Error {
        let job = |conn: &mut SqliteConnection| {
            conn.batch_execute(statements).unwrap();
            Ok(TransactionEnd::Commit(()))
        };
        in_transaction(&mut self.conn, self.fence, job).unwrap_err()
    }
}

#[test]
fn a_commit_that_fails_and_can_be_rolled_back_wrote_nothing() {
    let mut store = Store::with_parents_and_children();
    // COMMIT checks the deferred key, fails, and leaves the transaction open.
    let error = store.commit("INSERT INTO children VALUES (1)");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let children = sql::<BigInt>("SELECT COUNT(*) FROM children").get_result(&mut store.conn);
    assert_eq!(children, Ok(0_i64));
    store.conn.batch_execute("BEGIN IMMEDIATE; ROLLBACK").unwrap();
}

#[test]
fn a_commit_that_fails_without_an_open_transaction_is_unknown() {
    let mut store = Store::with_parents_and_children();
    let error = store.commit("ROLLBACK");
    assert!(matches!(error, Error::NotConfirmed { .. }), "{error:?}");
    assert_eq!(error.class(), ErrorClass::Unknown);
}
