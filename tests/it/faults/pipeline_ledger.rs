//! A ledger that refuses every order with an error that nobody listed, and a Redis that restarts
//! while orders wait in the broker: neither is the fault of an order.

use std::time::Duration;

use floodgate::runtime::clock::now_monotonic;

use crate::support::admin::stage;
use crate::support::gate::metric;
use crate::support::pipeline::PipelineGround;
use crate::support::shop::Shop;
use crate::support::wait::{until, until_true};

/// Until buyers are sold to again after a restart of Redis. It takes a few seconds; a process that
/// brings the backlog to the ledger order by order first needs a minute.
const SELLING_AGAIN: Duration = Duration::from_secs(25);

/// No order was tried on its own account, none was given up, none came twice.
async fn assert_no_order_failed(ground: &PipelineGround, internal: std::net::SocketAddr) {
    for name in ["floodgate_consumer_retries", "floodgate_consumer_dead_letters"] {
        assert_eq!(metric(internal, name, "").await, 0, "{name}");
    }
    assert_eq!(metric(internal, "floodgate_consumer_redelivered", "").await, 0);
    assert!(ground.open_letters(internal).is_empty());
}

/// As while a dump is being restored: nothing says that the ledger is away, and reads of other
/// tables and the counting of tokens go on.
#[test]
fn a_ledger_without_its_table_of_orders_makes_no_dead_letter() {
    let ground = PipelineGround::new("list").with("outbox.envelope_max", "4");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = ground.server("all", &[]);
        let mut shop = Shop::open(server.internal, 3_000).await;
        shop.sell(server.public, 300).await;
        ground.drained(server.internal).await;
        ground.mariadb.sql("RENAME TABLE orders TO orders_away");
        shop.sell(server.public, 1_500).await;
        until("many refusals", async || {
            let refused = metric(server.internal, "floodgate_ledger_errors", "bug").await;
            (refused > 40).then_some(())
        })
        .await;
        assert!(stage(server.internal, "sale", "unsettled").await >= 1_500);
        assert_no_order_failed(&ground, server.internal).await;
        ground.mariadb.sql("RENAME TABLE orders_away TO orders");
        shop.sell(server.public, 200).await;
        let verdict = shop.judge(&ground, server.internal).await;
        assert_eq!((verdict.acknowledged, verdict.ok), (2_000, 2_000));
        assert_no_order_failed(&ground, server.internal).await;
    });
}

/// The ledger hangs until 20,000 orders wait, in one process with all roles.
#[test]
fn a_redis_restart_with_a_backlog_costs_no_order_an_attempt() {
    let ground = PipelineGround::new("list").patient();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = ground.server("all", &[]);
        let mut shop = Shop::open(server.internal, 21_000).await;
        shop.sell(server.public, 100).await;
        ground.drained(server.internal).await;
        ground.mariadb.stop();
        shop.sell(server.public, 20_000).await;
        until_true("everything in the broker", || {
            let words = ["list_queues", "--no-table-headers", "name", "messages"];
            let listed = ground.rabbit.ctl(&words);
            let orders = listed.lines().find_map(|line| line.strip_prefix("fg.orders.0"));
            orders.is_some_and(|count| count.trim().parse::<u32>().unwrap() > 300)
        });
        ground.mariadb.cont();
        ground.redis.kill();
        ground.redis.restart();
        let begun = now_monotonic();
        shop.sell(server.public, 50).await;
        let took = now_monotonic().duration_since(begun);
        println!("selling again after {took:?}");
        assert!(took < SELLING_AGAIN, "selling again after {took:?}");
        let verdict = shop.judge(&ground, server.internal).await;
        assert_eq!((verdict.acknowledged, verdict.ok), (20_150, 20_150));
        assert_no_order_failed(&ground, server.internal).await;
    });
}
