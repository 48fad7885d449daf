//! A Redis that answers, and not what is wanted: read-only, full, without scripts, with values of
//! somebody else, with the buckets of another installation.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::json;

use crate::support::admin::{self, open_sale};
use crate::support::app::sale_body;
use crate::support::crowd::{History, send_until};
use crate::support::fault_proxy::FaultProxy;
use crate::support::gate::{
    GateGround, PATIENT, assert_holds_at_rest, buy, buy_for_sure, insist, metric, try_stage, wishes,
};
use crate::support::servers::redis::Redis;
use crate::support::wait::until;

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(test)
}

const ONE: &str = "one_per_buyer";
const BUSY: (u16, &str) = (503, "busy");
const SOLD_OUT: (u16, &str) = (409, "sold-out");

/// Asks for one buyer until the answer is this refusal: before it there may be doubts, if anything
/// takes long, and never an order.
async fn refused(public: SocketAddr, buyer_no: u64, refusal: (u16, &str)) {
    until(refusal.1, async || {
        let (status, body) = buy(public, buyer_no).await?;
        let told = (status, body["code"].as_str().unwrap_or_default());
        let is_doubt = told == BUSY || (status == 202 && body["state"] == "unknown");
        assert!(told == refusal || is_doubt, "{status} {body}");
        (told == refusal).then_some(())
    })
    .await;
}

#[test]
fn a_master_that_becomes_read_only_is_busy_until_it_writes_again() {
    let ground = GateGround::new();
    let app = ground.app(&[]);
    run(async {
        app.open_sale("sale", json!({"kind": ONE}), 10, 2).await;
        buy_for_sure(app.public, 1).await;
        // A master that is not there: it keeps what it has.
        ground.redis.cmd(&["REPLICAOF", "127.0.0.1", "1"]);
        refused(app.public, 2, BUSY).await;
        ground.redis.replica_of_no_one();
        buy_for_sure(app.public, 2).await;
        // It copies another one and loses everything: filled again from the ledger.
        let other = Redis::start();
        ground.redis.replica_of(&other);
        refused(app.public, 3, BUSY).await;
        ground.redis.replica_of_no_one();
        buy_for_sure(app.public, 3).await;
        assert_eq!(try_stage(app.internal, "landed").await, Some(3));
        until("rest", async || (try_stage(app.internal, "unsettled").await? == 0).then_some(()))
            .await;
        assert_holds_at_rest(app.internal).await;
    });
}

#[test]
fn a_full_redis_takes_no_new_request_and_finishes_what_it_took() {
    let ground = GateGround::new();
    let server =
        ground.server(&[("consumer.attempts_max", "1"), ("http.answer_deadline_ms", "50")]);
    run(async {
        open_sale(server.internal, "sale", json!({"kind": ONE}), 10_000, 2).await;
        let mut history = History::default();
        let wishes = Arc::new(wishes(1..400));
        // The last one comes when it is full.
        let attempts: Vec<_> = (0..200).flat_map(|_| 0..wishes.len() - 1).collect();
        // In the middle of the load, while some are accepted and not settled.
        let filling = async {
            until("the first orders", async || {
                let placed = metric(server.internal, "floodgate_orders_placed_total", "").await;
                (placed >= 20).then_some(())
            })
            .await;
            ground.redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
            until("nothing unsettled", async || {
                (try_stage(server.internal, "unsettled").await? == 0).then_some(())
            })
            .await;
        };
        let (public, internal) = (server.public, server.internal);
        let sent = send_until(public, "sale", wishes.clone(), attempts.into(), 16, filling).await;
        history.absorb(sent);
        refused(public, 399, BUSY).await;
        let landed = try_stage(internal, "landed").await.unwrap();
        assert_holds_at_rest(internal).await;
        ground.redis.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
        history.absorb(insist(public, wishes, 16).await);
        assert_eq!(ground.judge(internal, &history, 10_000).await.ok, 399);
        assert!(landed >= 20, "{landed} before it was full");
    });
}

#[test]
fn forgotten_scripts_are_loaded_again_and_nobody_notices() {
    let ground = GateGround::new();
    let app = ground.app(&PATIENT);
    run(async {
        app.open_sale("sale", json!({"kind": ONE}), 300, 4).await;
        let wishes = Arc::new(wishes(1..400));
        let attempts: Vec<_> = (0..3).flat_map(|_| 0..wishes.len()).collect();
        let sending = crate::support::crowd::send(app.public, "sale", wishes, attempts.into(), 16);
        let flushing = async {
            // Between any two flushes some are served: a script that is loaded again and again only
            // to be forgotten at once serves nobody.
            for orders in (0..300).step_by(25) {
                until("orders", async || {
                    let name = "floodgate_orders_placed_total";
                    (metric(app.internal, name, "").await >= orders).then_some(())
                })
                .await;
                ground.redis.cmd(&["SCRIPT", "FLUSH"]);
            }
        };
        let (history, ()) = tokio::join!(sending, flushing);
        assert!(history.heard.iter().all(|heard| matches!(heard.status, Some(200 | 409))));
        assert_eq!(ground.judge(app.internal, &history, 300).await.ok, 300);
    });
}

/// A server with one order, whose keeper does not look by itself.
async fn with_one_order(ground: &GateGround) -> crate::support::process::Server {
    let slow = [("maintenance.every_ms", "3600000"), ("maintenance.lease_ttl_ms", "36000000")];
    let server = ground.server(&[&slow[..], &PATIENT].concat());
    open_sale(server.internal, "sale", json!({"kind": ONE}), 10, 1).await;
    buy_for_sure(server.public, 1).await;
    server
}

#[test]
fn a_damaged_bucket_is_busy_and_the_log_names_the_key() {
    let page = "fg:{1:0}:requests:0";
    let bucket = "fg:{1:0}:bucket";
    let unsettled = "fg:{1:0}:unsettled";
    let damages: [(&str, &[&[&str]]); 4] = [
        (page, &[&["DEL", page], &["SET", page, "text"]]),
        (bucket, &[&["DEL", bucket], &["RPUSH", bucket, "1"]]),
        (unsettled, &[&["DEL", unsettled], &["SADD", unsettled, "1"]]),
        (bucket, &[&["HSET", bucket, "stock", "-1"]]),
    ];
    for (key, commands) in damages {
        let ground = GateGround::new();
        run(async {
            let server = with_one_order(&ground).await;
            for command in commands {
                ground.redis.cmd(command);
            }
            let before = ground.redis.text(&["DEBUG", "DIGEST"]);
            refused(server.public, 2, BUSY).await;
            assert_eq!(ground.redis.text(&["DEBUG", "DIGEST"]), before, "nothing was touched");
            let damaged = "class=\"damaged\"";
            let errors = metric(server.internal, "floodgate_stock_errors_total", damaged).await;
            assert!(errors > 0);
            until("the log", async || server.log().contains(key).then_some(())).await;

            // The operator takes away what does not belong there, and the bucket with it.
            drop(server);
            ground.redis.cmd(&["DEL", key, bucket, "fg:lease:loader"]);
            let server = ground.server(&[]);
            buy_for_sure(server.public, 2).await;
            assert_eq!(buy_for_sure(server.public, 1).await["order"]["buyer_id"], "1");
            until("rest", async || {
                (try_stage(server.internal, "unsettled").await? == 0).then_some(())
            })
            .await;
            assert_holds_at_rest(server.internal).await;
        });
    }
}

#[test]
fn a_bucket_with_a_number_that_nobody_wrote_is_built_anew() {
    let ground = GateGround::new();
    let app = ground.app(&[]);
    run(async {
        app.open_sale("sale", json!({"kind": ONE}), 10, 1).await;
        for (buyer, field) in (1..).zip(["stock", "lent", "phase", "released", "server"]) {
            buy_for_sure(app.public, buyer).await;
            ground.redis.cmd(&["HSET", "fg:{1:0}:bucket", field, "-7"]);
            buy_for_sure(app.public, buyer + 100).await;
        }
        refused(app.public, 999, SOLD_OUT).await;
        assert_holds_at_rest(app.internal).await;
    });
}

#[test]
fn buckets_of_another_installation_are_left_alone() {
    let ground = GateGround::new();
    let mut others = GateGround::new();
    others.proxy = FaultProxy::start(ground.redis.addr());
    let (own, other) = (ground.server(&[]), others.server(&[]));
    run(async {
        open_sale(own.internal, "sale", json!({"kind": ONE}), 10, 2).await;
        buy_for_sure(own.public, 1).await;
        let body = sale_body("sale", json!({"kind": ONE}), 500, 2);
        admin::call(other.internal, "/sales", body).await;
        let open = format!("http://{}/admin/v1/sales/sale/open", other.internal);
        let opened = reqwest::Client::new().post(open).json(&json!({})).send().await.unwrap();
        assert_eq!(opened.status().as_u16(), 503);
        for _ in 0..3 {
            refused(other.public, 2, BUSY).await;
        }
        until("the log", async || {
            let log = other.log();
            (log.contains("another installation") && log.contains("namespace")).then_some(())
        })
        .await;
        for buyer in 2..=10 {
            buy_for_sure(own.public, buyer).await;
        }
        refused(own.public, 11, SOLD_OUT).await;
        assert_holds_at_rest(own.internal).await;
    });
}
