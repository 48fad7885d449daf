//! Accepted means that a replica has it, and the replica is silent: C16. And the replica becomes
//! the master.

use std::sync::Arc;

use floodgate::domain::{Phase, RequestId};
use floodgate::stock::BucketKey;
use serde_json::json;

use crate::support::crowd::send_until;
use crate::support::gate::{
    GateGround, PATIENT, assert_holds_at_rest, buy, buy_for_sure, insist, metric, try_stage, wishes,
};
use crate::support::lying_ledger::{Lie, LyingLedger};
use crate::support::rig::{ONE_PER_BUYER, Offer, Rig, START_MS, in_system, is_placed};
use crate::support::servers::redis::{Redis, Replicated};
use crate::support::wait::{until, until_true};

const REPLICATED: &[(&str, &str)] =
    &[("redis.durability", "replicated"), ("redis.replicas_wait_ms", "50")];

fn replicated() -> (GateGround, Vec<Redis>) {
    let Replicated { master, replicas } = Replicated::start(1);
    (GateGround::on(master), replicas)
}

#[test]
fn an_unconfirmed_purchase_is_unknown_until_the_replica_answers_and_then_one_order() {
    let (ground, replicas) = replicated();
    let app = ground.app(&[REPLICATED, &PATIENT].concat());
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), 3, 1).await;
        buy_for_sure(app.public, 1).await;
        replicas[0].stop();
        for _ in 0..3 {
            let (status, body) = buy(app.public, 2).await.unwrap();
            assert_eq!((status, &body["state"]), (202, &json!("unknown")), "{body}");
        }
        // It was taken and is not given back, whatever becomes of it.
        let bucket = &ground.names("fg:{*}:bucket")[0];
        assert_eq!(ground.field(bucket, "stock").as_deref(), Some("1"));
        replicas[0].cont();
        let order = buy_for_sure(app.public, 2).await;
        assert_eq!(order["order"]["buyer_id"], "2", "{order}");
        // A replica that has just gone on may confirm this one too late again.
        let replayed = until("a repeat", async || {
            let again = app.buy("sale", 2, json!({"sku_id": "sku", "quantity": 1})).await;
            assert!(matches!(again.status().as_u16(), 200 | 202), "{again:?}");
            again.headers().get("idempotent-replayed").cloned()
        });
        assert_eq!(replayed.await, "true");
        until("two orders", async || (try_stage(app.internal, "landed").await? == 2).then_some(()))
            .await;
        assert_eq!(try_stage(app.internal, "left").await, Some(1));
        assert_holds_at_rest(app.internal).await;
    });
}

#[test]
fn a_replica_that_becomes_master_is_filled_from_the_ledger_before_it_sells() {
    let (ground, replicas) = replicated();
    let app = ground.app(REPLICATED);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        app.open_sale("sale", json!({"kind": "one_per_buyer"}), 10_000, 4).await;
        let wishes = Arc::new(wishes(1..600));
        let attempts: Vec<_> = (0..200).flat_map(|_| 0..wishes.len()).collect();
        let failover = async {
            until("the first orders", async || {
                let placed = metric(app.internal, "floodgate_orders_placed_total", "").await;
                (placed >= 50).then_some(())
            })
            .await;
            ground.redis.kill();
            replicas[0].replica_of_no_one();
            ground.proxy.lead_to(replicas[0].addr());
            until("a fence", async || {
                let name = "floodgate_stock_errors_total";
                (metric(app.internal, name, "").await > 0).then_some(())
            })
            .await;
        };
        let mut history =
            send_until(app.public, "sale", wishes.clone(), attempts.into(), 32, failover).await;
        // No replica is left that could confirm: nobody is told that it was accepted.
        let (status, body) = buy(app.public, 1_000).await.unwrap();
        assert!(matches!(status, 202 | 503), "{status} {body}");
        let second = Redis::start();
        second.replica_of(&replicas[0]);
        history.absorb(insist(app.public, wishes, 32).await);
        let verdict = ground.judge(app.internal, &history, 10_000).await;
        assert!((599..=600).contains(&verdict.ok), "{verdict}: one each, and perhaps the doubt");
    });
}

/// Its `run_id` is the same as before, and so are its connections; what was settled meanwhile is
/// not.
#[test]
fn a_master_that_was_demoted_and_promoted_again_is_filled_from_the_ledger() {
    let (ground, replicas) = replicated();
    let settings = ground.settings(&PATIENT);
    in_system(async {
        let rig = Rig::start_on_redis(&settings, Arc::new(LyingLedger::new(Lie::Honest))).await;
        let offer = Offer { policy: ONE_PER_BUYER, stock: 10, buckets: 1 };
        rig.create(offer, START_MS - 1000).await;
        rig.turn(Phase::Open).await;
        // The replica has the sale as it began, and leads on its own.
        let bucket = &ground.names("fg:{*}:bucket")[0];
        let open =
            || replicas[0].cmd(&["HGETALL", bucket]) == ground.redis.cmd(&["HGETALL", bucket]);
        until_true("a copy of the open sale", open);
        replicas[0].replica_of_no_one();
        assert!(is_placed(&rig.buy_as(7, 1, 1).await));
        let run_id = ground.redis.run_id();
        ground.redis.replica_of(&replicas[0]);
        until_true("the data of the other", || {
            ground.names("fg:{*:requests:*").is_empty() && !ground.names("fg:{*}:bucket").is_empty()
        });
        ground.redis.replica_of_no_one();
        assert_eq!(ground.redis.run_id(), run_id);

        let ask = rig.ask(7, 1, 1);
        let key = BucketKey { sku: ask.sku, bucket: ask.bucket };
        let request = RequestId::new(7).unwrap();
        until("the order in its bucket", async || {
            drop(rig.desk.look().await);
            rig.backends.stock.find(key, request).await.ok().flatten().map(drop)
        })
        .await;
        assert_eq!(rig.free().await, [9]);
        rig.assert_holds().await;
    });
}
