//! Stock gates, the ledger writer and stock transfers, over an in-memory ledger.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;

use floodgate::config::{Settings, Tier};
use floodgate::db::Ledger;
use floodgate::domain::{
    BucketKey, BucketNo, BuyerId, OrderState, PayBy, Phase, Policy, RecordState, Refusal,
    RepairAction, RequestId, RequestRecord,
};
use floodgate::messages::BuyAnswer;
use futures_util::future::join_all;
use tokio::time::timeout;

use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::harness::{
    Harness, ONE_PER_BUYER, Offer, START_MS, UNLIMITED, in_system, is_placed, settings,
};
use crate::support::servers::redis::Redis;
use crate::support::wait::DEADLINE;

const ALL: [Tier; 3] = [Tier::Memory, Tier::Ledger, Tier::Gate];

/// A harness with the Redis server of its tier; the server outlives the harness.
struct TierHarness {
    harness: Harness,
    _redis: Option<Redis>,
}

impl Deref for TierHarness {
    type Target = Harness;

    fn deref(&self) -> &Harness {
        &self.harness
    }
}

async fn harness(tier: Tier, policy: Policy, stock: u32, buckets: u16) -> TierHarness {
    let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
    harness_on(ledger, settings(tier), Offer { policy, stock, buckets }).await
}

async fn harness_on(ledger: Arc<dyn Ledger>, mut settings: Settings, offer: Offer) -> TierHarness {
    // Long enough that no answer times out.
    settings.http.answer_deadline_ms = 120_000;
    settings.redis.command_timeout_ms = 10_000;
    if settings.tier != Tier::Gate {
        let harness = Harness::open(&settings, ledger, offer).await;
        return TierHarness { harness, _redis: None };
    }
    let redis = Redis::start();
    settings.redis.url = redis.url();
    let harness = Harness::start_on_redis(&settings, ledger).await;
    harness.create(offer, START_MS - 1000).await;
    harness.set_phase(Phase::Open).await;
    TierHarness { harness, _redis: Some(redis) }
}

/// Runs a test in each tier whose gates count units.
fn where_gates_count(test: impl AsyncFn(Tier)) {
    in_system(async {
        for tier in [Tier::Memory, Tier::Gate] {
            test(tier).await;
        }
    });
}

/// The answer to buyer 1 with a new order.
fn placed(quantity: u32, replayed: bool) -> BuyAnswer {
    let state = RecordState::Ordered {
        state: OrderState::PendingPayment,
        version: 0,
        amount: 100 * i64::from(quantity),
        pay_by: PayBy::from_ms(Some(START_MS + 900_000)),
    };
    let buyer = BuyerId::new(1).unwrap();
    let record = RequestRecord { buyer, quantity, placed_at_ms: START_MS, state };
    BuyAnswer::Ordered { record, replayed }
}

fn refused(refusal: Refusal) -> BuyAnswer {
    BuyAnswer::refused(refusal)
}

#[test]
fn a_repeat_gets_the_first_answer_in_every_tier() {
    in_system(async {
        for tier in ALL {
            let harness = harness(tier, UNLIMITED, 5, 1).await;
            assert_eq!(harness.buy_as(7, 1, 2).await, placed(2, false));
            assert_eq!(harness.buy_as(7, 1, 2).await, placed(2, true));
            let reused = refused(Refusal::RequestIdReused);
            assert_eq!(harness.buy_as(7, 1, 3).await, reused, "same id, different content");
            assert_eq!(
                harness.free().await.iter().sum::<u32>(),
                if tier == Tier::Ledger { 0 } else { 3 }
            );
            harness.assert_holds().await;
        }
    });
}

#[test]
fn the_policies_hold_in_every_tier() {
    in_system(async {
        for tier in ALL {
            let one = harness(tier, ONE_PER_BUYER, 5, 1).await;
            assert!(is_placed(&one.buy_as(7, 1, 1).await));
            let first = RequestId::new(7).unwrap();
            let second = one.buy_as(8, 1, 1).await;
            assert_eq!(second, refused(Refusal::AlreadyPurchased { first }));

            let quota = harness(tier, Policy::Quota { limit: 3, max_quantity: 3 }, 9, 1).await;
            assert!(is_placed(&quota.buy_as(7, 1, 2).await));
            let over = refused(Refusal::QuotaExceeded { owned: 2, limit: 3 });
            assert_eq!(quota.buy_as(8, 1, 2).await, over);
            assert!(is_placed(&quota.buy_as(9, 1, 1).await));
            quota.assert_holds().await;
        }
    });
}

#[test]
fn the_same_request_many_times_at_once_is_one_order() {
    in_system(async {
        for tier in ALL {
            let harness = harness(tier, UNLIMITED, 50, 4).await;
            let answers = join_all((0..20).map(|_| harness.buy_as(7, 1, 1))).await;
            assert!(answers.iter().all(is_placed), "{answers:?}");
            let fresh = answers.iter().filter(|answer| **answer == placed(1, false)).count();
            assert_eq!(fresh, 1);
            harness.assert_holds().await;
        }
    });
}

#[test]
fn a_crowd_gets_exactly_the_stock() {
    in_system(async {
        for tier in ALL {
            for buckets in [1, 4] {
                let harness = harness(tier, ONE_PER_BUYER, 100, buckets).await;
                let answers = join_all((1..=1000).map(|buyer| harness.buy(buyer))).await;
                assert_eq!(answers.iter().filter(|answer| is_placed(answer)).count(), 100);
                let rest = answers.iter().filter(|answer| !is_placed(answer));
                assert!(rest.clone().all(|a| *a == refused(Refusal::SoldOut)), "{tier:?}");
                harness.assert_holds().await;
            }
        }
    });
}

/// The last units are no longer in the home bucket of any gate that wants them.
#[test]
fn gates_that_borrow_the_last_units_from_each_other_sell_them() {
    where_gates_count(async |tier| {
        for stock in 71..=100 {
            let harness = harness(tier, ONE_PER_BUYER, stock, 4).await;
            let crowd = join_all((1..=1000).map(|buyer| harness.buy(buyer)));
            let answers = timeout(DEADLINE, crowd).await.expect("units that no gate sells");
            let num_placed = answers.iter().filter(|answer| is_placed(answer)).count();
            assert_eq!(num_placed, stock as usize, "{tier:?}");
        }
    });
}

#[test]
fn a_buyer_with_an_empty_home_bucket_gets_the_last_unit_of_another() {
    where_gates_count(async |tier| {
        let harness = harness(tier, ONE_PER_BUYER, 8, 8).await;
        // All buyers share one home bucket, which holds 1 of the 8 units.
        let home = BucketNo(3);
        let mut same_home =
            (1..).filter(|b| BucketNo::home_of(BuyerId::new(*b).unwrap(), 8) == home);
        for _ in 0..8 {
            assert!(is_placed(&harness.buy(same_home.next().unwrap()).await));
        }
        assert_eq!(harness.buy(same_home.next().unwrap()).await, refused(Refusal::SoldOut));
        assert_eq!(harness.free().await, [0; 8]);
        harness.assert_holds().await;
    });
}

#[test]
fn a_purchase_larger_than_the_stock_left_does_not_end_the_sale() {
    where_gates_count(async |tier| {
        for buckets in [1, 4] {
            let harness = harness(tier, UNLIMITED, 5, buckets).await;
            let refusal = timeout(DEADLINE, harness.buy_as(1, 1, 6)).await.expect("an answer");
            assert_eq!(refusal, refused(Refusal::SoldOut), "{buckets}");
            assert!(
                is_placed(&harness.buy_as(2, 2, 5).await),
                "the gate pools the units of all {buckets} buckets"
            );
            harness.assert_holds().await;
        }
    });
}

#[test]
fn a_transfer_left_half_done_is_finished_once() {
    where_gates_count(async |tier| {
        let harness = harness(tier, UNLIMITED, 10, 2).await;
        let stock = &harness.backends.stock;
        let (from, to) = (BucketNo(0), BucketNo(1));
        let key = |bucket| BucketKey { sku: harness.ask(1, 1, 1).sku, bucket };
        // A starting gate finishes open transfers; this one is interrupted after the start.
        harness.gates_begun().await;
        let loan = stock.lend(key(from), to, 2).await.unwrap().unwrap();
        assert_eq!(loan.units, 2);
        assert_eq!(stock.lend(key(from), to, 2).await.unwrap(), Some(loan), "a repeat");
        assert_eq!(harness.free().await, [3, 5], "2 units are in transfer");
        let report = harness.audit(0).await;
        assert_eq!((report.num_violations, report.verdicts.leak), (1, 1), "{report:#?}");
        assert_eq!(report.violations[0].action, Some(RepairAction::FinishTransfers));
        assert_eq!(stock.finish_transfers(key(to)).await.unwrap(), 2);
        assert_eq!(stock.finish_transfers(key(to)).await.unwrap(), 0);
        assert_eq!(stock.borrow(key(from), to, loan).await.unwrap(), 0, "a late repeat");
        assert_eq!(harness.free().await, [3, 7]);
        harness.assert_holds().await;
    });
}

#[test]
fn a_paused_sale_refuses_and_an_open_one_sells_again() {
    where_gates_count(async |tier| {
        let harness = harness(tier, UNLIMITED, 5, 2).await;
        let sale = "sale".parse().unwrap();
        let stale = harness.ask(1, 1, 1);
        harness.sales.set_phase(&sale, Phase::Paused, None).await.unwrap();
        assert_eq!(harness.gates.buy(stale).await, refused(Refusal::NotStarted));
        harness.sales.set_phase(&sale, Phase::Open, None).await.unwrap();
        // The reservation carries the epoch of the first opening; the handle reads the new one.
        assert_eq!(harness.gates.buy(stale).await, placed(1, false));
        harness.sales.set_phase(&sale, Phase::Closed, None).await.unwrap();
        assert_eq!(
            harness.buy_as(1, 1, 1).await,
            placed(1, true),
            "a closed sale repeats the first answer"
        );
        assert_eq!(harness.buy_as(2, 1, 1).await, refused(Refusal::Ended));
        harness.assert_holds().await;
    });
}

#[test]
fn a_refusal_of_the_ledger_is_recorded_and_the_units_come_back_once() {
    where_gates_count(async |tier| {
        let harness = harness(tier, ONE_PER_BUYER, 5, 1).await;
        // The gate does not have this order: another process sold to buyer 1.
        let foreign = harness.ask(99, 1, 1);
        harness.backends.ledger.place(vec![foreign]).await.unwrap();
        let first = RequestId::new(99).unwrap();
        let refusal = Refusal::AlreadyPurchased { first };
        assert_eq!(harness.buy_as(7, 1, 1).await, refused(refusal));
        assert_eq!(harness.buy_as(7, 1, 1).await, BuyAnswer::Refused { refusal, replayed: true });
        assert_eq!(harness.free().await, [5]);
        let failure = harness.backends.ledger.failure(RequestId::new(7).unwrap()).await.unwrap();
        assert_eq!(failure.unwrap().reason, refusal);
    });
}

#[test]
fn a_gate_without_a_free_permit_answers_busy_and_takes_nothing() {
    where_gates_count(async |tier| {
        let mut settings = settings(tier);
        settings.gate.permits = 2;
        let ledger =
            Arc::new(FaultyLedger::new(Arc::new(DefectiveLedger::new(LedgerDefect::None))));
        let offer = Offer { policy: UNLIMITED, stock: 100, buckets: 1 };
        let harness = harness_on(ledger.clone(), settings, offer).await;
        // No permit is released before the 8 other buyers are answered.
        ledger.set(Fault::Frozen);
        let num_busy = Cell::new(0);
        let purchases = (1..=10).map(async |buyer| {
            let answer = harness.buy(buyer).await;
            num_busy.set(num_busy.get() + u32::from(answer == BuyAnswer::Busy));
            if num_busy.get() == 8 {
                ledger.set(Fault::None);
            }
            answer
        });
        let answers = join_all(purchases).await;
        let placed = answers.iter().filter(|answer| is_placed(answer)).count();
        assert_eq!(placed, 2);
        assert_eq!(answers.iter().filter(|answer| **answer == BuyAnswer::Busy).count(), 8);
        assert!(is_placed(&harness.buy(11).await), "permits are released");
        harness.assert_holds().await;
    });
}
