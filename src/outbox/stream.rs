//! Entries in a stream of Redis, and one consumer group whose consumers are the workers.
//!
//! What is given back belongs to a consumer that stands for nobody, and is claimed before all else.
//! Besides, whatever somebody has held for much longer than a process may be silent goes back as
//! well (*sweep*): a worker that still lives finds out and looks at its hand again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::claiming::{Claimed, Core, OutboxOptions, trace_in};
use super::wire::told;
use super::{DeadEntry, Error, Fate, Found, Hand, Outbox, Place, Standing, Worker};
use crate::domain::RequestId;
use crate::scripts::outbox::{Line, ReadStream, StandingOf, Sweep};
use crate::stock::BucketKey;

/// Where the entries of a group begin, and where a sweep says that it is through.
const BEGIN: &str = "0-0";

/// Sweeps in the time that an entry may be in hand.
const SWEEPS: u32 = 4;

/// Entries that a search reads at once.
const PAGE: usize = 256;

/// Outboxes in streams.
#[derive(Debug)]
pub struct StreamOutbox {
    core: Core,
    longest_in_hand: Duration,
    swept: Mutex<HashMap<BucketKey, Swept>>,
}

/// How far a bucket was swept.
#[derive(Debug, Clone)]
struct Swept {
    at: Instant,
    /// Where the next part begins.
    from: Arc<str>,
}

impl StreamOutbox {
    /// Outboxes that connect when they are first asked. Whatever is in a hand for longer than
    /// `longest_in_hand` is swept back into the line.
    #[must_use]
    pub fn new(options: OutboxOptions, longest_in_hand: Duration) -> Self {
        let core = Core::new(options, Line::Stream);
        Self { core, longest_in_hand, swept: Mutex::default() }
    }

    /// Sweeps the buckets whose turn it is, one part of each. It is a net: what goes wrong here
    /// goes wrong in the claim that follows, and is told there.
    async fn sweep(&self, buckets: impl Iterator<Item = BucketKey>) {
        let due = self.take_due(buckets);
        if due.is_empty() {
            return;
        }
        let installation = self.core.wire.installation;
        let calls = due.iter().map(|(bucket, from)| {
            let keys = &self.core.wire.keys(*bucket);
            Sweep { keys, installation, longest: self.longest_in_hand, from }.call()
        });
        let answers = self.core.wire.ask_all(calls.collect(), "sweeping").await;
        for ((bucket, _), answer) in due.iter().zip(answers) {
            let Some((back, end)) = answer.ok().and_then(|answer| Sweep::parse(answer).ok()) else {
                continue;
            };
            self.core.note_vanished(*bucket, &back.vanished);
            if back.num_entries > 0 {
                let (num_entries, longest) = (back.num_entries, self.longest_in_hand);
                tracing::warn!(
                    ?bucket,
                    num_entries,
                    ?longest,
                    "entries were in hand for too long \
                    and wait again"
                );
            }
            if let Some(swept) = self.swept.lock().get_mut(bucket) {
                swept.from = end.into();
            }
        }
    }

    /// The buckets whose turn it is, and where their parts begin.
    fn take_due(&self, buckets: impl Iterator<Item = BucketKey>) -> Vec<(BucketKey, Arc<str>)> {
        let now = self.core.clock.now();
        let mut swept = self.swept.lock();
        let due = buckets.filter_map(|bucket| {
            let is_new = !swept.contains_key(&bucket);
            let swept =
                swept.entry(bucket).or_insert_with(|| Swept { at: now, from: BEGIN.into() });
            let is_due = now.duration_since(swept.at) >= self.longest_in_hand / SWEEPS;
            (is_new || is_due || *swept.from != *BEGIN).then(|| {
                swept.at = now;
                (bucket, swept.from.clone())
            })
        });
        due.collect()
    }
}

#[async_trait]
impl Outbox for StreamOutbox {
    async fn in_hand(&self, bucket: BucketKey, worker: &Worker) -> Result<Hand, Error> {
        self.core.in_hand(bucket, worker).await
    }

    async fn claim(&self, worker: &Worker, buckets: &[(BucketKey, usize)]) -> Vec<Claimed> {
        self.sweep(buckets.iter().map(|(bucket, _)| *bucket)).await;
        self.core.claim(worker, buckets).await
    }

    async fn report(
        &self,
        worker: &Worker,
        hands: Vec<(Hand, Vec<Fate>)>,
    ) -> Vec<(BucketKey, Result<(), Error>)> {
        self.core.report(worker, hands).await
    }

    async fn give_back(&self, bucket: BucketKey, worker: &str) -> Result<u64, Error> {
        self.core.give_back(bucket, worker).await
    }

    async fn standing(&self, bucket: BucketKey) -> Result<Standing, Error> {
        let doing = "counting entries";
        let (keys, installation) = (self.core.wire.keys(bucket), self.core.wire.installation);
        let door = StandingOf { keys: &keys, installation, line: Line::Stream, workers: &[] };
        let answer = self.core.wire.ask(door.call(), doing).await?;
        door.parse(answer).map_err(|error| told(&keys, doing, &error))
    }

    async fn find(&self, bucket: BucketKey, request: RequestId) -> Result<Option<Found>, Error> {
        let doing = "looking for a request";
        let (keys, installation) = (self.core.wire.keys(bucket), self.core.wire.installation);
        let mut from = BEGIN.to_owned();
        loop {
            let door = ReadStream { keys: &keys, installation, from: &from, max: PAGE };
            let answer = self.core.wire.ask(door.call(), doing).await?;
            let read = ReadStream::parse(answer).map_err(|error| told(&keys, doing, &error))?;
            let Some(last) = read.last() else { break };
            from = format!("({}", last.id);
            let found = read.into_iter().find_map(|entry| {
                let in_hand = |worker| Place::InHand { worker };
                let trace = trace_in(&entry.bytes, request)?;
                Some(Found { place: entry.holder.map_or(Place::Waiting, in_hand), trace })
            });
            if found.is_some() {
                return Ok(found);
            }
        }
        self.core.find_dead(bucket, request).await
    }

    async fn dead(&self, bucket: BucketKey, max: usize) -> Result<Vec<DeadEntry>, Error> {
        self.core.dead(bucket, max).await
    }

    async fn collect(&self, bucket: BucketKey, dead: &[DeadEntry]) -> Result<(), Error> {
        self.core.collect(bucket, dead).await
    }

    fn num_vanished(&self) -> u64 {
        self.core.num_vanished()
    }
}
