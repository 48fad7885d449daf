//! A Redis that answers with errors or foreign data: read-only, full, without scripts, with foreign
//! values, with the buckets of another installation.

use std::net::SocketAddr;
use std::sync::Arc;

use floodgate::runtime::clock::{SystemClock, wall_ms};
use floodgate::tickets::{RedisTicketUses, TicketUses};
use floodgate::watermark::{RedisWatermarks, Watermarks};
use serde_json::json;

use crate::support::admin::{self, open_sale};
use crate::support::app::sale_body;
use crate::support::crowd::{History, STEADY, send_until};
use crate::support::fault_proxy::FaultProxy;
use crate::support::gate::{
    GateFixture, PATIENT, assert_holds_at_rest, buy, buy_for_sure, metric, purchases,
    retry_until_answered, try_stage,
};
use crate::support::offers::request;
use crate::support::redis_connections::connection_pool;
use crate::support::servers::redis::Redis;
use crate::support::wait::until;

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(test)
}

const ONE: &str = "one_per_buyer";
const BUSY: (u16, &str) = (503, "busy");
const SOLD_OUT: (u16, &str) = (409, "sold-out");

/// Retries for one buyer until the answer is this refusal. Busy and unknown answers may come before
/// it, an order never.
async fn until_refused(public: SocketAddr, buyer_no: u64, refusal: (u16, &str)) {
    until(refusal.1, async || {
        let (status, body) = buy(public, buyer_no).await?;
        let answer = (status, body["code"].as_str().unwrap_or_default());
        let is_retryable = answer == BUSY || (status == 202 && body["state"] == "unknown");
        assert!(answer == refusal || is_retryable, "{status} {body}");
        (answer == refusal).then_some(())
    })
    .await;
}

#[test]
fn a_master_that_becomes_read_only_is_busy_until_it_writes_again() {
    let fixture = GateFixture::new();
    let app = fixture.app(&[]);
    run(async {
        app.open_sale("sale", json!({"kind": ONE}), 10, 2).await;
        buy_for_sure(app.public, 1).await;
        // Its new master does not exist, so it keeps its data.
        fixture.redis.cmd(&["REPLICAOF", "127.0.0.1", "1"]);
        until_refused(app.public, 2, BUSY).await;
        fixture.redis.replica_of_no_one();
        buy_for_sure(app.public, 2).await;
        // It copies an empty server and loses its data, which the ledger restores.
        let other = Redis::start();
        fixture.redis.replica_of(&other);
        until_refused(app.public, 3, BUSY).await;
        fixture.redis.replica_of_no_one();
        buy_for_sure(app.public, 3).await;
        assert_eq!(try_stage(app.internal, "committed").await, Some(3));
        until("all requests to be settled", async || {
            (try_stage(app.internal, "unsettled").await? == 0).then_some(())
        })
        .await;
        assert_holds_at_rest(app.internal).await;
    });
}

#[test]
fn a_full_redis_takes_no_new_request_and_finishes_what_it_took() {
    let fixture = GateFixture::new();
    let server =
        fixture.server(&[("consumer.attempts_max", "1"), ("http.answer_deadline_ms", "500")]);
    run(async {
        open_sale(server.internal, "sale", json!({"kind": ONE}), 10_000, 2).await;
        let mut history = History::default();
        let purchases = Arc::new(purchases(1..400));
        // The last purchase is sent when Redis is full.
        let attempts: Vec<_> = (0..200).flat_map(|_| 0..purchases.len() - 1).collect();
        // During the load, while some requests are accepted and not settled.
        let filling = async {
            until("the first orders", async || {
                let placed = metric(server.internal, "floodgate_orders_placed_total", "").await;
                (placed >= 20).then_some(())
            })
            .await;
            fixture.redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
            until("nothing unsettled", async || {
                (try_stage(server.internal, "unsettled").await? == 0).then_some(())
            })
            .await;
        };
        let (public, internal) = (server.public, server.internal);
        let sent =
            send_until(public, "sale", purchases.clone(), attempts.into(), (16, STEADY), filling)
                .await;
        history.absorb(sent);
        until_refused(public, 399, BUSY).await;
        let num_orders = try_stage(internal, "committed").await.unwrap();
        assert_holds_at_rest(internal).await;
        fixture.redis.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
        history.absorb(retry_until_answered(public, purchases, 16).await);
        assert_eq!(fixture.check(internal, &history, 10_000).await.ok, 399);
        assert!(num_orders >= 20, "{num_orders} orders before Redis was full");
    });
}

#[test]
fn a_full_redis_binds_no_new_ticket_and_keeps_those_that_are_bound() {
    let redis = Redis::start();
    run(async {
        let pool = connection_pool(&redis.url());
        let uses = RedisTicketUses::new(pool, "shop", SystemClock::shared());
        let ends_ms = wall_ms() + 3_600_000;
        assert_eq!(uses.bind(1, request(1), ends_ms).await, Ok(request(1)));
        redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
        for number in [2, 3] {
            let bound = uses.bind(2, request(number), ends_ms).await;
            assert!(bound.is_err(), "request {number}: {bound:?}");
        }
        assert_eq!(uses.bind(1, request(2), ends_ms).await, Ok(request(1)));
    });
}

#[test]
fn a_full_redis_still_stores_the_watermarks_of_consumers() {
    let redis = Redis::start();
    run(async {
        let watermarks = RedisWatermarks::new(connection_pool(&redis.url()), "shop");
        redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
        for (consumer, watermark_ms) in [("one", 7), ("two", 9), ("one", 8)] {
            watermarks.announce(3, consumer, watermark_ms).await.unwrap();
        }
        assert_eq!(watermarks.of_queue(3).await, Ok(Some(8)));
    });
}

#[test]
fn forgotten_scripts_are_loaded_again_without_an_error() {
    let fixture = GateFixture::new();
    let app = fixture.app(&PATIENT);
    run(async {
        app.open_sale("sale", json!({"kind": ONE}), 300, 4).await;
        let purchases = Arc::new(purchases(1..400));
        let attempts: Vec<_> = (0..3).flat_map(|_| 0..purchases.len()).collect();
        let sending =
            crate::support::crowd::send(app.public, "sale", purchases, attempts.into(), 16);
        let flushing = async {
            // Between two flushes some buyers are served: a script flushed right after each load
            // would serve none.
            for orders in (0..300).step_by(25) {
                until("orders", async || {
                    let name = "floodgate_orders_placed_total";
                    (metric(app.internal, name, "").await >= orders).then_some(())
                })
                .await;
                fixture.redis.cmd(&["SCRIPT", "FLUSH"]);
            }
        };
        let (history, ()) = tokio::join!(sending, flushing);
        assert!(history.purchases.iter().all(|attempt| matches!(attempt.status, Some(200 | 409))));
        assert_eq!(fixture.check(app.internal, &history, 300).await.ok, 300);
    });
}

/// A server with one order, and without periodic maintenance.
async fn with_one_order(fixture: &GateFixture) -> crate::support::process::Server {
    let slow = [("maintenance.every_ms", "3600000"), ("maintenance.lease_ttl_ms", "36000000")];
    let server = fixture.server(&[&slow[..], &PATIENT].concat());
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
        let fixture = GateFixture::new();
        run(async {
            let server = with_one_order(&fixture).await;
            for command in commands {
                fixture.redis.cmd(command);
            }
            let before = fixture.redis.text(&["DEBUG", "DIGEST"]);
            until_refused(server.public, 2, BUSY).await;
            assert_eq!(fixture.redis.text(&["DEBUG", "DIGEST"]), before, "no data was changed");
            let damaged = "class=\"damaged\"";
            let errors = metric(server.internal, "floodgate_stock_errors_total", damaged).await;
            assert!(errors > 0);
            until("the log", async || server.log().contains(key).then_some(())).await;

            // The operator deletes the damaged key and the bucket.
            drop(server);
            fixture.redis.cmd(&["DEL", key, bucket, "fg:lease:loader"]);
            let server = fixture.server(&[]);
            buy_for_sure(server.public, 2).await;
            assert_eq!(buy_for_sure(server.public, 1).await["order"]["buyer_id"], "1");
            until("all requests to be settled", async || {
                (try_stage(server.internal, "unsettled").await? == 0).then_some(())
            })
            .await;
            assert_holds_at_rest(server.internal).await;
        });
    }
}

#[test]
fn a_bucket_with_an_invalid_number_is_rebuilt() {
    let fixture = GateFixture::new();
    let app = fixture.app(&[]);
    run(async {
        app.open_sale("sale", json!({"kind": ONE}), 10, 1).await;
        for (buyer, field) in (1..).zip(["stock", "lent", "phase", "released", "server"]) {
            buy_for_sure(app.public, buyer).await;
            fixture.redis.cmd(&["HSET", "fg:{1:0}:bucket", field, "-7"]);
            buy_for_sure(app.public, buyer + 100).await;
        }
        until_refused(app.public, 999, SOLD_OUT).await;
        assert_holds_at_rest(app.internal).await;
    });
}

#[test]
fn buckets_of_another_installation_are_left_alone() {
    let fixture = GateFixture::new();
    let mut others = GateFixture::new();
    others.proxy = FaultProxy::start(fixture.redis.addr());
    let (own, other) = (fixture.server(&[]), others.server(&[]));
    run(async {
        open_sale(own.internal, "sale", json!({"kind": ONE}), 10, 2).await;
        buy_for_sure(own.public, 1).await;
        let body = sale_body("sale", json!({"kind": ONE}), 500, 2);
        admin::call(other.internal, "/sales", body).await;
        let open = format!("http://{}/admin/v1/sales/sale/open", other.internal);
        let opened = reqwest::Client::new().post(open).json(&json!({})).send().await.unwrap();
        assert_eq!(opened.status().as_u16(), 503);
        for _ in 0..3 {
            until_refused(other.public, 2, BUSY).await;
        }
        until("the log", async || {
            let log = other.log();
            (log.contains("another installation") && log.contains("namespace")).then_some(())
        })
        .await;
        for buyer in 2..=10 {
            buy_for_sure(own.public, buyer).await;
        }
        until_refused(own.public, 11, SOLD_OUT).await;
        assert_holds_at_rest(own.internal).await;
    });
}
