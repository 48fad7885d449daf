//! Connections to Redis.
//!
//! Owns: the sockets, the scripts loaded on them, and the topology (which master has which key).
//! [`ConnectionPool`] routes a key to its master and connects to it. A [`Connection`] belongs to
//! one start of one server, and reports each call as answered, certainly not done or perhaps done
//! ([`Error`]).
//!
//! Limits: one connection per server and [`ConnectionPurpose`]; one connect attempt at a time, with
//! growing waits between failures; a time limit on every call. On error: a broken connection is
//! never repaired or reused, calls are never resent without the caller's knowledge (except scripts
//! that the server answers with `NOSCRIPT`), and calls during an outage fail at once. On crash of a
//! caller: its call may still be executed. May repeat: nothing here; each script documents its own
//! repeats.

use std::sync::Arc;
use std::time::Duration;

mod cluster;
mod connect;
mod connection;
mod connection_health;
mod error;
pub mod health;
mod pool;
mod probe;
mod router;
mod send_queue;
mod sentinel;
mod subscription;
mod url;

pub use connect::ServerIdentity;
pub use connection::{Connection, PipelineAnswers, single_answer};
pub use error::Error;
pub use pool::ConnectionPool;
pub use subscription::ChannelSubscription;
pub use url::{Credentials, RedisTopology, RedisUrl, ServerAddress, UrlError};

use crate::net::{self, Trust};

/// Adds to a message about TLS what to do about it.
fn explain(message: String) -> String {
    net::explain(message, "redis.ca_file", "redis.url")
}

/// What a connection is for. Each server has one connection per purpose, so that a blocked one does
/// not block the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectionPurpose {
    /// Reservations, including the `WAIT` for replicas.
    Hot,
    /// Everything else: results, reads, loading, leases.
    Results,
    /// Outbox entries for the relay: many and large.
    Relay,
}

impl ConnectionPurpose {
    /// The name in `CLIENT LIST`.
    fn client_name(self) -> &'static str {
        match self {
            Self::Hot => "floodgate-hot",
            Self::Results => "floodgate-results",
            Self::Relay => "floodgate-relay",
        }
    }
}

/// When a write counts as done: the setting `redis.durability`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When the server answers.
    Plain,
    /// When the server answers. Servers without an append-only file are refused at connect.
    Aof,
    /// When `replicas_min` replicas have confirmed the write.
    Replicated,
}

/// A Lua script that is loaded on every connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptSource {
    /// The name by which requests call it.
    pub name: &'static str,
    pub text: String,
}

/// Addresses, time limits, durability and scripts of all connections.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    pub url: RedisUrl,
    /// For TLS; `None`: the authorities of the system.
    pub trust: Option<Trust>,
    /// Time limit from the first packet until the handshake is done and all scripts are loaded.
    pub connect_timeout: Duration,
    /// Time limit for one pipeline, without the wait for replicas.
    pub command_timeout: Duration,
    /// `TCP_USER_TIMEOUT`: how long sent data may stay unacknowledged.
    pub user_timeout: Duration,
    /// Wait after a failed connect attempt; doubles with each further failure.
    pub reconnect_min: Duration,
    pub reconnect_max: Duration,
    pub durability: Durability,
    pub replicas_min: u32,
    /// Time limit for the replicas' confirmations; not 0.
    pub replicas_wait_ms: u64,
    /// Scripts loaded on every connection.
    pub scripts: Arc<[ScriptSource]>,
}
