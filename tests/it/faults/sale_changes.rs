//! A sale that changes, with a crash between the ledger and the buckets.

use std::sync::Arc;
use std::time::Duration;

use floodgate::config::{Settings, Tier};
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::db::{ErrorClass, Ledger, SaleStore};
use floodgate::domain::{
    Epoch, Phase, Refusal, SaleChange, SkuChange, SkuNo, StockChangeOutcome, StockChangeRequest,
};
use floodgate::messages::BuyAnswer;
use floodgate::services::sales::{SalesError, StockOrder};
use tempfile::TempDir;

use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::gate::{GateFixture, PATIENT};
use crate::support::harness::{
    Harness, Offer, START_MS, UNLIMITED, in_system, is_placed, settings,
};
use crate::support::wait::until;

const OFFER: Offer = Offer { policy: UNLIMITED, stock: 4, buckets: 2 };

/// Tier `gate` with one open sale, on a ledger in this folder.
async fn harness(fixture: &GateFixture, folder: &TempDir) -> Harness {
    let options = OpenOptions::new(folder.path().join("ledger.db"));
    let ledger: Arc<dyn Ledger> = Arc::new(SqliteLedger::open(&options).unwrap());
    let harness = Harness::start_on_redis(&fixture.settings(&PATIENT), ledger).await;
    harness.create(OFFER, START_MS - 1000).await;
    harness.set_phase(Phase::Open).await;
    harness
}

fn restock(change_id: &str, delta: i32) -> StockOrder {
    StockOrder {
        sale: "sale".parse().unwrap(),
        sku: "sku".parse().unwrap(),
        change_id: change_id.to_owned(),
        delta,
        reason: None,
        operator: None,
    }
}

fn priced(price: i64) -> SaleChange {
    let sku = SkuChange {
        id: "sku".parse().unwrap(),
        title: None,
        price: Some(price),
        limit: None,
        max_quantity: None,
        payment_window_s: None,
    };
    SaleChange { skus: vec![sku], ..SaleChange::default() }
}

async fn units(harness: &Harness) -> u32 {
    harness.free().await.iter().sum()
}

/// Crash point `stock_recorded_not_applied`.
#[test]
fn units_that_only_the_ledger_has_are_added_by_the_next_sync() {
    let (fixture, folder) = (GateFixture::new(), tempfile::tempdir().unwrap());
    in_system(async {
        let harness = harness(&fixture, &folder).await;
        let sku = harness.catalog.sale("sale").unwrap().sku("sku").unwrap().clone();
        let crashed = StockChangeRequest {
            id: "crashed".to_owned(),
            sku: sku.no,
            wanted: 6,
            withdrawn: 0,
            load: None,
            reason: None,
            operator: None,
            at_ms: START_MS,
        };
        harness.backends.ledger.change_stock(crashed).await.unwrap();
        assert_eq!(units(&harness).await, 4);
        harness.sync().await.unwrap();
        assert_eq!(units(&harness).await, 10);
        // A repeat adds nothing, and neither does a load.
        assert_eq!(
            harness.sales.change_stock(restock("crashed", 6)).await.unwrap().change.units,
            6
        );
        assert_eq!(units(&harness).await, 10);
        fixture.redis.cmd(&["FLUSHALL"]);
        until("a load of the buckets", async || {
            harness.sync().await.ok()?;
            // The count that is cached may be of the buckets that are lost.
            let facts = harness.backends.stock.facts(sku.no).await.ok()?;
            (harness.backends.stock.left(sku.no) == 10 && facts.left == 10).then_some(())
        })
        .await;
        harness.assert_holds().await;
    });
}

/// A read of the sales that began before a change arrives after it.
#[test]
fn the_catalog_never_goes_back_to_an_earlier_description() {
    let folder = tempfile::tempdir().unwrap();
    in_system(async {
        let options = OpenOptions::new(folder.path().join("ledger.db"));
        let inner: Arc<dyn Ledger> = Arc::new(SqliteLedger::open(&options).unwrap());
        let ledger = Arc::new(FaultyLedger::new(inner));
        let settings = Settings::with_ledger("sqlite://unused.db");
        let harness = Harness::open(&settings, ledger.clone(), OFFER).await;
        let release = ledger.hold_next_sales();
        let early = async { harness.sales.refresh_catalog().await.unwrap() };
        let change = async {
            until("the early read", async || ledger.holds_sales().then_some(())).await;
            harness.sales.change_stock(restock("later", 6)).await.unwrap();
        };
        let end = async {
            until("the change", async || {
                ledger.stock_change(SkuNo(1), "later".to_owned()).await.unwrap().map(drop)
            })
            .await;
            // The change of stock goes on as far as it can.
            tokio::time::sleep(Duration::from_millis(100)).await;
            release.send(()).unwrap();
        };
        tokio::join!(early, change, end);
        assert_eq!(harness.catalog.sale("sale").unwrap().skus[0].initial, 10);
    });
}

/// A buyer who comes between the read of the ledger and the sync of the buckets.
#[test]
fn a_process_that_finds_an_open_sale_sells_it_at_once() {
    let (fixture, folder) = (GateFixture::new(), tempfile::tempdir().unwrap());
    in_system(async {
        let opener = harness(&fixture, &folder).await;
        let (settings, ledger) = (fixture.settings(&PATIENT), opener.backends.ledger.clone());
        let other = Harness::start_on_redis(&settings, ledger).await;
        other.sales.refresh_catalog().await.unwrap();
        let answer = other.buy(1).await;
        assert!(is_placed(&answer), "{answer:?}");
    });
}

/// Another process moves the end.
#[test]
fn a_process_that_does_not_know_an_earlier_end_sells_nothing_after_it() {
    let (fixture, folder) = (GateFixture::new(), tempfile::tempdir().unwrap());
    in_system(async {
        let operator = harness(&fixture, &folder).await;
        let (settings, ledger) = (fixture.settings(&PATIENT), operator.backends.ledger.clone());
        let other = Harness::start_on_redis(&settings, ledger).await;
        other.sales.refresh_catalog().await.unwrap();
        assert!(is_placed(&other.buy(1).await));
        let ends_at_ms = START_MS + 2_000;
        let change = SaleChange { ends_at_ms: Some(ends_at_ms), ..SaleChange::default() };
        operator.sales.change(&"sale".parse().unwrap(), change).await.unwrap();
        other.clock.set_wall_ms(ends_at_ms);
        let late = other.ask(2, 2, 1);
        assert_eq!(other.gates.buy(late).await, BuyAnswer::Busy);
        // It learns of the end between the comparison with the window and the gate.
        other.sync().await.unwrap();
        assert_eq!(other.gates.buy(late).await, BuyAnswer::Busy);
        other.assert_holds().await;
    });
}

/// A sale in tier `memory`, on a ledger file that can be made to fail.
async fn in_tier_memory(folder: &TempDir) -> (Arc<FaultyLedger>, Harness) {
    let options = OpenOptions::new(folder.path().join("ledger.db"));
    let ledger = Arc::new(FaultyLedger::new(Arc::new(SqliteLedger::open(&options).unwrap())));
    let harness = Harness::open(&settings(Tier::Memory), ledger.clone(), OFFER).await;
    (ledger, harness)
}

/// In tier `memory` no load returns the units of a withdrawal.
#[test]
fn a_change_without_an_outcome_is_ended_by_its_repeat() {
    for fault in [Fault::AnswerLostThenDown, Fault::RefusesAll(ErrorClass::Unknown)] {
        in_system(async {
            let folder = TempDir::new().unwrap();
            let (ledger, harness) = in_tier_memory(&folder).await;
            ledger.set(fault);
            let unknown = harness.sales.change_stock(restock("less", -3)).await;
            assert!(matches!(unknown, Err(SalesError::Ledger(_))), "{fault:?}: {unknown:?}");
            assert_eq!(units(&harness).await, 1, "{fault:?}: three are withdrawn");
            ledger.set(Fault::None);
            let changed = harness.sales.change_stock(restock("less", -3)).await.unwrap();
            assert_eq!((changed.change.units, units(&harness).await), (-3, 1), "{fault:?}");
            harness.sales.change_stock(restock("more", 2)).await.unwrap();
            assert_eq!(units(&harness).await, 3, "{fault:?}");
            for request in 1..=3 {
                assert!(is_placed(&harness.buy_as(request, request, 1).await), "{fault:?}");
            }
            let sold_out = BuyAnswer::refused(Refusal::SoldOut);
            assert_eq!(harness.buy_as(4, 4, 1).await, sold_out, "{fault:?}");
            harness.assert_holds().await;
        });
    }
}

#[test]
fn units_whose_restock_had_no_answer_are_sold_with_those_of_the_next_one() {
    in_system(async {
        let folder = TempDir::new().unwrap();
        let (ledger, harness) = in_tier_memory(&folder).await;
        ledger.set(Fault::AnswerLostThenDown);
        let lost = harness.sales.change_stock(restock("lost", 3)).await;
        assert!(matches!(lost, Err(SalesError::Ledger(_))), "{lost:?}");
        ledger.set(Fault::None);
        harness.sales.change_stock(restock("more", 2)).await.unwrap();
        assert_eq!(units(&harness).await, 9);
        harness.assert_holds().await;
    });
}

/// Buyers are sold to under the terms that the ledger has, though it answers no further read.
#[test]
fn terms_that_were_changed_are_sold_under_although_the_sales_cannot_be_read_again() {
    in_system(async {
        let folder = TempDir::new().unwrap();
        let (ledger, harness) = in_tier_memory(&folder).await;
        ledger.set(Fault::ReadsNoSales);
        harness.sales.change(&"sale".parse().unwrap(), priced(250)).await.unwrap();
        let answer = harness.buy(1).await;
        assert!(is_placed(&answer), "{answer:?}");
        ledger.set(Fault::None);
        let orders = crate::support::offers::orders(&*harness.backends.ledger, SkuNo(1)).await;
        assert_eq!((orders.len(), orders[0].amount), (1, 250));
        harness.assert_holds().await;
    });
}

/// In tier `memory` no sync brings the epoch of the ledger to the buckets.
#[test]
fn terms_whose_commit_had_no_answer_are_sold_under_once_the_ledger_is_read() {
    for (fault, is_answered, amount) in [
        (Fault::AnswerLost, true, 250),
        (Fault::AnswerLostThenDown, false, 250),
        (Fault::RefusesAll(ErrorClass::Unknown), false, 100),
    ] {
        in_system(async {
            let folder = TempDir::new().unwrap();
            let (ledger, harness) = in_tier_memory(&folder).await;
            let sale = "sale".parse().unwrap();
            ledger.set(fault);
            let changed = harness.sales.change(&sale, priced(250)).await;
            assert_eq!(changed.is_ok(), is_answered, "{fault:?}: {changed:?}");
            ledger.set(Fault::None);
            // Reads the sales of the ledger.
            harness.sales.open_ends(&sale).await.unwrap();
            let answer = harness.buy(1).await;
            assert!(is_placed(&answer), "{fault:?}: {answer:?}");
            let orders = crate::support::offers::orders(&*ledger, SkuNo(1)).await;
            assert_eq!((orders.len(), orders[0].amount), (1, amount), "{fault:?}");
            harness.assert_holds().await;
        });
    }
}

/// Another process records the change after the look-up of this one.
#[test]
fn a_decrease_that_another_process_recorded_meanwhile_takes_no_units_again() {
    in_system(async {
        let folder = TempDir::new().unwrap();
        let (ledger, harness) = in_tier_memory(&folder).await;
        let first = harness.sales.change_stock(restock("less", -1)).await.unwrap();
        ledger.set(Fault::HidesStockChanges);
        let repeat = harness.sales.change_stock(restock("less", -1)).await.unwrap();
        assert_eq!((repeat.change, repeat.change.units), (first.change, -1));
        assert_eq!(ledger.available(repeat.sku.no).await.unwrap(), 3);
        assert_eq!(units(&harness).await, 3);
        harness.assert_holds().await;
    });
}

/// Another process closes the sale after the read of this one.
#[test]
fn a_sale_that_was_closed_meanwhile_keeps_its_stock() {
    in_system(async {
        let folder = TempDir::new().unwrap();
        let (ledger, harness) = in_tier_memory(&folder).await;
        let sale = "sale".parse().unwrap();
        ledger.set_sale_phase(sale, Epoch(1), Phase::Closed, START_MS, None).await.unwrap();
        for delta in [3, -3] {
            let late = harness.sales.change_stock(restock("late", delta)).await;
            assert!(matches!(late, Err(SalesError::IsClosed)), "{delta}: {late:?}");
            assert_eq!(ledger.available(SkuNo(1)).await.unwrap(), 4, "{delta}");
            assert_eq!(units(&harness).await, 4, "{delta}");
        }
    });
}

/// Crash point `withdrawn_not_recorded`.
#[test]
fn units_that_left_the_buckets_only_return_with_a_load() {
    let (fixture, folder) = (GateFixture::new(), tempfile::tempdir().unwrap());
    in_system(async {
        let harness = harness(&fixture, &folder).await;
        let sku = harness.catalog.sale("sale").unwrap().sku("sku").unwrap().clone();
        let (stock, ledger) = (&harness.backends.stock, &harness.backends.ledger);
        let withdrawal = stock.withdraw(sku.no, 3).await.unwrap();
        assert_eq!((withdrawal.units, units(&harness).await), (3, 1));
        let refused = harness.sales.change_stock(restock("next", -1)).await;
        assert!(refused.is_err(), "the crashed change is not completed: {refused:?}");
        until("a load that frees the units", async || {
            harness.sync().await.unwrap();
            (harness.free().await.iter().sum::<u32>() == 4).then_some(())
        })
        .await;
        // The process was slow and did not crash: the load has fenced it.
        let late = StockChangeRequest {
            id: "late".to_owned(),
            sku: sku.no,
            wanted: -3,
            withdrawn: 3,
            load: withdrawal.load,
            reason: None,
            operator: None,
            at_ms: START_MS,
        };
        let outcome = ledger.change_stock(late).await.unwrap();
        assert_eq!(outcome, StockChangeOutcome::Reloaded);
        let taken = harness.sales.change_stock(restock("next", -1)).await.unwrap();
        assert_eq!((taken.change.units, units(&harness).await), (-1, 3));
        harness.assert_holds().await;
    });
}

/// The load has read the stock, or is about to.
#[test]
fn a_decrease_during_a_load_changes_nothing_and_the_load_ends() {
    let (fixture, folder) = (GateFixture::new(), tempfile::tempdir().unwrap());
    in_system(async {
        let harness = harness(&fixture, &folder).await;
        let sku = harness.catalog.sale("sale").unwrap().sku("sku").unwrap().clone();
        let (stock, ledger) = (&harness.backends.stock, &harness.backends.ledger);
        let loader = ledger.begin_load(sku.no).await.unwrap();
        let mut loading = stock.load(sku.clone(), loader).await.unwrap();
        loading.clear().await.unwrap();
        let refused = harness.sales.change_stock(restock("less", -1)).await;
        assert!(matches!(refused, Err(SalesError::NotWithdrawn)), "{refused:?}");
        loading.publish(4, Phase::Open, Epoch(1)).await.unwrap();
        let changed = harness.sales.change_stock(restock("less", -1)).await.unwrap();
        assert_eq!((changed.change.units, units(&harness).await), (-1, 3));
        harness.assert_holds().await;
    });
}

#[test]
fn a_draft_has_units_in_the_ledger_alone() {
    in_system(async {
        let folder = TempDir::new().unwrap();
        let (ledger, harness) = in_tier_memory(&folder).await;
        harness.sales.create(OFFER.draft("draft", START_MS)).await.unwrap();
        let order = StockOrder { sale: "draft".parse().unwrap(), ..restock("less", -1) };
        let changed = harness.sales.change_stock(order).await.unwrap();
        assert_eq!(ledger.available(changed.sku.no).await.unwrap(), 3);
    });
}

/// Crash point `terms_set_not_applied`.
#[test]
fn terms_that_only_the_ledger_has_reach_the_buckets_by_the_next_sync() {
    let (fixture, folder) = (GateFixture::new(), tempfile::tempdir().unwrap());
    in_system(async {
        let harness = harness(&fixture, &folder).await;
        assert!(is_placed(&harness.gates.buy(harness.ask(1, 1, 1)).await));
        let late = harness.ask(3, 1, 1);
        let sale = "sale".parse().unwrap();
        harness.backends.ledger.change_sale(sale, priced(250), START_MS).await.unwrap();
        // The buckets sell under the old terms, which stay valid.
        assert!(is_placed(&harness.gates.buy(harness.ask(2, 2, 1)).await));
        harness.sync().await.unwrap();
        // A request under the old terms must be repeated under the new ones.
        assert_eq!(harness.gates.buy(late).await, BuyAnswer::Busy);
        assert!(is_placed(&harness.gates.buy(harness.ask(4, 4, 1)).await));
        let sku = harness.catalog.sale("sale").unwrap().sku("sku").unwrap().clone();
        let orders = crate::support::offers::orders(&*harness.backends.ledger, sku.no).await;
        let mut amounts: Vec<_> =
            orders.iter().map(|order| (order.request.get(), order.epoch, order.amount)).collect();
        amounts.sort_unstable();
        let expected = [(1, 1, 100), (2, 1, 100), (4, 2, 250)];
        assert_eq!(amounts, expected.map(|(no, epoch, amount)| (no, Epoch(epoch), amount)));
        harness.assert_holds().await;
    });
}
