//! The crash points of the ledger, by name. A killed process leaves its files as they are, so each
//! test copies the files at that moment and opens the copy.

use std::fs;
use std::path::{Path, PathBuf};

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{Ledger, OrderWriter, SaleStore};
use floodgate::domain::{OrderIntent, Sku};
use tempfile::TempDir;

use crate::support::migrations;
use crate::support::offers::{ANY, intent, offer, orders, run};

struct Running {
    directory: TempDir,
    ledger: SqliteLedger,
    sku: Sku,
}

impl Running {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = OpenOptions::new(directory.path().join("ledger.db"));
        let ledger = SqliteLedger::open(&options).unwrap();
        let sku = offer(&ledger, "sale", ANY, 10_000).await;
        Self { directory, ledger, sku }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("ledger.db")
    }

    /// Copies the files as they are now, as a kill would leave them.
    fn killed(&self, name: &str) -> OpenOptions {
        let copy = self.directory.path().join(name);
        for suffix in ["", "-wal"] {
            fs::copy(with_suffix(&self.file(), suffix), with_suffix(&copy, suffix)).unwrap();
        }
        OpenOptions::new(copy)
    }

    fn batch(&self, from: u64, to: u64) -> Vec<OrderIntent> {
        (from..=to).map(|number| intent(&self.sku, number, number, 1)).collect()
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Crash point `before_commit`.
#[test]
fn before_commit_nothing_of_the_batch_is_there() {
    run(async {
        let running = Running::start().await;
        running.ledger.place(running.batch(1, 50)).await.unwrap();
        // The small cache spills the unfinished transaction into the log.
        let mut writer = SqliteConnection::establish(running.file().to_str().unwrap()).unwrap();
        writer
            .batch_execute(
                "PRAGMA cache_size = 10; BEGIN IMMEDIATE; \
                 WITH RECURSIVE more (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more LIMIT 5000) \
                 INSERT INTO orders \
                   SELECT 1, 1000 + n, 1000 + n, 1000 + n, 1, 1, 1, 0, 1, 1, X'00', NULL, 1, 0, \
                   NULL, 1 \
                   FROM more; \
                 UPDATE skus SET available = available - 5000",
            )
            .unwrap();
        let before = fs::metadata(with_suffix(&running.file(), "-wal")).unwrap().len();
        assert!(before > 200_000, "the log holds the unfinished transaction: {before} bytes");
        let files = running.killed("killed.db");
        writer.batch_execute("ROLLBACK").unwrap();

        let next = SqliteLedger::open(&files).unwrap();
        assert_eq!(orders(&next, running.sku.no).await.len(), 50);
        assert_eq!(next.available(running.sku.no).await.unwrap(), 9_950);
        assert!(next.place(running.batch(1_001, 1_005)).await.unwrap().is_some());
    });
}

/// Crash point `after_commit`.
#[test]
fn after_commit_the_whole_batch_is_there_and_a_repeat_finds_it() {
    run(async {
        let running = Running::start().await;
        running.ledger.place(running.batch(1, 700)).await.unwrap();
        let files = running.killed("killed.db");

        let reader = SqliteLedger::open_for_reading(&files).unwrap();
        assert_eq!(orders(&reader, running.sku.no).await.len(), 700, "an audit needs no restart");
        reader.close().await;

        let next = SqliteLedger::open(&files).unwrap();
        assert_eq!(orders(&next, running.sku.no).await.len(), 700);
        assert_eq!(next.available(running.sku.no).await.unwrap(), 9_300);
        assert!(next.place(running.batch(1, 700)).await.unwrap().is_none());
        let examined = next.examine(running.batch(1, 700)).await.unwrap();
        assert_eq!(examined.orders.len(), 700);
    });
}

#[test]
fn a_torn_log_gives_back_whole_transactions_only() {
    run(async {
        let running = Running::start().await;
        let mut ends = Vec::new();
        for batch in 0..6 {
            running.ledger.place(running.batch(batch * 100 + 1, batch * 100 + 100)).await.unwrap();
            ends.push(fs::metadata(with_suffix(&running.file(), "-wal")).unwrap().len());
        }
        // A power failure may keep any prefix of the unflushed bytes.
        for (number, cut) in
            [(0, ends[0] + 1), (1, ends[2] - 1), (2, ends[4]), (3, ends[4] + 5_000)]
        {
            let files = running.killed(&format!("cut-{number}.db"));
            let log =
                fs::File::options().write(true).open(with_suffix(&files.path, "-wal")).unwrap();
            log.set_len(cut).unwrap();
            let whole = ends.iter().filter(|end| **end <= cut).count();

            let next = SqliteLedger::open(&files).unwrap();
            let found = orders(&next, running.sku.no).await.len();
            assert_eq!(found, whole * 100, "cut at {cut} of {ends:?}");
            let available = next.available(running.sku.no).await.unwrap() as usize;
            assert_eq!(available + found, 10_000);
        }
    });
}

/// Crash point `creating`.
#[test]
fn creating_is_begun_again_when_it_was_not_finished() {
    let directory = tempfile::tempdir().unwrap();
    let options = OpenOptions::new(directory.path().join("ledger.db"));
    fs::write(with_suffix(&options.path, ".new"), "half a ledger").unwrap();
    fs::write(with_suffix(&options.path, ".new-journal"), "and its journal").unwrap();
    let ledger = SqliteLedger::open(&options).unwrap();
    run(ledger.ping()).unwrap();
    assert!(!with_suffix(&options.path, ".new").exists());
}

/// Crash point `migrating`: the database has the table of the migrations, and no migration.
#[test]
fn migrating_goes_on_where_it_ended() {
    let down = include_str!("../../../migrations/sqlite/0001_create_schema/down.sql");
    run(async {
        let running = Running::start().await;
        // Stays connected, so that the log stays: a file without log and schema is refused as that
        // of another program.
        let mut other = SqliteConnection::establish(running.file().to_str().unwrap()).unwrap();
        running.ledger.close().await;
        other
            .batch_execute(&format!(
                "{down} DELETE FROM __diesel_schema_migrations; CREATE TABLE secrets (name TEXT)"
            ))
            .unwrap();
        // A table in the way of the last statement.
        let options = OpenOptions::new(running.file());
        let error = SqliteLedger::open(&options).unwrap_err().to_string();
        assert!(error.contains("the ledger cannot be migrated"), "{error}");
        assert!(error.contains("nothing of the failed migration was kept"), "{error}");
        other.batch_execute("DROP TABLE secrets").unwrap();

        let files = running.killed("killed.db");
        let expected = migrations::all("sqlite");
        assert_eq!(SqliteLedger::schema_status(&files).unwrap().pending, expected);
        let next = SqliteLedger::open(&files).unwrap();
        assert_eq!(SqliteLedger::schema_status(&files).unwrap().pending, Vec::<String>::new());
        assert!(next.sales().await.unwrap().is_empty());
    });
}
