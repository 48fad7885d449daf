//! What there is to know about the servers before anything is sold: facts, and no judgement.
//!
//! Every server is asked on a connection of its own, whatever role it has and whether or not the
//! program could work with it. Writes nothing but the scripts that every connection loads.
//!
//! Limits: the time-outs of the connections for each step, [`SEARCH_MAX`] for counting buckets. On
//! error: what one server did not tell is part of the facts.

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

/// Everything that was seen.
#[derive(Debug, Default)]
pub struct Health {
    /// The sentinels, where there are any.
    pub sentinels: Vec<Sentinel>,
    /// How the slots are dealt out, where there is a cluster; or why nobody could tell.
    pub cluster: Option<Result<Slots, RedisHealthError>>,
    /// Masters, then replicas.
    pub servers: Vec<Server>,
}

/// One server.
#[derive(Debug)]
pub struct Server {
    /// Where it is.
    pub node: ServerAddress,
    /// What it is to be.
    pub part: ServerRole,
    /// What it told.
    pub seen: Result<Box<ServerFacts>, RedisHealthError>,
}

/// What a server is to be, as the address or the others have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerRole {
    /// Has buckets.
    Master,
    /// Has a copy, and may become a master.
    Replica,
}

/// Why a server told nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisHealthError {
    /// Nobody answers there.
    Unreachable(String),
    /// It answers, and does not let us in or does not let us ask.
    Refused {
        /// The first word of the answer, such as `WRONGPASS`.
        code: String,
        /// The whole answer.
        message: String,
    },
}

impl From<RedisError> for RedisHealthError {
    fn from(error: RedisError) -> Self {
        match error.code() {
            Some(code) if !error.is_io_error() => {
                Self::Refused { code: code.to_owned(), message: connect::said(&error) }
            }
            _ => Self::Unreachable(error.to_string()),
        }
    }
}

/// Looks at every server that the address leads to. Buckets are looked for under `namespace`.
pub async fn look(options: &ConnectionOptions, namespace: &str) -> Health {
    let mut health = Health::default();
    let masters = match &options.url.topology {
        RedisTopology::Single(node) => vec![node.clone()],
        RedisTopology::Sentinel { sentinels, master } => {
            health.sentinels = sentinel::look(options, sentinels, master).await;
            sentinel::masters(&health.sentinels)
        }
        RedisTopology::Cluster(seeds) => {
            let slots = cluster::look(options, seeds).await;
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
    let looking = nodes.into_iter().map(|node| async move {
        let seen = server::look(options, namespace, &node, part).await;
        Server { node, part, seen: seen.map(Box::new) }
    });
    join_all(looking).await
}

/// A connection that is asked one thing at a time, each with a time limit.
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
        let opening = connect::open(options, node, credentials, db, || {});
        let late = |_| RedisHealthError::Unreachable(format!("not connected within {limit:?}"));
        let connection = tokio::time::timeout(limit, opening).await.map_err(late)??;
        Ok(Self { connection, limit: options.command_timeout })
    }

    async fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, RedisHealthError> {
        let late = |_| RedisHealthError::Unreachable(format!("no answer within {:?}", self.limit));
        let asking = command.query_async(&mut self.connection);
        Ok(tokio::time::timeout(self.limit, asking).await.map_err(late)??)
    }

    /// An answer of `INFO`, by name.
    async fn info(&mut self, section: &str) -> Result<BTreeMap<String, String>, RedisHealthError> {
        let text: String = self.ask(redis::cmd("INFO").arg(section)).await?;
        Ok(fields(&text))
    }
}

/// Reads `name:value` lines.
fn fields(text: &str) -> BTreeMap<String, String> {
    let field = |line: &str| line.split_once(':').map(|(name, value)| (name.into(), value.into()));
    text.lines().filter_map(field).collect()
}
