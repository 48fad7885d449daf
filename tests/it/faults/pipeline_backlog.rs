//! Redis restarts with its file while a backlog waits in the broker, in role `all`: the buckets are
//! loaded beside the consumers, and do not wait for the backlog.

use std::time::Duration;

use floodgate::runtime::clock::now_monotonic;

use crate::support::pipeline::PipelineFixture;
use crate::support::shop::Shop;
use crate::support::wait::until;

const BACKLOG: u64 = 10_000;

/// The documented limit, which holds for ten times this backlog on a dedicated machine.
const SELLS_AGAIN_WITHIN: Duration = Duration::from_secs(10);

#[test]
fn a_restart_of_redis_does_not_wait_for_a_backlog() {
    let fixture = PipelineFixture::new("list");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = fixture.server("all", &[("outbox.envelope_max", "1")]);
        let mut shop = Shop::open(server.internal, 20_000).await;
        fixture.mariadb.stop();
        shop.sell(server.public, BACKLOG).await;
        until("the backlog in the queue", async || {
            (fixture.rabbit.num_ready("fg.orders.0")? > 50).then_some(())
        })
        .await;
        fixture.redis.kill();
        fixture.redis.restart();
        let begun = now_monotonic();
        fixture.mariadb.cont();
        shop.sell(server.public, 1).await;
        let took = now_monotonic().duration_since(begun);
        println!("selling again after {} ms", took.as_millis());
        assert!(took < SELLS_AGAIN_WITHIN, "{took:?}");
        shop.check(&fixture, server.internal).await;
    });
}
