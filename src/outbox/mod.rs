//! Flow step 4/12: bucket -> relay.
//!
//! Accepted intents wait in the outbox until the broker has confirmed them. The script that takes
//! the units also writes the entry, so that neither exists without the other. An entry is removed
//! only when the broker has confirmed it, as a message or as a dead letter. The outbox is never
//! trimmed by length: when it is full, the gate refuses requests.
//!
//! A relay worker moves entries from a bucket's outbox to itself (*claim*) and removes them when
//! they are published (*acknowledge*). Removal is by identity: it removes the entry that the broker
//! confirmed, also if it was reclaimed meanwhile, and no other. So a worker whose entries were
//! moved to another worker is harmless: both publish them, and the ledger makes one order of each
//! request.
//!
//! A worker's name is used once. The worker renews a heartbeat; when it expires, its entries return
//! to the outbox (*reclaim*). A successor takes over its predecessors' entries without waiting for
//! that.
//!
//! If a worker crashes: its entries stay claimed until they are reclaimed or taken over. May
//! repeat: every call; an entry may be published twice, never lost.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::domain::{BucketKey, RequestId, TraceId};
use crate::redis::executor::CallError;
use crate::redis::scripts::Error as ScriptError;

mod heartbeats;
mod redis;
pub mod scripts;

pub use redis::RedisOutbox;

/// Why an outbox could not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store could not be reached, or refused the call. Nothing was changed.
    #[error("the outbox is not available: {reason}")]
    Unavailable { reason: String },
    /// The store did not answer: the call may still take effect, at any later time.
    #[error("the outbox did not confirm {operation}: {reason}")]
    Unknown { operation: &'static str, reason: String },
    /// The store holds data that is not an outbox of this installation.
    #[error("the outbox is damaged: {what}")]
    Damaged { what: String },
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unavailable { reason } => Self::Unavailable { reason },
            CallError::Unknown { operation, reason } => Self::Unknown { operation, reason },
            CallError::Damaged { what } => Self::Damaged { what },
            CallError::Rejected { operation, key, error, .. } => match error {
                ScriptError::Foreign | ScriptError::Corrupt { .. } | ScriptError::TooMany => {
                    Self::Damaged { what: format!("{key}: {error}") }
                }
                // Nothing was written, or the effect is unknown: the caller must read again.
                ScriptError::Unexpected { .. }
                | ScriptError::NotReady
                | ScriptError::Fenced
                | ScriptError::OldLoader => {
                    Self::Unknown { operation, reason: format!("{key}: {error}") }
                }
            },
        }
    }
}

/// One entry: the packed intents of one message ([`crate::redis::scripts::intent`]), or arbitrary
/// bytes if another program wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEntry {
    pub id: EntryId,
    pub bytes: Bytes,
}

/// Identity of an entry within its bucket; opaque.
pub type EntryId = Box<[u8]>;

/// Results of calls on many buckets.
pub type PerBucket<T> = Vec<(BucketKey, Result<T, Error>)>;

/// The counts of one bucket's outbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutboxStatus {
    /// Unclaimed entries.
    pub num_waiting: u64,
    /// When the first intent of the oldest unclaimed entry was accepted, epoch milliseconds.
    pub oldest_waiting_ms: Option<i64>,
    /// Claimed entries, by worker.
    pub claimed: Vec<(String, u64)>,
    /// The same as `oldest_waiting_ms` for the oldest claimed entry.
    pub oldest_claimed_ms: Option<i64>,
}

/// Stores accepted intents until the broker has confirmed them.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// Renews a worker's heartbeat; it expires after `ttl`.
    async fn renew_heartbeat(&self, worker: &str, ttl: Duration) -> Result<(), Error>;

    /// The workers whose heartbeat has expired. A worker whose heartbeat cannot be read is not
    /// among them.
    async fn silent(&self, workers: &BTreeSet<String>) -> BTreeSet<String>;

    /// Moves the entries of a worker's predecessors in these buckets to the worker. Returns all
    /// entries that the worker then holds there, oldest first for each predecessor.
    async fn take_over(
        &self,
        worker: &str,
        predecessors: &[String],
        buckets: &[BucketKey],
    ) -> PerBucket<Vec<OutboxEntry>>;

    /// Moves up to the given number of entries of each bucket to the worker, oldest first, and
    /// returns them, in one round trip to each server. Buckets without entries are omitted.
    async fn claim(
        &self,
        worker: &str,
        buckets: &[(BucketKey, usize)],
    ) -> PerBucket<Vec<OutboxEntry>>;

    /// Removes published entries: those that the worker holds, reclaimed ones at the front of the
    /// outbox, and in a stream those that another worker holds. One round trip to each server.
    async fn acknowledge(&self, worker: &str, ended: &[(BucketKey, Vec<EntryId>)])
    -> PerBucket<()>;

    /// Returns all entries of these workers to the bucket's outbox, where they are claimed first.
    /// Returns their number.
    async fn reclaim(&self, bucket: BucketKey, workers: &[String]) -> Result<u64, Error>;

    /// The number and age of waiting and claimed entries.
    async fn status(&self, bucket: BucketKey) -> Result<OutboxStatus, Error>;

    /// Finds the entry with this request; for operators. Reads all entries of the bucket.
    async fn find(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<FoundEntry>, Error>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundEntry {
    pub location: EntryLocation,
    /// The trace of the request, not of the entry's other requests.
    pub trace: TraceId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryLocation {
    Waiting,
    /// Claimed by a worker.
    Claimed {
        worker: String,
    },
}
