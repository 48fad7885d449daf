//! Collects from the outboxes the dead entries that relays gave up.

use std::collections::BTreeMap;
use std::time::Duration;

use super::CollectorDeps;
use crate::actors::dead_letter_collector::store::{PendingDeadLetter, StoreOutcome, store};
use crate::actors::served::BucketRotation;
use crate::domain::{BucketKey, BucketNo, SkuNo};
use crate::outbox::{self, DeadEntry};
use crate::runtime::backoff::Backoff;
use crate::services::dead_letters::headers;

/// Rounds between two counts of the dead letters in the ledger.
const ROUNDS_PER_COUNT: u32 = 10;

/// Collects from all outboxes.
pub(super) struct OutboxCollector {
    /// Dead entries to store, and those set aside; all are still in their outbox.
    pending: Vec<PendingDeadLetter<(BucketKey, DeadEntry)>>,
    rounds: u32,
    buckets: BucketRotation,
    every: Duration,
    backoff: Backoff,
    initial_backoff: Backoff,
    /// The last error, until a round succeeds. Logged when it changes.
    last_error: Option<String>,
}

impl OutboxCollector {
    pub(super) fn new(deps: &CollectorDeps) -> Self {
        let backoff = Backoff::new(deps.backoff_min_ms, deps.backoff_max_ms);
        Self {
            pending: Vec::new(),
            rounds: 0,
            buckets: BucketRotation::default(),
            every: Duration::from_millis(deps.every_ms.max(1)),
            backoff,
            initial_backoff: backoff,
            last_error: None,
        }
    }

    /// Reads the dead entries of every outbox, stores them, and removes the stored ones. Returns
    /// the pause before the next round.
    pub(super) async fn round(&mut self, deps: &CollectorDeps) -> Duration {
        let result = self.try_round(deps).await;
        self.report_counts(deps).await;
        match result {
            Ok(()) => {
                self.last_error = None;
                self.backoff = self.initial_backoff;
                self.every
            }
            Err(error) => {
                if self.last_error.as_ref() != Some(&error) {
                    tracing::warn!(error, "dead entries not stored, retrying");
                    self.last_error = Some(error);
                }
                self.every.max(self.backoff.next_wait(fastrand::f64()))
            }
        }
    }

    async fn try_round(&mut self, deps: &CollectorDeps) -> Result<(), String> {
        let mut result = Ok(());
        for key in self.buckets.next(&deps.catalog, deps.clock.wall_ms()) {
            if let Err(error) = self.read(deps, key).await {
                result = Err(error.to_string());
            }
        }
        let StoreOutcome { stored, unavailable } = store(deps, &mut self.pending).await;
        // Crash here [entry_kept_not_collected]: the dead letter is in the ledger and the entry in
        // its outbox; the next round reads it again, and the ledger recognizes its digest.
        let mut by_bucket: BTreeMap<(SkuNo, BucketNo), Vec<DeadEntry>> = BTreeMap::new();
        for (key, entry) in stored {
            by_bucket.entry((key.sku, key.bucket)).or_default().push(entry);
        }
        for ((sku, bucket), entries) in by_bucket {
            let key = BucketKey { sku, bucket };
            if let Err(error) = deps.pipeline.outbox.collect(key, &entries).await {
                result = Err(error.to_string());
            }
        }
        match unavailable {
            Some(error) => Err(format!("{error} ({:?})", error.class())),
            None => result,
        }
    }

    /// Adds the dead entries of one outbox that are not pending yet.
    async fn read(&mut self, deps: &CollectorDeps, key: BucketKey) -> Result<(), outbox::Error> {
        let max = usize::from(deps.dead_letters_max);
        let capacity = max.saturating_sub(self.pending.len());
        if capacity == 0 {
            return Ok(());
        }
        let mut num_added = 0;
        for entry in deps.pipeline.outbox.dead(key, max).await? {
            let is_same = |pending: &PendingDeadLetter<(BucketKey, DeadEntry)>| {
                let (bucket, other) = &pending.source;
                *bucket == key && other.id == entry.id && other.bytes == entry.bytes
            };
            if num_added == capacity || self.pending.iter().any(is_same) {
                continue;
            }
            num_added += 1;
            let dead_letter = headers::from_outbox_entry(&entry, &deps.pipeline.installation);
            self.pending.push(PendingDeadLetter::new(dead_letter, (key, entry)));
        }
        Ok(())
    }

    /// Sets the gauges of dead letters every [`ROUNDS_PER_COUNT`] rounds, because the query counts
    /// all rows.
    async fn report_counts(&mut self, deps: &CollectorDeps) {
        if self.rounds.is_multiple_of(ROUNDS_PER_COUNT)
            && let Ok(counts) = deps.ledger.count_dead_letters().await
        {
            deps.metrics.dead_letters(counts);
        }
        self.rounds = self.rounds.wrapping_add(1);
    }
}
