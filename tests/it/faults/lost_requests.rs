//! Lost requests that an audit or the reconciler submits, at a database that rejects one of them.

use std::sync::Arc;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::db::Ledger;
use floodgate::db::mysql::MysqlLedger;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::domain::{
    BucketKey, BucketNo, Counting, Epoch, LoaderToken, Phase, Refusal, RepairOutcome, Sku,
};
use floodgate::services::lost_requests::{Error, submit};
use floodgate::stock::{MemoryStock, Stock};

use crate::support::offers::{ANY, buyer, open_offer, orders, request, run};
use crate::support::servers::mariadb::MariaDb;

const NOW_MS: i64 = 3_000;

/// `sql` changes the database; with `reject` it rejects the order of request 3.
async fn a_rejected_order_holds_up_no_other(
    ledger: &dyn Ledger,
    sql: impl Fn(&str),
    [reject, allow]: [&str; 2],
) {
    let sku = Arc::new(Sku { buckets: 1, ..open_offer(ledger, "sale", ANY, 100).await });
    let bucket = BucketKey { sku: sku.no, bucket: BucketNo(0) };
    let stock = MemoryStock::new(Counting::InStock);
    let loading = stock.load(sku.clone(), LoaderToken(1)).await.unwrap();
    loading.publish(sku.initial, Phase::Open, Epoch(1)).await.unwrap();
    let accepted = |no| sku.intent(request(no), buyer(no), Epoch(1), 1, 2_000);
    stock.reserve(bucket, (1..=5).map(accepted).collect()).await.unwrap();
    let lost = stock.unsettled(bucket).await.unwrap();

    sql(reject);
    let (repairs, submitted) = submit(ledger, &stock, bucket, &lost, NOW_MS).await;
    let is_third =
        matches!(&submitted, Err(Error::Ledger { request: it, .. }) if *it == request(3));
    assert!(is_third, "{submitted:?}");
    assert_eq!(repairs.len(), 4, "{repairs:?}");
    let queued = stock.unsettled(bucket).await.unwrap();
    assert_eq!(queued.iter().map(|intent| intent.request).collect::<Vec<_>>(), [request(3)]);
    assert_eq!((orders(ledger, sku.no).await.len(), stock.left(sku.no)), (4, 95));

    // Its buyer cancels it meanwhile. The others are submitted once more.
    sql(allow);
    let cancelled = queued[0].failure(Refusal::CancelledByBuyer, NOW_MS);
    ledger.record_failures(vec![cancelled]).await.unwrap();
    for _ in 0..2 {
        let (repairs, submitted) = submit(ledger, &stock, bucket, &lost, NOW_MS).await;
        submitted.unwrap();
        let failed = repairs.iter().filter(|one| one.outcome == RepairOutcome::FailedFinal);
        let failed: Vec<_> = failed.map(|one| one.request).collect();
        assert_eq!((repairs.len(), failed), (5, vec![Some(request(3))]), "{repairs:?}");
        assert_eq!((orders(ledger, sku.no).await.len(), stock.left(sku.no)), (4, 96));
    }
}

#[test]
fn a_trigger_of_sqlite_holds_up_no_other_order() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ledger.db");
        let ledger = SqliteLedger::open(&OpenOptions::new(file.clone())).unwrap();
        let sql = |statement: &str| {
            let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
            conn.batch_execute(&format!("PRAGMA busy_timeout = 5000; {statement}")).unwrap();
        };
        let reject = "CREATE TRIGGER refuse BEFORE INSERT ON orders WHEN NEW.request_id = 3 \
                      BEGIN SELECT RAISE(ABORT, 'on purpose'); END";
        a_rejected_order_holds_up_no_other(&ledger, sql, [reject, "DROP TRIGGER refuse"]).await;
    });
}

#[test]
fn a_constraint_of_mariadb_holds_up_no_other_order() {
    let server = MariaDb::start();
    run(async {
        let ledger = MysqlLedger::open(&server.options()).unwrap();
        let reject = "ALTER TABLE orders ADD CONSTRAINT refuse CHECK (request_id <> 3)";
        let allow = "ALTER TABLE orders DROP CONSTRAINT refuse";
        let sql = |statement: &str| server.sql(statement);
        a_rejected_order_holds_up_no_other(&ledger, sql, [reject, allow]).await;
    });
}
