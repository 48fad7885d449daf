//! Buckets that are being loaded: answers of the ledger that come meanwhile, loaders that die, two
//! loaders at once, and when a sale is loaded at all.
//!
//! Covers the crash points `held`, `cleared` and `rows_entered`; `rebuild.rs` covers `opened` and
//! `held_by_operator`.

use std::sync::Arc;
use std::time::Duration;

use floodgate::config::Settings;
use floodgate::db::Ledger;
use floodgate::domain::{BucketNo, Order, Phase, Reservation, Sku, Verdict};
use floodgate::lease::SoleLease;
use floodgate::messages::BuyAnswer;
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
    let clock: floodgate::runtime::clock::SharedClock = rig.clock.clone();
    Backends::on_redis(settings, ledger, &clock).await.unwrap().stock
}

/// Whether one accepted request waits there for its order.
async fn unsettled_in(rig: &Rig, key: BucketKey) -> Option<()> {
    let waiting = rig.backends.stock.unsettled(key, i64::MAX).await.unwrap();
    (waiting.len() == 1).then_some(())
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
        assert_eq!(rig.buy_as(8, 2, 1).await, BuyAnswer::Busy, "nobody sells from half a load");

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
    let clock: floodgate::runtime::clock::SharedClock = rig.clock.clone();
    let mut backends = Backends::on_redis(settings, ledger, &clock).await.unwrap();
    backends.lease = Arc::new(SoleLease::new(clock));
    let rig = Rig::on(settings, backends, rig.clock.clone());
    rig.desk.restore().await.unwrap();
    rig
}

#[test]
fn a_sale_is_loaded_some_time_before_it_starts_and_not_earlier() {
    let ground = GateGround::new();
    let settings =
        ground.settings(&[&PATIENT[..], &[("maintenance.preload_ms", "60000")]].concat());
    in_system(async {
        let ledger = Arc::new(LyingLedger::new(Lie::Honest));
        let rig = Rig::start_on_redis(&settings, ledger).await;
        rig.create(OFFER, START_MS + 90_000).await;
        rig.turn(Phase::Open).await;
        for wait_ms in [0, 29_999] {
            rig.clock.advance(Duration::from_millis(wait_ms));
            rig.desk.look().await.unwrap();
            assert_eq!(ground.names("fg:{*"), [""; 0]);
            assert_eq!(rig.buy_as(1, 1, 1).await, BuyAnswer::Busy);
        }
        rig.clock.advance(Duration::from_millis(1));
        rig.desk.look().await.unwrap();
        assert_eq!(rig.free().await, [5, 5]);

        // The start comes, and Redis has nothing: no data, no sale.
        ground.redis.cmd(&["FLUSHALL"]);
        rig.clock.advance(Duration::from_secs(60));
        assert_eq!(rig.buy_as(1, 1, 1).await, BuyAnswer::Busy);
        rig.desk.look().await.unwrap();
        assert!(is_placed(&rig.buy_as(1, 1, 1).await));
        rig.assert_holds().await;
    });
}

#[test]
fn a_load_needs_no_answer_of_the_ledger_to_what_the_buckets_hold() {
    let ground = GateGround::new();
    let settings = ground.settings(&[&PATIENT[..], &[("http.answer_deadline_ms", "100")]].concat());
    in_system(async {
        let (rig, ledger) = rig(&settings).await;
        rig.gates_begun().await;
        ledger.set(Fault::Mute);
        assert_eq!(rig.buy_as(7, 1, 1).await, BuyAnswer::Unknown);
        let key = BucketKey { sku: sku_of(&rig).no, bucket: rig.ask(7, 1, 1).bucket };
        // Who gives up so soon may be gone before the gate decides.
        until("the reservation", async || unsettled_in(&rig, key).await).await;
        // Everything but the requests is lost.
        for bucket in (0..2).map(BucketNo) {
            let name = format!("fg:{{{}:{bucket}}}:bucket", key.sku);
            ground.redis.cmd(&["HSET", &name, "stock", "many"]);
        }
        until("a load", async || rig.desk.look().await.ok()).await;
        assert_eq!(rig.free().await.iter().sum::<u32>(), 9, "its unit is not offered again");
        let again = rig.buy_as(7, 1, 1).await;
        // The ledger has it by now, or fails still.
        let knows_it = matches!(
            again,
            BuyAnswer::Unknown
                | BuyAnswer::Queued { replayed: true }
                | BuyAnswer::Placed { replayed: true, .. }
        );
        assert!(knows_it, "{again:?}");

        ledger.set(Fault::None);
        until("the order", async || {
            let answer = rig.buy_as(7, 1, 1).await;
            assert!(!matches!(answer, BuyAnswer::Placed { replayed: false, .. }), "{answer:?}");
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

/// A healthy bucket accepts while its sibling is damaged, until a loader holds both; and the loader
/// crashes: crash points `held`, `cleared` and `rows_entered`.
#[test]
fn what_healthy_siblings_accept_outlives_every_load() {
    let ground = GateGround::new();
    let settings = ground.settings(&PATIENT);
    in_system(async {
        let (rig, ledger) = rig(&settings).await;
        let (stock, sku) = (&rig.backends.stock, sku_of(&rig));
        let mut accepted = Vec::new();
        for round in 0..4 {
            // Accepted, and on its way to the ledger.
            let ask = rig.ask(100 + round, 100 + round, 1);
            let home = |ask: &Reservation| BucketKey { sku: ask.sku, bucket: ask.bucket };
            assert_eq!(stock.reserve(home(&ask), vec![ask]).await, Ok(vec![Verdict::Reserved]));
            accepted.push(ask);
            let damaged = format!("fg:{{{}:{}}}:bucket", sku.no, 1 - ask.bucket.0);
            ground.redis.cmd(&["DEL", &damaged]);
            let token = LoaderToken(ledger.next_token("loader").await.unwrap());
            let mut loading = stock.load(sku.clone(), 0, token).await.unwrap();
            if round > 0 {
                loading.clear().await.unwrap();
            }
            if round > 1 {
                loading.orders(vec![order(&rig, 99, 99)]).await.unwrap();
            }
            drop(loading);
            assert_eq!(rig.buy_as(50, 50, 1).await, BuyAnswer::Busy, "no accepted one is denied");

            rig.desk.look().await.unwrap();
            let left = 10 - u32::try_from(accepted.len()).unwrap();
            assert_eq!(rig.free().await.iter().sum::<u32>(), left, "no unit is offered twice");
            for ask in &accepted {
                // A gate may have brought it to the ledger.
                let repeated = stock.reserve(home(ask), vec![*ask]).await.unwrap();
                assert!(matches!(repeated[..], [Verdict::Repeat(_)]), "{ask:?}: {repeated:?}");
            }
        }
        // Whoever accepted them is gone; the gates bring them to the ledger.
        rig.clock.advance(Duration::from_secs(60));
        until("every accepted request as an order", async || {
            let report = rig.audit(60_000).await;
            (report.num_orders == 4 && report.holds && report.could_tell).then_some(())
        })
        .await;
    });
}
