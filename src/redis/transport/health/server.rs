//! One server: what it says of itself, and what it holds of ours.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Value;

use super::{ProbeConnection, RedisHealthError, ServerRole};
use crate::redis::transport::connect;
use crate::redis::transport::identity::server_name;
use crate::redis::transport::url::ServerAddress;
use crate::redis::transport::{ConnectionOptions, ConnectionPurpose};
use crate::runtime::clock::{now_monotonic, wall_ms};

/// How long buckets are looked for on one server, which has to go through all its keys.
pub const SEARCH_MAX: Duration = Duration::from_secs(5);

/// How often a server is asked for the time: the quickest answer tells most.
const ASKED: usize = 5;

/// Keys that a server goes through in one step.
const STEP: usize = 1_000;

/// Settings that no `INFO` has.
const SETTINGS: [&str; 7] = [
    "appendfsync",
    "save",
    "timeout",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "hash-max-listpack-entries",
    "hash-max-listpack-value",
];

/// What a server told.
#[derive(Debug)]
pub struct ServerFacts {
    /// From asking to the answer, at its quickest.
    pub round_trip: Duration,
    /// How far its clock is ahead of ours, in milliseconds.
    pub clock_ahead_ms: i64,
    /// What `INFO` says, by name.
    pub info: BTreeMap<String, String>,
    /// What `CONFIG GET` says of some settings; or why it does not.
    pub config: Result<BTreeMap<String, String>, RedisHealthError>,
    /// What `CLUSTER INFO` says, if it is part of one.
    pub cluster: Option<Result<BTreeMap<String, String>, RedisHealthError>>,
    /// Why no connection of the kind that sells could be made; replicas are not asked.
    pub not_ready: Option<String>,
    /// Buckets under our names; replicas are not asked.
    pub buckets: Result<FoundBuckets, RedisHealthError>,
}

/// Buckets under our names, whoever wrote them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FoundBuckets {
    /// How many belong to each ledger, by its installation; the empty name where nobody can tell.
    pub by_installation: BTreeMap<String, u64>,
    /// How many were opened on another server, or on this one before it was restarted.
    pub opened_elsewhere: u64,
    /// Whether all keys were gone through.
    pub all_seen: bool,
}

impl ServerFacts {
    /// A field of `INFO`; empty if it is not there.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.info.get(name).map_or("", |value| value.trim())
    }

    /// A number of `INFO`; 0 if it is not there.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// A setting; `None` where the server does not tell.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.config.as_ref().ok()?.get(name).map(String::as_str)
    }

    /// The replicas that are connected to it.
    #[must_use]
    pub fn replicas(&self) -> Vec<ServerAddress> {
        let is_replica = |name: &str| {
            let number = name.strip_prefix("slave").unwrap_or_default();
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        };
        let replicas = self.info.iter().filter(|(name, _)| is_replica(name));
        replicas.filter_map(|(_, line)| replica(line)).collect()
    }
}

/// Reads `ip=10.0.0.1,port=6379,state=online,offset=1,lag=0`.
fn replica(line: &str) -> Option<ServerAddress> {
    let part = |name: &str| line.split(',').find_map(|part| part.strip_prefix(name));
    let host = part("ip=")?.to_owned();
    Some(ServerAddress { host, port: part("port=")?.parse().ok()? })
}

pub(super) async fn look(
    options: &ConnectionOptions,
    namespace: &str,
    node: &ServerAddress,
    part: ServerRole,
) -> Result<ServerFacts, RedisHealthError> {
    let credentials = options.url.credentials.as_ref();
    let mut line = ProbeConnection::open(options, node, credentials, options.url.db).await?;
    let (round_trip, clock_ahead_ms) = time(&mut line).await?;
    let info = line.info("default").await?;
    let config = config(&mut line).await;
    let cluster = if info.get("cluster_enabled").is_some_and(|enabled| enabled.trim() == "1") {
        let asked = line.ask::<String>(redis::cmd("CLUSTER").arg("INFO")).await;
        Some(asked.map(|text| super::fields(&text)))
    } else {
        None
    };
    let field = |name: &str| info.get(name).map(|value| value.trim()).unwrap_or_default();
    let server = server_name(field("run_id"), field("master_replid2"));
    let (not_ready, buckets) = match part {
        ServerRole::Master => (
            connect::connect(options, node, ConnectionPurpose::Results, || {}).await.err(),
            search(&mut line, namespace, &server).await,
        ),
        ServerRole::Replica => (None, Ok(FoundBuckets::default())),
    };
    let not_ready = not_ready.map(|error| error.to_string());
    Ok(ServerFacts { round_trip, clock_ahead_ms, info, config, cluster, not_ready, buckets })
}

/// Asks for the time, which a server tells in every condition.
async fn time(line: &mut ProbeConnection) -> Result<(Duration, i64), RedisHealthError> {
    let mut best: Option<(Duration, i64)> = None;
    for _ in 0..ASKED {
        let (sent, sent_ms) = (now_monotonic(), wall_ms());
        let (seconds, micros): (i64, i64) = line.ask(&redis::cmd("TIME")).await?;
        let took = now_monotonic().duration_since(sent);
        let half_ms = i64::try_from(took.as_millis() / 2).unwrap_or(i64::MAX);
        let ahead = seconds * 1_000 + micros / 1_000 - sent_ms - half_ms;
        if best.is_none_or(|(before, _)| took < before) {
            best = Some((took, ahead));
        }
    }
    Ok(best.unwrap_or_default())
}

async fn config(line: &mut ProbeConnection) -> Result<BTreeMap<String, String>, RedisHealthError> {
    let mut settings = BTreeMap::new();
    for name in SETTINGS {
        let answer: BTreeMap<String, String> =
            line.ask(redis::cmd("CONFIG").arg("GET").arg(name)).await?;
        settings.extend(answer);
    }
    Ok(settings)
}

/// Finds every bucket under our names and whose it is.
async fn search(
    line: &mut ProbeConnection,
    namespace: &str,
    server: &str,
) -> Result<FoundBuckets, RedisHealthError> {
    // The names are those of `scripts::keys`; a namespace has no characters that a pattern reads.
    let pattern = format!("{namespace}:{{*}}:bucket");
    let end = now_monotonic() + SEARCH_MAX;
    let (mut buckets, mut cursor) = (FoundBuckets::default(), "0".to_owned());
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP).arg("TYPE").arg("hash");
        let (next, found): (String, Vec<String>) = line.ask(&scan).await?;
        for key in found {
            let mut read = redis::cmd("HMGET");
            read.arg(key).arg(&["epoch", "loading", "server"]);
            enter(&mut buckets, &line.ask::<Vec<Value>>(&read).await?, server);
        }
        if next == "0" {
            buckets.all_seen = true;
            return Ok(buckets);
        }
        if now_monotonic() > end {
            return Ok(buckets);
        }
        cursor = next;
    }
}

fn enter(buckets: &mut FoundBuckets, fields: &[Value], here: &str) {
    let text = |index: usize| match fields.get(index) {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    let tag = if text(0).is_empty() { text(1) } else { text(0) };
    let installation = tag.split_once('.').map_or("", |(installation, _)| installation);
    *buckets.by_installation.entry(installation.to_owned()).or_default() += 1;
    let server = text(2);
    if !server.is_empty() && server != here {
        buckets.opened_elsewhere += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read_from_their_lines() {
        let line = "ip=10.0.0.2,port=6380,state=online,offset=14,lag=1";
        let expected = ServerAddress { host: "10.0.0.2".to_owned(), port: 6380 };
        assert_eq!(replica(line), Some(expected));
        assert_eq!(replica("ip=10.0.0.2,state=online"), None);
        let info = super::super::fields("connected_slaves:1\r\nslave0:ip=::1,port=1\r\nslave_x:1");
        assert_eq!(info.get("connected_slaves").map(String::as_str), Some("1"));
        assert_eq!(info.len(), 3);
    }

    #[test]
    fn a_bucket_belongs_to_the_ledger_in_its_tag() {
        let field = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let mut buckets = FoundBuckets::default();
        enter(&mut buckets, &[field("f100d6a7.3"), Value::Nil, field("here")], "here");
        enter(&mut buckets, &[Value::Nil, field("f100d6a7.9"), field("there")], "here");
        enter(&mut buckets, &[field("nonsense"), Value::Nil, Value::Nil], "here");
        assert_eq!(buckets.by_installation, [(String::new(), 1), ("f100d6a7".into(), 2)].into());
        assert_eq!(buckets.opened_elsewhere, 1);
    }
}
