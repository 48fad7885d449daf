//! Fencing between exclusive and shared writers, and locking between two writers.

use floodgate::config::{Settings, Tier};
use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::sql::WriteMode::{self, Exclusive, Shared};
use floodgate::db::{Error, ErrorClass, OrderReader, OrderWriter, SaleStore};
use floodgate::domain::{OrderIntent, Sku};
use floodgate::runtime::clock::SystemClock;
use floodgate::tier;

use crate::support::offers::{ANY, intent, offer, orders, run};
use crate::support::servers::mariadb::MariaDb;
use crate::support::wait::until_true;

/// Opens the ledger as one process, with time-outs long enough for a busy machine.
fn open(server: &MariaDb, writing: WriteMode) -> MysqlLedger {
    let options = MysqlOptions {
        writing,
        lock_wait_timeout_s: 60,
        statement_timeout_ms: 60_000,
        job_deadline_ms: 60_000,
        ..server.options()
    };
    MysqlLedger::open(&options).unwrap()
}

async fn place(ledger: &MysqlLedger, sku: &Sku, number: u64) -> Result<Option<i64>, Error> {
    ledger.place(vec![intent(sku, number, number, 1)]).await
}

/// Requires that a write is fenced with a message that names the process that opened the ledger.
async fn assert_fenced(ledger: &MysqlLedger, sku: &Sku, by: &str) {
    let error = place(ledger, sku, 999).await.unwrap_err();
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::Down);
    let message = error.to_string();
    assert!(message.contains(by) && message.contains("stop one of the two"), "{message}");
}

#[test]
fn processes_that_share_a_ledger_and_one_that_writes_alone_end_each_other() {
    const EXCLUSIVE: &str = "writes alone (tier memory or ledger)";
    const SHARED: &str = "shares the ledger (tier gate or pipeline)";
    run(async {
        let server = MariaDb::start();
        let sharing = [open(&server, Shared), open(&server, Shared)];
        let sku = offer(&sharing[0], "sale", ANY, 100).await;
        for (number, ledger) in (1..).zip(&sharing) {
            assert!(place(ledger, &sku, number).await.unwrap().is_some());
        }

        let exclusive = open(&server, Exclusive);
        for ledger in &sharing {
            assert_fenced(ledger, &sku, EXCLUSIVE).await;
        }
        assert!(place(&exclusive, &sku, 3).await.unwrap().is_some());

        let later = [open(&server, Shared), open(&server, Shared)];
        assert_fenced(&exclusive, &sku, SHARED).await;
        for (number, ledger) in (4..).zip(&later) {
            assert!(place(ledger, &sku, number).await.unwrap().is_some());
        }
        // The first two missed the writes of the exclusive process and stay fenced.
        for ledger in &sharing {
            assert_fenced(ledger, &sku, SHARED).await;
        }

        let first = open(&server, Exclusive);
        let second = open(&server, Exclusive);
        assert_fenced(&first, &sku, EXCLUSIVE).await;
        assert!(place(&second, &sku, 6).await.unwrap().is_some());
        assert_eq!(orders(&second, sku.no).await.len(), 6);

        let mut settings = Settings::with_ledger(&server.url());
        for alone in [Tier::Memory, Tier::Ledger] {
            settings.tier = alone;
            let before = open(&server, Exclusive);
            tier::open(&settings, &SystemClock::shared()).await.unwrap();
            assert_fenced(&before, &sku, EXCLUSIVE).await;
        }
    });
}

#[test]
fn the_token_does_not_change_between_its_check_and_the_commit() {
    run(async {
        let server = MariaDb::start();
        let first = open(&server, Exclusive);
        let sku = offer(&first, "sale", ANY, 5).await;
        // A batch locks the row of the stock last, after the check of the token.
        let other = server.session();
        other.sql(&format!("BEGIN; SELECT * FROM skus WHERE sku_no = {} FOR UPDATE", sku.no));
        let placing = place(&first, &sku, 1);
        let opening = async {
            server.until_row_lock_wait().await;
            std::thread::scope(|scope| {
                let opening = scope.spawn(|| open(&server, Exclusive));
                until_true("the opening to wait for the writer or to finish", || {
                    opening.is_finished() || server.status("INNODB_ROW_LOCK_CURRENT_WAITS") == 2
                });
                let has_opened = opening.is_finished();
                assert!(!has_opened, "the token changed during a transaction that had checked it");
                other.sql("ROLLBACK");
                opening.join().unwrap()
            })
        };
        let (placed, second) = tokio::join!(placing, opening);
        assert!(placed.unwrap().is_some());
        assert_eq!(second.available(sku.no).await.unwrap(), 4);
        assert!(matches!(place(&first, &sku, 2).await, Err(Error::Fenced { .. })));
    });
}

#[test]
fn two_writers_of_the_same_orders_in_opposite_order_do_not_deadlock() {
    const ROUNDS: u64 = 400;
    const BATCH: u64 = 64;
    run(async {
        let server = MariaDb::start_with(&["--innodb-flush-log-at-trx-commit=0"]);
        let writers = [open(&server, Shared), open(&server, Shared)];
        let sku = offer(&writers[0], "sale", ANY, 1_000_000).await;
        let before = server.status("INNODB_ROW_LOCK_WAITS");
        for round in 0..ROUNDS {
            let batch = (1..=BATCH).map(|n| intent(&sku, round * BATCH + n, n, 1));
            let batch: Vec<OrderIntent> = batch.collect();
            let reversed = batch.iter().rev().copied().collect();
            let (one, other) = tokio::join!(writers[0].place(batch), writers[1].place(reversed));
            let (one, other) = (one.unwrap(), other.unwrap());
            assert_ne!(one.is_some(), other.is_some(), "exactly one writer places the batch");
        }
        assert_eq!(server.status("INNODB_DEADLOCKS"), 0);
        assert!(
            server.status("INNODB_ROW_LOCK_WAITS") > before,
            "the writers never waited for each other"
        );
    });
}

#[test]
fn rows_of_a_read_only_server_are_not_trusted() {
    run(async {
        let server = MariaDb::start();
        let ledger = open(&server, Shared);
        let sku = offer(&ledger, "sale", ANY, 5).await;
        let intents = vec![intent(&sku, 1, 1, 1)];
        server.sql("SET GLOBAL read_only = 1");
        for error in [
            ledger.examine(intents.clone()).await.unwrap_err(),
            ledger.scan_orders(sku.no, Box::new(|_| true)).await.unwrap_err(),
            ledger.sales().await.unwrap_err(),
        ] {
            assert_eq!(error.class(), ErrorClass::Down);
            assert!(error.to_string().contains("point ledger.url at the primary"), "{error}");
        }
        // An operator may read a replica.
        let reader = MysqlLedger::open_for_reading(&server.options()).unwrap();
        assert_eq!(reader.sales().await.unwrap().len(), 1);
        server.sql("SET GLOBAL read_only = 0");
        ledger.examine(intents).await.unwrap();
    });
}
