//! Lost requests that an audit or the reconciler submits, at a database that rejects one of them.

use std::sync::Arc;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::db::Ledger;
use floodgate::db::mysql::MysqlLedger;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::domain::{
    BucketKey, BucketNo, Counting, Epoch, LoaderToken, Phase, RecordState, Refusal, RepairOutcome,
    Sku,
};
use floodgate::observe::metrics::Metrics;
use floodgate::services::lost_requests::{Error, Submitter};
use floodgate::stock::{MemoryStock, Stock};

use super::audit_repairs::{Shop, accept};
use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::harness::{QUEUED, in_system};
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
    let (sale, metrics) = (ledger.sales().await.unwrap().remove(0), Metrics::default());
    let submitter = Submitter { ledger, stock: &stock, metrics: &metrics, now_ms: NOW_MS };

    sql(reject);
    let (repairs, submitted) = submitter.submit(&sale, &sku, bucket, &lost).await;
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
        let (repairs, submitted) = submitter.submit(&sale, &sku, bucket, &lost).await;
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

#[test]
fn a_lost_request_becomes_an_order_or_a_recorded_failure() {
    in_system(async {
        for shop in Shop::each().await {
            for (request, outcome) in
                [(4, RepairOutcome::Compensated), (5, RepairOutcome::FailedFinal)]
            {
                let intent = accept(&shop.backends, &shop.sku, request).await;
                if outcome == RepairOutcome::FailedFinal {
                    shop.tamper("UPDATE skus SET available = 0");
                }
                let repairs = shop.repair(&[shop.lost(&intent)]).await;
                let outcomes: Vec<_> = repairs.iter().map(|one| one.outcome).collect();
                assert_eq!(outcomes, [Some(outcome)], "{repairs:#?}");
                let is_ordered = matches!(shop.state(&intent).await, RecordState::Ordered { .. });
                assert_eq!(is_ordered, outcome == RepairOutcome::Compensated);
                let failure = shop.backends.ledger.failure(intent.request).await.unwrap();
                assert_eq!(failure.is_some(), !is_ordered);
            }
            assert_eq!(shop.metrics.orders_placed.get(), 1);
        }
    });
}

#[test]
fn a_lost_request_whose_refusal_cannot_be_recorded_stays_queued() {
    in_system(async {
        let shop = Shop::in_memory().await;
        let intent = accept(&shop.backends, &shop.sku, 4).await;
        shop.tamper("UPDATE skus SET available = 0");
        let ledger = FaultyLedger::new(shop.backends.ledger.clone());
        ledger.set(Fault::RecordsNothing);
        let repairer = shop.repairer(&ledger);
        repairer.repair(&[shop.lost(&intent)]).await.unwrap_err();
        assert_eq!(shop.state(&intent).await, QUEUED);
        // The next repair records the refusal first.
        ledger.set(Fault::None);
        repairer.repair(&[shop.lost(&intent)]).await.unwrap();
        assert!(matches!(shop.state(&intent).await, RecordState::Failed(_)));
    });
}

#[test]
fn a_lost_request_that_another_writer_places_during_its_repair_keeps_its_units() {
    in_system(async {
        let shop = Shop::in_memory().await;
        let intent = accept(&shop.backends, &shop.sku, 4).await;
        shop.backends.ledger.place(vec![intent]).await.unwrap();
        let ledger = FaultyLedger::new(shop.backends.ledger.clone());
        ledger.set(Fault::ExaminesBeforeOthers);
        let repairer = shop.repairer(&ledger);
        let repairs = repairer.repair(&[shop.lost(&intent)]).await.unwrap();
        assert_eq!(repairs.len(), 0, "{repairs:#?}");
        assert_eq!(shop.state(&intent).await, QUEUED);
        // The next repair finds the order.
        ledger.set(Fault::None);
        repairer.repair(&[shop.lost(&intent)]).await.unwrap();
        assert!(matches!(shop.state(&intent).await, RecordState::Ordered { .. }));
    });
}

#[test]
fn a_lost_request_that_contradicts_its_sale_stays_queued() {
    in_system(async {
        for shop in Shop::each().await {
            let intent = accept(&shop.backends, &shop.sku, 4).await;
            // As in a restored ledger, which lacks the opening.
            shop.tamper("UPDATE sales SET epoch = 0");
            let repairer = shop.repairer(shop.backends.ledger.as_ref());
            let error = repairer.repair(&[shop.lost(&intent)]).await.unwrap_err().to_string();
            assert!(
                error.contains("request 4 not submitted: epoch 1 is none of 1 to 0"),
                "{error}"
            );
            assert_eq!(shop.state(&intent).await, QUEUED);
            shop.tamper("UPDATE sales SET epoch = 1");
            repairer.repair(&[shop.lost(&intent)]).await.unwrap();
            assert!(matches!(shop.state(&intent).await, RecordState::Ordered { .. }));
        }
    });
}
