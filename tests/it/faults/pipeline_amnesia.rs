//! Tier `pipeline` on a Redis that forgets requests whose orders are already in the broker: a stale
//! replica becomes the master (C13), or Redis loses everything under load (C17). The buckets open
//! with the units of those orders, so that more is accepted than there is; the ledger refuses what
//! is too much, and each refused request is a recorded failure whose units come back once.

use serde_json::json;

use crate::support::admin::open_sale;
use crate::support::crowd::{Attempt, History, Verdict};
use crate::support::fault_proxy::FaultProxy;
use crate::support::gate::{PATIENT, assert_holds_at_rest, purchases, retry_until, try_stage};
use crate::support::orders::orders_in;
use crate::support::pipeline::PipelineFixture;
use crate::support::process::Server;
use crate::support::servers::redis::{Redis, Replicated};
use crate::support::servers::redis_users::User;
use crate::support::wait::until;

const STOCK: u32 = 200;
const QUEUE: &str = "fg.orders.0";

/// An installation whose processes reach Redis through a proxy, and a sale of [`STOCK`] units.
struct Forgetful {
    fixture: PipelineFixture,
    proxy: FaultProxy,
    server: Server,
    history: History,
}

impl Forgetful {
    async fn open(redis: Redis) -> Self {
        let proxy = FaultProxy::start(redis.addr());
        let url = User::Pipeline.url(proxy.addr());
        let settings = [("redis.url", url.as_str()), ("outbox.envelope_max", "1")];
        let with = |fixture: PipelineFixture, (key, value): &(&str, &str)| fixture.with(key, value);
        let all = PATIENT.iter().chain(&settings);
        let fixture = all.fold(PipelineFixture::on("list", redis), with);
        let server = fixture.server("all", &[]);
        open_sale(server.internal, "sale", json!({"kind": "one_per_buyer"}), STOCK, 4).await;
        Self { fixture, proxy, server, history: History::default() }
    }

    /// Sends the purchases of these buyers until each is answered for good.
    async fn buy(&mut self, buyers: std::ops::Range<u64>) {
        let is_final =
            |attempt: &Attempt| attempt.is_promise() || matches!(attempt.status, Some(409));
        let purchases = purchases(buyers).into();
        self.history.absorb(retry_until(self.server.public, purchases, 16, is_final).await);
    }

    /// While the ledger hangs, sells to these buyers until their orders are in the broker.
    async fn sell_into_the_broker(&mut self, buyers: std::ops::Range<u64>) {
        let num_buyers = buyers.end - buyers.start;
        self.fixture.mariadb.stop();
        self.buy(buyers).await;
        until("every order in the broker", async || {
            let outbox = try_stage(self.server.internal, "outbox").await?;
            let relay = try_stage(self.server.internal, "relay").await?;
            let args = ["list_queues", "--no-table-headers", "name", "messages"];
            let listed = self.fixture.rabbit.ctl(&args);
            let count = listed.lines().find_map(|line| line.strip_prefix(QUEUE))?;
            let count: u64 = count.trim().parse().ok()?;
            (outbox == 0 && relay == 0 && count > num_buyers / 2).then_some(())
        })
        .await;
    }

    /// The same buyers repeat their purchases, others buy, and the ledger goes on.
    async fn sell_again(mut self, buyers: std::ops::Range<u64>) -> Verdict {
        self.fixture.mariadb.cont();
        self.buy(buyers).await;
        self.fixture.drained(self.server.internal).await;
        assert_holds_at_rest(self.server.internal).await;
        let ledger = orders_in(&self.fixture.settings(&[])).await;
        let verdict = self.history.check(0, &ledger, STOCK.into());
        // A request that Redis forgot is refused to its buyer until its order is in the ledger.
        verdict.assert_clean_among_two_masters();
        assert_eq!(verdict.units, u64::from(STOCK), "every unit was sold: {verdict}");
        verdict
    }
}

#[test]
fn a_stale_replica_promoted_after_the_relay_published_oversells_nothing() {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let Replicated { master, replicas } = Replicated::start(1);
        let mut shop = Forgetful::open(master).await;
        shop.buy(1..51).await;
        shop.fixture.drained(shop.server.internal).await;
        replicas[0].stop();
        shop.sell_into_the_broker(51..151).await;
        shop.fixture.redis.kill();
        replicas[0].cont();
        replicas[0].replica_of_no_one();
        shop.proxy.lead_to(replicas[0].addr());
        shop.sell_again(1..401).await;
    });
}

#[test]
fn a_redis_that_lost_everything_while_orders_wait_in_the_broker_oversells_nothing() {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut shop = Forgetful::open(Redis::start()).await;
        shop.buy(1..51).await;
        shop.fixture.drained(shop.server.internal).await;
        shop.sell_into_the_broker(51..151).await;
        shop.fixture.redis.kill();
        shop.fixture.redis.restart();
        shop.sell_again(1..401).await;
    });
}
