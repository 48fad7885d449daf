//! Relay processes that crash or freeze with claimed entries: C04, C05, C06.
//!
//! A frozen broker keeps entries claimed: what is published is confirmed by nobody.

use floodgate::runtime::clock::now_monotonic;

use crate::support::pipeline::PipelineGround;
use crate::support::process::Server;
use crate::support::servers::redis::Redis;
use crate::support::shop::Shop;
use crate::support::wait::{taken_over_within, until, until_true};

/// Whatever waits for the same key of every bucket.
fn keys(redis: &Redis, pattern: &str) -> Vec<String> {
    redis::from_redis_value(redis.cmd(&["KEYS", pattern])).unwrap()
}

/// The workers of this process that announce themselves.
fn workers(redis: &Redis, process: &Server) -> Vec<String> {
    keys(redis, &format!("fg:relay:{}*", name_of(process)))
}

/// Entries that workers hold whose names begin like this.
fn num_in_hand(redis: &Redis, name: &str) -> u64 {
    let held =
        |key: &String| -> u64 { redis::from_redis_value(redis.cmd(&["LLEN", key])).unwrap() };
    let in_lists: u64 = keys(redis, &format!("fg:*:claimed:{name}*")).iter().map(held).sum();
    in_lists + num_pending(redis, name)
}

/// The same where the outbox is a stream.
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

/// What is there besides relays.
struct Stage {
    ground: PipelineGround,
    keeper: Option<Server>,
    api: Server,
    _consumer: Server,
    shop: Shop,
}

impl Stage {
    async fn set(outbox: &str) -> Self {
        // Each order is an entry, and each entry a message.
        let ground = PipelineGround::new(outbox).with("outbox.envelope_max", "1");
        let [keeper, api, consumer] =
            ["maintenance", "api", "consumer"].map(|role| ground.server(role, &[]));
        let shop = Shop::open(keeper.internal, 4_000).await;
        Self { ground, keeper: Some(keeper), api, _consumer: consumer, shop }
    }

    fn relay(&self) -> Server {
        self.ground.server("relay", &[])
    }

    /// Waits until this relay has published all that nobody held.
    async fn works(&mut self, relay: &Server) {
        self.shop.sell(self.api.public, 4).await;
        let redis = &self.ground.redis;
        until_true("the relay to work", || !workers(redis, relay).is_empty());
        until_true("an empty outbox", || {
            let waiting = |key: &String| -> u64 {
                let (list, stream) = (redis.try_cmd(&["LLEN", key]), redis.try_cmd(&["XLEN", key]));
                redis::from_redis_value(list.or(stream).unwrap()).unwrap()
            };
            let waiting: u64 = keys(redis, "fg:*:outbox").iter().map(waiting).sum();
            // A stream shows what is in hands, too.
            waiting == num_pending(redis, "") && num_in_hand(redis, &name_of(relay)) == 0
        });
    }

    /// Freezes the broker, and waits until this relay has entries in hand.
    async fn fill(&mut self, relay: &Server) {
        self.works(relay).await;
        self.ground.rabbit.stop();
        self.shop.sell(self.api.public, 40).await;
        let redis = &self.ground.redis;
        until_true("entries in hand", || num_in_hand(redis, &name_of(relay)) > 0);
    }

    async fn drained(&self) {
        self.ground.drained(self.api.internal).await;
    }

    /// C04: killed with claimed entries, again and again; others take over in time.
    async fn killed_again_and_again(&mut self) {
        for _ in 0..3 {
            let relay = self.relay();
            self.fill(&relay).await;
            let dead = name_of(&relay);
            let next = self.relay();
            relay.kill();
            let died = now_monotonic();
            self.ground.rabbit.cont();
            let redis = &self.ground.redis;
            until_true("others to take over", || num_in_hand(redis, &dead) == 0);
            println!("taken_over_ms={}", died.elapsed().as_millis());
            assert!(died.elapsed() < taken_over_within(), "{:?}", died.elapsed());
            self.drained().await;
            next.kill();
        }
    }

    /// C05: frozen for longer than its heartbeat, and back.
    async fn frozen_and_back(&mut self) {
        let frozen = self.relay();
        self.fill(&frozen).await;
        frozen.stop();
        self.ground.rabbit.cont();
        let other = self.relay();
        let redis = &self.ground.redis;
        until_true("others to take over", || num_in_hand(redis, &name_of(&frozen)) == 0);
        self.drained().await;
        other.kill();
        frozen.cont();
        self.works(&frozen).await;
        assert!(!frozen.log().contains("actor ended"), "{}", frozen.log());
        self.drained().await;
        frozen.kill();
    }

    /// C06: many crash while nobody brings back what they had, then one works alone.
    async fn many_orphans(&mut self) {
        drop(self.keeper.take());
        let mut dead = Vec::new();
        for _ in 0..10 {
            let relay = self.relay();
            self.fill(&relay).await;
            dead.push(name_of(&relay));
            relay.kill();
            self.ground.rabbit.cont();
        }
        let redis = &self.ground.redis;
        assert!(dead.iter().all(|name| num_in_hand(redis, name) > 0), "each left something");
        self.keeper = Some(self.ground.server("maintenance", &[]));
        let last = self.relay();
        until("nothing to be claimed by them", async || {
            dead.iter().all(|name| num_in_hand(redis, name) == 0).then_some(())
        })
        .await;
        self.drained().await;
        last.kill();
        let redis = &self.ground.redis;
        until_true("no heartbeat", || keys(redis, "fg:relay:*").is_empty());
        assert_eq!(num_in_hand(redis, ""), 0);
    }

    /// The keys of the outboxes are deleted one by one, with entries claimed and waiting: no relay
    /// crashes, and what was lost is sent again.
    async fn keys_deleted_one_by_one(&mut self) {
        self.keeper = Some(self.ground.server("maintenance", &[]));
        let relay = self.relay();
        self.fill(&relay).await;
        let redis = &self.ground.redis;
        for pattern in
            ["fg:*:claimants", "fg:relay:*", "fg:*:claimed:*", "fg:*:outbox", "fg:*:dead"]
        {
            for key in keys(redis, pattern) {
                redis.cmd(&["UNLINK", &key]);
            }
        }
        self.ground.rabbit.cont();
        self.works(&relay).await;
        assert!(!relay.log().contains("actor ended"), "{}", relay.log());
        self.drained().await;
        relay.kill();
    }
}

/// How the names of its workers begin.
fn name_of(process: &Server) -> String {
    format!("{}-", process.id())
}

fn relays_die(outbox: &str) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut stage = Stage::set(outbox).await;
        stage.killed_again_and_again().await;
        stage.frozen_and_back().await;
        stage.many_orphans().await;
        stage.keys_deleted_one_by_one().await;
        stage.shop.judge(&stage.ground, stage.api.internal).await;
    });
}

#[test]
fn relays_that_die_or_freeze_lose_nothing_from_a_list() {
    relays_die("list");
}

#[test]
fn relays_that_die_or_freeze_lose_nothing_from_a_stream() {
    relays_die("stream");
}
