//! A ledger that rejects every order with an unclassified error, and a Redis that restarts while
//! orders wait in the broker: neither counts as an attempt of an order.

use std::time::Duration;

use floodgate::runtime::clock::now_monotonic;

use crate::support::admin::stage;
use crate::support::gate::metric;
use crate::support::pipeline::PipelineFixture;
use crate::support::shop::Shop;
use crate::support::wait::until;

/// Limit from the restart of Redis to the next sale, unless a slow machine still has a part of the
/// backlog. It takes a few seconds; a process that first writes the backlog to the ledger order by
/// order needs a minute.
const SELLING_AGAIN: Duration = Duration::from_secs(25);

/// No order was retried, dead-lettered or redelivered.
async fn assert_no_order_failed(fixture: &PipelineFixture, internal: std::net::SocketAddr) {
    for name in ["floodgate_consumer_retries", "floodgate_consumer_dead_letters"] {
        assert_eq!(metric(internal, name, "").await, 0, "{name}");
    }
    assert_eq!(metric(internal, "floodgate_consumer_redelivered", "").await, 0);
    assert!(fixture.open_dead_letters(internal).is_empty());
}

/// As during the restore of a dump: no error shows that the ledger is down, and reads of other
/// tables and new tokens still work.
#[test]
fn a_ledger_without_a_table_of_placements_makes_no_dead_letter() {
    let fixture = PipelineFixture::new("list").with("outbox.envelope_max", "4");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = fixture.server("all", &[]);
        let mut shop = Shop::open(server.internal, 4_500).await;
        shop.sell(server.public, 300).await;
        for table in ["orders", "order_events"] {
            fixture.drained(server.internal).await;
            let errors = metric(server.internal, "floodgate_ledger_errors", "bug").await;
            fixture.mariadb.sql(&format!("RENAME TABLE {table} TO away"));
            shop.sell(server.public, 1_500).await;
            until("many refusals", async || {
                let refused = metric(server.internal, "floodgate_ledger_errors", "bug").await;
                (refused > errors + 200).then_some(())
            })
            .await;
            assert!(stage(server.internal, "sale", "unsettled").await >= 1_500, "{table}");
            assert_no_order_failed(&fixture, server.internal).await;
            fixture.mariadb.sql(&format!("RENAME TABLE away TO {table}"));
        }
        shop.sell(server.public, 200).await;
        let verdict = shop.check(&fixture, server.internal).await;
        assert_eq!((verdict.acknowledged, verdict.ok), (3_500, 3_500));
        assert_no_order_failed(&fixture, server.internal).await;
    });
}

/// The ledger hangs until 10,000 orders wait, in one process with all roles. Buckets are loaded
/// beside the consumers, and do not wait for the backlog.
#[test]
fn a_redis_restart_with_a_backlog_costs_no_order_an_attempt() {
    let fixture = PipelineFixture::new("list").patient();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = fixture.server("all", &[]);
        let mut shop = Shop::open(server.internal, 11_000).await;
        shop.sell(server.public, 100).await;
        fixture.drained(server.internal).await;
        fixture.mariadb.stop();
        shop.sell(server.public, 10_000).await;
        until("the backlog in the queue", async || {
            (fixture.rabbit.num_ready("fg.orders.0")? > 50).then_some(())
        })
        .await;
        fixture.redis.kill();
        fixture.redis.restart();
        let begun = now_monotonic();
        fixture.mariadb.cont();
        shop.sell(server.public, 50).await;
        let took = now_monotonic().duration_since(begun);
        println!("selling again after {took:?}");
        let unsettled = stage(server.internal, "sale", "unsettled").await;
        assert!(took < SELLING_AGAIN || unsettled > 50, "{took:?}, {unsettled} unsettled");
        let verdict = shop.check(&fixture, server.internal).await;
        assert_eq!((verdict.acknowledged, verdict.ok), (10_150, 10_150));
        assert_no_order_failed(&fixture, server.internal).await;
    });
}
