//! The operators' verbs, when something fails between the ledger and the buckets.

use std::sync::Arc;

use floodgate::config::Tier;
use floodgate::db::Ledger;
use floodgate::domain::{Epoch, Phase, Refusal};
use floodgate::messages::BuyAnswer;
use floodgate::runtime::clock::{ManualClock, SharedClock};
use floodgate::services::rebuild::load_sku;
use floodgate::services::sales::SalesError;
use floodgate::stock::Stock;
use floodgate::tier::Backends;

use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::faulty_stock::{FaultyStock, StockFault};
use crate::support::lying_ledger::{Lie, LyingLedger};
use crate::support::rig::{Offer, Rig, START_MS, UNLIMITED, in_system, is_placed, settings};
use crate::support::wait::until;

const OFFER: Offer = Offer { policy: UNLIMITED, stock: 5, buckets: 2 };

/// Crash point `turned_not_told`.
#[test]
fn turned_not_told_is_told_by_the_next_start() {
    in_system(async {
        let ledger: Arc<dyn Ledger> = Arc::new(LyingLedger::new(Lie::Honest));
        let settings = settings(Tier::Memory);
        let dying = Rig::open(&settings, ledger.clone(), OFFER).await;
        dying.desk.turn(&"sale".parse().unwrap(), Phase::Paused).await.unwrap();
        // The ledger opens the sale again, and nobody tells the buckets.
        let sale = "sale".parse().unwrap();
        ledger.turn_sale(sale, Epoch(1), Phase::Open, START_MS).await.unwrap().unwrap();
        assert!(!is_placed(&dying.buy_as(1, 1, 1).await));

        let next = Rig::start(&settings, ledger);
        next.desk.restore().await.unwrap();
        assert!(is_placed(&next.buy_as(1, 1, 1).await));
        next.assert_holds().await;
    });
}

fn refused(refusal: Refusal) -> BuyAnswer {
    BuyAnswer::Refused { refusal, replayed: false }
}

/// A rig whose stock can be deaf.
async fn open_in_front_of(ledger: Arc<dyn Ledger>) -> (Rig, Arc<FaultyStock>) {
    let settings = settings(Tier::Memory);
    let clock = Arc::new(ManualClock::new(START_MS));
    let shared: SharedClock = clock.clone();
    let mut backends = Backends::embedded(settings.tier, ledger, &shared);
    let stock = Arc::new(FaultyStock::new(backends.stock));
    backends.stock = stock.clone();
    let rig = Rig::on(&settings, backends, clock);
    rig.create(OFFER, START_MS - 1000).await;
    rig.turn(Phase::Open).await;
    (rig, stock)
}

async fn phase_in(ledger: &dyn Ledger) -> (Epoch, Phase) {
    let sales = ledger.sales().await.unwrap();
    (sales[0].epoch, sales[0].phase)
}

#[test]
fn a_pause_that_the_buckets_do_not_hear_holds_in_ledger_and_catalog() {
    in_system(async {
        let ledger = Arc::new(LyingLedger::new(Lie::Honest));
        let (rig, stock) = open_in_front_of(ledger.clone()).await;
        let sale = "sale".parse().unwrap();
        stock.set_deaf(true);
        let paused = rig.desk.turn(&sale, Phase::Paused).await;
        assert!(matches!(paused, Err(SalesError::Stock(_))), "{paused:?}");
        assert_eq!(phase_in(&*ledger).await, (Epoch(1), Phase::Paused));
        assert_eq!(rig.catalog.sale("sale").unwrap().sale.phase, Phase::Paused);
        // What may still sell under the epoch keeps the next one from beginning.
        let opened = rig.desk.turn(&sale, Phase::Open).await;
        assert!(matches!(opened, Err(SalesError::Stock(_))), "{opened:?}");
        assert_eq!(phase_in(&*ledger).await, (Epoch(1), Phase::Paused));

        stock.set_deaf(false);
        rig.desk.turn(&sale, Phase::Paused).await.unwrap();
        assert_eq!(rig.buy_as(1, 1, 1).await, refused(Refusal::NotStarted));
        rig.desk.turn(&sale, Phase::Open).await.unwrap();
        assert!(is_placed(&rig.buy_as(1, 1, 1).await));
        rig.assert_holds().await;
    });
}

#[test]
fn a_verb_that_the_ledger_refuses_leaves_the_buckets_selling() {
    in_system(async {
        let ledger = Arc::new(FaultyLedger::new(Arc::new(LyingLedger::new(Lie::Honest))));
        let (rig, _) = open_in_front_of(ledger.clone()).await;
        for phase in [Phase::Paused, Phase::Closed] {
            ledger.set(Fault::Down);
            let refused = rig.desk.turn(&"sale".parse().unwrap(), phase).await;
            assert!(matches!(refused, Err(SalesError::Ledger(_))), "{refused:?}");
            ledger.set(Fault::None);
            let request = 1 + phase as u64;
            assert!(is_placed(&rig.buy_as(request, 1, 1).await));
        }
        rig.assert_holds().await;
    });
}

#[test]
fn the_first_look_moves_buckets_on_that_another_process_left_behind() {
    in_system(async {
        let ledger: Arc<dyn Ledger> = Arc::new(LyingLedger::new(Lie::Honest));
        let (rig, _) = open_in_front_of(ledger.clone()).await;
        let turn = |seen, next| ledger.turn_sale("sale".parse().unwrap(), seen, next, START_MS);
        turn(Epoch(1), Phase::Closed).await.unwrap().unwrap();
        rig.desk.look().await.unwrap();
        let sku = rig.catalog.sale("sale").unwrap().skus[0].clone();
        let condition = rig.backends.stock.condition(&sku, Phase::Closed, Epoch(1)).await;
        assert_eq!(condition, Ok(floodgate::stock::BucketHealth::Ready));
        assert_eq!(rig.buy_as(1, 1, 1).await, refused(Refusal::Ended));
    });
}

#[test]
fn a_load_publishes_where_the_sale_stands_when_the_buckets_are_held() {
    in_system(async {
        let ledger: Arc<dyn Ledger> = Arc::new(LyingLedger::new(Lie::Honest));
        let (rig, stock) = open_in_front_of(ledger.clone()).await;
        let sku = rig.catalog.sale("sale").unwrap().skus[0].clone();
        stock.set(StockFault::LoadWaits(sku.no));
        let loading = load_sku(&*ledger, &*stock, &sku, Vec::new());
        // Another process closes the sale after the loader began, and cannot tell the buckets.
        let closing = async {
            until("the loader", async || (stock.num_waiting() == 1).then_some(())).await;
            let turn = ledger.turn_sale("sale".parse().unwrap(), Epoch(1), Phase::Closed, START_MS);
            turn.await.unwrap().unwrap();
            stock.set(StockFault::None);
        };
        let (loaded, ()) = tokio::join!(loading, closing);
        loaded.unwrap();
        let condition = stock.condition(&sku, Phase::Closed, Epoch(1)).await;
        assert_eq!(condition, Ok(floodgate::stock::BucketHealth::Ready));
    });
}
