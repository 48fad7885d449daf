//! The dead letters of the outboxes: entries that relays gave up.

use std::collections::HashMap;
use std::sync::Arc;

use super::CollectorDeps;
use super::source_collector::{DeadLetterSource, Pending, PendingDeadLetter};
use crate::actors::periodic::BucketRotation;
use crate::domain::BucketKey;
use crate::outbox::{self, OutboxDeadLetter};
use crate::services::dead_letters::new_dead_letter;
use crate::tier::Pipeline;

/// All outboxes.
pub(super) struct OutboxSource {
    deps: Arc<CollectorDeps>,
    buckets: BucketRotation,
}

type Key = (BucketKey, OutboxDeadLetter);

impl DeadLetterSource for OutboxSource {
    type Key = Key;

    const FAILURE: &'static str = "dead letters of the outbox not stored, retrying";
    const IS_POLLED: bool = true;

    /// Reads every outbox; returns the last error.
    async fn receive(&mut self, pending: &mut Pending<Key>) -> Result<(), String> {
        let deps = &self.deps;
        let mut result = Ok(());
        for key in self.buckets.next(&deps.catalog, deps.clock.wall_ms()) {
            if let Err(error) = self.read(key, pending).await {
                result = Err(error.to_string());
            }
        }
        result
    }

    /// Removes the dead letters from every outbox.
    async fn remove(&mut self, stored: Vec<Key>, _: usize) -> Result<(), String> {
        let mut by_bucket: HashMap<BucketKey, Vec<OutboxDeadLetter>> = HashMap::new();
        for (key, dead_letter) in stored {
            by_bucket.entry(key).or_default().push(dead_letter);
        }
        let mut result = Ok(());
        for (key, dead_letters) in by_bucket {
            if let Err(error) = self.deps.pipeline.outbox.collect(key, &dead_letters).await {
                result = Err(error.to_string());
            }
        }
        result
    }
}

impl OutboxSource {
    pub(super) fn new(deps: Arc<CollectorDeps>) -> Self {
        Self { deps, buckets: BucketRotation::default() }
    }

    /// Adds the dead letters of one outbox that are not pending yet.
    async fn read(&self, key: BucketKey, pending: &mut Pending<Key>) -> Result<(), outbox::Error> {
        let Pipeline { outbox, reader, .. } = &self.deps.pipeline;
        let mut capacity = self.deps.capacity(pending.len());
        if capacity == 0 {
            return Ok(());
        }
        for found in outbox.dead(key, usize::from(self.deps.dead_letters_max())).await? {
            let is_same = |pending: &PendingDeadLetter<Key>| {
                let (bucket, other) = &pending.key;
                *bucket == key && other.id == found.id && other.bytes == found.bytes
            };
            if capacity > 0 && !pending.iter().any(is_same) {
                capacity -= 1;
                let dead_letter = new_dead_letter::from_outbox(&found, reader);
                pending.push(PendingDeadLetter::new(dead_letter, (key, found)));
            }
        }
        Ok(())
    }
}
