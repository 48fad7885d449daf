//! An outbox in memory, as strict as the port: it refuses whatever a worker has no right to.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use floodgate::domain::RequestId;
use floodgate::messages::wire;
use floodgate::outbox::{
    DeadEntry, Entry, Error, Fate, Found, Hand, Outbox, Place, Standing, Worker,
};
use floodgate::stock::BucketKey;
use parking_lot::Mutex;

use super::mishaps::{Call, Mishap, Mishaps, When};

#[derive(Debug, Default)]
struct Bucket {
    line: VecDeque<Entry>,
    lives: BTreeMap<String, u64>,
    hands: HashMap<String, Vec<Entry>>,
    dead: Vec<DeadEntry>,
}

/// What all processes share.
#[derive(Debug, Default)]
pub struct Store {
    buckets: Mutex<HashMap<BucketKey, Bucket>>,
    facts: Mutex<Facts>,
}

/// What was seen on the way.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Largest hand of one worker in one bucket.
    pub hand_max: usize,
    pub claims: usize,
    /// Buckets asked for in one claim, at most.
    pub buckets_per_claim: usize,
    /// Calls that came too late.
    pub replaced: usize,
}

impl Store {
    /// Puts an entry into a bucket's line.
    pub fn put(&self, bucket: BucketKey, bytes: Bytes) {
        let mut buckets = self.buckets.lock();
        let bucket = buckets.entry(bucket).or_default();
        let id = fastrand::u64(..).to_be_bytes();
        bucket.line.push_back(Entry { id: Box::new(id), bytes, attempts: 0 });
    }

    pub fn facts(&self) -> Facts {
        self.facts.lock().clone()
    }

    /// Entries in line, and in all hands.
    pub fn counts(&self) -> (usize, usize) {
        let buckets = self.buckets.lock();
        let in_line = buckets.values().map(|bucket| bucket.line.len()).sum();
        let in_hand = buckets.values().flat_map(|bucket| bucket.hands.values()).map(Vec::len).sum();
        (in_line, in_hand)
    }

    /// Workers that are registered anywhere.
    pub fn workers(&self) -> Vec<String> {
        let buckets = self.buckets.lock();
        let mut workers: Vec<String> =
            buckets.values().flat_map(|bucket| bucket.lives.keys()).cloned().collect();
        workers.sort();
        workers.dedup();
        workers
    }

    /// Puts an entry among the dead ones of a bucket.
    pub fn bury(&self, bucket: BucketKey, entry: DeadEntry) {
        self.buckets.lock().entry(bucket).or_default().dead.push(entry);
    }

    pub fn dead(&self) -> Vec<DeadEntry> {
        self.buckets.lock().values().flat_map(|bucket| bucket.dead.clone()).collect()
    }
}

/// The outbox as one process reaches it.
#[derive(Debug, Clone)]
pub struct FakeOutbox {
    pub store: Arc<Store>,
    pub mishaps: Mishaps,
}

fn failed(mishap: Mishap, doing: &'static str) -> Error {
    let reason = "on purpose".to_owned();
    match mishap {
        Mishap::Unavailable => Error::Unavailable { reason },
        _ => Error::Unknown { doing, reason },
    }
}

impl FakeOutbox {
    /// One call: `Before` it may fail for certain, `After` it may not be known.
    async fn call<T>(
        &self,
        call: Call,
        doing: &'static str,
        work: impl FnOnce() -> T,
    ) -> Answer<T> {
        if let Some(mishap) = self.mishaps.meet(call, When::Before).await {
            return Err(failed(mishap, doing));
        }
        let done = work();
        match self.mishaps.meet(call, When::After).await {
            Some(mishap) => Err(failed(mishap, doing)),
            None => Ok(done),
        }
    }

    fn check(&self, bucket: &Bucket, worker: &Worker) -> Result<(), Error> {
        if bucket.lives.get(&*worker.name) == Some(&worker.life) {
            return Ok(());
        }
        self.store.facts.lock().replaced += 1;
        Err(Error::Replaced { worker: worker.to_string() })
    }

    fn claim_one(&self, worker: &Worker, key: BucketKey, max: usize) -> Answer<Vec<Entry>> {
        let mut buckets = self.store.buckets.lock();
        let bucket = buckets.entry(key).or_default();
        self.check(bucket, worker)?;
        let num = max.min(bucket.line.len());
        let taken: Vec<Entry> = bucket.line.drain(..num).collect();
        let hand = bucket.hands.entry(worker.name.to_string()).or_default();
        hand.extend(taken.iter().cloned());
        let mut facts = self.store.facts.lock();
        facts.hand_max = facts.hand_max.max(hand.len());
        Ok(taken)
    }

    fn report_one(&self, worker: &Worker, told: &Hand, fates: &[Fate]) -> Answer<()> {
        let mut buckets = self.store.buckets.lock();
        let bucket = buckets.entry(told.bucket).or_default();
        self.check(bucket, worker)?;
        let hand = bucket.hands.entry(worker.name.to_string()).or_default();
        assert_eq!(*hand, told.entries, "the whole hand, as it is");
        assert_eq!(hand.len(), fates.len(), "a fate for each");
        for (mut entry, fate) in std::mem::take(hand).into_iter().zip(fates) {
            match fate {
                Fate::Published => {}
                Fate::Kept => hand.push(entry),
                Fate::Failed => {
                    entry.attempts += 1;
                    hand.push(entry);
                }
                Fate::Dead { reason } => bucket.dead.push(DeadEntry {
                    id: entry.id,
                    bytes: entry.bytes,
                    reason: reason.clone(),
                    attempts: entry.attempts,
                    dead_at_ms: 0,
                }),
            }
        }
        Ok(())
    }
}

type Answer<T> = Result<T, Error>;

#[async_trait]
impl Outbox for FakeOutbox {
    async fn in_hand(&self, bucket: BucketKey, worker: &Worker) -> Answer<Hand> {
        self.call(Call::InHand, "reading a hand", || {
            let mut buckets = self.store.buckets.lock();
            let inside = buckets.entry(bucket).or_default();
            let name = worker.name.to_string();
            if inside.lives.get(&name).is_some_and(|life| *life > worker.life) {
                self.store.facts.lock().replaced += 1;
                return Err(Error::Replaced { worker: worker.to_string() });
            }
            inside.lives.insert(name.clone(), worker.life);
            let entries = inside.hands.get(&name).cloned().unwrap_or_default();
            Ok(Hand { bucket, entries })
        })
        .await?
    }

    async fn claim(
        &self,
        worker: &Worker,
        buckets: &[(BucketKey, usize)],
    ) -> Vec<(BucketKey, Answer<Vec<Entry>>)> {
        let claimed = self
            .call(Call::Claim, "a claim", || {
                let mut facts = self.store.facts.lock();
                facts.claims += 1;
                facts.buckets_per_claim = facts.buckets_per_claim.max(buckets.len());
                drop(facts);
                let all = buckets.iter();
                let all = all.map(|(key, max)| (*key, self.claim_one(worker, *key, *max)));
                let found =
                    |entries: &Answer<Vec<Entry>>| !entries.as_ref().is_ok_and(Vec::is_empty);
                all.filter(|(_, entries)| found(entries)).collect::<Vec<_>>()
            })
            .await;
        let failed = |error: Error| {
            buckets.iter().map(|(key, _)| (*key, Err(error.clone()))).collect::<Vec<_>>()
        };
        claimed.unwrap_or_else(failed)
    }

    async fn report(
        &self,
        worker: &Worker,
        hands: Vec<(Hand, Vec<Fate>)>,
    ) -> Vec<(BucketKey, Answer<()>)> {
        let reported = self
            .call(Call::Report, "a report", || {
                let all = hands.iter();
                let one = |hand: &Hand, fates: &Vec<Fate>| self.report_one(worker, hand, fates);
                all.map(|(hand, fates)| (hand.bucket, one(hand, fates))).collect::<Vec<_>>()
            })
            .await;
        let failed = |error: Error| {
            hands.iter().map(|(hand, _)| (hand.bucket, Err(error.clone()))).collect::<Vec<_>>()
        };
        reported.unwrap_or_else(failed)
    }

    async fn give_back(&self, bucket: BucketKey, worker: &str) -> Answer<u64> {
        self.call(Call::GiveBack, "giving back", || {
            let mut buckets = self.store.buckets.lock();
            let inside = buckets.entry(bucket).or_default();
            inside.lives.remove(worker);
            let hand = inside.hands.remove(worker).unwrap_or_default();
            let num = hand.len() as u64;
            hand.into_iter().rev().for_each(|entry| inside.line.push_front(entry));
            num
        })
        .await
    }

    async fn standing(&self, bucket: BucketKey) -> Answer<Standing> {
        self.call(Call::Standing, "a look", || {
            let mut buckets = self.store.buckets.lock();
            let inside = buckets.entry(bucket).or_default();
            let in_hand = |name: &String| inside.hands.get(name).map_or(0, Vec::len) as u64;
            Standing {
                num_waiting: inside.line.len() as u64,
                oldest_waiting_ms: (!inside.line.is_empty()).then_some(1),
                in_hand: inside.lives.keys().map(|name| (name.clone(), in_hand(name))).collect(),
                oldest_in_hand_ms: None,
                num_dead: inside.dead.len() as u64,
            }
        })
        .await
    }

    async fn find(&self, bucket: BucketKey, request: RequestId) -> Answer<Option<Found>> {
        let buckets = self.store.buckets.lock();
        let in_line = buckets.get(&bucket).into_iter().flat_map(|bucket| &bucket.line);
        let mut intents = in_line.flat_map(|entry| wire::intents_in(&entry.bytes));
        let found = intents.find(|intent| intent.request == request);
        Ok(found.map(|intent| Found { place: Place::Waiting, trace: intent.trace }))
    }

    async fn dead(&self, bucket: BucketKey, max: usize) -> Answer<Vec<DeadEntry>> {
        let buckets = self.store.buckets.lock();
        let dead = buckets.get(&bucket).into_iter().flat_map(|bucket| &bucket.dead);
        Ok(dead.take(max).cloned().collect())
    }

    async fn collect(&self, bucket: BucketKey, dead: &[DeadEntry]) -> Answer<()> {
        let mut buckets = self.store.buckets.lock();
        buckets.entry(bucket).or_default().dead.retain(|letter| !dead.contains(letter));
        Ok(())
    }
}
