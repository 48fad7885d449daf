//! Entries in a list of Redis, and a list for each worker's hand.
//!
//! Claiming moves entries from the head of the one to the tail of the other; what is given back
//! goes in front of the line again, so that the order stays.

use async_trait::async_trait;

use super::claiming::{Claimed, Core, OutboxOptions, trace_in};
use super::wire::{damaged, told};
use super::{DeadEntry, Error, Fate, Found, Hand, Outbox, Place, Standing, Worker};
use crate::domain::{RequestId, TraceId};
use crate::scripts;
use crate::scripts::OutboxKeys;
use crate::scripts::outbox::{Line, ReadList, StandingOf};
use crate::stock::BucketKey;

/// How often a count begins anew because workers came or went meanwhile.
const COUNTS_MAX: u32 = 5;

/// Entries that a search reads at once.
const PAGE: i64 = 256;

/// Outboxes in lists.
#[derive(Debug)]
pub struct ListOutbox {
    core: Core,
}

impl ListOutbox {
    /// Outboxes that connect when they are first asked.
    #[must_use]
    pub fn new(options: OutboxOptions) -> Self {
        Self { core: Core::new(options, Line::List) }
    }

    /// The workers that have begun in a bucket.
    async fn workers(&self, keys: &OutboxKeys, doing: &'static str) -> Result<Vec<String>, Error> {
        let key = keys.claims();
        let command = redis::cmd("HKEYS").arg(&key).to_owned();
        let answer = self.core.wire.read(&key, command, doing).await?;
        let names: Result<Vec<String>, _> = redis::from_redis_value(answer);
        let mut names = names.map_err(|error| damaged(&key, &error))?;
        names.sort_unstable();
        Ok(names)
    }

    /// The trace of the request, where a list of entries has it. Read from its end: entries leave
    /// in front, and what moves on meanwhile is read once more instead of not at all.
    async fn trace_in(
        &self,
        keys: &OutboxKeys,
        list: &str,
        request: RequestId,
    ) -> Result<Option<TraceId>, Error> {
        let doing = "looking for a request";
        for page in 0.. {
            let places = (-PAGE * (page + 1), -PAGE * page - 1);
            let installation = self.core.wire.installation;
            let door = ReadList { keys, installation, list, places };
            let answer = self.core.wire.ask(door.call(), doing).await?;
            let entries = door.parse_entries(answer).map_err(|error| told(keys, doing, &error))?;
            let found = entries.iter().find_map(|entry| trace_in(&entry.bytes, request));
            if found.is_some() {
                return Ok(found);
            }
            if entries.is_empty() {
                break;
            }
        }
        Ok(None)
    }
}

#[async_trait]
impl Outbox for ListOutbox {
    async fn in_hand(&self, bucket: BucketKey, worker: &Worker) -> Result<Hand, Error> {
        self.core.in_hand(bucket, worker).await
    }

    async fn claim(&self, worker: &Worker, buckets: &[(BucketKey, usize)]) -> Vec<Claimed> {
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
        let mut changed = scripts::Error::Changed;
        for _ in 0..COUNTS_MAX {
            let workers = &self.workers(&keys, doing).await?;
            let door = StandingOf { keys: &keys, installation, line: Line::List, workers };
            let answer = self.core.wire.ask(door.call(), doing).await?;
            match door.parse(answer) {
                Ok(standing) => return Ok(standing),
                Err(error @ scripts::Error::Changed) => changed = error,
                Err(error) => return Err(told(&keys, doing, &error)),
            }
        }
        Err(told(&keys, doing, &changed))
    }

    async fn find(&self, bucket: BucketKey, request: RequestId) -> Result<Option<Found>, Error> {
        let keys = self.core.wire.keys(bucket);
        if let Some(trace) = self.trace_in(&keys, &keys.line(), request).await? {
            return Ok(Some(Found { place: Place::Waiting, trace }));
        }
        for worker in self.workers(&keys, "looking for a request").await? {
            if let Some(trace) = self.trace_in(&keys, &keys.hand(&worker), request).await? {
                return Ok(Some(Found { place: Place::InHand { worker }, trace }));
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
}
