//! Refusals from the cache of a process: after the sell-out a crowd must not reach Redis, and no
//! process refuses a request that another one accepted.

use std::sync::Arc;
use std::time::Duration;

use floodgate::domain::{BucketKey, Order, OrderState, Phase, SkuNo, Verdict};
use floodgate::runtime::clock::{SharedClock, now_monotonic};
use floodgate::stock::Stock;
use floodgate::tier::Backends;
use serde_json::json;

use crate::support::app::TestApp;
use crate::support::crowd::send;
use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::gate::{
    GateFixture, PATIENT, assert_holds_at_rest, buy, buy_for_sure, purchases,
};
use crate::support::harness::{Harness, ONE_PER_BUYER, Offer, START_MS, in_system, is_placed};
use crate::support::servers::redis::Redis;
use crate::support::wait::until;

/// Redis commands since the last call, without those of the call itself.
fn commands_since(redis: &Redis) -> u64 {
    let stats = redis.text(&["INFO", "commandstats"]);
    redis.cmd(&["CONFIG", "RESETSTAT"]);
    let calls = |line: &str| -> Option<u64> {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let own = ["info", "config"].iter().any(|own| name.starts_with(own));
        if own { None } else { rest.split_once(',')?.0.parse().ok() }
    };
    stats.lines().filter_map(calls).sum()
}

/// Waits until the process refuses from its cache.
async fn until_cached(app: &TestApp, redis: &Redis, buyer: u64) {
    until("a refusal from the cache", async || {
        commands_since(redis);
        let (status, body) = buy(app.public, buyer).await?;
        assert_eq!((status, &body["code"]), (409, &json!("sold-out")));
        (commands_since(redis) == 0).then_some(())
    })
    .await;
}

#[test]
fn two_thousand_refusals_cost_redis_next_to_nothing_and_repeats_read_their_orders() {
    let fixture = GateFixture::new();
    // As in production, periodic refreshes are rare.
    let rarely = [
        ("http.sales_refresh_ms", "500"),
        ("redis.sold_out_refresh_ms", "300"),
        ("maintenance.every_ms", "500"),
        ("maintenance.lease_ttl_ms", "5000"),
        ("gate.resubmit_every_ms", "2000"),
        ("gate.resubmit_after_ms", "3000"),
        ("limits.shared", "true"),
    ];
    let app = fixture.app(&[&PATIENT[..], &rarely].concat());
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), 5, 4).await;
        let mut orders = Vec::new();
        for buyer in 1..=5 {
            orders.push(buy_for_sure(app.public, buyer).await);
        }
        // Where its subscription begins, a process reads again what it has cached.
        until("the subscription to hints", async || {
            let clients = fixture.redis.text(&["CLIENT", "LIST", "TYPE", "pubsub"]);
            clients.contains("floodgate-events").then_some(())
        })
        .await;
        until_cached(&app, &fixture.redis, 6).await;
        let late = purchases(1_000..3_000);
        let attempts: Vec<_> = (0..late.len()).collect();
        let began = now_monotonic();
        let history = send(app.public, "sale", Arc::new(late), attempts.into(), 16).await;
        let commands = commands_since(&fixture.redis);
        assert_eq!(history.purchases.len(), 2_000);
        let is_sold_out =
            |attempt: &crate::support::crowd::Attempt| attempt.code.as_deref() == Some("sold-out");
        assert!(history.purchases.iter().all(is_sold_out));
        // Some thirty a second are periodic.
        let seconds = began.elapsed().as_secs();
        println!("commands={commands} seconds={seconds}");
        assert!(commands < 200 + 40 * seconds, "{commands} commands for 2000 refusals");
        for (buyer, order) in (1..).zip(&orders) {
            let again = buy_for_sure(app.public, buyer).await;
            assert_eq!(again, *order, "the same answer as before");
        }
        assert_holds_at_rest(app.internal).await;
    });
}

/// A process that waits for results need not look for them.
#[test]
fn a_result_is_hinted_to_every_process() {
    let fixture = GateFixture::new();
    let settings = fixture.settings(&PATIENT);
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let here = Harness::start_on_redis(&settings, ledger.clone()).await;
        let clock: SharedClock = here.clock.clone();
        let there = Backends::on_redis(&settings, ledger, &clock).await.unwrap();
        here.create(Offer { policy: ONE_PER_BUYER, stock: 3, buckets: 2 }, START_MS - 1000).await;
        here.set_phase(Phase::Open).await;
        let mut hints = there.stock.result_hints().await.unwrap().unwrap();
        let wanted = [here.ask(7, 1, 1), here.ask(8, 2, 1)];
        for reservation in wanted {
            assert!(is_placed(&here.gates.buy(reservation).await));
        }
        let mut hinted = Vec::new();
        while hinted.len() < 2 {
            hinted.extend(hints.next().await.unwrap());
        }
        hinted.sort_unstable();
        assert_eq!(hinted, wanted.map(|reservation| reservation.request));
    });
}

/// Another process could sell a returned unit, and this one would deny the purchase from memory.
#[test]
fn a_process_learns_that_units_have_returned() {
    let fixture = GateFixture::new();
    let settings = fixture.settings(&PATIENT);
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let here = Harness::start_on_redis(&settings, ledger.clone()).await;
        here.create(Offer { policy: ONE_PER_BUYER, stock: 1, buckets: 2 }, START_MS - 1000).await;
        here.set_phase(Phase::Open).await;
        let sold = here.ask(7, 1, 1);
        until("the last unit", async || is_placed(&here.gates.buy(sold).await).then_some(())).await;
        let clock: SharedClock = here.clock.clone();
        let there = Backends::on_redis(&settings, ledger, &clock).await.unwrap().stock;
        let sku = here.catalog.sale("sale").unwrap().skus[0].clone();
        there.register(&sku);
        let mut hints = there.result_hints().await.unwrap().unwrap();
        know_sold_out(&*there, sku.no).await;
        let order = sold.order(START_MS);
        let ended = Order { state: OrderState::TimedOut, version: 1, ..order };
        here.backends.stock.settle(vec![(sold.bucket, ended)]).await.unwrap();
        while there.is_sold_out(sku.no) {
            let hint = tokio::time::timeout(Duration::from_secs(20), hints.next()).await;
            assert!(hint.expect("a hint").is_some());
        }
    });
}

/// A hint that units have returned may be missed before and after a subscription.
/// Waits until the stock has cached that the SKU is sold out.
async fn know_sold_out(stock: &dyn Stock, sku: SkuNo) {
    until("a cached sold-out state", async || {
        stock.refresh(sku).await.unwrap();
        stock.is_sold_out(sku).then_some(())
    })
    .await;
}

#[test]
fn a_process_forgets_that_it_is_sold_out_when_its_subscription_ends_and_begins() {
    let fixture = GateFixture::new();
    let settings = fixture.settings(&PATIENT);
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let here = Harness::start_on_redis(&settings, ledger.clone()).await;
        here.create(Offer { policy: ONE_PER_BUYER, stock: 1, buckets: 2 }, START_MS - 1000).await;
        here.set_phase(Phase::Open).await;
        let sold = here.ask(7, 1, 1);
        until("the last unit", async || is_placed(&here.gates.buy(sold).await).then_some(())).await;
        let clock: SharedClock = here.clock.clone();
        let there = Backends::on_redis(&settings, ledger, &clock).await.unwrap().stock;
        let sku = here.catalog.sale("sale").unwrap().skus[0].clone();
        there.register(&sku);
        know_sold_out(&*there, sku.no).await;
        let mut hints = there.result_hints().await.unwrap().unwrap();
        assert!(!there.is_sold_out(sku.no), "the subscription has just begun");
        {
            let refresh = there.refresh(sku.no);
            tokio::pin!(refresh);
            tokio::select! {
                biased;
                read = &mut refresh => panic!("read without an answer of Redis: {read:?}"),
                () = std::future::ready(()) => {}
            }
            drop(there.result_hints().await.unwrap());
            refresh.await.unwrap();
            assert!(!there.is_sold_out(sku.no), "the read began before the subscription");
        }
        know_sold_out(&*there, sku.no).await;
        fixture.redis.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        until("the end of the subscription", async || {
            let hint = tokio::time::timeout(Duration::from_secs(20), hints.next()).await;
            hint.expect("a hint, or the end").is_none().then_some(())
        })
        .await;
        drop(hints);
        assert!(!there.is_sold_out(sku.no), "the subscription has ended");
    });
}

/// Without a subscription no hint discards what a process has cached.
#[test]
fn a_process_without_a_subscription_denies_no_request_that_another_one_accepted() {
    let fixture = GateFixture::new();
    let settings = fixture.settings(&PATIENT);
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let here = Harness::start_on_redis(&settings, ledger.clone()).await;
        here.create(Offer { policy: ONE_PER_BUYER, stock: 1, buckets: 1 }, START_MS - 1000).await;
        here.set_phase(Phase::Open).await;
        let [sold, resold, refused] = [1, 2, 3].map(|no| here.ask(no, no, 1));
        until("the last unit", async || is_placed(&here.gates.buy(sold).await).then_some(())).await;
        let clock: SharedClock = here.clock.clone();
        let there = Backends::on_redis(&settings, ledger, &clock).await.unwrap().stock;
        let sku = here.catalog.sale("sale").unwrap().skus[0].clone();
        there.register(&sku);
        know_sold_out(&*there, sku.no).await;
        let order = sold.order(START_MS);
        let ended = Order { state: OrderState::TimedOut, version: 1, ..order };
        here.backends.stock.settle(vec![(sold.bucket, ended)]).await.unwrap();
        let key = BucketKey { sku: sku.no, bucket: resold.bucket };
        let decided = here.backends.stock.reserve(key, vec![resold]).await;
        assert_eq!(decided, Ok(vec![Verdict::Reserved]));
        assert!(there.is_sold_out(sku.no), "it has not read since");
        assert!(there.may_have_accepted(key, resold.request));
        let _hints = there.result_hints().await.unwrap();
        know_sold_out(&*there, sku.no).await;
        assert!(there.may_have_accepted(key, resold.request));
        assert!(!there.may_have_accepted(key, refused.request), "the cache is used again");
    });
}

/// A process cached an unsold sale, and the sale ends before the next refresh.
#[test]
fn a_closed_sale_denies_no_request_that_another_process_accepted() {
    let fixture = GateFixture::new();
    // No refresh comes in between.
    let settings = fixture.settings(&[&PATIENT[..], &[("http.sales_refresh_ms", "700")]].concat());
    in_system(async {
        let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
        let here = Harness::start_on_redis(&settings, ledger.clone()).await;
        here.create(Offer { policy: ONE_PER_BUYER, stock: 1, buckets: 1 }, START_MS - 1000).await;
        here.set_phase(Phase::Open).await;
        let clock: SharedClock = here.clock.clone();
        let backends = Backends::on_redis(&settings, ledger, &clock).await.unwrap();
        let there = Harness::on(&settings, backends, here.clock.clone());
        there.sales.restore().await.unwrap();
        let reservation = here.ask(7, 1, 1);
        let key = BucketKey { sku: reservation.sku, bucket: reservation.bucket };
        until("a cached unsold state, with a subscription to hints", async || {
            there.backends.stock.refresh(reservation.sku).await.unwrap();
            let is_excluded = !there.backends.stock.may_have_accepted(key, reservation.request);
            is_excluded.then_some(())
        })
        .await;

        assert!(is_placed(&here.gates.buy(reservation).await));
        here.set_phase(Phase::Closed).await;
        there.sales.refresh_catalog().await.unwrap();
        let listed = there.catalog.sale("sale").unwrap();
        assert_eq!(there.gates.refuse(&listed, &reservation, START_MS).await, Ok(None));
        assert!(is_placed(&there.gates.buy(reservation).await));
        // The cache of a closed sale is still refreshed.
        until("a cached sold-out state", async || {
            there.backends.stock.is_sold_out(reservation.sku).then_some(())
        })
        .await;
        assert_eq!(there.gates.refuse(&listed, &reservation, START_MS).await, Ok(None));
        let never_accepted = here.ask(8, 2, 1);
        let refused = there.gates.refuse(&listed, &never_accepted, START_MS).await;
        assert_eq!(refused, Ok(Some(floodgate::domain::Refusal::Ended)));
    });
}
