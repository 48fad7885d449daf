//! What every outbox promises the relay: one suite over its backends. Plain commands accept.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use floodgate::clock::ManualClock;
use floodgate::config::{Settings, Tier};
use floodgate::domain::{BucketNo, BuyerId, Epoch, OrderIntent, SkuNo, TraceId};
use floodgate::outbox::{
    DeadEntry, Entry, Error, Fate, Hand, ListOutbox, Outbox, OutboxOptions, StreamOutbox, Worker,
};
use floodgate::scripts::{Call, Installation, OutboxKeys, intent};
use floodgate::stock::BucketKey;
use floodgate::tier::links;
use redis::{Cmd, Value};

use crate::support::offers::{request, run};
use crate::support::servers::cluster::Cluster;
use crate::support::servers::redis::Redis;

mod claiming;
mod damage;
mod ending;
mod model;
mod outages;
mod play;
mod reading;
mod stream_net;

const INSTALLATION: Installation = Installation(0xf100_d6a7);
const NOW_MS: i64 = 1_790_000_000_000;

/// Nothing is swept back where a test does not want it.
const LONGEST_IN_HAND: Duration = Duration::from_secs(3_600);

/// In which structure the entries wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    List,
    Stream,
}
/// Redis with nothing in it, and an outbox as one process has it.
pub struct Ground {
    pub kind: Kind,
    servers: Servers,
    pub namespace: String,
    pub clock: Arc<ManualClock>,
    pub outbox: Arc<dyn Outbox>,
}

/// Where the buckets are.
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

    /// A plain command on the server that has the key.
    fn cmd(&self, key: &str, command: &Cmd) -> Value {
        let client = |redis: &Redis| redis::Client::open(redis.url()).unwrap();
        let on = |redis: &Redis| command.query(&mut client(redis).get_connection().unwrap());
        match self {
            Self::Single(redis) => on(redis).unwrap(),
            Self::Cluster(cluster) => {
                let has = |redis: &&Redis| redis.try_cmd(&["EXISTS", key]).is_ok();
                on(cluster.nodes.iter().find(has).unwrap()).unwrap()
            }
        }
    }
}

/// An outbox on these servers, as another process has it.
pub fn open(kind: Kind, url: &str, namespace: &str, clock: &Arc<ManualClock>) -> Arc<dyn Outbox> {
    open_patient(kind, url, namespace, clock, 10_000)
}

/// [`open`] with so many milliseconds for an answer.
pub fn open_patient(
    kind: Kind,
    url: &str,
    namespace: &str,
    clock: &Arc<ManualClock>,
    patience_ms: u64,
) -> Arc<dyn Outbox> {
    let mut settings = Settings::for_test("sqlite://unused.db");
    settings.tier = Tier::Gate;
    url.clone_into(&mut settings.redis.url);
    settings.redis.command_timeout_ms = patience_ms;
    let options = OutboxOptions {
        links: links(&settings).unwrap(),
        namespace: namespace.to_owned(),
        installation: INSTALLATION,
        clock: clock.clone(),
    };
    match kind {
        Kind::List => Arc::new(ListOutbox::new(options)),
        Kind::Stream => Arc::new(StreamOutbox::new(options, LONGEST_IN_HAND)),
    }
}

impl Ground {
    fn on(kind: Kind, servers: Servers, namespace: &str) -> Self {
        let clock = Arc::new(ManualClock::new(NOW_MS));
        let outbox = open(kind, &servers.url(), namespace, &clock);
        Self { kind, servers, namespace: namespace.to_owned(), clock, outbox }
    }

    pub fn single(kind: Kind) -> Self {
        Self::with(kind, Redis::start())
    }

    pub fn with(kind: Kind, redis: Redis) -> Self {
        Self::on(kind, Servers::Single(redis), "test")
    }

    /// The one server.
    pub fn redis(&self) -> &Redis {
        match &self.servers {
            Servers::Single(redis) => redis,
            Servers::Cluster(_) => panic!("there are several"),
        }
    }

    /// What the one server holds, in 20 bytes.
    pub fn digest(&self) -> String {
        self.redis().text(&["DEBUG", "DIGEST"])
    }

    /// The outbox, as another process has it.
    pub fn elsewhere(&self) -> Arc<dyn Outbox> {
        open(self.kind, &self.servers.url(), &self.namespace, &self.clock)
    }

    pub fn keys(&self, bucket: BucketKey) -> OutboxKeys {
        OutboxKeys::new(&self.namespace, bucket.sku, bucket.bucket)
    }

    /// A plain command; its first argument is the key.
    pub fn cmd<T: redis::FromRedisValue>(&self, name: &str, key: &str, rest: &[&[u8]]) -> T {
        let mut command = redis::cmd(name);
        command.arg(key).arg(rest);
        redis::from_redis_value(self.servers.cmd(key, &command)).unwrap()
    }

    /// A call of a script, behind the back of the outbox.
    pub fn send(&self, call: &Call) -> Value {
        let mut connection = redis::Client::open(self.redis().url()).unwrap();
        call.eval().query(&mut connection).unwrap()
    }

    /// Writes entries as the accepting side does.
    pub fn accept(&self, bucket: BucketKey, bodies: &[Vec<u8>]) {
        let line = self.keys(bucket).line();
        for body in bodies {
            match self.kind {
                Kind::List => {
                    let element = [&[0], body.as_slice()].concat();
                    self.cmd::<i64>("RPUSH", &line, &[&element]);
                }
                Kind::Stream => {
                    self.cmd::<String>("XADD", &line, &[b"*", b"intents", body]);
                }
            }
        }
    }

    /// Writes entries with one intent each, of these requests.
    pub fn accept_requests(&self, bucket: BucketKey, requests: std::ops::Range<u64>) {
        let bodies: Vec<_> = requests.map(|no| body(&[no])).collect();
        self.accept(bucket, &bodies);
    }

    /// Every key of the bucket that is there.
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

    pub async fn hand(&self, bucket: BucketKey, worker: &Worker) -> Hand {
        self.outbox.in_hand(bucket, worker).await.unwrap()
    }

    /// Claims in one bucket.
    pub async fn claim(&self, bucket: BucketKey, worker: &Worker, max: usize) -> Vec<Entry> {
        claim(self.outbox.as_ref(), bucket, worker, max).await.unwrap()
    }

    /// Reports on one hand.
    pub async fn report(&self, worker: &Worker, hand: Hand, fates: Vec<Fate>) -> Result<(), Error> {
        report(self.outbox.as_ref(), worker, hand, fates).await
    }

    /// Fails unless all that the bucket's keys hold is gone; a stream that was emptied stays.
    pub fn nothing_is_left(&self, bucket: BucketKey) {
        let mut keys = self.keys_of(bucket);
        let line = self.keys(bucket).line();
        if self.kind == Kind::Stream {
            keys.retain(|key| *key != line);
            assert_eq!(self.cmd::<u64>("XLEN", &line, &[]), 0);
            let mut command = redis::cmd("XINFO");
            command.arg("CONSUMERS").arg(&line).arg("relay");
            let consumers: Vec<HashMap<String, Value>> =
                redis::from_redis_value(self.servers.cmd(&line, &command)).unwrap();
            let name = |consumer: &HashMap<String, Value>| consumer["name"].clone();
            let names: Vec<_> = consumers.iter().map(name).collect();
            assert_eq!(names, [Value::BulkString(b"orphans".to_vec())]);
        }
        assert_eq!(keys, [""; 0]);
    }

    pub async fn dead(&self, bucket: BucketKey) -> Vec<DeadEntry> {
        self.outbox.dead(bucket, 1_000).await.unwrap()
    }
}

pub async fn claim(
    outbox: &dyn Outbox,
    bucket: BucketKey,
    worker: &Worker,
    max: usize,
) -> Result<Vec<Entry>, Error> {
    let mut claimed = outbox.claim(worker, &[(bucket, max)]).await;
    let Some((of, entries)) = claimed.pop() else { return Ok(Vec::new()) };
    assert_eq!((of, claimed.len()), (bucket, 0));
    entries
}

pub async fn report(
    outbox: &dyn Outbox,
    worker: &Worker,
    hand: Hand,
    fates: Vec<Fate>,
) -> Result<(), Error> {
    let bucket = hand.bucket;
    let mut reported = outbox.report(worker, vec![(hand, fates)]).await;
    let (of, outcome) = reported.pop().unwrap();
    assert_eq!((of, reported.len()), (bucket, 0));
    outcome
}

pub fn bucket(no: u16) -> BucketKey {
    BucketKey { sku: SkuNo(7), bucket: BucketNo(no) }
}

pub fn worker(name: &str, life: u64) -> Worker {
    Worker { name: name.into(), life }
}

/// A message with these requests.
pub fn body(requests: &[u64]) -> Vec<u8> {
    let packed = |no: &u64| {
        intent::pack(&OrderIntent {
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
            pay_by_ms: NOW_MS + 900_000,
            trace: TraceId(u128::from(*no)),
            published_at_ms: None,
        })
    };
    requests.iter().flat_map(packed).collect()
}

/// When the request of [`body`] was accepted.
pub fn placed_at_ms(request_no: u64) -> i64 {
    NOW_MS + i64::try_from(request_no).unwrap()
}

/// The first request of each entry.
pub fn requests(entries: &[Entry]) -> Vec<u64> {
    let first = |entry: &Entry| intent::unpack_entry(&entry.bytes).unwrap()[0].request.get();
    entries.iter().map(first).collect()
}

pub fn attempts(entries: &[Entry]) -> Vec<u32> {
    entries.iter().map(|entry| entry.attempts).collect()
}

pub fn dead_of(reason: &str) -> Fate {
    Fate::Dead { reason: reason.to_owned() }
}

pub fn replaced(worker: &Worker) -> Error {
    Error::Replaced { worker: worker.to_string() }
}

/// Every case, by module.
macro_rules! all_cases {
    ($with:ident! $($arguments:tt)*) => {
        $with! { $($arguments)*
            claiming:
                an_empty_line_has_nothing_to_claim
                entries_are_claimed_oldest_first_and_stay_in_hand
                a_bucket_that_was_not_begun_is_begun_by_claiming
                many_buckets_are_claimed_at_once
                two_workers_never_hold_the_same_entry
                a_hand_holds_no_more_than_it_may
                many_workers_at_once_share_the_line;
            ending:
                what_was_published_leaves
                every_fate_is_kept_apart
                attempts_survive_lives_and_returns
                attempts_stop_counting_at_their_end
                many_hands_are_reported_at_once
                a_report_that_does_not_fit_the_hand_removes_nothing
                a_report_that_comes_late_removes_nothing
                an_earlier_life_is_refused
                a_worker_whose_hand_was_given_back_is_refused
                a_worker_that_looks_after_its_hand_was_given_back_is_refused
                a_look_ends_what_is_still_under_way
                a_hand_that_was_not_looked_at_is_not_reported_on
                a_hand_comes_back_in_front_and_in_order
                nothing_is_left_of_workers_that_are_gone;
            reading:
                the_standing_tells_what_waits_and_where
                a_request_is_found_wherever_it_is
                dead_letters_tell_all_that_is_known
                only_what_was_read_is_collected
                what_nobody_can_read_passes_through_to_the_dead;
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
    list: crate::conformance::outbox::Ground::single(crate::conformance::outbox::Kind::List);
    stream: crate::conformance::outbox::Ground::single(crate::conformance::outbox::Kind::Stream);
}

macro_rules! one_by_one {
    ($cluster:expr, $kind:expr; $($module:ident: $($case:ident)+;)+) => {
        $($({
            let case = concat!(stringify!($module), "::", stringify!($case));
            println!("{case}");
            $module::$case(&Ground::on($kind, Servers::Cluster($cluster.clone()), case)).await;
        })+)+
    };
}

fn on_a_cluster(kind: Kind) {
    let cluster = Arc::new(Cluster::start(&[]));
    run(async {
        all_cases! { one_by_one! cluster, kind; }
    });
}

#[test]
fn a_cluster_keeps_every_promise_of_a_list() {
    on_a_cluster(Kind::List);
}

#[test]
fn a_cluster_keeps_every_promise_of_a_stream() {
    on_a_cluster(Kind::Stream);
}
