//! Outboxes in Redis, as lists or as streams.
//!
//! List: entries wait in a list, and each worker has a private list. A claim moves entries from the
//! head of the outbox to the tail of the private list; reclaimed entries return to the head of the
//! outbox, so that the order is kept. Stream: one consumer group whose consumers are the workers;
//! reclaimed entries belong to a consumer of their own and are claimed first.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::heartbeats::Heartbeats;
use super::{
    EntryId, EntryLocation, Error, FoundEntry, Outbox, OutboxEntry, OutboxStatus, PerBucket,
};
use crate::config::OutboxKind;
use crate::domain::{BucketKey, RequestId, TraceId};
use crate::messages::envelope::intents_in;
use crate::outbox::scripts::{self, count_entries, read_list, read_stream};
use crate::redis::executor::ScriptExecutor;
use crate::redis::scripts::{BucketKeys, ScriptCall};

/// Elements that a search reads by one call.
const PAGE: i64 = 256;

/// Smallest id of a stream.
const FIRST_ID: &str = "0-0";

/// The outboxes of all buckets in Redis, of one kind.
#[derive(Debug)]
pub struct RedisOutbox {
    executor: ScriptExecutor,
    heartbeats: Heartbeats,
    kind: OutboxKind,
}

impl RedisOutbox {
    pub fn new(executor: ScriptExecutor, kind: OutboxKind) -> Self {
        Self { heartbeats: Heartbeats::new(executor.clone()), executor, kind }
    }

    fn keys(&self, bucket: BucketKey) -> BucketKeys {
        self.executor.keys(bucket.sku, bucket.bucket)
    }

    async fn call<A>(&self, call: ScriptCall<A>, operation: &'static str) -> Result<A, Error> {
        Ok(self.executor.run(&call, operation).await?)
    }

    /// Calls a script on each bucket, all at once.
    async fn call_each<A, T>(
        &self,
        inputs: impl Iterator<Item = (BucketKey, T)>,
        call: impl Fn(&BucketKeys, T) -> ScriptCall<A>,
        operation: &'static str,
    ) -> PerBucket<A> {
        let calls = inputs.map(|(bucket, input)| {
            let call = call(&self.keys(bucket), input);
            async move { (bucket, self.call(call, operation).await) }
        });
        join_all(calls).await
    }

    /// Returns the first result of `find` among a list's elements. The list is read page by page
    /// from its end: elements are removed at the front, so an element that shifts meanwhile is read
    /// twice instead of not at all.
    async fn search<T>(
        &self,
        keys: &BucketKeys,
        list: &str,
        find: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        for page in 0.. {
            let range = (-PAGE * (page + 1), -PAGE * page - 1);
            let call = read_list(keys, list, range);
            let elements = self.call(call, "finding a request").await?;
            if elements.is_empty() {
                break;
            }
            if let Some(found) = elements.iter().find_map(|element| find(element)) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The workers that may have a private list in a bucket; empty for a stream.
    async fn claimants(&self, keys: &BucketKeys) -> Result<Vec<String>, Error> {
        if self.kind == OutboxKind::Stream {
            return Ok(Vec::new());
        }
        let (key, operation) = (keys.claimants(), "reading the claimants");
        let command = redis::cmd("SMEMBERS").arg(&key).to_owned();
        let mut names: Vec<String> = self.executor.read(&key, command, operation).await?;
        names.sort_unstable();
        Ok(names)
    }

    async fn find_in_lists(
        &self,
        keys: &BucketKeys,
        request: RequestId,
    ) -> Result<Option<FoundEntry>, Error> {
        let find = |bytes: &[u8]| trace_in(bytes, request);
        if let Some(trace) = self.search(keys, &keys.outbox(), find).await? {
            return Ok(Some(FoundEntry { location: EntryLocation::Waiting, trace }));
        }
        for worker in self.claimants(keys).await? {
            if let Some(trace) = self.search(keys, &keys.claimed(&worker), find).await? {
                return Ok(Some(FoundEntry { location: EntryLocation::Claimed { worker }, trace }));
            }
        }
        Ok(None)
    }

    async fn find_in_stream(
        &self,
        keys: &BucketKeys,
        request: RequestId,
    ) -> Result<Option<FoundEntry>, Error> {
        let max = usize::try_from(PAGE).unwrap_or(1);
        let mut from = FIRST_ID.to_owned();
        loop {
            let read = self.call(read_stream(keys, &from, max), "finding a request").await?;
            let Some(last) = read.last() else { return Ok(None) };
            from = format!("({}", last.id);
            let found = read.into_iter().find_map(|entry| {
                let claimed = |worker| EntryLocation::Claimed { worker };
                let trace = trace_in(&entry.bytes, request)?;
                Some(FoundEntry {
                    location: entry.holder.map_or(EntryLocation::Waiting, claimed),
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
    async fn renew_heartbeat(&self, worker: &str, ttl: Duration) -> Result<(), Error> {
        self.heartbeats.renew(worker, ttl).await
    }

    async fn silent(&self, workers: &BTreeSet<String>) -> BTreeSet<String> {
        self.heartbeats.silent(workers).await
    }

    async fn take_over(
        &self,
        worker: &str,
        predecessors: &[String],
        buckets: &[BucketKey],
    ) -> PerBucket<Vec<OutboxEntry>> {
        let call =
            |keys: &BucketKeys, ()| scripts::take_over(keys, self.kind, worker, predecessors);
        self.call_each(buckets.iter().map(|bucket| (*bucket, ())), call, "taking over").await
    }

    async fn claim(
        &self,
        worker: &str,
        buckets: &[(BucketKey, usize)],
    ) -> PerBucket<Vec<OutboxEntry>> {
        let requested = buckets.iter().copied().filter(|(_, max)| *max > 0);
        let call = |keys: &BucketKeys, max| scripts::claim(keys, self.kind, worker, max);
        let mut claimed = self.call_each(requested, call, "claiming").await;
        claimed.retain(|(_, entries)| !matches!(entries, Ok(entries) if entries.is_empty()));
        claimed
    }

    async fn acknowledge(
        &self,
        worker: &str,
        ended: &[(BucketKey, Vec<EntryId>)],
    ) -> PerBucket<()> {
        let non_empty = || ended.iter().filter(|(_, ended)| !ended.is_empty());
        let call = |keys: &BucketKeys, ended: &Vec<_>| {
            scripts::acknowledge(keys, self.kind, worker, ended)
        };
        let inputs = non_empty().map(|(bucket, ended)| (*bucket, ended));
        let removed = self.call_each(inputs, call, "acknowledging").await;
        for ((bucket, removed), (_, ended)) in removed.iter().zip(non_empty()) {
            let Ok(removed) = removed else { continue };
            let num_others = (ended.len() as u64).saturating_sub(*removed);
            if num_others > 0 {
                let key = self.keys(*bucket).outbox();
                tracing::info!(
                    key,
                    num_others,
                    "acknowledged entries: not removed, other workers hold them"
                );
            }
        }
        removed.into_iter().map(|(bucket, removed)| (bucket, removed.map(drop))).collect()
    }

    async fn reclaim(&self, bucket: BucketKey, workers: &[String]) -> Result<u64, Error> {
        if workers.is_empty() {
            return Ok(0);
        }
        self.call(scripts::reclaim(&self.keys(bucket), self.kind, workers), "reclaiming").await
    }

    async fn status(&self, bucket: BucketKey) -> Result<OutboxStatus, Error> {
        let keys = self.keys(bucket);
        let workers = self.claimants(&keys).await?;
        self.call(count_entries(&keys, self.kind, workers), "counting entries").await
    }

    async fn find(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<FoundEntry>, Error> {
        let keys = self.keys(bucket);
        match self.kind {
            OutboxKind::List => self.find_in_lists(&keys, request).await,
            OutboxKind::Stream => self.find_in_stream(&keys, request).await,
        }
    }
}

/// The trace of a request; `None` if the entry does not have that request.
fn trace_in(body: &[u8], request: RequestId) -> Option<TraceId> {
    let mut intents = intents_in(body).into_iter();
    intents.find(|intent| intent.request == request).map(|intent| intent.trace)
}
