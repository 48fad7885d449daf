//! Gates, the order consumer and stock transfers, over a ledger in memory.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;

use floodgate::config::{Settings, Tier};
use floodgate::db::Ledger;
use floodgate::domain::{BucketNo, BuyerId, OrderState, Phase, Policy, Refusal, RequestId};
use floodgate::messages::BuyAnswer;
use floodgate::stock::BucketKey;
use futures_util::future::join_all;

use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::lying_ledger::{Lie, LyingLedger};
use crate::support::rig::{
    ONE_PER_BUYER, Offer, Rig, START_MS, UNLIMITED, in_system, is_placed, settings,
};
use crate::support::servers::redis::Redis;

const ALL: [Tier; 3] = [Tier::Memory, Tier::Ledger, Tier::Gate];

/// A rig with what its tier stands on.
struct Grounded {
    rig: Rig,
    _redis: Option<Redis>,
}

impl Deref for Grounded {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

async fn rig(tier: Tier, policy: Policy, stock: u32, buckets: u16) -> Grounded {
    rig_with(settings(tier), policy, stock, buckets).await
}

async fn rig_with(settings: Settings, policy: Policy, stock: u32, buckets: u16) -> Grounded {
    let ledger = Arc::new(LyingLedger::new(Lie::Honest));
    rig_on(ledger, settings, Offer { policy, stock, buckets }).await
}

async fn rig_on(ledger: Arc<dyn Ledger>, mut settings: Settings, offer: Offer) -> Grounded {
    // Nothing is silent here.
    settings.http.answer_deadline_ms = 20_000;
    settings.redis.command_timeout_ms = 10_000;
    if settings.tier != Tier::Gate {
        let rig = Rig::open(&settings, ledger, offer).await;
        return Grounded { rig, _redis: None };
    }
    let redis = Redis::start();
    settings.redis.url = redis.url();
    let rig = Rig::start_on_redis(&settings, ledger).await;
    rig.create(offer, START_MS - 1000).await;
    rig.turn(Phase::Open).await;
    Grounded { rig, _redis: Some(redis) }
}

/// Runs a test in each tier whose gates count units.
fn where_gates_count(test: impl AsyncFn(Tier)) {
    in_system(async {
        for tier in [Tier::Memory, Tier::Gate] {
            test(tier).await;
        }
    });
}

fn placed(quantity: u32, replayed: bool) -> BuyAnswer {
    let state = OrderState::PendingPayment;
    BuyAnswer::Placed { quantity, placed_at_ms: START_MS, state, replayed }
}

fn refused(refusal: Refusal) -> BuyAnswer {
    BuyAnswer::Refused { refusal, replayed: false }
}

#[test]
fn a_repeat_gets_the_first_answer_in_every_tier() {
    in_system(async {
        for tier in ALL {
            let rig = rig(tier, UNLIMITED, 5, 1).await;
            assert_eq!(rig.buy_as(7, 1, 2).await, placed(2, false));
            assert_eq!(rig.buy_as(7, 1, 2).await, placed(2, true));
            let reused = refused(Refusal::RequestIdReused);
            assert_eq!(rig.buy_as(7, 1, 3).await, reused, "other content");
            assert_eq!(
                rig.free().await.iter().sum::<u32>(),
                if tier == Tier::Ledger { 0 } else { 3 }
            );
            rig.assert_holds().await;
        }
    });
}

#[test]
fn the_policies_hold_in_every_tier() {
    in_system(async {
        for tier in ALL {
            let one = rig(tier, ONE_PER_BUYER, 5, 1).await;
            assert!(is_placed(&one.buy_as(7, 1, 1).await));
            let first = RequestId::new(7).unwrap();
            let second = one.buy_as(8, 1, 1).await;
            assert_eq!(second, refused(Refusal::AlreadyPurchased { first }));

            let quota = rig(tier, Policy::Quota { limit: 3, max_quantity: 3 }, 9, 1).await;
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
            let rig = rig(tier, UNLIMITED, 50, 4).await;
            let answers = join_all((0..20).map(|_| rig.buy_as(7, 1, 1))).await;
            assert!(answers.iter().all(is_placed), "{answers:?}");
            let fresh = answers.iter().filter(|answer| **answer == placed(1, false)).count();
            assert_eq!(fresh, 1);
            rig.assert_holds().await;
        }
    });
}

#[test]
fn a_crowd_gets_exactly_the_stock() {
    in_system(async {
        for tier in ALL {
            for buckets in [1, 4] {
                let rig = rig(tier, ONE_PER_BUYER, 100, buckets).await;
                let answers = join_all((1..=1000).map(|buyer| rig.buy(buyer))).await;
                assert_eq!(answers.iter().filter(|answer| is_placed(answer)).count(), 100);
                let rest = answers.iter().filter(|answer| !is_placed(answer));
                assert!(rest.clone().all(|a| *a == refused(Refusal::SoldOut)), "{tier:?}");
                rig.assert_holds().await;
            }
        }
    });
}

#[test]
fn a_buyer_with_a_dry_home_bucket_gets_the_last_unit_of_another() {
    where_gates_count(async |tier| {
        let rig = rig(tier, ONE_PER_BUYER, 8, 8).await;
        // Every buyer of one home bucket: 8 units are there in all, 1 of them at home.
        let home = BucketNo(3);
        let mut same_home =
            (1..).filter(|b| BucketNo::home_of(BuyerId::new(*b).unwrap(), 8) == home);
        for _ in 0..8 {
            assert!(is_placed(&rig.buy(same_home.next().unwrap()).await));
        }
        assert_eq!(rig.buy(same_home.next().unwrap()).await, refused(Refusal::SoldOut));
        assert_eq!(rig.free().await, [0; 8]);
        rig.assert_holds().await;
    });
}

#[test]
fn a_wish_larger_than_what_is_left_does_not_end_the_sale() {
    where_gates_count(async |tier| {
        let rig = rig(tier, UNLIMITED, 5, 4).await;
        assert_eq!(rig.buy_as(1, 1, 6).await, refused(Refusal::SoldOut));
        assert!(is_placed(&rig.buy_as(2, 2, 5).await), "units of all buckets together");
        rig.assert_holds().await;
    });
}

#[test]
fn a_transfer_left_half_done_is_finished_once() {
    where_gates_count(async |tier| {
        let rig = rig(tier, UNLIMITED, 10, 2).await;
        let stock = &rig.backends.stock;
        let (from, to) = (BucketNo(0), BucketNo(1));
        let key = |bucket| BucketKey { sku: rig.ask(1, 1, 1).sku, bucket };
        // A gate finishes transfers when it starts; this one is left half done after that.
        rig.gates_begun().await;
        let loan = stock.lend(key(from), to, 2).await.unwrap().unwrap();
        assert_eq!(loan.units, 2);
        assert_eq!(stock.lend(key(from), to, 2).await.unwrap(), Some(loan), "a repeat");
        assert_eq!(rig.free().await, [3, 5], "on the way");
        rig.assert_holds().await;
        assert_eq!(stock.finish_transfers(key(to)).await.unwrap(), 2);
        assert_eq!(stock.finish_transfers(key(to)).await.unwrap(), 0);
        assert_eq!(stock.borrow(key(from), to, loan).await.unwrap(), 0, "a late repeat");
        assert_eq!(rig.free().await, [3, 7]);
        rig.assert_holds().await;
    });
}

#[test]
fn a_paused_sale_refuses_and_an_open_one_sells_again() {
    where_gates_count(async |tier| {
        let rig = rig(tier, UNLIMITED, 5, 2).await;
        let sale = "sale".parse().unwrap();
        let stale = rig.ask(1, 1, 1);
        rig.desk.turn(&sale, Phase::Paused).await.unwrap();
        assert_eq!(rig.gates.buy(stale).await, refused(Refusal::NotStarted));
        rig.desk.turn(&sale, Phase::Open).await.unwrap();
        // The reservation still names the first opening; the handle looks the new one up.
        assert_eq!(rig.gates.buy(stale).await, placed(1, false));
        rig.desk.turn(&sale, Phase::Closed).await.unwrap();
        assert_eq!(rig.buy_as(1, 1, 1).await, placed(1, true), "the first answer, even now");
        assert_eq!(rig.buy_as(2, 1, 1).await, refused(Refusal::Ended));
        rig.assert_holds().await;
    });
}

#[test]
fn a_refusal_of_the_ledger_is_recorded_and_the_units_come_back_once() {
    where_gates_count(async |tier| {
        let rig = rig(tier, ONE_PER_BUYER, 5, 1).await;
        // Behind the gate's back: another process has sold to buyer 1.
        let mut foreign = rig.ask(99, 1, 1).intent(&rig.catalog.sale("sale").unwrap().skus[0]);
        foreign.quantity = 1;
        rig.backends.ledger.place(vec![foreign]).await.unwrap();
        let first = RequestId::new(99).unwrap();
        let refusal = Refusal::AlreadyPurchased { first };
        assert_eq!(rig.buy_as(7, 1, 1).await, refused(refusal));
        assert_eq!(rig.buy_as(7, 1, 1).await, BuyAnswer::Refused { refusal, replayed: true });
        assert_eq!(rig.free().await, [5]);
        let failure = rig.backends.ledger.failure(RequestId::new(7).unwrap()).await.unwrap();
        assert_eq!(failure.unwrap().reason, refusal);
    });
}

#[test]
fn a_gate_without_a_free_permit_says_busy_and_takes_nothing() {
    where_gates_count(async |tier| {
        let mut settings = settings(tier);
        settings.gate.permits = 2;
        let ledger = Arc::new(FaultyLedger::new(Arc::new(LyingLedger::new(Lie::Honest))));
        let offer = Offer { policy: UNLIMITED, stock: 100, buckets: 1 };
        let rig = rig_on(ledger.clone(), settings, offer).await;
        // No permit comes back before all others were told.
        ledger.set(Fault::Frozen);
        let num_busy = Cell::new(0);
        let asking = (1..=10).map(async |buyer| {
            let answer = rig.buy(buyer).await;
            num_busy.set(num_busy.get() + u32::from(answer == BuyAnswer::Busy));
            if num_busy.get() == 8 {
                ledger.set(Fault::None);
            }
            answer
        });
        let answers = join_all(asking).await;
        let placed = answers.iter().filter(|answer| is_placed(answer)).count();
        assert_eq!(placed, 2);
        assert_eq!(answers.iter().filter(|answer| **answer == BuyAnswer::Busy).count(), 8);
        assert!(is_placed(&rig.buy(11).await), "permits come back");
        rig.assert_holds().await;
    });
}
