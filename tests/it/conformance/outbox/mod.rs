//! The contract of every outbox, as one suite. Entries are accepted by plain Redis commands.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use floodgate::config::OutboxKind;
use floodgate::config::{Settings, Tier};
use floodgate::domain::{BucketKey, BucketNo, BuyerId, Epoch, OrderIntent, SkuNo, TraceId};
pub use floodgate::messages::envelope::intents_in;
use floodgate::outbox::{EntryId, Error, Outbox, OutboxEntry, RedisOutbox};
use floodgate::redis::executor::ScriptExecutor;
use floodgate::redis::scripts::{BucketKeys, Installation};
use floodgate::redis::transport::ConnectionPurpose;
use floodgate::tier::connection_pool;
use redis::{Cmd, Value};

use crate::support::intents;
use crate::support::offers::{request, run};
use crate::support::servers::cluster::Cluster;
use crate::support::servers::redis::Redis;
use crate::support::wait::until;

mod claiming;
mod damage;
mod ending;
mod outages;
mod play;
mod reading;

const INSTALLATION: Installation = Installation(0xf100_d6a7);
const NOW_MS: i64 = 1_790_000_000_000;

/// An empty Redis and the outbox of one process.
pub struct Fixture {
    pub kind: OutboxKind,
    servers: Servers,
    pub namespace: String,
    pub outbox: Arc<dyn Outbox>,
}

pub enum Servers {
    Single(Redis),
    Cluster(Arc<Cluster>),
}
impl Servers {
    fn url(&self) -> String {
        match self {
            Self::Single(redis) => redis.url(),
            Self::Cluster(cluster) => cluster.url(&[0, 1]),
        }
    }

    /// Sends a plain command to the server that has the key.
    fn cmd(&self, key: &str, command: &Cmd) -> Value {
        let client = |redis: &Redis| redis::Client::open(redis.url()).unwrap();
        let send = |redis: &Redis| command.query(&mut client(redis).get_connection().unwrap());
        match self {
            Self::Single(redis) => send(redis).unwrap(),
            Self::Cluster(cluster) => {
                let has = |redis: &&Redis| redis.try_cmd(&["EXISTS", key]).is_ok();
                send(cluster.nodes.iter().find(has).unwrap()).unwrap()
            }
        }
    }
}

/// Opens an outbox as another process does, with a command time-out of 10 s.
pub fn open(kind: OutboxKind, url: &str, namespace: &str) -> Arc<dyn Outbox> {
    open_with_timeout(kind, url, namespace, 10_000)
}

/// [`open`] with another command time-out.
pub fn open_with_timeout(
    kind: OutboxKind,
    url: &str,
    namespace: &str,
    command_timeout_ms: u64,
) -> Arc<dyn Outbox> {
    let mut settings = Settings::with_ledger("sqlite://unused.db");
    settings.tier = Tier::Gate;
    url.clone_into(&mut settings.redis.url);
    settings.redis.command_timeout_ms = command_timeout_ms;
    let pool = connection_pool(&settings).unwrap();
    let purpose = ConnectionPurpose::Relay;
    let executor = ScriptExecutor::new(pool, purpose, namespace, INSTALLATION);
    Arc::new(RedisOutbox::new(executor, kind))
}

impl Fixture {
    fn on(kind: OutboxKind, servers: Servers, namespace: &str) -> Self {
        let outbox = open(kind, &servers.url(), namespace);
        Self { kind, servers, namespace: namespace.to_owned(), outbox }
    }

    pub fn single(kind: OutboxKind) -> Self {
        Self::with(kind, Redis::start())
    }

    pub fn with(kind: OutboxKind, redis: Redis) -> Self {
        Self::on(kind, Servers::Single(redis), "test")
    }

    pub fn redis(&self) -> &Redis {
        match &self.servers {
            Servers::Single(redis) => redis,
            Servers::Cluster(_) => panic!("a cluster has several servers"),
        }
    }

    pub fn digest(&self) -> String {
        self.redis().text(&["DEBUG", "DIGEST"])
    }

    /// Opens the same outbox in another process.
    pub fn open_another(&self) -> Arc<dyn Outbox> {
        open(self.kind, &self.servers.url(), &self.namespace)
    }

    pub fn keys(&self, bucket: BucketKey) -> BucketKeys {
        BucketKeys::new(&self.namespace, bucket.sku, bucket.bucket)
    }

    /// Sends a plain command whose first argument is the key.
    pub fn cmd<T: redis::FromRedisValue>(&self, name: &str, key: &str, rest: &[&[u8]]) -> T {
        let mut command = redis::cmd(name);
        command.arg(key).arg(rest);
        redis::from_redis_value(self.servers.cmd(key, &command)).unwrap()
    }

    /// Appends entries as the accepting side does.
    pub fn accept(&self, bucket: BucketKey, bodies: &[Vec<u8>]) {
        let key = self.keys(bucket).outbox();
        let write = match self.kind {
            OutboxKind::List => "redis.call('RPUSH', KEYS[1], ARGV[i])",
            OutboxKind::Stream => "redis.call('XADD', KEYS[1], '*', 'intents', ARGV[i])",
        };
        for chunk in bodies.chunks(1_000) {
            let mut command = redis::cmd("EVAL");
            command.arg(format!("for i = 1, #ARGV do {write} end")).arg(1).arg(&key).arg(chunk);
            self.servers.cmd(&key, &command);
        }
    }

    /// Appends one entry with one intent for each request.
    pub fn accept_requests(&self, bucket: BucketKey, requests: std::ops::Range<u64>) {
        let bodies: Vec<_> = requests.map(|no| body(&[no])).collect();
        self.accept(bucket, &bodies);
    }

    /// The existing keys of the bucket.
    pub fn keys_of(&self, bucket: BucketKey) -> Vec<String> {
        let pattern = self.keys(bucket).bucket().replace("bucket", "*");
        let mut found: Vec<String> = match &self.servers {
            Servers::Single(redis) => {
                redis::from_redis_value(redis.cmd(&["KEYS", &pattern])).unwrap()
            }
            Servers::Cluster(cluster) => {
                let keys = cluster.nodes.iter().map(|node| node.cmd(&["KEYS", &pattern]));
                keys.flat_map(|keys| redis::from_redis_value::<Vec<String>>(keys).unwrap())
                    .collect()
            }
        };
        found.sort();
        found
    }

    /// The entries that a worker has claimed.
    pub async fn held(&self, bucket: BucketKey, worker: &str) -> Vec<OutboxEntry> {
        held(self.outbox.as_ref(), bucket, worker).await.unwrap()
    }

    pub async fn claim(&self, bucket: BucketKey, worker: &str, max: usize) -> Vec<OutboxEntry> {
        claim(self.outbox.as_ref(), bucket, worker, max).await.unwrap()
    }

    pub async fn acknowledge(&self, bucket: BucketKey, worker: &str, entries: &[OutboxEntry]) {
        acknowledge(self.outbox.as_ref(), bucket, worker, entries).await.unwrap();
    }

    pub async fn reclaim(&self, bucket: BucketKey, worker: &str) -> u64 {
        self.outbox.reclaim(bucket, &[worker.to_owned()]).await.unwrap()
    }

    /// Requires that the bucket has no entries and no keys. An emptied stream remains, with the
    /// consumer `orphans` at most.
    pub fn assert_empty(&self, bucket: BucketKey) {
        let mut keys = self.keys_of(bucket);
        let outbox_key = self.keys(bucket).outbox();
        if self.kind == OutboxKind::Stream {
            keys.retain(|key| *key != outbox_key);
            assert_eq!(self.cmd::<u64>("XLEN", &outbox_key, &[]), 0);
            let mut command = redis::cmd("XINFO");
            command.arg("CONSUMERS").arg(&outbox_key).arg("relay");
            let consumers: Vec<HashMap<String, Value>> =
                redis::from_redis_value(self.servers.cmd(&outbox_key, &command)).unwrap();
            let is_orphans = |consumer: &HashMap<String, Value>| {
                consumer["name"] == Value::BulkString(b"orphans".to_vec())
            };
            assert!(consumers.iter().all(is_orphans), "{consumers:?}");
        }
        assert_eq!(keys, [""; 0]);
    }
}

/// The only answer, which must be of `bucket`.
fn only<T>(mut answers: Vec<(BucketKey, Result<T, Error>)>, bucket: BucketKey) -> Result<T, Error> {
    let (of, answer) = answers.pop().unwrap();
    assert_eq!((of, answers.len()), (bucket, 0));
    answer
}

pub async fn held(
    outbox: &dyn Outbox,
    bucket: BucketKey,
    worker: &str,
) -> Result<Vec<OutboxEntry>, Error> {
    only(outbox.take_over(worker, &[], &[bucket]).await, bucket)
}

pub async fn claim(
    outbox: &dyn Outbox,
    bucket: BucketKey,
    worker: &str,
    max: usize,
) -> Result<Vec<OutboxEntry>, Error> {
    let claimed = outbox.claim(worker, &[(bucket, max)]).await;
    if claimed.is_empty() { Ok(Vec::new()) } else { only(claimed, bucket) }
}

pub async fn acknowledge(
    outbox: &dyn Outbox,
    bucket: BucketKey,
    worker: &str,
    entries: &[OutboxEntry],
) -> Result<(), Error> {
    only(outbox.acknowledge(worker, &[(bucket, ids(entries))]).await, bucket)
}

pub fn ids(entries: &[OutboxEntry]) -> Vec<EntryId> {
    entries.iter().map(|entry| entry.id.clone()).collect()
}

pub fn bucket(no: u16) -> BucketKey {
    BucketKey { sku: SkuNo(7), bucket: BucketNo(no) }
}

/// The bytes of an entry with these requests.
pub fn body(requests: &[u64]) -> Vec<u8> {
    let packed = |no: &u64| {
        intents::pack(&OrderIntent {
            request: request(*no),
            sku: SkuNo(7),
            bucket: BucketNo(0),
            epoch: Epoch(1),
            buyer: BuyerId::new(*no).unwrap(),
            quantity: 1,
            slot: 1,
            quota: None,
            amount: 250,
            placed_at_ms: placed_at_ms(*no),
            payment_window_s: 900,
            trace: TraceId(u128::from(*no)),
            published_at_ms: None,
        })
    };
    requests.iter().flat_map(packed).collect()
}

/// The time of acceptance of a request of [`body`].
pub fn placed_at_ms(request_no: u64) -> i64 {
    NOW_MS + i64::try_from(request_no).unwrap()
}

/// The first request of each entry.
pub fn requests(entries: &[OutboxEntry]) -> Vec<u64> {
    entries.iter().map(|one| intents_in(&one.bytes)[0].request.get()).collect()
}

macro_rules! all_cases {
    ($with:ident! $($arguments:tt)*) => {
        $with! { $($arguments)*
            claiming:
                an_empty_outbox_has_nothing_to_claim
                entries_are_claimed_oldest_first_and_stay_claimed
                thousands_of_entries_wait_and_are_all_claimed_in_order
                many_buckets_are_claimed_at_once
                two_workers_never_claim_the_same_entry
                a_call_claims_no_more_than_it_may
                many_workers_at_once_share_the_outbox;
            ending:
                acknowledged_entries_are_removed_for_good
                an_acknowledgement_removes_its_own_entries_only
                many_buckets_are_acknowledged_at_once
                a_successor_takes_over_all_that_predecessors_hold
                reclaimed_entries_are_claimed_first_and_in_order
                a_slow_worker_acknowledges_what_was_reclaimed_from_it
                a_slow_worker_does_no_harm_to_another_that_has_its_entries
                two_rescuers_at_once_lose_nothing_and_double_nothing
                nothing_is_left_of_workers_that_are_gone
                only_a_worker_with_a_recent_heartbeat_is_alive;
            reading:
                the_status_counts_entries_by_place
                a_request_is_found_wherever_it_is
                unreadable_entries_are_claimed_and_removed;
        }
    };
}

macro_rules! as_tests {
    ($fresh:expr; $($module:ident: $($case:ident)+;)+) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                super::super::run(async {
                    super::super::$module::$case(&$fresh).await;
                });
            })+
        })+
    };
}
macro_rules! backends {
    ($($backend:ident: $fresh:expr;)+) => {
        $(mod $backend {
            all_cases! { as_tests! $fresh; }
        })+
    };
}

backends! {
    list: super::super::Fixture::single(super::super::OutboxKind::List);
    stream: super::super::Fixture::single(super::super::OutboxKind::Stream);
}

macro_rules! one_by_one {
    ($cluster:expr, $kind:expr; $($module:ident: $($case:ident)+;)+) => {
        $($({
            let case = concat!(stringify!($module), "::", stringify!($case));
            println!("{case}");
            $module::$case(&Fixture::on($kind, Servers::Cluster($cluster.clone()), case)).await;
        })+)+
    };
}

fn on_a_cluster(kind: OutboxKind) {
    let cluster = Arc::new(Cluster::start(&[]));
    run(async {
        all_cases! { one_by_one! cluster, kind; }
    });
}

#[test]
fn a_cluster_keeps_every_promise_of_a_list() {
    on_a_cluster(OutboxKind::List);
}

#[test]
fn a_cluster_keeps_every_promise_of_a_stream() {
    on_a_cluster(OutboxKind::Stream);
}
