//! Outboxes in Redis, as lists or as streams.
//!
//! List: entries wait in a list, and each worker has a private list. A claim moves entries from the
//! head of the outbox to the tail of the private list; reclaimed entries return to the head of the
//! outbox, so that the order is kept. Stream: one consumer group whose consumers are the workers;
//! reclaimed entries belong to a consumer of their own and are claimed first.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;

use super::heartbeats::Heartbeats;
use super::{
    DeadEntry, EndedEntry, EntryLocation, Error, FoundEntry, Outbox, OutboxEntry, OutboxStatus,
    PerBucket,
};
use crate::domain::{BucketKey, RequestId, TraceId};
use crate::messages::envelope::intents_in;
use crate::outbox::executor::{OutboxExecutor, damaged, script_error};
use crate::outbox::scripts::dead_letter;
use crate::outbox::scripts::{
    Acknowledge, ClaimEntries, Collect, CountEntries, EntryKind, OutboxTarget, ReadList,
    ReadStream, Reclaim, TakeOver,
};
use crate::redis::scripts;
use crate::redis::scripts::{Installation, OutboxKeys, ScriptCall};
use crate::redis::transport::ConnectionPool;
use crate::runtime::clock::SharedClock;

/// Elements that a search reads by one call.
const PAGE: i64 = 256;

/// Smallest id of a stream.
const FIRST_ID: &str = "0-0";

/// Connections and key names of [`RedisOutbox`].
#[derive(Debug)]
pub struct OutboxOptions {
    pub pool: ConnectionPool,
    /// First part of every key.
    pub namespace: String,
    pub installation: Installation,
    /// For the time of a dead letter.
    pub clock: SharedClock,
}

/// The outboxes of all buckets in Redis, of one kind.
#[derive(Debug)]
pub struct RedisOutbox {
    executor: OutboxExecutor,
    heartbeats: Heartbeats,
    clock: SharedClock,
    kind: EntryKind,
}

impl RedisOutbox {
    /// Connects on the first call.
    #[must_use]
    pub fn new(options: OutboxOptions, kind: EntryKind) -> Self {
        let OutboxOptions { pool, namespace, installation, clock } = options;
        let heartbeats = Heartbeats::new(pool.clone(), namespace.clone());
        Self {
            executor: OutboxExecutor::new(pool, namespace, installation),
            heartbeats,
            clock,
            kind,
        }
    }

    fn target<'a>(&self, keys: &'a OutboxKeys) -> OutboxTarget<'a> {
        OutboxTarget { keys, installation: self.executor.installation, kind: self.kind }
    }

    /// Sends the call of each bucket, in one round trip to each server, and parses the answers.
    async fn call_each<'a, T, R>(
        &self,
        operation: &'static str,
        inputs: impl IntoIterator<Item = (BucketKey, &'a T)>,
        call: impl Fn(OutboxTarget<'_>, &'a T) -> ScriptCall,
        parse: impl Fn(OutboxTarget<'_>, &'a T, Value) -> Result<R, scripts::Error>,
    ) -> PerBucket<R>
    where
        T: ?Sized + 'a,
    {
        let inputs = inputs.into_iter();
        let inputs: Vec<_> =
            inputs.map(|(bucket, input)| (bucket, input, self.executor.keys(bucket))).collect();
        let calls = inputs.iter().map(|(_, input, keys)| call(self.target(keys), input)).collect();
        let answers = self.executor.call_all(calls, operation).await;
        let results = inputs.iter().zip(answers).map(|((bucket, input, keys), answer)| {
            let result = answer.and_then(|answer| {
                parse(self.target(keys), input, answer)
                    .map_err(|error| script_error(keys, operation, &error))
            });
            (*bucket, result)
        });
        results.collect()
    }

    async fn read_list(
        &self,
        keys: &OutboxKeys,
        list: &str,
        range: (i64, i64),
        operation: &'static str,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let installation = self.executor.installation;
        let read = ReadList { keys, installation, list, places: range };
        let answer = self.executor.call(read.call(), operation).await?;
        read.parse(answer).map_err(|error| script_error(keys, operation, &error))
    }

    /// Returns the first result of `find` among a list's elements. The list is read page by page
    /// from its end: elements are removed at the front, so an element that shifts meanwhile is read
    /// twice instead of not at all.
    async fn search<T>(
        &self,
        keys: &OutboxKeys,
        list: &str,
        find: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        for page in 0.. {
            let range = (-PAGE * (page + 1), -PAGE * page - 1);
            let elements = self.read_list(keys, list, range, "finding a request").await?;
            if elements.is_empty() {
                break;
            }
            if let Some(found) = elements.iter().find_map(|element| find(element)) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    async fn find_dead(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<FoundEntry>, Error> {
        let keys = self.executor.keys(bucket);
        let find = |bytes: &[u8]| {
            let DeadEntry { bytes, reason, .. } = decode_dead_letter(bytes);
            Some(FoundEntry {
                place: EntryLocation::Dead { reason },
                trace: trace_in(&bytes, request)?,
            })
        };
        self.search(&keys, &keys.dead(), find).await
    }

    /// The workers that may have a private list in a bucket; empty for a stream.
    async fn claimants(&self, keys: &OutboxKeys) -> Result<Vec<String>, Error> {
        if self.kind == EntryKind::Stream {
            return Ok(Vec::new());
        }
        let (key, operation) = (keys.claimants(), "reading the claimants");
        let command = redis::cmd("SMEMBERS").arg(&key).to_owned();
        let answer = self.executor.read(&key, command, operation).await?;
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
        let find = |bytes: &[u8]| trace_in(bytes, request);
        if let Some(trace) = self.search(keys, &keys.outbox(), find).await? {
            return Ok(Some(FoundEntry { place: EntryLocation::Waiting, trace }));
        }
        for worker in self.claimants(keys).await? {
            if let Some(trace) = self.search(keys, &keys.claimed(&worker), find).await? {
                return Ok(Some(FoundEntry { place: EntryLocation::Claimed { worker }, trace }));
            }
        }
        Ok(None)
    }

    async fn find_in_stream(
        &self,
        keys: &OutboxKeys,
        request: RequestId,
    ) -> Result<Option<FoundEntry>, Error> {
        let operation = "finding a request";
        let (installation, max) = (self.executor.installation, usize::try_from(PAGE).unwrap_or(1));
        let mut from = FIRST_ID.to_owned();
        loop {
            let page = ReadStream { keys, installation, from: &from, max };
            let answer = self.executor.call(page.call(), operation).await?;
            let read =
                ReadStream::parse(answer).map_err(|error| script_error(keys, operation, &error))?;
            let Some(last) = read.last() else { return Ok(None) };
            from = format!("({}", last.id);
            let found = read.into_iter().find_map(|entry| {
                let claimed = |worker| EntryLocation::Claimed { worker };
                let trace = trace_in(&entry.bytes, request)?;
                Some(FoundEntry {
                    place: entry.holder.map_or(EntryLocation::Waiting, claimed),
                    trace,
                })
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
            // The stream's group lists its consumers.
            EntryKind::Stream => Ok(()),
        }
    }

    async fn take_over(
        &self,
        worker: &str,
        predecessors: &[String],
        buckets: &[BucketKey],
    ) -> PerBucket<Vec<OutboxEntry>> {
        self.call_each(
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
        let requested = buckets.iter().filter(|(_, max)| *max > 0);
        let mut claimed = self
            .call_each(
                "claiming",
                requested.map(|(bucket, max)| (*bucket, max)),
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
        let non_empty = ended.iter().filter(|(_, ended)| !ended.is_empty());
        self.call_each(
            "acknowledging",
            non_empty.map(|(bucket, ended)| (*bucket, ended)),
            |target, ended| Acknowledge { target, worker, ended, now_ms }.call(),
            |target, ended, answer| {
                let removed = Acknowledge { target, worker, ended, now_ms }.parse(answer)?;
                let num_others = (ended.len() as u64).saturating_sub(removed);
                if num_others > 0 {
                    let key = target.keys.outbox();
                    tracing::info!(
                        key,
                        num_others,
                        "acknowledged entries: not removed, other workers hold them"
                    );
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
        let operation = "reclaiming";
        let keys = self.executor.keys(bucket);
        let reclaim = Reclaim { target: self.target(&keys), workers };
        let answer = self.executor.call(reclaim.call(), operation).await?;
        reclaim.parse(answer).map_err(|error| script_error(&keys, operation, &error))
    }

    async fn dead(&self, bucket: BucketKey, max: usize) -> Result<Vec<DeadEntry>, Error> {
        let keys = self.executor.keys(bucket);
        let Some(last) = max.checked_sub(1) else { return Ok(Vec::new()) };
        let range = (0, i64::try_from(last).unwrap_or(i64::MAX));
        let elements = self.read_list(&keys, &keys.dead(), range, "reading dead letters").await?;
        Ok(elements.iter().map(|bytes| decode_dead_letter(bytes)).collect())
    }

    async fn collect(&self, bucket: BucketKey, dead: &[DeadEntry]) -> Result<(), Error> {
        let operation = "collecting dead letters";
        if dead.is_empty() {
            return Ok(());
        }
        let (keys, installation) = (self.executor.keys(bucket), self.executor.installation);
        let collect = Collect { keys: &keys, installation, letters: dead };
        let answer = self.executor.call(collect.call(), operation).await?;
        // The count is ignored: missing dead letters were collected before.
        collect.parse(answer).map(drop).map_err(|error| script_error(&keys, operation, &error))
    }

    async fn status(&self, bucket: BucketKey) -> Result<OutboxStatus, Error> {
        let operation = "counting entries";
        let keys = self.executor.keys(bucket);
        let workers = &self.claimants(&keys).await?;
        let count = CountEntries { target: self.target(&keys), workers };
        let answer = self.executor.call(count.call(), operation).await?;
        count.parse(answer).map_err(|error| script_error(&keys, operation, &error))
    }

    async fn find(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<FoundEntry>, Error> {
        let keys = self.executor.keys(bucket);
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

/// The trace of a request; `None` if the entry does not have that request.
fn trace_in(body: &[u8], request: RequestId) -> Option<TraceId> {
    let mut intents = intents_in(body).into_iter();
    intents.find(|intent| intent.request == request).map(|intent| intent.trace)
}

/// Decodes a dead letter. Undecodable bytes become a dead letter that carries them, so that one
/// corrupt element does not block the rest.
fn decode_dead_letter(bytes: &[u8]) -> DeadEntry {
    dead_letter::unpack(bytes).unwrap_or_else(|broken| DeadEntry {
        id: bytes.into(),
        bytes: bytes::Bytes::copy_from_slice(bytes),
        reason: format!("no dead letter of this program: {broken}"),
        attempts: 0,
        dead_at_ms: 0,
    })
}
