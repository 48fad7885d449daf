//! Facts about the Redis servers, for health checks before a sale. No evaluation.
//!
//! Each server is queried on a connection of its own, regardless of its role and of whether the
//! program could work with it. Read-only, except that each connection to a master loads the
//! scripts.
//!
//! Limits: the connection's time-outs for each step, [`SEARCH_MAX`] for counting buckets. On error:
//! the failure to read a server is recorded as a fact.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError};

use super::url::{Credentials, RedisTopology, ServerAddress};
use super::{ConnectionOptions, connect};

mod cluster;
mod sentinel;
mod server;

pub use cluster::{ClusterMember, Slots};
pub use sentinel::{Sentinel, SentinelView};
pub use server::{FoundBuckets, SEARCH_MAX, ServerFacts};

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

/// Why a server could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisHealthError {
    /// No connection or no answer.
    Unreachable(String),
    /// The server rejected the login or the command.
    Refused {
        /// The error code, such as `WRONGPASS`.
        code: String,
        message: String,
    },
}

impl From<RedisError> for RedisHealthError {
    fn from(error: RedisError) -> Self {
        match error.code() {
            Some(code) if !error.is_io_error() => {
                Self::Refused { code: code.to_owned(), message: connect::error_message(&error) }
            }
            _ => Self::Unreachable(error.to_string()),
        }
    }
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
    let mut replicas: Vec<ServerAddress> = Vec::new();
    for facts in health.servers.iter().filter_map(|server| server.seen.as_ref().ok()) {
        replicas.extend(facts.replicas());
    }
    replicas.sort_unstable();
    replicas.dedup();
    replicas.retain(|node| health.servers.iter().all(|server| server.node != *node));
    health.servers.extend(servers(options, namespace, replicas, ServerRole::Replica).await);
    health
}

async fn servers(
    options: &ConnectionOptions,
    namespace: &str,
    nodes: Vec<ServerAddress>,
    part: ServerRole,
) -> Vec<Server> {
    let reads = nodes.into_iter().map(|node| async move {
        let seen = server::read(options, namespace, &node, part).await;
        Server { node, part, seen: seen.map(Box::new) }
    });
    join_all(reads).await
}

/// A connection for one command at a time, each with a time limit.
struct ProbeConnection {
    connection: MultiplexedConnection,
    limit: Duration,
}

impl ProbeConnection {
    async fn open(
        options: &ConnectionOptions,
        node: &ServerAddress,
        credentials: Option<&Credentials>,
        db: i64,
    ) -> Result<Self, RedisHealthError> {
        let limit = options.connect_timeout;
        let connecting = connect::open(options, node, credentials, db, || {});
        let timed_out =
            |_| RedisHealthError::Unreachable(format!("not connected within {limit:?}"));
        let connection = tokio::time::timeout(limit, connecting).await.map_err(timed_out)??;
        Ok(Self { connection, limit: options.command_timeout })
    }

    async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, RedisHealthError> {
        let timed_out =
            |_| RedisHealthError::Unreachable(format!("no answer within {:?}", self.limit));
        let query = command.query_async(&mut self.connection);
        Ok(tokio::time::timeout(self.limit, query).await.map_err(timed_out)??)
    }

    /// The fields of an `INFO` section.
    async fn info(&mut self, section: &str) -> Result<BTreeMap<String, String>, RedisHealthError> {
        let text: String = self.query(redis::cmd("INFO").arg(section)).await?;
        Ok(fields(&text))
    }
}

/// Parses `name:value` lines.
fn fields(text: &str) -> BTreeMap<String, String> {
    let field = |line: &str| line.split_once(':').map(|(name, value)| (name.into(), value.into()));
    text.lines().filter_map(field).collect()
}
