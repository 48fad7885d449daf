//! Flow step 4/12: bucket -> relay.
//!
//! Accepted intents wait here until the broker has them. An entry is written by the same step that
//! takes the units, so that one never exists without the other; it leaves only when the broker has
//! confirmed it, or as a dead letter with its reason. Nothing is ever trimmed by length: a full
//! outbox closes the gate instead.
//!
//! A relay worker moves entries from the outbox of a bucket to itself (*claim*) and removes them
//! once they ended (*acknowledge*). Removal is by identity: it removes the entry that the broker
//! confirmed, wherever it is by then, and no other one. So a worker whose entries were given to
//! another one does no harm: both publish them, and the ledger makes one order of each request.
//!
//! The name of a worker is used once. It announces itself for as long as it works; what belongs to
//! a name that was silent for too long returns to the outbox (*reclaim*). A successor takes over
//! what its predecessors hold without waiting for that.
//!
//! If a worker crashes: its entries stay where they are. May repeat: every call; an entry may be
//! published twice, never lost.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::domain::{RequestId, TraceId};
use crate::stock::BucketKey;

mod executor;
mod heartbeats;
mod redis;

pub use redis::{OutboxOptions, RedisOutbox};

/// Why an outbox could not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store could not be asked, or refused before it did anything.
    #[error("the outbox is not available: {reason}")]
    Unavailable {
        /// What is wrong.
        reason: String,
    },
    /// The store was asked and did not answer: the call may still take effect, at any later time.
    #[error("the outbox did not confirm {doing}: {reason}")]
    Unknown {
        /// What was being done.
        doing: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The store holds something that is not an outbox of this installation.
    #[error("the outbox is damaged: {what}")]
    Damaged {
        /// What was found, and where.
        what: String,
    },
}

/// One entry: the intents of one message, packed ([`crate::redis::scripts::intent`]). It may be
/// anything
/// if another program wrote here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEntry {
    /// Its identity within its bucket; no meaning outside.
    pub id: Box<[u8]>,
    /// What was written.
    pub bytes: Bytes,
}

/// An entry that is to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedEntry {
    /// Its identity.
    pub id: Box<[u8]>,
    /// What of it becomes a dead letter, if anything does; the rest was published.
    pub letter: Option<GivenUpEntry>,
}

/// What was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenUpEntry {
    /// What was to be published.
    pub bytes: Bytes,
    /// Why it was not, for people.
    pub reason: String,
    /// How often the broker refused it.
    pub attempts: u32,
}

/// One answer for each bucket.
pub type PerBucket<T> = Vec<(BucketKey, Result<T, Error>)>;

/// What waits in one bucket's outbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutboxStatus {
    /// Entries that nobody has claimed.
    pub num_waiting: u64,
    /// When the first intent of the oldest of them was accepted, epoch milliseconds.
    pub oldest_waiting_ms: Option<i64>,
    /// Entries that workers have claimed, by worker.
    pub in_hand: Vec<(String, u64)>,
    /// The same as `oldest_waiting_ms` for the oldest claimed entry.
    pub oldest_in_hand_ms: Option<i64>,
    /// Dead letters that nobody has collected.
    pub num_dead: u64,
}

/// An entry that was given up, as it waits to be collected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadEntry {
    /// The backend's name for it; no meaning outside.
    pub id: Box<[u8]>,
    /// What was to be published.
    pub bytes: Bytes,
    /// Why it was not.
    pub reason: String,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was given up, epoch milliseconds.
    pub dead_at_ms: i64,
}

/// Where accepted intents wait for the broker.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// Says that a worker of this name works, and will for so long.
    async fn announce(&self, worker: &str, heartbeat: Duration) -> Result<(), Error>;

    /// Those of the workers whose last announcement has expired. One that cannot be asked about is
    /// not among them.
    async fn silent(&self, workers: &BTreeSet<String>) -> BTreeSet<String>;

    /// Looks at a part of everything that is stored for claims of workers that their buckets do not
    /// know of, and makes them known again. The next call looks at the next part.
    async fn restore_claimants(&self) -> Result<(), Error>;

    /// Moves what predecessors of a worker hold in these buckets to the worker. Returns everything
    /// that the worker holds there then, oldest first for each predecessor.
    async fn take_over(
        &self,
        worker: &str,
        predecessors: &[String],
        buckets: &[BucketKey],
    ) -> PerBucket<Vec<OutboxEntry>>;

    /// Moves up to so many entries of each bucket to the worker, oldest first, and returns them, in
    /// one exchange with each server. Buckets with nothing to claim are left out.
    async fn claim(
        &self,
        worker: &str,
        buckets: &[(BucketKey, usize)],
    ) -> PerBucket<Vec<OutboxEntry>>;

    /// Removes entries that ended: those that the worker holds, and those that were reclaimed from
    /// it and wait in the outbox again, as far as they are found at its front. One that is found
    /// nowhere belongs to another worker; no dead letter is written of it. One exchange with each
    /// server.
    async fn acknowledge(
        &self,
        worker: &str,
        ended: &[(BucketKey, Vec<EndedEntry>)],
    ) -> PerBucket<()>;

    /// Returns everything that these workers hold to the outbox of a bucket, where it is claimed
    /// before all else. Returns the number of entries.
    async fn reclaim(&self, bucket: BucketKey, workers: &[String]) -> Result<u64, Error>;

    /// What waits, and what is claimed by whom.
    async fn standing(&self, bucket: BucketKey) -> Result<OutboxStatus, Error>;

    /// Where an entry that holds this request is; for operators. Reads everything that waits.
    async fn find(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<FoundEntry>, Error>;

    /// Dead letters, oldest first.
    async fn dead(&self, bucket: BucketKey, max: usize) -> Result<Vec<DeadEntry>, Error>;

    /// Removes dead letters that were written down elsewhere; only those that [`Self::dead`]
    /// returned.
    async fn collect(&self, bucket: BucketKey, dead: &[DeadEntry]) -> Result<(), Error>;
}

/// An entry that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundEntry {
    /// Where it is.
    pub place: EntryPlace,
    /// The trace of the request that was asked for.
    pub trace: TraceId,
}

/// Where in the outbox an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryPlace {
    /// In the outbox.
    Waiting,
    /// Claimed by a worker.
    InHand {
        /// Its name.
        worker: String,
    },
    /// Given up, and not collected yet.
    Dead {
        /// Why.
        reason: String,
    },
}
