//! Bucket loads: ledger answers during a load, loaders that crash, two loaders at once, and the
//! time at which a sale is loaded.
//!
//! Covers the crash points `held`, `cleared` and `rows_entered`; `rebuild.rs` covers `opened` and
//! `held_by_operator`.

use std::sync::Arc;
use std::time::Duration;

use floodgate::config::{Role, Settings};
use floodgate::db::{Ledger, SaleStore};
use floodgate::domain::{
    BucketKey, BucketNo, Epoch, LoaderToken, Order, OrderIntent, Phase, Sku, Verdict,
};
use floodgate::lease::SoleLease;
use floodgate::messages::BuyAnswer;
use floodgate::stock::{Error, Stock};
use floodgate::tier::Backends;

use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::faulty_ledger::{Fault, FaultyLedger};
use crate::support::gate::{GateFixture, LONG_LEASE, PATIENT};
use crate::support::harness::{Harness, ONE_PER_BUYER, Offer, START_MS, in_system, is_placed};
use crate::support::wait::until;

const OFFER: Offer = Offer { policy: ONE_PER_BUYER, stock: 10, buckets: 2 };

/// Tier `gate` on a ledger that can be made to fail.
async fn harness(settings: &Settings) -> (Harness, Arc<FaultyLedger>) {
    let ledger = Arc::new(FaultyLedger::new(Arc::new(DefectiveLedger::new(LedgerDefect::None))));
    let harness = Harness::start_on_redis(settings, ledger.clone()).await;
    harness.create(OFFER, START_MS - 1000).await;
    harness.set_phase(Phase::Open).await;
    (harness, ledger)
}

fn sku_of(harness: &Harness) -> Arc<Sku> {
    harness.catalog.sale("sale").unwrap().sku("sku").unwrap().clone()
}

/// The same buckets, as used by another process.
async fn elsewhere(settings: &Settings, harness: &Harness) -> Arc<dyn Stock> {
    let ledger = harness.backends.ledger.clone();
    let clock: floodgate::runtime::clock::SharedClock = harness.clock.clone();
    Backends::on_redis(settings, ledger, &clock).await.unwrap().stock
}

/// `Some` if exactly one accepted request of the bucket waits for its order.
async fn unsettled_in(harness: &Harness, key: BucketKey) -> Option<()> {
    let waiting = harness.backends.stock.unsettled(key).await.unwrap();
    (waiting.len() == 1).then_some(())
}

#[test]
fn buckets_that_redis_lost_are_unknown_until_they_are_loaded() {
    let fixture = GateFixture::new();
    in_system(async {
        let (harness, _) = harness(&fixture.settings(&PATIENT)).await;
        assert!(is_placed(&harness.buy_as(1, 1, 1).await));
        let unsettled = async || {
            let stages = harness.sales.funnel(&"sale".parse().unwrap()).await.unwrap();
            stages.iter().find(|stage| stage.stage == "unsettled").unwrap().count
        };
        assert_eq!(unsettled().await, Some(0));

        fixture.redis.cmd(&["FLUSHALL"]);
        assert_eq!(unsettled().await, None);
        let report = harness.audit(0).await;
        assert!(report.holds && !report.could_tell, "{report:#?}");
        assert!(report.notes[0].contains("not compared with its buckets"), "{report:#?}");
        harness.sync().await.unwrap();
        assert_eq!(unsettled().await, Some(0));
        // Lost since the last poll: a sync notices it when it compares their units, and the next
        // one loads them.
        harness.backends.stock.refresh(sku_of(&harness).no).await.unwrap();
        fixture.redis.cmd(&["FLUSHALL"]);
        harness.clock.advance(Duration::from_secs(60));
        for _ in 0..2 {
            harness.sync().await.unwrap();
        }
        assert_eq!(unsettled().await, Some(0));
        harness.assert_holds().await;
    });
}

#[test]
fn sales_without_buckets_leave_no_audit_undecided() {
    let fixture = GateFixture::new();
    in_system(async {
        let (harness, _) = harness(&fixture.settings(&PATIENT)).await;
        harness.sales.create(OFFER.draft("draft", START_MS)).await.unwrap();
        harness.sales.create(OFFER.draft("later", START_MS + 86_400_000)).await.unwrap();
        harness.sales.set_phase(&"later".parse().unwrap(), Phase::Open, None).await.unwrap();
        harness.assert_holds().await;

        harness.set_phase(Phase::Closed).await;
        fixture.redis.cmd(&["FLUSHALL"]);
        let fresh = harness.audit(0).await;
        assert!(!fresh.could_tell, "the closed sale is loaded again: {fresh:#?}");
        let old = harness.audit(3 * 86_400_000 - 1_000).await;
        assert!(old.holds, "{old:#?}");
        assert!(
            old.notes.iter().any(|note| note.contains("1 SKUs of sales that ended")),
            "{old:#?}"
        );
    });
}

#[test]
fn after_a_loader_crash_the_next_one_starts_over() {
    let fixture = GateFixture::new();
    // The lease is a key of the digest below.
    let settings = fixture.settings(&[&PATIENT[..], &LONG_LEASE].concat());
    in_system(async {
        let (harness, _) = harness(&settings).await;
        assert!(is_placed(&harness.buy_as(7, 1, 1).await));
        fixture.redis.cmd(&["FLUSHALL"]);
        // The loader read rows that the ledger no longer has, and crashed before it published.
        let other = elsewhere(&settings, &harness).await;
        let mut loading = other.load(sku_of(&harness), LoaderToken(2)).await.unwrap();
        loading.orders(vec![order(&harness, 99, 99)]).await.unwrap();
        assert_eq!(
            harness.buy_as(8, 2, 1).await,
            BuyAnswer::Busy,
            "an incomplete load sells nothing"
        );

        harness.sync().await.unwrap();
        assert!(is_placed(&harness.buy_as(8, 2, 1).await));
        assert!(
            is_placed(&harness.buy_as(99, 99, 1).await),
            "the rows of the crashed load are gone"
        );
        harness.assert_holds().await;

        // The loader was only paused, and resumes.
        let before = fixture.redis.text(&["DEBUG", "DIGEST"]);
        let late = loading.publish(10, Phase::Open, harness.ask(1, 1, 1).epoch).await;
        assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
        assert_eq!(fixture.redis.text(&["DEBUG", "DIGEST"]), before);
        harness.assert_holds().await;
    });
}

fn order(harness: &Harness, request: u64, buyer: u64) -> Order {
    let reservation = harness.ask(request, buyer, 1);
    reservation.order(reservation.placed_at_ms)
}

#[test]
fn two_processes_at_once_load_what_the_ledger_has_while_both_sell() {
    let fixture = GateFixture::new();
    let settings = fixture.settings(&PATIENT);
    in_system(async {
        let (first, ledger) = harness(&settings).await;
        // Without a common lease: both processes load.
        let second = with_every_lease(&settings, &first, ledger.clone()).await;
        let first = with_every_lease(&settings, &first, ledger).await;
        for round in 0..5 {
            fixture.redis.cmd(&["FLUSHALL"]);
            let buying = async {
                for buyer in 1 + 10 * round..=3 + 10 * round {
                    let harnesses = [&first, &second];
                    let bought = futures_util::future::join_all(
                        harnesses.iter().map(|harness| harness.buy_as(buyer, buyer, 1)),
                    );
                    bought.await;
                }
            };
            let (a, b, ()) = tokio::join!(first.sync(), second.sync(), buying);
            assert!(a.is_ok() || b.is_ok(), "{a:?} {b:?}");
            // A request that both processes lost the answer of is resubmitted once it is old.
            first.clock.advance(Duration::from_secs(60));
            until("buckets that both sell from", async || {
                drop(first.sync().await);
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

/// Another process of the same installation, which is granted every lease.
async fn with_every_lease(
    settings: &Settings,
    harness: &Harness,
    ledger: Arc<FaultyLedger>,
) -> Harness {
    let clock: floodgate::runtime::clock::SharedClock = harness.clock.clone();
    let mut backends = Backends::on_redis(settings, ledger, &clock).await.unwrap();
    backends.lease = Arc::new(SoleLease::new(clock));
    let harness = Harness::on(settings, backends, harness.clock.clone());
    harness.sales.restore().await.unwrap();
    harness
}

/// The bucket of another ledger cannot be held.
#[test]
fn a_sku_that_cannot_be_loaded_takes_ever_fewer_tokens() {
    let fixture = GateFixture::new();
    let settings = fixture.settings(&PATIENT);
    in_system(async {
        let (harness, ledger) = harness(&settings).await;
        let sku = sku_of(&harness);
        let bucket = |no| format!("fg:{{{}:{no}}}:bucket", sku.no);
        fixture.redis.cmd(&["DEL", &bucket(0)]);
        fixture.redis.cmd(&["HSET", &bucket(1), "epoch", "00000000.1"]);
        // The query detects the loss.
        assert!(harness.backends.stock.facts(sku.no).await.is_err());
        let token = async || ledger.next_token("loader").await.unwrap();
        let before = token().await;
        for _ in 0..64 {
            drop(harness.sync().await);
        }
        let taken = token().await - before - 1;
        assert!((5..10).contains(&taken), "{taken} tokens in 64 syncs");
        fixture.redis.cmd(&["DEL", &bucket(1)]);
        until("a load", async || {
            drop(harness.sync().await);
            is_placed(&harness.buy_as(1, 1, 1).await).then_some(())
        })
        .await;
        harness.assert_holds().await;
    });
}

/// Only another process may load the lost bucket.
#[test]
fn a_phase_reaches_the_siblings_of_a_lost_bucket() {
    let fixture = GateFixture::new();
    let mut settings = fixture.settings(&PATIENT);
    in_system(async {
        let (opener, ledger) = harness(&settings).await;
        settings.role = Role::Api;
        let harness = Harness::start_on_redis(&settings, ledger.clone()).await;
        let bucket = |no| format!("fg:{{{}:{no}}}:bucket", sku_of(&opener).no);
        fixture.redis.cmd(&["DEL", &bucket(0)]);
        let sale = "sale".parse().unwrap();
        let closed = ledger.set_sale_phase(sale, Epoch(1), Phase::Closed, START_MS, None).await;
        closed.unwrap().unwrap();
        harness.sync().await.unwrap();
        let phase = Phase::Closed.to_db().to_string();
        assert_eq!(fixture.field(&bucket(1), "phase"), Some(phase));
    });
}

#[test]
fn a_sale_is_loaded_some_time_before_it_starts_and_not_earlier() {
    let fixture = GateFixture::new();
    let settings =
        fixture.settings(&[&PATIENT[..], &[("maintenance.preload_ms", "60000")]].concat());
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let harness = Harness::start_on_redis(&settings, ledger).await;
        harness.create(OFFER, START_MS + 90_000).await;
        harness.set_phase(Phase::Open).await;
        for wait_ms in [0, 29_999] {
            harness.clock.advance(Duration::from_millis(wait_ms));
            harness.sync().await.unwrap();
            assert_eq!(fixture.names("fg:{*"), [""; 0]);
            assert_eq!(harness.buy_as(1, 1, 1).await, BuyAnswer::Busy);
        }
        harness.clock.advance(Duration::from_millis(1));
        harness.sync().await.unwrap();
        assert_eq!(harness.free().await, [5, 5]);

        // The sale starts while Redis is empty: without data nothing is sold.
        fixture.redis.cmd(&["FLUSHALL"]);
        harness.clock.advance(Duration::from_secs(60));
        assert_eq!(harness.buy_as(1, 1, 1).await, BuyAnswer::Busy);
        harness.sync().await.unwrap();
        assert!(is_placed(&harness.buy_as(1, 1, 1).await));
        harness.assert_holds().await;
    });
}

#[test]
fn a_load_waits_for_no_answer_of_the_ledger() {
    let fixture = GateFixture::new();
    let settings =
        fixture.settings(&[&PATIENT[..], &[("http.answer_deadline_ms", "1000")]].concat());
    in_system(async {
        let (harness, ledger) = harness(&settings).await;
        harness.gates_begun().await;
        ledger.set(Fault::AnswerLost);
        assert_eq!(harness.buy_as(7, 1, 1).await, BuyAnswer::Unknown);
        let key = BucketKey { sku: sku_of(&harness).no, bucket: harness.ask(7, 1, 1).bucket };
        until("the reservation", async || unsettled_in(&harness, key).await).await;
        // All data of the buckets but the requests is lost.
        for bucket in (0..2).map(BucketNo) {
            let name = format!("fg:{{{}:{bucket}}}:bucket", key.sku);
            fixture.redis.cmd(&["HSET", &name, "stock", "many"]);
        }
        until("a load", async || harness.sync().await.ok()).await;
        assert_eq!(harness.free().await.iter().sum::<u32>(), 9, "its unit is not offered again");
        let repeated = harness.buy_as(7, 1, 1).await;
        // The ledger has the order by now, or still fails.
        let is_known = matches!(
            repeated,
            BuyAnswer::Unknown
                | BuyAnswer::Queued { replayed: true }
                | BuyAnswer::Ordered { replayed: true, .. }
        );
        assert!(is_known, "{repeated:?}");

        ledger.set(Fault::None);
        until("the order", async || {
            let answer = harness.buy_as(7, 1, 1).await;
            let is_new_order = matches!(answer, BuyAnswer::Ordered { replayed: false, .. });
            assert!(!is_new_order, "{answer:?}");
            is_placed(&answer).then_some(())
        })
        .await;
        assert_eq!(harness.free().await.iter().sum::<u32>(), 9);
        until("a settled audit", async || {
            let report = harness.audit(0).await;
            (report.holds && report.could_tell).then_some(())
        })
        .await;
    });
}

/// A healthy bucket accepts while its sibling is damaged, until a loader holds both. Then the
/// loader crashes: crash points `held`, `cleared` and `rows_entered`.
#[test]
fn requests_that_healthy_buckets_accept_survive_every_load() {
    let fixture = GateFixture::new();
    let settings = fixture.settings(&PATIENT);
    in_system(async {
        let (harness, ledger) = harness(&settings).await;
        let (stock, sku) = (&harness.backends.stock, sku_of(&harness));
        let mut accepted = Vec::new();
        for round in 0..4 {
            // Accepted, and not yet in the ledger.
            let reservation = harness.ask(100 + round, 100 + round, 1);
            let home = |reservation: &OrderIntent| BucketKey {
                sku: reservation.sku,
                bucket: reservation.bucket,
            };
            assert_eq!(
                stock.reserve(home(&reservation), vec![reservation]).await,
                Ok(vec![Verdict::Reserved])
            );
            accepted.push(reservation);
            let damaged = format!("fg:{{{}:{}}}:bucket", sku.no, 1 - reservation.bucket.0);
            fixture.redis.cmd(&["DEL", &damaged]);
            let token = LoaderToken(ledger.next_token("loader").await.unwrap());
            let mut loading = stock.load(sku.clone(), token).await.unwrap();
            if round > 0 {
                loading.clear().await.unwrap();
            }
            if round > 1 {
                loading.orders(vec![order(&harness, 99, 99)]).await.unwrap();
            }
            drop(loading);
            assert_eq!(
                harness.buy_as(50, 50, 1).await,
                BuyAnswer::Busy,
                "no accepted request is refused"
            );

            harness.sync().await.unwrap();
            let left = 10 - u32::try_from(accepted.len()).unwrap();
            assert_eq!(harness.free().await.iter().sum::<u32>(), left, "no unit is offered twice");
            for reservation in &accepted {
                // A gate may have placed the order.
                let repeated = stock.reserve(home(reservation), vec![*reservation]).await.unwrap();
                assert!(
                    matches!(repeated[..], [Verdict::Queued { .. } | Verdict::Repeat(_)]),
                    "{reservation:?}: {repeated:?}"
                );
            }
        }
        // The process that accepted them is gone; the gates resubmit them.
        harness.clock.advance(Duration::from_secs(60));
        until("every accepted request as an order", async || {
            let report = harness.audit(60_000).await;
            (report.num_orders == 4 && report.holds && report.could_tell).then_some(())
        })
        .await;
    });
}
