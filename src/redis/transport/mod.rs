//! Connections to Redis.
//!
//! Owns: the sockets, the scripts loaded through them, and the knowledge where the masters are.
//! [`ConnectionPool`] finds the master that has a key and connects to it; a [`Connection`] is one
//! connection to
//! one start of one server, and says of each call whether it was answered, certainly not done, or
//! perhaps done ([`Error`]).
//!
//! Limits: one connection per server and [`ConnectionPurpose`], one attempt to connect at a time,
//! with growing
//! waits between attempts that fail; a time limit on every call. On error: a connection that broke
//! is never repaired or used again, nothing is sent twice behind the caller's back (but for scripts
//! that the server says it does not have), and callers in an outage are refused at once. On death
//! of a caller: its call may still be carried out. May repeat: nothing here; the scripts say so of
//! themselves.

use std::sync::Arc;
use std::time::Duration;

mod cluster;
mod connect;
mod connection;
mod connection_health;
mod error;
pub mod health;
mod identity;
mod pool;
mod quorum_read;
mod request;
mod router;
mod send_queue;
mod sentinel;
mod slot;
mod url;

pub use connection::{Connection, PipelineAnswers};
pub use error::{CallEffect, Error};
pub use identity::ServerIdentity;
pub use pool::ConnectionPool;
pub use request::{PipelineRequest, ScriptSource};
pub use url::{Credentials, RedisTopology, RedisUrl, ServerAddress, UrlError};

/// What a connection is for. One server has one connection per lane, so that a lane that is blocked
/// does not block the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectionPurpose {
    /// Reservations, and waiting until replicas have them.
    Hot,
    /// Everything else: results, reads, loading, leases.
    Results,
    /// Entries on their way to the broker: many and large.
    Relay,
}

impl ConnectionPurpose {
    /// What `CLIENT LIST` shows.
    fn client_name(self) -> &'static str {
        match self {
            Self::Hot => "floodgate-hot",
            Self::Results => "floodgate-results",
            Self::Relay => "floodgate-relay",
        }
    }
}

/// When a write counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When the server says so.
    Plain,
    /// The same, from servers that keep an append-only file; others are not connected to.
    Aof,
    /// When replicas have it, too.
    Replicated {
        /// How many.
        replicas: u32,
        /// How long they have; not 0.
        wait_ms: u64,
    },
}

/// How to connect.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// Where Redis is.
    pub url: RedisUrl,
    /// From the first packet until the connection is ready, scripts included.
    pub connect_timeout: Duration,
    /// For one pipeline; waiting for replicas comes on top.
    pub command_timeout: Duration,
    /// How long the kernel waits for packets to be acknowledged (`TCP_USER_TIMEOUT`).
    pub user_timeout: Duration,
    /// After an attempt to connect that failed; doubles with each further one.
    pub reconnect_min: Duration,
    /// The longest such wait.
    pub reconnect_max: Duration,
    /// When a write counts as done.
    pub durability: Durability,
    /// Loaded on every connection.
    pub scripts: Arc<[ScriptSource]>,
}
