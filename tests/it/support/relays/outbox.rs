//! An in-memory outbox that keeps the promises of [`Outbox`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use floodgate::domain::{BucketKey, RequestId};
use floodgate::messages::envelope;
use floodgate::outbox::{
    EntryId, EntryLocation, Error, FoundEntry, Outbox, OutboxEntry, OutboxStatus, PerBucket,
};
use floodgate::runtime::clock::SharedClock;
use parking_lot::Mutex;

use super::injected_faults::{Call, InjectedFault, InjectedFaults, When};

#[derive(Debug, Default)]
struct Bucket {
    waiting: VecDeque<OutboxEntry>,
    claimed: BTreeMap<String, Vec<OutboxEntry>>,
}

/// The outbox entries of all processes.
#[derive(Debug, Default)]
pub struct Store {
    buckets: Mutex<HashMap<BucketKey, Bucket>>,
    /// Expiry of each worker's heartbeat.
    heartbeats: Mutex<BTreeMap<String, Instant>>,
    facts: Mutex<Facts>,
    /// Buckets whose status fails as damaged.
    damaged: Mutex<HashSet<BucketKey>>,
    /// Unanswered claims that have not taken effect yet.
    late_claims: Mutex<Vec<LateClaim>>,
}

/// A worker's claim: the buckets, each with its largest number of entries.
type LateClaim = (String, Vec<(BucketKey, usize)>);

/// Measurements over all calls.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Most claimed entries of one worker in one bucket.
    pub claimed_max: usize,
    pub claims: usize,
    /// Most buckets in one claim.
    pub buckets_per_claim: usize,
    /// Acknowledged entries that belonged to another worker by then.
    pub acknowledged_late: usize,
}

impl Store {
    /// Puts an entry into a bucket.
    pub fn put(&self, bucket: BucketKey, bytes: Bytes) {
        let mut buckets = self.buckets.lock();
        let bucket = buckets.entry(bucket).or_default();
        let id = fastrand::u64(..).to_be_bytes();
        bucket.waiting.push_back(OutboxEntry { id: Box::new(id), bytes });
    }

    /// Claims every waiting entry for a worker.
    pub fn claim_all(&self, worker: &str) {
        for bucket in self.buckets.lock().values_mut() {
            let all = bucket.waiting.drain(..).collect();
            bucket.claimed.insert(worker.to_owned(), all);
        }
    }

    /// Removes every entry, as if published.
    pub fn clear(&self) {
        for bucket in self.buckets.lock().values_mut() {
            bucket.waiting.clear();
            bucket.claimed.clear();
        }
    }

    /// Makes the status of a bucket's outbox fail as damaged.
    pub fn damage(&self, bucket: BucketKey) {
        self.damaged.lock().insert(bucket);
    }

    /// Reverts [`Self::damage`].
    pub fn mend(&self, bucket: BucketKey) {
        self.damaged.lock().remove(&bucket);
    }

    pub fn facts(&self) -> Facts {
        self.facts.lock().clone()
    }

    /// Number of waiting and of claimed entries.
    pub fn counts(&self) -> (usize, usize) {
        let buckets = self.buckets.lock();
        let waiting = buckets.values().map(|bucket| bucket.waiting.len()).sum();
        let claimed =
            buckets.values().flat_map(|bucket| bucket.claimed.values()).map(Vec::len).sum();
        (waiting, claimed)
    }

    /// Workers with a claim list in any bucket.
    pub fn workers(&self) -> BTreeSet<String> {
        let buckets = self.buckets.lock();
        buckets.values().flat_map(|bucket| bucket.claimed.keys()).cloned().collect()
    }

    /// Expiry of each announced worker's heartbeat.
    pub fn heartbeats(&self) -> BTreeMap<String, Instant> {
        self.heartbeats.lock().clone()
    }
}

/// The outbox as seen by one process.
#[derive(Debug, Clone)]
pub struct FakeOutbox {
    pub store: Arc<Store>,
    pub clock: SharedClock,
    pub faults: InjectedFaults,
}

type Answer<T> = Result<T, Error>;

fn failed(fault: InjectedFault, operation: &'static str) -> Error {
    let reason = "on purpose".to_owned();
    match fault {
        InjectedFault::Unavailable => Error::Unavailable { reason },
        _ => Error::Unknown { operation, reason },
    }
}

impl Bucket {
    /// Whether the worker holds the entry, or it waits.
    fn acknowledge(&mut self, worker: &str, id: &EntryId) -> bool {
        let has_id = |entry: &OutboxEntry| entry.id == *id;
        let own = self.claimed.entry(worker.to_owned()).or_default();
        if let Some(at) = own.iter().position(has_id) {
            own.remove(at);
        } else if let Some(at) = self.waiting.iter().position(has_id) {
            self.waiting.remove(at);
        } else {
            return false;
        }
        true
    }
}

impl FakeOutbox {
    /// Runs one call with its faults: `Before`, nothing is written; `After`, the write is done.
    async fn call<T>(
        &self,
        call: Call,
        operation: &'static str,
        run: impl FnOnce() -> T,
    ) -> Answer<T> {
        if let Some(fault) = self.faults.apply(call, When::Before).await {
            return Err(failed(fault, operation));
        }
        let answer = run();
        match self.faults.apply(call, When::After).await {
            Some(fault) => Err(failed(fault, operation)),
            None => Ok(answer),
        }
    }

    fn with<T>(&self, key: BucketKey, run: impl FnOnce(&mut Bucket) -> T) -> T {
        run(self.store.buckets.lock().entry(key).or_default())
    }

    fn claim_one(&self, worker: &str, key: BucketKey, max: usize) -> Vec<OutboxEntry> {
        self.with(key, |bucket| {
            let num = max.min(bucket.waiting.len());
            let taken: Vec<OutboxEntry> = bucket.waiting.drain(..num).collect();
            if !taken.is_empty() {
                let claimed = bucket.claimed.entry(worker.to_owned()).or_default();
                claimed.extend(taken.iter().cloned());
                let mut facts = self.store.facts.lock();
                facts.claimed_max = facts.claimed_max.max(claimed.len());
            }
            taken
        })
    }
}

/// The same error for each bucket.
fn all_failed<T>(buckets: impl Iterator<Item = BucketKey>, error: &Error) -> PerBucket<T> {
    buckets.map(|key| (key, Err(error.clone()))).collect()
}

/// Acceptance time of the oldest request in these entries.
fn oldest<'a>(entries: impl Iterator<Item = &'a OutboxEntry>) -> Option<i64> {
    let intents = entries.flat_map(|entry| envelope::intents_in(&entry.bytes));
    intents.map(|intent| intent.placed_at_ms).min()
}

#[async_trait]
impl Outbox for FakeOutbox {
    async fn renew_heartbeat(&self, worker: &str, ttl: Duration) -> Answer<()> {
        self.call(Call::Announce, "announcing", || {
            let until = self.clock.now() + ttl;
            self.store.heartbeats.lock().insert(worker.to_owned(), until);
        })
        .await
    }

    async fn silent(&self, workers: &BTreeSet<String>) -> BTreeSet<String> {
        let (heartbeats, now) = (self.store.heartbeats.lock(), self.clock.now());
        let is_silent =
            |worker: &&String| heartbeats.get(*worker).is_none_or(|until| *until <= now);
        workers.iter().filter(is_silent).cloned().collect()
    }

    async fn take_over(
        &self,
        worker: &str,
        predecessors: &[String],
        buckets: &[BucketKey],
    ) -> PerBucket<Vec<OutboxEntry>> {
        let taken = self
            .call(Call::TakeOver, "taking over", || {
                let take = |bucket: &mut Bucket| {
                    let lists = predecessors.iter().filter_map(|name| bucket.claimed.remove(name));
                    let taken: Vec<OutboxEntry> = lists.flatten().collect();
                    let own = bucket.claimed.entry(worker.to_owned()).or_default();
                    own.extend(taken);
                    own.clone()
                };
                let taken = buckets.iter().map(|key| (*key, Ok(self.with(*key, take))));
                taken.collect::<Vec<_>>()
            })
            .await;
        taken.unwrap_or_else(|error| all_failed(buckets.iter().copied(), &error))
    }

    async fn claim(
        &self,
        worker: &str,
        buckets: &[(BucketKey, usize)],
    ) -> PerBucket<Vec<OutboxEntry>> {
        {
            let mut facts = self.store.facts.lock();
            facts.claims += 1;
            facts.buckets_per_claim = facts.buckets_per_claim.max(buckets.len());
        }
        let claimed = self
            .call(Call::Claim, "a claim", || {
                let claimed =
                    buckets.iter().map(|(key, max)| (*key, self.claim_one(worker, *key, *max)));
                let non_empty = claimed.filter(|(_, entries)| !entries.is_empty());
                non_empty.map(|(key, entries)| (key, Ok(entries))).collect::<Vec<_>>()
            })
            .await;
        for (worker, buckets) in std::mem::take(&mut *self.store.late_claims.lock()) {
            for (key, max) in buckets {
                self.claim_one(&worker, key, max);
            }
        }
        if matches!(claimed, Err(Error::Unknown { .. })) && self.faults.is_late() {
            self.store.late_claims.lock().push((worker.to_owned(), buckets.to_vec()));
        }
        claimed.unwrap_or_else(|error| all_failed(buckets.iter().map(|(key, _)| *key), &error))
    }

    async fn acknowledge(
        &self,
        worker: &str,
        ended: &[(BucketKey, Vec<EntryId>)],
    ) -> PerBucket<()> {
        let acknowledged = self
            .call(Call::Acknowledge, "acknowledging", || {
                let acknowledge = |(key, ended): &(BucketKey, Vec<EntryId>)| {
                    let num_late = self.with(*key, |bucket| {
                        ended.iter().filter(|id| !bucket.acknowledge(worker, id)).count()
                    });
                    self.store.facts.lock().acknowledged_late += num_late;
                    (*key, Ok(()))
                };
                ended.iter().map(acknowledge).collect::<Vec<_>>()
            })
            .await;
        acknowledged.unwrap_or_else(|error| all_failed(ended.iter().map(|(key, _)| *key), &error))
    }

    async fn reclaim(&self, bucket: BucketKey, workers: &[String]) -> Answer<u64> {
        self.call(Call::Reclaim, "reclaiming", || {
            self.with(bucket, |bucket| {
                let lists = workers.iter().rev().filter_map(|name| bucket.claimed.remove(name));
                let entries: Vec<OutboxEntry> =
                    lists.flat_map(|list| list.into_iter().rev()).collect();
                let num = entries.len() as u64;
                for entry in entries {
                    bucket.waiting.push_front(entry);
                }
                num
            })
        })
        .await
    }

    async fn status(&self, bucket: BucketKey) -> Answer<OutboxStatus> {
        if self.store.damaged.lock().contains(&bucket) {
            return Err(Error::Damaged { what: "on purpose".to_owned() });
        }
        self.call(Call::Status, "a status read", || {
            self.with(bucket, |bucket| OutboxStatus {
                num_waiting: bucket.waiting.len() as u64,
                oldest_waiting_ms: oldest(bucket.waiting.iter()),
                claimed: bucket
                    .claimed
                    .iter()
                    .map(|(name, entries)| (name.clone(), entries.len() as u64))
                    .collect(),
                oldest_claimed_ms: oldest(bucket.claimed.values().flatten()),
            })
        })
        .await
    }

    async fn find(&self, bucket: BucketKey, request: RequestId) -> Answer<Option<FoundEntry>> {
        let buckets = self.store.buckets.lock();
        let waiting = buckets.get(&bucket).into_iter().flat_map(|bucket| &bucket.waiting);
        let mut intents = waiting.flat_map(|entry| envelope::intents_in(&entry.bytes));
        let found = intents.find(|intent| intent.request == request);
        Ok(found.map(|intent| FoundEntry { location: EntryLocation::Waiting, trace: intent.trace }))
    }
}
