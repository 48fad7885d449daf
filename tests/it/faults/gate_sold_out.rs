//! What a process refuses by itself: a crowd that reads "sold out" must not reach Redis, and nobody
//! is refused what another process accepted.

use std::sync::Arc;

use floodgate::domain::Phase;
use floodgate::runtime::clock::SharedClock;
use floodgate::stock::BucketKey;
use floodgate::tier::Backends;
use serde_json::json;

use crate::support::app::TestApp;
use crate::support::crowd::send;
use crate::support::gate::{GateGround, PATIENT, assert_holds_at_rest, buy, buy_for_sure, wishes};
use crate::support::lying_ledger::{Lie, LyingLedger};
use crate::support::rig::{ONE_PER_BUYER, Offer, Rig, START_MS, in_system, is_placed};
use crate::support::servers::redis::Redis;
use crate::support::wait::until;

/// Commands that were run since the last count, apart from the counting itself.
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

/// Waits until this process refuses by itself.
async fn until_known(app: &TestApp, redis: &Redis, buyer: u64) {
    until("sold out to be known", async || {
        commands_since(redis);
        let (status, body) = buy(app.public, buyer).await?;
        assert_eq!((status, &body["code"]), (409, &json!("sold-out")));
        (commands_since(redis) == 0).then_some(())
    })
    .await;
}

#[test]
fn two_thousand_refusals_cost_redis_next_to_nothing_and_repeats_read_their_orders() {
    let ground = GateGround::new();
    // As in production: what is looked at anyway is looked at rarely.
    let app = ground.app(&[
        ("http.sales_refresh_ms", "500"),
        ("redis.sold_out_refresh_ms", "2000"),
        ("maintenance.every_ms", "500"),
        ("maintenance.lease_ttl_ms", "5000"),
        ("gate.resubmit_every_ms", "2000"),
        ("gate.resubmit_after_ms", "3000"),
    ]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), 5, 4).await;
        let mut orders = Vec::new();
        for buyer in 1..=5 {
            orders.push(buy_for_sure(app.public, buyer).await);
        }
        until_known(&app, &ground.redis, 6).await;
        let late = wishes(1_000..3_000);
        let attempts: Vec<_> = (0..late.len()).collect();
        let history = send(app.public, "sale", Arc::new(late), attempts.into(), 16).await;
        let commands = commands_since(&ground.redis);
        assert_eq!(history.heard.len(), 2_000);
        let told =
            |heard: &crate::support::crowd::Attempt| heard.code.as_deref() == Some("sold-out");
        assert!(history.heard.iter().all(told));
        println!("commands={commands}");
        assert!(commands < 200, "{commands} commands for 2000 refusals");
        for (buyer, order) in (1..).zip(&orders) {
            let again = buy_for_sure(app.public, buyer).await;
            assert_eq!(again, *order, "the first answer");
        }
        assert_holds_at_rest(app.internal).await;
    });
}

/// A process that looked while nothing was sold, and a sale that ends before it looks again.
#[test]
fn a_closed_sale_is_denied_to_nobody_whom_another_process_accepted() {
    let ground = GateGround::new();
    // No look comes in between.
    let settings = ground.settings(&[&PATIENT[..], &[("http.sales_refresh_ms", "1000")]].concat());
    in_system(async {
        let ledger = Arc::new(LyingLedger::new(Lie::Honest));
        let here = Rig::start_on_redis(&settings, ledger.clone()).await;
        here.create(Offer { policy: ONE_PER_BUYER, stock: 1, buckets: 1 }, START_MS - 1000).await;
        here.turn(Phase::Open).await;
        let clock: SharedClock = here.clock.clone();
        let backends = Backends::on_redis(&settings, ledger, &clock).await.unwrap();
        let there = Rig::on(&settings, backends, here.clock.clone());
        there.desk.restore().await.unwrap();
        let ask = here.ask(7, 1, 1);
        let key = BucketKey { sku: ask.sku, bucket: ask.bucket };
        there.backends.stock.refresh(ask.sku).await.unwrap();
        assert!(!there.backends.stock.may_know(key, ask.request), "nothing is sold");

        assert!(is_placed(&here.gates.buy(ask).await));
        here.turn(Phase::Closed).await;
        there.desk.learn().await.unwrap();
        let listed = there.catalog.sale("sale").unwrap();
        assert_eq!(there.gates.refuse(&listed, &ask, START_MS).await, Ok(None));
        assert!(is_placed(&there.gates.buy(ask).await));
        // What the others know of a closed sale is looked at all the same.
        until("the last unit to be seen", async || {
            there.backends.stock.is_sold_out(ask.sku).then_some(())
        })
        .await;
        assert_eq!(there.gates.refuse(&listed, &ask, START_MS).await, Ok(None));
        let stranger = here.ask(8, 2, 1);
        let refused = there.gates.refuse(&listed, &stranger, START_MS).await;
        assert_eq!(refused, Ok(Some(floodgate::domain::Refusal::Ended)));
    });
}
