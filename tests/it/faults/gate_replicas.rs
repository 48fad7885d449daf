//! Accepted means that a replica has it, and the replica is silent: C16. And the replica becomes
//! the master.

use std::sync::Arc;

use serde_json::json;

use crate::support::crowd::send_until;
use crate::support::gate::{
    GateGround, PATIENT, assert_holds_at_rest, buy, buy_for_sure, insist, metric, try_stage, wishes,
};
use crate::support::servers::redis::{Redis, Replicated};
use crate::support::wait::until;

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
        history.heard.extend(insist(app.public, wishes, 32).await.heard);
        let verdict = ground.judge(app.internal, &history, 10_000).await;
        assert!((599..=600).contains(&verdict.ok), "{verdict}: one each, and perhaps the doubt");
    });
}
