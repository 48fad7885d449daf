//! The typed settings of outbox, relay and broker; see `settings`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::effective::redact_url;

/// In which structure of Redis accepted intents wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OutboxKind {
    /// A list, and a private list per relay worker.
    List,
    /// A stream with a consumer group.
    Stream,
}

/// Accepted intents on their way to the broker.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutboxSettings {
    /// In which structure they wait.
    pub kind: OutboxKind,
    /// Entries that may wait in one bucket; beyond it buyers hear `busy`.
    pub entries_max: u64,
    /// Most orders in one entry, which is one message.
    pub envelope_max: usize,
}

/// Outbox to broker.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelaySettings {
    /// Workers of one process, each with its own channel.
    pub workers: usize,
    /// Most entries a worker holds of one bucket.
    pub claim_max: usize,
    /// Messages of one worker that may be unconfirmed at once.
    pub confirm_window: usize,
    /// A message without confirmation by then is published again.
    pub confirm_timeout_ms: u64,
    /// Tries to publish one entry before it becomes a dead letter.
    pub attempts_max: u32,
    /// First wait of a worker that finds nothing.
    pub poll_min_ms: u64,
    /// Longest such wait.
    pub poll_max_ms: u64,
    /// A process that does not renew its lease for so long is taken for dead.
    pub lease_ttl_ms: u64,
}

/// The broker.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AmqpSettings {
    /// Empty = none. May hold a password: show it through [`redact_url`] only.
    pub url: String,
    /// Order queues; a bucket always uses the same one.
    pub queues: u16,
    /// How long connecting may take, topology included.
    pub connect_timeout_ms: u64,
    /// How often both sides say that they are there.
    pub heartbeat_s: u16,
    /// First wait before connecting again.
    pub reconnect_min_ms: u64,
    /// Longest such wait.
    pub reconnect_max_ms: u64,
    /// How often one message may be delivered without being acknowledged before the broker itself
    /// makes it a dead letter.
    pub deliveries_max: u32,
    /// How long orders that failed at the ledger wait before each next attempt.
    pub retry_delays_ms: Vec<u64>,
}

impl fmt::Debug for AmqpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpSettings")
            .field("url", &redact_url(&self.url))
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}
