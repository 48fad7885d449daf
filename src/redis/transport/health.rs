//! Facts about the Redis servers, for health checks before a sale. No evaluation.
//!
//! Each server is queried on a connection of its own, regardless of its role and of whether the
//! program could work with it. Read-only, except that each connection to a master loads the
//! scripts.
//!
//! Limits: the connection's time-outs for each step, [`SEARCH_MAX`] for counting buckets. On error:
//! the failure to read a server is recorded as a fact.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::connect::{self, server_name};
use super::probe::ProbeConnection;
use super::url::{RedisTopology, ServerAddress};
use super::{ConnectionOptions, ConnectionPurpose, cluster, sentinel};
use crate::runtime::clock::{now_monotonic, wall_ms};

pub use super::cluster::{ClusterMember, Slots};
pub use super::probe::RedisHealthError;
pub use super::sentinel::{Sentinel, SentinelView};

/// Time limit for counting the buckets of one server, which scans all its keys.
pub const SEARCH_MAX: Duration = Duration::from_secs(5);

/// Samples of the server's clock. The one with the shortest round trip counts.
const TIME_SAMPLES: usize = 5;

/// `COUNT` of each `SCAN`.
const SCAN_COUNT: usize = 1_000;

/// Settings that `INFO` does not contain.
const SETTINGS: [&str; 7] = [
    "appendfsync",
    "save",
    "timeout",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "hash-max-listpack-entries",
    "hash-max-listpack-value",
];

/// Facts about all servers, sentinels and the cluster.
#[derive(Debug, Default)]
pub struct Health {
    /// Empty unless the topology has sentinels.
    pub sentinels: Vec<Sentinel>,
    /// The slot assignment of a cluster, or why no seed node reported it; `None` without a cluster.
    pub cluster: Option<Result<Slots, RedisHealthError>>,
    /// Masters, then replicas.
    pub servers: Vec<Server>,
}

/// Facts about one server.
#[derive(Debug)]
pub struct Server {
    pub node: ServerAddress,
    /// Expected role.
    pub part: ServerRole,
    pub seen: Result<Box<ServerFacts>, RedisHealthError>,
}

/// The role of a server according to the URL, the sentinels or the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerRole {
    /// Holds buckets.
    Master,
    /// Replicates a master and may be promoted.
    Replica,
}

/// What one server reports.
#[derive(Debug)]
pub struct ServerFacts {
    /// The shortest of several round trips.
    pub round_trip: Duration,
    /// How far the server's clock is ahead of this process's, in milliseconds.
    pub clock_ahead_ms: i64,
    /// `INFO`, by field name.
    pub info: BTreeMap<String, String>,
    /// `CONFIG GET` of some settings, or why it failed.
    pub config: Result<BTreeMap<String, String>, RedisHealthError>,
    /// `CLUSTER INFO`, if the server is part of a cluster.
    pub cluster: Option<Result<BTreeMap<String, String>, RedisHealthError>>,
    /// Why a regular connection could not be made; not tried on replicas.
    pub not_ready: Option<String>,
    /// Buckets in the namespace; not counted on replicas.
    pub buckets: Result<FoundBuckets, RedisHealthError>,
    /// Heartbeats of relay workers in the namespace; not counted on replicas.
    pub num_relays: Result<u64, RedisHealthError>,
}

/// Buckets in the namespace, of all installations.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FoundBuckets {
    /// Buckets by installation; the empty name has those without a readable one.
    pub by_installation: BTreeMap<String, InstallationBuckets>,
    /// Buckets opened on another server, or on this one before a restart.
    pub opened_elsewhere: u64,
    /// Whether all keys were scanned within [`SEARCH_MAX`].
    pub is_complete: bool,
}

/// The buckets of one installation.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct InstallationBuckets {
    pub count: u64,
    /// The key of one of them.
    pub key: String,
    /// The latest pair of epoch and phase, by SKU number.
    pub latest: BTreeMap<i32, (i64, i64)>,
    /// How many of them are loaded, by SKU number.
    pub loaded: BTreeMap<i32, u16>,
}

impl ServerFacts {
    /// A field of `INFO`; empty if missing.
    pub fn text(&self, name: &str) -> &str {
        self.info.get(name).map_or("", |value| value.trim())
    }

    /// A number of `INFO`; 0 if missing or not a number.
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// A setting of [`Self::config`]; `None` if the server does not return it.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.config.as_ref().ok()?.get(name).map(String::as_str)
    }

    /// The connected replicas.
    pub fn replicas(&self) -> Vec<ServerAddress> {
        let is_replica = |name: &str| {
            let number = name.strip_prefix("slave").unwrap_or_default();
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        };
        let replicas = self.info.iter().filter(|(name, _)| is_replica(name));
        replicas.filter_map(|(_, line)| replica(line)).collect()
    }
}

/// Parses `ip=10.0.0.1,port=6379,state=online,offset=1,lag=0`.
fn replica(line: &str) -> Option<ServerAddress> {
    let part = |name: &str| line.split(',').find_map(|part| part.strip_prefix(name));
    let host = part("ip=")?.to_owned();
    Some(ServerAddress { host, port: part("port=")?.parse().ok()? })
}

/// Reads the facts of all masters and replicas of the topology, and counts the buckets under
/// `namespace`.
pub async fn read(options: &ConnectionOptions, namespace: &str) -> Health {
    let mut health = Health::default();
    let masters = match &options.url.topology {
        RedisTopology::Single(node) => vec![node.clone()],
        RedisTopology::Sentinel { sentinels, master } => {
            health.sentinels = sentinel::read(options, sentinels, master).await;
            sentinel::masters(&health.sentinels)
        }
        RedisTopology::Cluster(seeds) => {
            let slots = cluster::read(options, seeds).await;
            let masters = slots.as_ref().map(Slots::masters).unwrap_or_default();
            health.cluster = Some(slots);
            masters
        }
    };
    health.servers = servers(options, namespace, masters, ServerRole::Master).await;
    let facts = health.servers.iter().filter_map(|server| server.seen.as_ref().ok());
    let mut replicas: BTreeSet<_> = facts.flat_map(|facts| facts.replicas()).collect();
    replicas.retain(|node| health.servers.iter().all(|server| server.node != *node));
    health.servers.extend(servers(options, namespace, replicas, ServerRole::Replica).await);
    health
}

async fn servers(
    options: &ConnectionOptions,
    namespace: &str,
    nodes: impl IntoIterator<Item = ServerAddress>,
    part: ServerRole,
) -> Vec<Server> {
    let reads = nodes.into_iter().map(|node| async move {
        let seen = read_server(options, namespace, &node, part).await;
        Server { node, part, seen: seen.map(Box::new) }
    });
    join_all(reads).await
}

async fn read_server(
    options: &ConnectionOptions,
    namespace: &str,
    node: &ServerAddress,
    part: ServerRole,
) -> Result<ServerFacts, RedisHealthError> {
    let (credentials, limit) = (options.url.credentials.as_ref(), options.command_timeout);
    let mut probe = ProbeConnection::open(options, node, credentials, limit).await?;
    let (round_trip, clock_ahead_ms) = measure_clock(&mut probe).await?;
    let info = probe.fields(redis::cmd("INFO").arg("default")).await?;
    let config = probe.query(redis::cmd("CONFIG").arg("GET").arg(&SETTINGS)).await;
    let cluster = if info.get("cluster_enabled").is_some_and(|enabled| enabled.trim() == "1") {
        Some(probe.fields(redis::cmd("CLUSTER").arg("INFO")).await)
    } else {
        None
    };
    let field = |name: &str| info.get(name).map(|value| value.trim()).unwrap_or_default();
    let server = server_name(field("run_id"), field("master_replid2"));
    let (not_ready, buckets, num_relays) = match part {
        ServerRole::Master => (
            connect::connect(options, node, ConnectionPurpose::Results, || {}).await.err(),
            count_buckets(&mut probe, namespace, &server).await,
            count_relays(&mut probe, namespace).await,
        ),
        ServerRole::Replica => (None, Ok(FoundBuckets::default()), Ok(0)),
    };
    let not_ready = not_ready.map(|error| error.to_string());
    Ok(ServerFacts {
        round_trip,
        clock_ahead_ms,
        info,
        config,
        cluster,
        not_ready,
        buckets,
        num_relays,
    })
}

/// The shortest round trip and the clock difference in milliseconds. A server answers `TIME` even
/// while it is loading.
async fn measure_clock(probe: &mut ProbeConnection) -> Result<(Duration, i64), RedisHealthError> {
    let mut best = (Duration::MAX, 0);
    for _ in 0..TIME_SAMPLES {
        let (sent, sent_ms) = (now_monotonic(), wall_ms());
        let (seconds, micros): (i64, i64) = probe.query(&redis::cmd("TIME")).await?;
        let took = now_monotonic().duration_since(sent);
        let half_ms = i64::try_from(took.as_millis() / 2).unwrap_or(i64::MAX);
        let ahead_ms = seconds * 1_000 + micros / 1_000 - sent_ms - half_ms;
        best = best.min((took, ahead_ms));
    }
    Ok(best)
}

/// Counts the buckets in the namespace by installation.
async fn count_buckets(
    probe: &mut ProbeConnection,
    namespace: &str,
    server: &str,
) -> Result<FoundBuckets, RedisHealthError> {
    // Key names as in `redis::scripts`; a namespace contains no glob characters.
    let pattern = format!("{namespace}:{{*}}:bucket");
    let (keys, is_complete) = scan(probe, &pattern, "hash").await?;
    let mut buckets = FoundBuckets { is_complete, ..FoundBuckets::default() };
    for key in keys {
        let mut read = redis::cmd("HMGET");
        read.arg(&key).arg(&["epoch", "loading", "server", "phase"]);
        count_bucket(&mut buckets, &key, &probe.query::<Vec<Value>>(&read).await?, server);
    }
    Ok(buckets)
}

/// Counts the heartbeats of relay workers; the key names are those of `outbox::heartbeats`.
async fn count_relays(
    probe: &mut ProbeConnection,
    namespace: &str,
) -> Result<u64, RedisHealthError> {
    let (keys, _) = scan(probe, &format!("{namespace}:relay:*"), "string").await?;
    Ok(keys.len() as u64)
}

/// The keys of this type that match the pattern, and whether all keys were scanned within
/// [`SEARCH_MAX`].
async fn scan(
    probe: &mut ProbeConnection,
    pattern: &str,
    kind: &str,
) -> Result<(BTreeSet<String>, bool), RedisHealthError> {
    let deadline = now_monotonic() + SEARCH_MAX;
    let (mut keys, mut cursor) = (BTreeSet::new(), "0".to_owned());
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
        let (next, found): (String, Vec<String>) = probe.query(scan.arg("TYPE").arg(kind)).await?;
        keys.extend(found);
        if next == "0" || now_monotonic() > deadline {
            return Ok((keys, next == "0"));
        }
        cursor = next;
    }
}

fn count_bucket(buckets: &mut FoundBuckets, key: &str, fields: &[Value], this_server: &str) {
    let text = |index: usize| match fields.get(index) {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    let tag = if text(0).is_empty() { text(1) } else { text(0) };
    let (installation, _) = tag.split_once('.').unwrap_or_default();
    let of_installation = buckets.by_installation.entry(installation.to_owned()).or_default();
    of_installation.count += 1;
    if of_installation.key.is_empty() {
        key.clone_into(&mut of_installation.key);
    }
    if let (Some(sku), Some(pair)) = (sku_of(key), pair_of(&text(0), &text(3))) {
        let latest = of_installation.latest.entry(sku).or_insert(pair);
        *latest = pair.max(*latest);
        // A held bucket answers `busy` until a maintenance process has loaded it.
        let is_held = !text(1).is_empty();
        *of_installation.loaded.entry(sku).or_default() += u16::from(!is_held);
    }
    let server = text(2);
    if !server.is_empty() && server != this_server {
        buckets.opened_elsewhere += 1;
    }
}

/// The SKU number in the key of a bucket.
fn sku_of(key: &str) -> Option<i32> {
    let (_, tag) = key.split_once('{')?;
    tag.split_once(':')?.0.parse().ok()
}

/// Epoch and phase of a bucket.
fn pair_of(epoch: &str, phase: &str) -> Option<(i64, i64)> {
    Some((epoch.split_once('.')?.1.parse().ok()?, phase.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_parsed_from_info() {
        let line = "ip=10.0.0.2,port=6380,state=online,offset=14,lag=1";
        let expected = ServerAddress { host: "10.0.0.2".to_owned(), port: 6380 };
        assert_eq!(replica(line), Some(expected));
        assert_eq!(replica("ip=10.0.0.2,state=online"), None);
    }

    #[test]
    fn a_bucket_counts_for_the_installation_in_its_epoch_tag() {
        let field = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let mut buckets = FoundBuckets::default();
        let mut count = |key: &str, fields: &[Value]| {
            count_bucket(&mut buckets, key, fields, "here");
        };
        count("fg:{7:0}:bucket", &[field("f100d6a7.3"), Value::Nil, field("here"), field("2")]);
        count("fg:{7:1}:bucket", &[field("f100d6a7.2"), Value::Nil, field("here"), field("3")]);
        let held = [field("f100d6a7.2"), field("f100d6a7.4"), field("here"), field("2")];
        count("fg:{7:2}:bucket", &held);
        count("fg:{8:0}:bucket", &[Value::Nil, field("f100d6a7.9"), field("there")]);
        count("fg:{9:0}:bucket", &[field("nonsense"), Value::Nil, Value::Nil]);
        let of = |count, key: &str, of_skus: &[(i32, (i64, i64), u16)]| InstallationBuckets {
            count,
            key: key.to_owned(),
            latest: of_skus.iter().map(|(sku, latest, _)| (*sku, *latest)).collect(),
            loaded: of_skus.iter().map(|(sku, _, loaded)| (*sku, *loaded)).collect(),
        };
        let expected = [
            (String::new(), of(1, "fg:{9:0}:bucket", &[])),
            ("f100d6a7".into(), of(4, "fg:{7:0}:bucket", &[(7, (3, 2), 2)])),
        ];
        assert_eq!(buckets.by_installation, expected.into());
        assert_eq!(buckets.opened_elsewhere, 1);
    }
}
