//! Outboxes in Redis, of either kind.
//!
//! List: entries wait in a list, and each worker has a private list. Claiming moves entries from
//! the head of the one to the tail of the other; what is reclaimed goes to the front of the outbox,
//! so that the order stays. Stream: one consumer group whose consumers are the workers; what is
//! reclaimed belongs to a consumer of its own, and is claimed before all else.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;

use super::heartbeats::Heartbeats;
use super::{
    DeadEntry, EndedEntry, EntryPlace, Error, FoundEntry, Outbox, OutboxEntry, OutboxStatus,
    PerBucket,
};
use crate::domain::{RequestId, TraceId};
use crate::messages::envelope::intents_in;
use crate::outbox::executor::{OutboxExecutor, damaged, told};
use crate::redis::scripts;
use crate::redis::scripts::outbox::dead_letter;
use crate::redis::scripts::outbox::{
    Acknowledge, ClaimEntries, Collect, CountEntries, EntryKind, OutboxTarget, ReadList,
    ReadStream, Reclaim, TakeOver,
};
use crate::redis::scripts::{Installation, OutboxKeys, ScriptCall};
use crate::redis::transport::ConnectionPool;
use crate::runtime::clock::SharedClock;
use crate::stock::BucketKey;

/// Elements of a list that a search reads at once.
const PAGE: i64 = 256;

/// Where a stream begins.
const BEGIN: &str = "0-0";

/// How outboxes in Redis are reached and named.
#[derive(Debug)]
pub struct OutboxOptions {
    /// The connections.
    pub links: ConnectionPool,
    /// The first part of every key.
    pub namespace: String,
    /// The ledger that the buckets belong to.
    pub installation: Installation,
    /// When a dead letter was written.
    pub clock: SharedClock,
}

/// Outboxes in Redis.
#[derive(Debug)]
pub struct RedisOutbox {
    wire: OutboxExecutor,
    heartbeats: Heartbeats,
    clock: SharedClock,
    kind: EntryKind,
}

impl RedisOutbox {
    /// Outboxes that connect when they are first asked.
    #[must_use]
    pub fn new(options: OutboxOptions, kind: EntryKind) -> Self {
        let OutboxOptions { links, namespace, installation, clock } = options;
        let heartbeats = Heartbeats::new(links.clone(), namespace.clone());
        Self { wire: OutboxExecutor::new(links, namespace, installation), heartbeats, clock, kind }
    }

    fn target<'a>(&self, keys: &'a OutboxKeys) -> OutboxTarget<'a> {
        OutboxTarget { keys, installation: self.wire.installation, kind: self.kind }
    }

    /// Sends the call of each bucket, all in one exchange with each server, and reads the answers.
    async fn ask_each<'a, T, R>(
        &self,
        doing: &'static str,
        requests: impl IntoIterator<Item = (BucketKey, &'a T)>,
        call: impl Fn(OutboxTarget<'_>, &'a T) -> ScriptCall,
        parse: impl Fn(OutboxTarget<'_>, &'a T, Value) -> Result<R, scripts::Error>,
    ) -> PerBucket<R>
    where
        T: ?Sized + 'a,
    {
        let requests = requests.into_iter();
        let requests: Vec<_> =
            requests.map(|(bucket, of)| (bucket, of, self.wire.keys(bucket))).collect();
        let calls = requests.iter().map(|(_, of, keys)| call(self.target(keys), of)).collect();
        let answers = self.wire.ask_all(calls, doing).await;
        let parsed = requests.iter().zip(answers).map(|((bucket, of, keys), answer)| {
            let parse = |answer| parse(self.target(keys), of, answer);
            let parsed =
                answer.and_then(|answer| parse(answer).map_err(|error| told(keys, doing, &error)));
            (*bucket, parsed)
        });
        parsed.collect()
    }

    /// A part of one of the lists.
    async fn read(
        &self,
        keys: &OutboxKeys,
        list: &str,
        places: (i64, i64),
        doing: &'static str,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let installation = self.wire.installation;
        let read = ReadList { keys, installation, list, places };
        let answer = self.wire.ask(read.call(), doing).await?;
        read.parse(answer).map_err(|error| told(keys, doing, &error))
    }

    /// What `look` finds in an element of a list. The list is read page by page from its end:
    /// elements leave in front, and one that moves on meanwhile is read twice instead of not at
    /// all.
    async fn search<T>(
        &self,
        keys: &OutboxKeys,
        list: &str,
        look: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        for page in 0.. {
            let places = (-PAGE * (page + 1), -PAGE * page - 1);
            let elements = self.read(keys, list, places, "looking for a request").await?;
            if elements.is_empty() {
                break;
            }
            if let Some(found) = elements.iter().find_map(|element| look(element)) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The dead letter with this request.
    async fn find_dead(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<FoundEntry>, Error> {
        let keys = self.wire.keys(bucket);
        let look = |bytes: &[u8]| {
            let DeadEntry { bytes, reason, .. } = letter_of(bytes);
            Some(FoundEntry {
                place: EntryPlace::Dead { reason },
                trace: trace_in(&bytes, request)?,
            })
        };
        self.search(&keys, &keys.dead(), look).await
    }

    /// The workers that may have a private list in a bucket.
    async fn claimants(&self, keys: &OutboxKeys) -> Result<Vec<String>, Error> {
        if self.kind == EntryKind::Stream {
            return Ok(Vec::new());
        }
        let (key, doing) = (keys.claimants(), "reading the claimants");
        let command = redis::cmd("SMEMBERS").arg(&key).to_owned();
        let answer = self.wire.read(&key, command, doing).await?;
        let names: Result<Vec<String>, _> = redis::from_redis_value(answer);
        let mut names = names.map_err(|error| damaged(&key, &error))?;
        names.sort_unstable();
        Ok(names)
    }

    async fn find_in_lists(
        &self,
        keys: &OutboxKeys,
        request: RequestId,
    ) -> Result<Option<FoundEntry>, Error> {
        let look = |bytes: &[u8]| trace_in(bytes, request);
        if let Some(trace) = self.search(keys, &keys.outbox(), look).await? {
            return Ok(Some(FoundEntry { place: EntryPlace::Waiting, trace }));
        }
        for worker in self.claimants(keys).await? {
            if let Some(trace) = self.search(keys, &keys.claimed(&worker), look).await? {
                return Ok(Some(FoundEntry { place: EntryPlace::InHand { worker }, trace }));
            }
        }
        Ok(None)
    }

    async fn find_in_stream(
        &self,
        keys: &OutboxKeys,
        request: RequestId,
    ) -> Result<Option<FoundEntry>, Error> {
        let doing = "looking for a request";
        let (installation, max) = (self.wire.installation, usize::try_from(PAGE).unwrap_or(1));
        let mut from = BEGIN.to_owned();
        loop {
            let page = ReadStream { keys, installation, from: &from, max };
            let answer = self.wire.ask(page.call(), doing).await?;
            let read = ReadStream::parse(answer).map_err(|error| told(keys, doing, &error))?;
            let Some(last) = read.last() else { return Ok(None) };
            from = format!("({}", last.id);
            let found = read.into_iter().find_map(|entry| {
                let in_hand = |worker| EntryPlace::InHand { worker };
                let trace = trace_in(&entry.bytes, request)?;
                Some(FoundEntry { place: entry.holder.map_or(EntryPlace::Waiting, in_hand), trace })
            });
            if found.is_some() {
                return Ok(found);
            }
        }
    }
}

#[async_trait]
impl Outbox for RedisOutbox {
    async fn announce(&self, worker: &str, heartbeat: Duration) -> Result<(), Error> {
        self.heartbeats.announce(worker, heartbeat).await
    }

    async fn silent(&self, workers: &BTreeSet<String>) -> BTreeSet<String> {
        self.heartbeats.silent(workers).await
    }

    async fn restore_claimants(&self) -> Result<(), Error> {
        match self.kind {
            EntryKind::List => self.heartbeats.restore_claimants().await,
            // A stream knows its consumers itself.
            EntryKind::Stream => Ok(()),
        }
    }

    async fn take_over(
        &self,
        worker: &str,
        predecessors: &[String],
        buckets: &[BucketKey],
    ) -> PerBucket<Vec<OutboxEntry>> {
        self.ask_each(
            "taking over",
            buckets.iter().map(|bucket| (*bucket, &())),
            |target, ()| TakeOver { target, worker, predecessors }.call(),
            |target, (), answer| TakeOver { target, worker, predecessors }.parse(answer),
        )
        .await
    }

    async fn claim(
        &self,
        worker: &str,
        buckets: &[(BucketKey, usize)],
    ) -> PerBucket<Vec<OutboxEntry>> {
        let wanted = buckets.iter().filter(|(_, max)| *max > 0);
        let mut claimed = self
            .ask_each(
                "claiming",
                wanted.map(|(bucket, max)| (*bucket, max)),
                |target, max| ClaimEntries { target, worker, max: *max }.call(),
                |target, max, answer| ClaimEntries { target, worker, max: *max }.parse(answer),
            )
            .await;
        claimed.retain(|(_, entries)| !matches!(entries, Ok(entries) if entries.is_empty()));
        claimed
    }

    async fn acknowledge(
        &self,
        worker: &str,
        ended: &[(BucketKey, Vec<EndedEntry>)],
    ) -> PerBucket<()> {
        let now_ms = self.clock.wall_ms();
        let some = ended.iter().filter(|(_, ended)| !ended.is_empty());
        self.ask_each(
            "acknowledging",
            some.map(|(bucket, ended)| (*bucket, ended)),
            |target, ended| Acknowledge { target, worker, ended, now_ms }.call(),
            |target, ended, answer| {
                let removed = Acknowledge { target, worker, ended, now_ms }.parse(answer)?;
                let num_others = (ended.len() as u64).saturating_sub(removed);
                if num_others > 0 {
                    let key = target.keys.outbox();
                    tracing::info!(key, num_others, "entries ended that other workers have by now");
                }
                Ok(())
            },
        )
        .await
    }

    async fn reclaim(&self, bucket: BucketKey, workers: &[String]) -> Result<u64, Error> {
        if workers.is_empty() {
            return Ok(0);
        }
        let doing = "reclaiming";
        let keys = self.wire.keys(bucket);
        let reclaim = Reclaim { target: self.target(&keys), workers };
        let answer = self.wire.ask(reclaim.call(), doing).await?;
        reclaim.parse(answer).map_err(|error| told(&keys, doing, &error))
    }

    async fn dead(&self, bucket: BucketKey, max: usize) -> Result<Vec<DeadEntry>, Error> {
        let keys = self.wire.keys(bucket);
        let Some(last) = max.checked_sub(1) else { return Ok(Vec::new()) };
        let places = (0, i64::try_from(last).unwrap_or(i64::MAX));
        let read = self.read(&keys, &keys.dead(), places, "reading dead letters").await?;
        Ok(read.iter().map(|bytes| letter_of(bytes)).collect())
    }

    async fn collect(&self, bucket: BucketKey, dead: &[DeadEntry]) -> Result<(), Error> {
        let doing = "collecting dead letters";
        if dead.is_empty() {
            return Ok(());
        }
        let (keys, installation) = (self.wire.keys(bucket), self.wire.installation);
        let collect = Collect { keys: &keys, installation, letters: dead };
        let answer = self.wire.ask(collect.call(), doing).await?;
        // What is not there any more was collected before.
        let collected = collect.parse(answer);
        collected.map(drop).map_err(|error| told(&keys, doing, &error))
    }

    async fn standing(&self, bucket: BucketKey) -> Result<OutboxStatus, Error> {
        let doing = "counting entries";
        let keys = self.wire.keys(bucket);
        let workers = &self.claimants(&keys).await?;
        let standing = CountEntries { target: self.target(&keys), workers };
        let answer = self.wire.ask(standing.call(), doing).await?;
        standing.parse(answer).map_err(|error| told(&keys, doing, &error))
    }

    async fn find(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<FoundEntry>, Error> {
        let keys = self.wire.keys(bucket);
        let found = match self.kind {
            EntryKind::List => self.find_in_lists(&keys, request).await?,
            EntryKind::Stream => self.find_in_stream(&keys, request).await?,
        };
        match found {
            None => self.find_dead(bucket, request).await,
            found => Ok(found),
        }
    }
}

/// The trace of a request that an entry holds; `None`: it does not.
fn trace_in(body: &[u8], request: RequestId) -> Option<TraceId> {
    let mut intents = intents_in(body).into_iter();
    intents.find(|intent| intent.request == request).map(|intent| intent.trace)
}

/// A dead letter; bytes that are none become one, so that they hold up no other.
fn letter_of(bytes: &[u8]) -> DeadEntry {
    dead_letter::unpack(bytes).unwrap_or_else(|broken| DeadEntry {
        id: bytes.into(),
        bytes: bytes::Bytes::copy_from_slice(bytes),
        reason: format!("no dead letter of this program: {broken}"),
        attempts: 0,
        dead_at_ms: 0,
    })
}
