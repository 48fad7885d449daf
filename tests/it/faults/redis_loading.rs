//! Buckets that are being loaded: answers of the ledger that come meanwhile, loaders that die, two
//! loaders at once, and when a sale is loaded at all.
//!
//! Covers the crash point `loading`.

use std::sync::Arc;
use std::time::Duration;

use floodgate::config::Settings;
use floodgate::domain::{BucketNo, Order, Phase, Sku};
use floodgate::lease::SoleLease;
use floodgate::messages::Answer;
use floodgate::stock::{BucketKey, Error, LoaderToken, Stock};
use floodgate::tier::Backends;

use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::gate::{GateGround, PATIENT};
use crate::support::lying_ledger::{Lie, LyingLedger};
use crate::support::rig::{ONE_PER_BUYER, Offer, Rig, START_MS, in_system, is_placed};
use crate::support::wait::until;

const OFFER: Offer = Offer { policy: ONE_PER_BUYER, stock: 10, buckets: 2 };

/// Tier `gate` on a ledger that can be made to fail.
async fn rig(settings: &Settings) -> (Rig, Arc<FaultyLedger>) {
    let ledger = Arc::new(FaultyLedger::new(Arc::new(LyingLedger::new(Lie::Honest))));
    let rig = Rig::start_on_redis(settings, ledger.clone()).await;
    rig.create(OFFER, START_MS - 1000).await;
    rig.turn(Phase::Open).await;
    (rig, ledger)
}

fn sku_of(rig: &Rig) -> Arc<Sku> {
    rig.catalog.sale("sale").unwrap().sku("sku").unwrap().clone()
}

/// The same buckets as another process reaches them.
async fn elsewhere(settings: &Settings, rig: &Rig) -> Arc<dyn Stock> {
    let ledger = rig.backends.ledger.clone();
    let clock: floodgate::clock::SharedClock = rig.clock.clone();
    Backends::on_redis(settings, ledger, &clock).await.unwrap().stock
}

/// Whether one accepted request waits there for its order.
async fn unsettled_in(rig: &Rig, key: BucketKey) -> Option<()> {
    let waiting = rig.backends.stock.unsettled(key, i64::MAX).await.unwrap();
    (waiting.len() == 1).then_some(())
}

#[test]
fn an_order_that_commits_while_its_bucket_is_loaded_is_entered_afterwards() {
    let ground = GateGround::new();
    let settings = ground.settings(&PATIENT);
    in_system(async {
        let (rig, ledger) = rig(&settings).await;
        let other = elsewhere(&settings, &rig).await;
        let ask = rig.ask(7, 1, 1);
        let key = BucketKey { sku: ask.sku, bucket: ask.bucket };
        ledger.set(Fault::Frozen);
        let buying = rig.gates.buy(ask);
        tokio::pin!(buying);
        tokio::select! {
            early = &mut buying => panic!("{early:?}"),
            () = until("the reservation", async || unsettled_in(&rig, key).await) => {}
        }
        // Redis loses everything, and another process loads what the ledger has: nothing.
        ground.redis.cmd(&["FLUSHALL"]);
        let loading = other.load(sku_of(&rig), 0, LoaderToken(1_000)).await.unwrap();
        // Only now the order commits; its bucket takes no results.
        ledger.set(Fault::None);
        assert!(is_placed(&buying.await));
        loading.publish(10, Phase::Open, ask.epoch).await.unwrap();

        until("the order in its bucket", async || {
            let report = rig.audit(0).await;
            (report.holds && report.could_tell).then_some(())
        })
        .await;
        let again = rig.gates.buy(ask).await;
        assert!(matches!(again, Answer::Placed { replayed: true, .. }), "{again:?}");
        assert_eq!(rig.free().await.iter().sum::<u32>(), 9);
    });
}

#[test]
fn after_a_loader_that_died_the_next_one_begins_anew() {
    let ground = GateGround::new();
    let settings = ground.settings(&PATIENT);
    in_system(async {
        let (rig, _) = rig(&settings).await;
        assert!(is_placed(&rig.buy_as(7, 1, 1).await));
        ground.redis.cmd(&["FLUSHALL"]);
        // It read rows that are not in the ledger any more, and died before it published.
        let other = elsewhere(&settings, &rig).await;
        let mut loading = other.load(sku_of(&rig), 1, LoaderToken(2)).await.unwrap();
        loading.orders(vec![order(&rig, 99, 99)]).await.unwrap();
        assert_eq!(rig.buy_as(8, 2, 1).await, Answer::Busy, "nobody sells from half a load");

        rig.desk.look().await.unwrap();
        assert!(is_placed(&rig.buy_as(8, 2, 1).await));
        assert!(is_placed(&rig.buy_as(99, 99, 1).await), "what it left is gone");
        rig.assert_holds().await;

        // It was not dead, but slept.
        let before = ground.redis.text(&["DEBUG", "DIGEST"]);
        let late = loading.publish(10, Phase::Open, rig.ask(1, 1, 1).epoch).await;
        assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
        assert_eq!(ground.redis.text(&["DEBUG", "DIGEST"]), before);
        rig.assert_holds().await;
    });
}

fn order(rig: &Rig, request: u64, buyer: u64) -> Order {
    rig.ask(request, buyer, 1).intent(&sku_of(rig)).order()
}

#[test]
fn two_keepers_at_once_load_what_the_ledger_has_while_both_sell() {
    let ground = GateGround::new();
    let settings = ground.settings(&PATIENT);
    in_system(async {
        let (first, ledger) = rig(&settings).await;
        // Without a common lease: each believes that it is the only one.
        let second = alone(&settings, &first, ledger.clone()).await;
        let first = alone(&settings, &first, ledger).await;
        for round in 0..5 {
            ground.redis.cmd(&["FLUSHALL"]);
            let buying = async {
                for buyer in 1 + 10 * round..=3 + 10 * round {
                    let rigs = [&first, &second];
                    let bought = futures_util::future::join_all(
                        rigs.iter().map(|rig| rig.buy_as(buyer, buyer, 1)),
                    );
                    bought.await;
                }
            };
            let (a, b, ()) = tokio::join!(first.desk.look(), second.desk.look(), buying);
            assert!(a.is_ok() || b.is_ok(), "{a:?} {b:?}");
            until("buckets that both sell from", async || {
                drop(first.desk.look().await);
                let report = first.audit(0).await;
                (report.holds && report.could_tell).then_some(())
            })
            .await;
        }
        for buyer in 101..=120 {
            first.buy_as(buyer, buyer, 1).await;
            second.buy_as(buyer, buyer, 1).await;
        }
        first.assert_holds().await;
        assert_eq!(first.free().await, [0, 0]);
        assert_eq!(first.audit(0).await.num_orders, 10);
    });
}

/// Another process of the same installation that holds every lease.
async fn alone(settings: &Settings, rig: &Rig, ledger: Arc<FaultyLedger>) -> Rig {
    let clock: floodgate::clock::SharedClock = rig.clock.clone();
    let mut backends = Backends::on_redis(settings, ledger, &clock).await.unwrap();
    backends.lease = Arc::new(SoleLease::new(clock));
    let rig = Rig::on(settings, backends, rig.clock.clone());
    rig.desk.restore().await.unwrap();
    rig
}

#[test]
fn a_sale_is_loaded_some_time_before_it_starts_and_not_earlier() {
    let ground = GateGround::new();
    let settings = ground.settings(&[&PATIENT[..], &[("keeper.preheat_ms", "60000")]].concat());
    in_system(async {
        let ledger = Arc::new(LyingLedger::new(Lie::Honest));
        let rig = Rig::start_on_redis(&settings, ledger).await;
        rig.create(OFFER, START_MS + 90_000).await;
        rig.turn(Phase::Open).await;
        for wait_ms in [0, 29_999] {
            rig.clock.advance(Duration::from_millis(wait_ms));
            rig.desk.look().await.unwrap();
            assert_eq!(ground.names("fg:{*"), [""; 0]);
            assert_eq!(rig.buy_as(1, 1, 1).await, Answer::Busy);
        }
        rig.clock.advance(Duration::from_millis(1));
        rig.desk.look().await.unwrap();
        assert_eq!(rig.free().await, [5, 5]);

        // The start comes, and Redis has nothing: no data, no sale.
        ground.redis.cmd(&["FLUSHALL"]);
        rig.clock.advance(Duration::from_secs(60));
        assert_eq!(rig.buy_as(1, 1, 1).await, Answer::Busy);
        rig.desk.look().await.unwrap();
        assert!(is_placed(&rig.buy_as(1, 1, 1).await));
        rig.assert_holds().await;
    });
}

#[test]
fn buckets_are_not_loaded_while_the_ledger_cannot_take_what_they_hold() {
    let ground = GateGround::new();
    let settings = ground.settings(&[&PATIENT[..], &[("http.answer_deadline_ms", "100")]].concat());
    in_system(async {
        let (rig, ledger) = rig(&settings).await;
        rig.gates_begun().await;
        ledger.set(Fault::Mute);
        assert_eq!(rig.buy_as(7, 1, 1).await, Answer::Unknown);
        let key = BucketKey { sku: sku_of(&rig).no, bucket: rig.ask(7, 1, 1).bucket };
        // Who gives up so soon may be gone before the gate decides.
        until("the reservation", async || unsettled_in(&rig, key).await).await;
        // Everything but the intents is lost.
        for bucket in (0..2).map(BucketNo) {
            let name = format!("fg:{{{}:{bucket}}}:bucket", key.sku);
            ground.redis.cmd(&["HSET", &name, "stock", "many"]);
        }
        until("a refusal to load", async || rig.desk.look().await.err()).await;
        until("busy", async || {
            let answer = rig.buy_as(8, 2, 1).await;
            assert!(matches!(answer, Answer::Busy | Answer::Unknown), "{answer:?}");
            (answer == Answer::Busy).then_some(())
        })
        .await;
        ledger.set(Fault::None);
        until("a load", async || rig.desk.look().await.ok()).await;
        until("the order", async || {
            let answer = rig.buy_as(7, 1, 1).await;
            assert!(!matches!(answer, Answer::Placed { replayed: false, .. }), "{answer:?}");
            is_placed(&answer).then_some(())
        })
        .await;
        assert_eq!(rig.free().await.iter().sum::<u32>(), 9);
        until("rest", async || {
            let report = rig.audit(0).await;
            (report.holds && report.could_tell).then_some(())
        })
        .await;
    });
}
