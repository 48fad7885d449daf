//! Flow step 4/12: bucket -> relay.
//!
//! Accepted intents wait here until the broker has them. An entry is written by the same step that
//! takes the units, so that one never exists without the other; it leaves only when the broker has
//! confirmed it, or as a dead letter with its reason. Nothing is ever trimmed by length: a full
//! outbox closes the gate instead.
//!
//! A relay worker moves entries from the waiting line of a bucket into its own hand (*claim*), and
//! reports what became of them. What is in the hand of a worker that died is its successor's, and
//! goes back to the line (*give back*) when no successor comes.
//!
//! On death of a worker: its hand stays as it is. May repeat: every call; an entry may be published
//! twice, never lost.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::domain::{RequestId, TraceId};
use crate::stock::BucketKey;

mod claiming;
pub mod list;
mod lives;
pub mod stream;
mod wire;

pub use claiming::OutboxOptions;
pub use list::ListOutbox;
pub use stream::StreamOutbox;

/// Why an outbox could not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The worker's hand was given to others, because its node was taken for dead, or a successor
    /// has begun: it must not go on under this life.
    #[error("worker {worker} was replaced: its entries belong to others now")]
    Replaced {
        /// Who asked.
        worker: String,
    },
    /// The store could not be asked, or refused before it did anything.
    #[error("the outbox is not available: {reason}")]
    Unavailable {
        /// What is wrong.
        reason: String,
    },
    /// The store was asked and did not answer: look at the hand again before anything else.
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

/// One life of one relay worker. The name stays from life to life of the same place in the same
/// process; the life counts up, so that what an earlier life still sends is refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Worker {
    /// `<node>/<place>`, unique over all processes and starts of processes.
    pub name: Arc<str>,
    /// Larger with each successor.
    pub life: u64,
}

impl Worker {
    /// The node that a worker belongs to: the part of its name before the last `/`.
    #[must_use]
    pub fn node(name: &str) -> &str {
        name.rsplit_once('/').map_or(name, |(node, _)| node)
    }
}

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.name, self.life)
    }
}

/// One entry in a worker's hand: the intents of one message, packed
/// ([`crate::scripts::intent`]). It may be anything if somebody else wrote here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The backend's name for it; no meaning outside.
    pub id: Box<[u8]>,
    /// What was written.
    pub bytes: Bytes,
    /// How often publishing it has failed, not counting what failed with every other entry because
    /// the broker was away.
    pub attempts: u32,
}

/// The entries of one bucket in one worker's hand, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hand {
    /// Which bucket.
    pub bucket: BucketKey,
    /// All of them.
    pub entries: Vec<Entry>,
}

/// What became of one entry in hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The broker has it for good: it leaves.
    Published,
    /// Nothing happened to it: it stays in hand.
    Kept,
    /// Publishing it failed: it stays in hand and counts one attempt more.
    Failed,
    /// It will never be published: it becomes a dead letter.
    Dead {
        /// Why, for people.
        reason: String,
    },
}

/// What waits in one bucket's outbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// Entries that nobody has claimed.
    pub num_waiting: u64,
    /// When the first intent of the oldest of them was accepted, epoch milliseconds.
    pub oldest_waiting_ms: Option<i64>,
    /// Entries in each worker's hand.
    pub in_hand: Vec<(String, u64)>,
    /// The same for the oldest entry in any hand.
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
    /// Begins or continues this life of a worker in one bucket and tells what is in its hand; what
    /// earlier lives left there is in it. From here on earlier lives are refused.
    async fn in_hand(&self, bucket: BucketKey, worker: &Worker) -> Result<Hand, Error>;

    /// Moves up to `max` entries from the line of each bucket into the worker's hand and returns
    /// the new ones, bucket by bucket, in one exchange with each server. Buckets with nothing to
    /// claim are left out. A bucket is begun ([`Self::in_hand`]) if it was not yet.
    async fn claim(
        &self,
        worker: &Worker,
        buckets: &[(BucketKey, usize)],
    ) -> Vec<(BucketKey, Result<Vec<Entry>, Error>)>;

    /// Reports the fate of every entry in hand, in order: `hand` must be the whole hand of the
    /// worker in that bucket, and `fates` one for each entry. What stays keeps its id and its place
    /// in the hand; each failure raises its `attempts` by one. One exchange with each server.
    async fn report(
        &self,
        worker: &Worker,
        hands: Vec<(Hand, Vec<Fate>)>,
    ) -> Vec<(BucketKey, Result<(), Error>)>;

    /// Puts what is in the hand of a worker of a dead node back into the line, in front of
    /// everything else where the store can do that; and ends all its lives. Returns the number of
    /// entries.
    async fn give_back(&self, bucket: BucketKey, worker: &str) -> Result<u64, Error>;

    /// What waits, and in whose hands.
    async fn standing(&self, bucket: BucketKey) -> Result<Standing, Error>;

    /// Where an entry that holds this request is; for operators. Reads everything that waits.
    async fn find(&self, bucket: BucketKey, request: RequestId) -> Result<Option<Found>, Error>;

    /// Dead letters, oldest first.
    async fn dead(&self, bucket: BucketKey, max: usize) -> Result<Vec<DeadEntry>, Error>;

    /// Removes dead letters that were written down elsewhere; only those that [`Self::dead`]
    /// returned.
    async fn collect(&self, bucket: BucketKey, dead: &[DeadEntry]) -> Result<(), Error>;

    /// Entries seen so far that somebody else deleted although a worker had them in hand: each is a
    /// message that may be lost.
    fn num_vanished(&self) -> u64 {
        0
    }
}

/// An entry that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Where it is.
    pub place: Place,
    /// The trace of the request that was asked for.
    pub trace: TraceId,
}

/// Where in the outbox an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the line.
    Waiting,
    /// In a worker's hand.
    InHand {
        /// Whose.
        worker: String,
    },
    /// Given up, and not collected yet.
    Dead {
        /// Why.
        reason: String,
    },
}
