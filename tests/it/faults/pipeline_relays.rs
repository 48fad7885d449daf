//! Relay processes that crash or freeze with claimed entries: C04, C05, C06.
//!
//! A frozen broker keeps entries claimed, because it confirms no message.

use floodgate::runtime::clock::now_monotonic;

use crate::support::pipeline::PipelineFixture;
use crate::support::process::Server;
use crate::support::servers::redis::Redis;
use crate::support::shop::Shop;
use crate::support::wait::{taken_over_within, until, until_true};

/// Redis keys that match the pattern.
fn keys(redis: &Redis, pattern: &str) -> Vec<String> {
    redis::from_redis_value(redis.cmd(&["KEYS", pattern])).unwrap()
}

/// Heartbeat keys of the workers of this process.
fn workers(redis: &Redis, process: &Server) -> Vec<String> {
    keys(redis, &format!("fg:relay:{}*", name_of(process)))
}

/// Entries claimed by workers whose names begin with `name`.
fn num_claimed(redis: &Redis, name: &str) -> u64 {
    let num_entries =
        |key: &String| -> u64 { redis::from_redis_value(redis.cmd(&["LLEN", key])).unwrap() };
    let in_lists: u64 = keys(redis, &format!("fg:*:claimed:{name}*")).iter().map(num_entries).sum();
    in_lists + num_pending(redis, name)
}

/// Pending entries of these workers, for outboxes that are streams.
fn num_pending(redis: &Redis, name: &str) -> u64 {
    type Pending = (u64, Option<String>, Option<String>, Option<Vec<(String, u64)>>);
    let outboxes = keys(redis, "fg:*:outbox").into_iter();
    let pending = outboxes.filter_map(|key| redis.try_cmd(&["XPENDING", &key, "relay"]).ok());
    let consumers = pending.flat_map(|answer| {
        let (_, _, _, consumers): Pending = redis::from_redis_value(answer).unwrap();
        consumers.unwrap_or_default()
    });
    consumers.filter(|(consumer, _)| consumer.starts_with(name)).map(|(_, count)| count).sum()
}

/// An installation without its relays.
struct Installation {
    fixture: PipelineFixture,
    maintenance: Option<Server>,
    api: Server,
    _consumer: Server,
    shop: Shop,
}

impl Installation {
    async fn start(outbox: &str) -> Self {
        // Each order is an entry, and each entry a message.
        let fixture = PipelineFixture::new(outbox).with("outbox.envelope_max", "1");
        let [maintenance, api, consumer] =
            ["maintenance", "api", "consumer"].map(|role| fixture.server(role, &[]));
        let shop = Shop::open(maintenance.internal, 4_000).await;
        Self { fixture, maintenance: Some(maintenance), api, _consumer: consumer, shop }
    }

    fn relay(&self) -> Server {
        self.fixture.server("relay", &[])
    }

    /// Waits until this relay has published all unclaimed entries.
    async fn until_idle(&mut self, relay: &Server) {
        self.shop.sell(self.api.public, 4).await;
        let redis = &self.fixture.redis;
        until_true("the relay to work", || !workers(redis, relay).is_empty());
        until_true("an empty outbox", || {
            let waiting = |key: &String| -> u64 {
                let (list, stream) = (redis.try_cmd(&["LLEN", key]), redis.try_cmd(&["XLEN", key]));
                redis::from_redis_value(list.or(stream).unwrap()).unwrap()
            };
            let waiting: u64 = keys(redis, "fg:*:outbox").iter().map(waiting).sum();
            // The length of a stream includes claimed entries.
            waiting == num_pending(redis, "") && num_claimed(redis, &name_of(relay)) == 0
        });
    }

    /// Freezes the broker, and waits until this relay has claimed entries.
    async fn fill(&mut self, relay: &Server) {
        self.until_idle(relay).await;
        self.fixture.rabbit.stop();
        self.shop.sell(self.api.public, 40).await;
        let redis = &self.fixture.redis;
        until_true("claimed entries", || num_claimed(redis, &name_of(relay)) > 0);
    }

    async fn drained(&self) {
        self.fixture.drained(self.api.internal).await;
    }

    /// C04: killed with claimed entries, repeatedly; other relays take over in time.
    async fn killed_again_and_again(&mut self) {
        for _ in 0..3 {
            let relay = self.relay();
            self.fill(&relay).await;
            let killed = name_of(&relay);
            let next = self.relay();
            relay.kill();
            let killed_at = now_monotonic();
            self.fixture.rabbit.cont();
            let redis = &self.fixture.redis;
            until_true("others to take over", || num_claimed(redis, &killed) == 0);
            println!("taken_over_ms={}", killed_at.elapsed().as_millis());
            assert!(killed_at.elapsed() < taken_over_within(), "{:?}", killed_at.elapsed());
            self.drained().await;
            next.kill();
        }
    }

    /// C05: frozen for longer than its heartbeat lasts, then resumed.
    async fn frozen_and_back(&mut self) {
        let frozen = self.relay();
        self.fill(&frozen).await;
        frozen.stop();
        self.fixture.rabbit.cont();
        let other = self.relay();
        let redis = &self.fixture.redis;
        until_true("others to take over", || num_claimed(redis, &name_of(&frozen)) == 0);
        self.drained().await;
        other.kill();
        frozen.cont();
        self.until_idle(&frozen).await;
        assert!(!frozen.log().contains("actor ended"), "{}", frozen.log());
        self.drained().await;
        frozen.kill();
    }

    /// C06: many relays crash while no rescuer runs; then a rescuer and one relay finish the work.
    async fn many_orphans(&mut self) {
        drop(self.maintenance.take());
        let mut killed = Vec::new();
        for _ in 0..10 {
            let relay = self.relay();
            self.fill(&relay).await;
            killed.push(name_of(&relay));
            relay.kill();
            self.fixture.rabbit.cont();
        }
        let redis = &self.fixture.redis;
        assert!(
            killed.iter().all(|name| num_claimed(redis, name) > 0),
            "each left claimed entries"
        );
        self.maintenance = Some(self.fixture.server("maintenance", &[]));
        let last = self.relay();
        until("no entry claimed by killed relays", async || {
            killed.iter().all(|name| num_claimed(redis, name) == 0).then_some(())
        })
        .await;
        self.drained().await;
        last.kill();
        let redis = &self.fixture.redis;
        until_true("no heartbeat", || keys(redis, "fg:relay:*").is_empty());
        assert_eq!(num_claimed(redis, ""), 0);
    }

    /// The keys of the outboxes are deleted one by one, with entries claimed and waiting: no relay
    /// crashes, and the lost requests are submitted again.
    async fn keys_deleted_one_by_one(&mut self) {
        self.maintenance = Some(self.fixture.server("maintenance", &[]));
        let relay = self.relay();
        self.fill(&relay).await;
        let redis = &self.fixture.redis;
        for pattern in ["fg:*:claimants", "fg:relay:*", "fg:*:claimed:*", "fg:*:outbox"] {
            for key in keys(redis, pattern) {
                redis.cmd(&["UNLINK", &key]);
            }
        }
        self.fixture.rabbit.cont();
        self.until_idle(&relay).await;
        assert!(!relay.log().contains("actor ended"), "{}", relay.log());
        self.drained().await;
        relay.kill();
    }

    /// The sets of claimants are deleted, and the relay is killed: no rescuer finds the private
    /// lists, and the requests in them are submitted again.
    async fn claimants_deleted(&mut self) {
        let relay = self.relay();
        self.fill(&relay).await;
        let redis = &self.fixture.redis;
        for key in keys(redis, "fg:*:claimants") {
            redis.cmd(&["UNLINK", &key]);
        }
        relay.kill();
        self.fixture.rabbit.cont();
        let next = self.relay();
        self.drained().await;
        next.kill();
    }
}

/// Prefix of the names of this process's workers.
fn name_of(process: &Server) -> String {
    format!("{}-", process.id())
}

fn relays_crash(outbox: &str) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut installation = Installation::start(outbox).await;
        installation.killed_again_and_again().await;
        installation.frozen_and_back().await;
        installation.many_orphans().await;
        installation.keys_deleted_one_by_one().await;
        installation.claimants_deleted().await;
        installation.shop.check(&installation.fixture, installation.api.internal).await;
    });
}

#[test]
fn killed_or_frozen_relays_lose_nothing_from_a_list() {
    relays_crash("list");
}

#[test]
fn killed_or_frozen_relays_lose_nothing_from_a_stream() {
    relays_crash("stream");
}
