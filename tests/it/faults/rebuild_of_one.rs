//! The rebuild of one SKU while others sell.

use std::sync::Arc;

use floodgate::domain::{BucketKey, BucketNo, Phase, SaleDraft, SkuDraft};
use floodgate::messages::BuyAnswer;
use floodgate::runtime::clock::{ManualClock, SharedClock};
use floodgate::services::sales::SalesError;
use floodgate::stock::{BucketHealth, Error};
use floodgate::tier::Backends;

use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::faulty_stock::{FaultyStock, StockFault};
use crate::support::gate::{GateFixture, LONG_LEASE, PATIENT};
use crate::support::harness::{Harness, ONE_PER_BUYER, START_MS, in_system, is_placed};
use crate::support::offers;
use crate::support::wait::until;

/// Until no answer of a gate from before says that a bucket is ready.
async fn until_lost(harness: &Harness) {
    let (sale, stock) = (harness.catalog.sale("sale").unwrap(), &harness.backends.stock);
    for sku in &sale.skus {
        until("lost buckets", async || {
            let health = stock.health(sku, sale.phase, sale.epoch).await;
            (!matches!(health, Ok(BucketHealth::Ready))).then_some(())
        })
        .await;
    }
}

/// A sale whose SKUs have one bucket each.
fn sale_draft(id: &str, skus: &[&str]) -> SaleDraft {
    let sku = |id: &&str| SkuDraft { buckets: 1, ..offers::sku_draft(id, ONE_PER_BUYER, 10) };
    SaleDraft {
        starts_at_ms: START_MS - 1000,
        ends_at_ms: START_MS + 86_400_000,
        ..offers::sale_draft(id, skus.iter().map(sku).collect())
    }
}

#[test]
fn one_sku_that_is_loaded_or_damaged_holds_up_no_other() {
    let fixture = GateFixture::new();
    let settings = fixture.settings(&[&PATIENT[..], &LONG_LEASE].concat());
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let clock: SharedClock = Arc::new(ManualClock::new(START_MS));
        let mut backends = Backends::on_redis(&settings, ledger, &clock).await.unwrap();
        let faulty = Arc::new(FaultyStock::new(backends.stock.clone()));
        backends.stock = faulty.clone();
        let harness = Harness::on(&settings, backends, Arc::new(ManualClock::new(START_MS)));
        let draft = sale_draft("sale", &["damaged", "slow", "sku"]);
        harness.sales.create(draft).await.unwrap();
        harness.set_phase(Phase::Open).await;
        let no_of = |id| harness.catalog.sale("sale").unwrap().sku(id).unwrap().no;
        let bucket = |id| format!("fg:{{{}:0}}:bucket", no_of(id));
        fixture.redis.cmd(&["FLUSHALL"]);
        fixture.redis.cmd(&["SET", &bucket("damaged"), "text"]);
        until_lost(&harness).await;
        faulty.set(StockFault::LoadWaits(no_of("slow")));
        let stuck = harness.sync();
        tokio::pin!(stuck);
        let third = until("the third SKU", async || {
            is_placed(&harness.buy_as(1, 1, 1).await).then_some(())
        });
        tokio::select! {
            ended = &mut stuck => panic!("{ended:?}"),
            () = third => {}
        }
        // The next sync skips the SKU of the one before, and learns the new sale.
        let later = sale_draft("later", &["sku"]);
        harness.backends.ledger.create_sale(later, START_MS).await.unwrap().unwrap();
        fixture.redis.cmd(&["DEL", &bucket("sku")]);
        assert_eq!(harness.buy_as(2, 2, 1).await, BuyAnswer::Busy);
        // More than one sync: the first may find that the one before settles its last orders.
        let loaded = until("the deleted bucket", async || {
            let synced = harness.sync().await;
            assert!(matches!(synced, Err(SalesError::Stock(Error::Damaged { .. }))), "{synced:?}");
            is_placed(&harness.buy_as(2, 2, 1).await).then_some(())
        });
        tokio::select! {
            ended = &mut stuck => panic!("{ended:?}"),
            () = loaded => {}
        }
        assert!(harness.catalog.sale("later").is_some());
        faulty.set(StockFault::None);
        assert!(stuck.await.is_err(), "the damaged SKU fails the sync");
        let slow = BucketKey { sku: no_of("slow"), bucket: BucketNo(0) };
        assert_eq!(harness.backends.stock.snapshot(slow).await.unwrap().available, 10);
    });
}
