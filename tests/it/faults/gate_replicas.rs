//! Acceptance requires a replica's confirmation. The replica answers nothing (C16), or becomes the
//! master.

use std::sync::Arc;

use floodgate::domain::{BucketKey, Phase, RequestId};
use serde_json::json;

use crate::support::crowd::{STEADY, send_until};
use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::gate::{
    GateFixture, PATIENT, assert_holds_at_rest, buy, buy_for_sure, metric, purchases,
    retry_until_answered, try_stage,
};
use crate::support::harness::{Harness, ONE_PER_BUYER, Offer, START_MS, in_system, is_placed};
use crate::support::servers::redis::{Redis, Replicated};
use crate::support::wait::{until, until_true};

const REPLICATED: &[(&str, &str)] =
    &[("redis.durability", "replicated"), ("redis.replicas_wait_ms", "50")];

fn replicated() -> (GateFixture, Vec<Redis>) {
    let Replicated { master, replicas } = Replicated::start(1);
    (GateFixture::on(master), replicas)
}

#[test]
fn an_unconfirmed_purchase_is_unknown_until_the_replica_answers_and_then_one_order() {
    let (fixture, replicas) = replicated();
    let app = fixture.app(&[REPLICATED, &PATIENT].concat());
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), 3, 1).await;
        buy_for_sure(app.public, 1).await;
        replicas[0].stop();
        for _ in 0..3 {
            let (status, body) = buy(app.public, 2).await.unwrap();
            assert_eq!((status, &body["state"]), (202, &json!("unknown")), "{body}");
        }
        // The unit is reserved, and stays reserved while the outcome is unknown.
        let bucket = &fixture.names("fg:{*}:bucket")[0];
        assert_eq!(fixture.field(bucket, "stock").as_deref(), Some("1"));
        replicas[0].cont();
        let order = buy_for_sure(app.public, 2).await;
        assert_eq!(order["order"]["buyer_id"], "2", "{order}");
        // A replica that has just resumed may confirm too late again.
        let replayed = until("a repeat", async || {
            let answer = app.buy("sale", 2, json!({"sku_id": "sku", "quantity": 1})).await;
            assert!(matches!(answer.status().as_u16(), 200 | 202), "{answer:?}");
            answer.headers().get("idempotent-replayed").cloned()
        });
        assert_eq!(replayed.await, "true");
        until("two orders", async || {
            (try_stage(app.internal, "committed").await? == 2).then_some(())
        })
        .await;
        assert_eq!(try_stage(app.internal, "left").await, Some(1));
        assert_holds_at_rest(app.internal).await;
    });
}

#[test]
fn a_replica_that_becomes_master_is_filled_from_the_ledger_before_it_sells() {
    let (fixture, replicas) = replicated();
    let app = fixture.app(REPLICATED);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), 10_000, 4).await;
        let purchases = Arc::new(purchases(1..600));
        let attempts: Vec<_> = (0..200).flat_map(|_| 0..purchases.len()).collect();
        let failover = async {
            until("the first orders", async || {
                let placed = metric(app.internal, "floodgate_orders_placed_total", "").await;
                (placed >= 50).then_some(())
            })
            .await;
            fixture.redis.kill();
            replicas[0].replica_of_no_one();
            fixture.proxy.lead_to(replicas[0].addr());
            until("a fencing error", async || {
                let name = "floodgate_stock_errors_total";
                (metric(app.internal, name, "").await > 0).then_some(())
            })
            .await;
        };
        let mut history = send_until(
            app.public,
            "sale",
            purchases.clone(),
            attempts.into(),
            (32, STEADY),
            failover,
        )
        .await;
        // No replica is left to confirm, so no purchase is answered as accepted.
        let (status, body) = buy(app.public, 1_000).await.unwrap();
        assert!(matches!(status, 202 | 503), "{status} {body}");
        let second = Redis::start();
        second.replica_of(&replicas[0]);
        history.absorb(retry_until_answered(app.public, purchases, 32).await);
        let verdict = fixture.check(app.internal, &history, 10_000).await;
        assert!(
            (599..=600).contains(&verdict.ok),
            "{verdict}: one order each, and perhaps the unknown one"
        );
    });
}

/// Its `run_id` and its connections are unchanged, but the results settled meanwhile are lost.
#[test]
fn a_master_that_was_demoted_and_promoted_again_is_filled_from_the_ledger() {
    let (fixture, replicas) = replicated();
    let settings = fixture.settings(&PATIENT);
    in_system(async {
        let harness =
            Harness::start_on_redis(&settings, Arc::new(DefectiveLedger::new(LedgerDefect::None)))
                .await;
        let offer = Offer { policy: ONE_PER_BUYER, stock: 10, buckets: 1 };
        harness.create(offer, START_MS - 1000).await;
        harness.set_phase(Phase::Open).await;
        // The replica has a copy of the unsold sale and becomes a master.
        let bucket = &fixture.names("fg:{*}:bucket")[0];
        let is_copied =
            || replicas[0].cmd(&["HGETALL", bucket]) == fixture.redis.cmd(&["HGETALL", bucket]);
        until_true("a copy of the open sale", is_copied);
        replicas[0].replica_of_no_one();
        assert!(is_placed(&harness.buy_as(7, 1, 1).await));
        let run_id = fixture.redis.run_id();
        fixture.redis.replica_of(&replicas[0]);
        until_true("the data of the other master", || {
            fixture.names("fg:{*:requests:*").is_empty()
                && !fixture.names("fg:{*}:bucket").is_empty()
        });
        fixture.redis.replica_of_no_one();
        assert_eq!(fixture.redis.run_id(), run_id);

        let reservation = harness.ask(7, 1, 1);
        let key = BucketKey { sku: reservation.sku, bucket: reservation.bucket };
        let request = RequestId::new(7).unwrap();
        until("the order in its bucket", async || {
            drop(harness.sync().await);
            harness.backends.stock.record(key, request, None).await.ok().flatten().map(drop)
        })
        .await;
        assert_eq!(harness.free().await, [9]);
        harness.assert_holds().await;
    });
}
