//! Lost requests (accepted, in no stage) on real servers: each one reaches its final state while
//! other sales continue, whatever else fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapin::BasicProperties;
use lapin::options::{BasicGetOptions, BasicPublishOptions, QueuePurgeOptions};
use serde_json::json;

use crate::support::admin::{assert_audit_holds, open_sale, stage};
use crate::support::crowd::send;
use crate::support::fault_proxy::{FaultProxy, Mode};
use crate::support::gate::{metric, purchases, try_stage};
use crate::support::pipeline::PipelineFixture;
use crate::support::servers::rabbitmq::RabbitMq;
use crate::support::servers::redis_users::User;
use crate::support::shop::Shop;
use crate::support::wait::{until, until_true};

const QUEUE: &str = "fg.orders.0";
const LOST: u64 = 300;

/// Sells units of the sale `other`, a few at a time, until `end`. Returns the number of promised
/// units.
async fn sell_steadily(public: SocketAddr, end: Arc<AtomicBool>) -> u64 {
    let mut promised = 0;
    for first in (1..).step_by(4) {
        if end.load(Ordering::SeqCst) {
            break;
        }
        let buyers = Arc::new(purchases(first..first + 4));
        let history = send(public, "other", buyers, vec![0, 1, 2, 3].into(), 4).await;
        promised += history.purchases.iter().filter(|attempt| attempt.is_promise()).count() as u64;
    }
    promised
}

/// Purges the order queue. Returns body and properties of `num` of its messages.
fn purge_but_copy(rabbit: &RabbitMq, num: usize) -> Vec<(Vec<u8>, BasicProperties)> {
    rabbit.with_channel(async |channel| {
        let mut copies = Vec::new();
        while copies.len() < num {
            let options = BasicGetOptions { no_ack: true };
            let message = channel.basic_get(QUEUE.into(), options).await.unwrap().unwrap();
            copies.push((message.delivery.data.clone(), message.delivery.properties.clone()));
        }
        channel.queue_purge(QUEUE.into(), QueuePurgeOptions::default()).await.unwrap();
        copies
    })
}

/// Publishes messages to the order queue.
fn publish(rabbit: &RabbitMq, messages: &[(Vec<u8>, BasicProperties)]) {
    rabbit.with_channel(async |channel| {
        for (body, properties) in messages {
            let options = BasicPublishOptions::default();
            let (exchange, key) = ("fg.intents".into(), "0".into());
            let sent = channel.basic_publish(exchange, key, options, body, properties.clone());
            sent.await.unwrap().await.unwrap();
        }
    });
}

/// A queue is purged while another SKU sells continuously through it and the outbox of a third SKU
/// is damaged. Some of its messages arrive after their requests were placed.
fn a_purge_during_a_sale(outbox: &str) {
    let fixture = PipelineFixture::new(outbox).with("outbox.envelope_max", "1");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = fixture.server("all", &[("consumer.prefetch", "16")]);
        let mut shop = Shop::open(server.internal, 5_000).await;
        let policy = || json!({"kind": "one_per_buyer"});
        open_sale(server.internal, "other", policy(), 1_000_000, 2).await;
        open_sale(server.internal, "third", policy(), 100, 1).await;
        fixture.redis.cmd(&["SET", "fg:{3:0}:outbox", "no outbox"]);
        fixture.mariadb.stop();
        shop.sell(server.public, LOST).await;
        until("messages in the queue", async || {
            (fixture.rabbit.num_ready(QUEUE)? > 100).then_some(())
        })
        .await;
        let end = Arc::new(AtomicBool::new(false));
        let selling =
            tokio::runtime::Handle::current().spawn(sell_steadily(server.public, end.clone()));
        let late = purge_but_copy(&fixture.rabbit, 16);
        fixture.mariadb.cont();
        until("everything that was purged to be an order", async || {
            let sql = "SELECT COUNT(*) FROM orders WHERE sku_no = 1";
            (fixture.mariadb.number(sql) == i64::try_from(LOST).unwrap()).then_some(())
        })
        .await;
        assert!(!selling.is_finished(), "the other sale goes on");
        publish(&fixture.rabbit, &late);
        // Counted at the end of the pass.
        until("lost requests in the metric", async || {
            let name = "floodgate_reconcile_submitted_total";
            (metric(server.internal, name, "").await > 0).then_some(())
        })
        .await;
        end.store(true, Ordering::SeqCst);
        let promised = selling.await.unwrap();
        fixture.redis.cmd(&["DEL", "fg:{3:0}:outbox"]);
        fixture.drained(server.internal).await;
        until("the other sale to have ended", async || {
            (stage(server.internal, "other", "unsettled").await == 0).then_some(())
        })
        .await;
        let num_orders = |sku| {
            fixture.mariadb.number(&format!("SELECT COUNT(*) FROM orders WHERE sku_no = {sku}"))
        };
        assert_eq!(num_orders(1), i64::try_from(LOST).unwrap(), "late messages change nothing");
        let num_other = num_orders(2);
        assert!(num_other >= i64::try_from(promised).unwrap(), "{num_other} of {promised}");
        assert!(promised > 0);
        assert_audit_holds(server.internal).await;
    });
}

#[test]
fn a_purge_is_healed_while_others_sell_with_a_list() {
    a_purge_during_a_sale("list");
}

#[test]
fn a_purge_is_healed_while_others_sell_with_a_stream() {
    a_purge_during_a_sale("stream");
}

async fn all_settled(internal: SocketAddr) {
    until("the results", async || (try_stage(internal, "unsettled").await? == 0).then_some(()))
        .await;
}

/// The consumer commits while it cannot reach Redis: only the reconciler, in another process, can
/// write the results.
#[test]
fn results_that_were_not_written_are_written_by_another_process() {
    let fixture = PipelineFixture::new("list");
    let proxy = FaultProxy::start(fixture.redis.addr());
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let [maintenance, api, _relay] =
            ["maintenance", "api", "relay"].map(|role| fixture.server(role, &[]));
        let through_proxy = User::Pipeline.url(proxy.addr());
        let _consumer = fixture.server("consumer", &[("redis.url", &through_proxy)]);
        let mut shop = Shop::open(maintenance.internal, 1_000).await;
        // Every process has read the sale from the ledger.
        shop.sell(api.public, 1).await;
        all_settled(maintenance.internal).await;
        let matched =
            async || metric(maintenance.internal, "floodgate_reconcile_matched_total", "").await;
        let before = matched().await;
        fixture.mariadb.stop();
        shop.sell(api.public, 99).await;
        proxy.set(Mode::Reset);
        fixture.mariadb.cont();
        until_true("the orders to be committed", || {
            fixture.mariadb.number("SELECT COUNT(*) FROM orders") == 100
        });
        all_settled(maintenance.internal).await;
        assert_eq!(matched().await - before, 99);
        proxy.heal();
        shop.check(&fixture, maintenance.internal).await;
    });
}

/// A queue without a consumer blocks the reconciler for its own buckets, and a metric reports it.
#[test]
fn an_order_queue_without_a_consumer_is_reported() {
    let fixture = PipelineFixture::new("list").with("outbox.envelope_max", "1");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let two = [("amqp.queues", "2")];
        let [maintenance, api, _relay] =
            ["maintenance", "api", "relay"].map(|role| fixture.server(role, &two));
        let consumer = fixture.server("consumer", &[("amqp.queues", "1")]);
        let mut shop = Shop::open(maintenance.internal, 1_000).await;
        shop.sell(api.public, 100).await;
        let blocked = "floodgate_reconcile_blocked";
        until("the blocked buckets in the metric", async || {
            // Two of four buckets.
            (metric(maintenance.internal, blocked, "no_consumer").await == 2).then_some(())
        })
        .await;
        drop(consumer);
        let consumer = fixture.server("consumer", &two);
        shop.check(&fixture, maintenance.internal).await;
        until("the metric to return to 0", async || {
            (metric(maintenance.internal, blocked, "no_consumer").await == 0).then_some(())
        })
        .await;
        drop(consumer);
    });
}

/// Announcements expire, and the names of consumers without one are removed.
#[test]
fn a_watermark_is_the_least_of_running_consumers_and_expires() {
    use floodgate::watermark::{EXPIRES_AFTER, RedisWatermarks, Watermarks};

    use crate::support::redis_connections::{connection_pool, run};
    use crate::support::servers::redis::Redis;

    let redis = Redis::start();
    run(async {
        let watermarks = RedisWatermarks::new(connection_pool(&redis.url()), "fg");
        assert_eq!(watermarks.of_queue(0).await, Ok(None));
        watermarks.announce(0, "early", 1_700).await.unwrap();
        watermarks.announce(0, "late", 1_900).await.unwrap();
        watermarks.announce(1, "other", 1_000).await.unwrap();
        assert_eq!(watermarks.of_queue(0).await, Ok(Some(1_700)));
        watermarks.announce(0, "early", 1_800).await.unwrap();
        assert_eq!(watermarks.of_queue(0).await, Ok(Some(1_800)));
        let ttl = redis.text(&["PTTL", "fg:{watermark:0}:early"]).parse::<u64>().unwrap();
        assert!(Duration::from_millis(ttl) <= EXPIRES_AFTER);
        // As for a consumer that stopped announcing.
        redis.cmd(&["PEXPIRE", "fg:{watermark:0}:early", "1"]);
        until("the watermark of the other consumer", async || {
            (watermarks.of_queue(0).await == Ok(Some(1_900))).then_some(())
        })
        .await;
        assert_eq!(redis.text(&["HLEN", "fg:{watermark:0}:consumers"]), "1");
    });
}
