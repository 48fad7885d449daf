//! Requests that are in no stage any more, on real servers: they come to their end while other
//! sales go on, whatever else is in trouble.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lapin::options::QueuePurgeOptions;
use serde_json::json;

use crate::support::admin::{assert_audit_holds, open_sale, stage};
use crate::support::crowd::send;
use crate::support::fault_proxy::{FaultProxy, Mode};
use crate::support::gate::{metric, try_stage, wishes};
use crate::support::pipeline::PipelineGround;
use crate::support::servers::redis_users::User;
use crate::support::shop::Shop;
use crate::support::wait::{until, until_true};

const QUEUE: &str = "fg.orders.0";
const LOST: u64 = 300;

/// Buyers of the sale `other`, a few at a time, until `end`; the number of those who were promised
/// a unit.
async fn sell_steadily(public: SocketAddr, end: Arc<AtomicBool>) -> u64 {
    let mut promised = 0;
    for first in (1..).step_by(4) {
        if end.load(Ordering::SeqCst) {
            break;
        }
        let buyers = Arc::new(wishes(first..first + 4));
        let told = send(public, "other", buyers, vec![0, 1, 2, 3].into(), 4).await;
        promised += told.heard.iter().filter(|attempt| attempt.is_promise()).count() as u64;
    }
    promised
}

/// A queue is purged, another SKU sells without a pause through the same queue, and the outbox of a
/// third one is damaged.
fn a_purge_during_a_sale(outbox: &str) {
    let ground = PipelineGround::new(outbox).with("outbox.envelope_max", "1");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = ground.server("all", &[("consumer.prefetch", "16")]);
        let mut shop = Shop::open(server.internal, 5_000).await;
        let policy = || json!({"kind": "one_per_buyer"});
        open_sale(server.internal, "other", policy(), 1_000_000, 2).await;
        open_sale(server.internal, "third", policy(), 100, 1).await;
        ground.redis.cmd(&["SET", "fg:{3:0}:outbox", "no outbox"]);
        ground.mariadb.stop();
        shop.sell(server.public, LOST).await;
        until("messages in the queue", async || {
            (ground.rabbit.num_ready(QUEUE)? > 100).then_some(())
        })
        .await;
        let end = Arc::new(AtomicBool::new(false));
        let selling =
            tokio::runtime::Handle::current().spawn(sell_steadily(server.public, end.clone()));
        ground.rabbit.with_channel(async |channel| {
            channel.queue_purge(QUEUE.into(), QueuePurgeOptions::default()).await.unwrap();
        });
        ground.mariadb.cont();
        until("everything that was purged to be an order", async || {
            let sql = "SELECT COUNT(*) FROM orders WHERE sku_no = 1";
            (ground.mariadb.number(sql) == i64::try_from(LOST).unwrap()).then_some(())
        })
        .await;
        assert!(!selling.is_finished(), "the other sale goes on");
        let again = metric(server.internal, "floodgate_reconcile_republished_total", "").await;
        assert!(again > 0, "some were lost");
        end.store(true, Ordering::SeqCst);
        let promised = selling.await.unwrap();
        ground.redis.cmd(&["DEL", "fg:{3:0}:outbox"]);
        ground.drained(server.internal).await;
        until("the other sale to have ended", async || {
            (stage(server.internal, "other", "unsettled").await == 0).then_some(())
        })
        .await;
        let of_other = ground.mariadb.number("SELECT COUNT(*) FROM orders WHERE sku_no = 2");
        assert!(of_other >= i64::try_from(promised).unwrap(), "{of_other} of {promised}");
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

/// The consumer commits while it cannot reach Redis: nobody but the reconciler, in another process,
/// can write the results.
#[test]
fn results_that_were_not_written_are_written_by_another_process() {
    let ground = PipelineGround::new("list");
    let proxy = FaultProxy::start(ground.redis.addr());
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let [keeper, api, _relay] =
            ["maintenance", "api", "relay"].map(|role| ground.server(role, &[]));
        let through_proxy = User::Pipeline.url(proxy.addr());
        let _consumer = ground.server("consumer", &[("redis.url", &through_proxy)]);
        let mut shop = Shop::open(keeper.internal, 1_000).await;
        // Every process has read the sale from the ledger.
        shop.sell(api.public, 1).await;
        all_settled(keeper.internal).await;
        let matched =
            async || metric(keeper.internal, "floodgate_reconcile_matched_total", "").await;
        let before = matched().await;
        ground.mariadb.stop();
        shop.sell(api.public, 99).await;
        proxy.set(Mode::Reset);
        ground.mariadb.cont();
        until_true("the orders to be committed", || {
            ground.mariadb.number("SELECT COUNT(*) FROM orders") == 100
        });
        all_settled(keeper.internal).await;
        assert_eq!(matched().await - before, 99);
        proxy.heal();
        shop.judge(&ground, keeper.internal).await;
    });
}

/// A queue that nobody consumes stops the requests of its own buckets, and says so.
#[test]
fn an_order_queue_without_a_consumer_is_told() {
    let ground = PipelineGround::new("list").with("outbox.envelope_max", "1");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let two = [("amqp.queues", "2")];
        let [keeper, api, _relay] =
            ["maintenance", "api", "relay"].map(|role| ground.server(role, &two));
        let consumer = ground.server("consumer", &[("amqp.queues", "1")]);
        let mut shop = Shop::open(keeper.internal, 1_000).await;
        shop.sell(api.public, 100).await;
        let blocked = "floodgate_reconcile_blocked";
        until("a sign", async || {
            // Two of four buckets.
            (metric(keeper.internal, blocked, "no_consumer").await == 2).then_some(())
        })
        .await;
        drop(consumer);
        let consumer = ground.server("consumer", &two);
        shop.judge(&ground, keeper.internal).await;
        until("the end of it", async || {
            (metric(keeper.internal, blocked, "no_consumer").await == 0).then_some(())
        })
        .await;
        drop(consumer);
    });
}

/// The announcements expire, and the names of consumers that are gone are removed.
#[test]
fn a_watermark_is_the_least_of_the_living_and_expires() {
    use floodgate::watermark::{EXPIRES_AFTER, RedisWatermarks, Watermarks};

    use crate::support::links::{links, run};
    use crate::support::servers::redis::Redis;

    let redis = Redis::start();
    run(async {
        let watermarks = RedisWatermarks::new(links(&redis.url()), "fg");
        assert_eq!(watermarks.of_queue(0).await, Ok(None));
        watermarks.announce(0, "early", 1_700).await.unwrap();
        watermarks.announce(0, "late", 1_900).await.unwrap();
        watermarks.announce(1, "other", 1_000).await.unwrap();
        assert_eq!(watermarks.of_queue(0).await, Ok(Some(1_700)));
        watermarks.announce(0, "early", 1_800).await.unwrap();
        assert_eq!(watermarks.of_queue(0).await, Ok(Some(1_800)));
        let ttl = redis.text(&["PTTL", "fg:{watermark:0}:early"]).parse::<u64>().unwrap();
        assert!(Duration::from_millis(ttl) <= EXPIRES_AFTER);
        // As if it had not announced anything for so long.
        redis.cmd(&["PEXPIRE", "fg:{watermark:0}:early", "1"]);
        until("the other one's", async || {
            (watermarks.of_queue(0).await == Ok(Some(1_900))).then_some(())
        })
        .await;
        assert_eq!(redis.text(&["HLEN", "fg:{watermark:0}:consumers"]), "1");
    });
}
