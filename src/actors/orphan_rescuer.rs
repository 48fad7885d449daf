//! Flow step 10/12: abandoned claims -> outbox.
//!
//! Returns the claimed entries of relay workers without a heartbeat to the outbox, so that running
//! workers publish them.
//!
//! Any number of processes may run it at once: each entry is moved by one of them. On error: the
//! next pass retries. On crash: the next rescuer, here or in another process. May repeat:
//! everything; the entries of a worker that was only slow are published twice, and the ledger
//! deduplicates by request id.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};

use super::periodic::{BucketRotation, RunResult, Task};
use crate::domain::BucketKey;
use crate::observe::metrics::Metrics;
use crate::outbox::{Error, Outbox};
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;

/// Buckets that are read or reclaimed in parallel.
const BUCKETS_IN_PARALLEL: usize = 32;

/// Reclaims abandoned outbox entries.
pub struct OrphanRescuer {
    pub outbox: Arc<dyn Outbox>,
    pub catalog: Arc<Catalog>,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl Task for OrphanRescuer {
    type State = BucketRotation;

    const FAILURE: &'static str = "orphan rescue failed, retrying";

    /// Rescues every bucket that answers; returns the first error.
    async fn run(&self, rotation: &BucketRotation) -> RunResult {
        let buckets = rotation.next(&self.catalog, self.clock.wall_ms());
        let mut outcome = Ok(());
        let reads =
            buckets.into_iter().map(|key| async move { (key, self.outbox.status(key).await) });
        let mut reads = stream::iter(reads).buffered(BUCKETS_IN_PARALLEL);
        let (mut num_entries, mut oldest_ms, mut claimants) = (0, None, Vec::new());
        let mut all_answered = true;
        while let Some((bucket, status)) = reads.next().await {
            match status {
                Ok(status) => {
                    let num_claimed: u64 = status.claimed.iter().map(|(_, num)| num).sum();
                    num_entries += status.num_waiting + num_claimed;
                    let oldest = [oldest_ms, status.oldest_waiting_ms, status.oldest_claimed_ms];
                    oldest_ms = oldest.into_iter().flatten().min();
                    let workers = status.claimed.into_iter().map(|(worker, _)| worker);
                    claimants.push((bucket, workers.collect::<Vec<_>>()));
                }
                Err(error) => {
                    all_answered = false;
                    outcome = outcome.and(Err(error));
                }
            }
        }
        let names = claimants.iter().flat_map(|(_, workers)| workers.clone()).collect();
        let silent = self.outbox.silent(&names).await;
        outcome = outcome.and(self.reclaim(claimants, &silent).await);
        let age_ms = oldest_ms.map_or(0, |oldest| self.clock.wall_ms().saturating_sub(oldest));
        let age = Duration::from_millis(u64::try_from(age_ms).unwrap_or(0));
        let mut shown = (i64::try_from(num_entries).unwrap_or(i64::MAX), age.as_secs_f64());
        let (waiting, oldest) = (&self.metrics.outbox_waiting, &self.metrics.outbox_oldest);
        if !all_answered {
            // What cannot be read is not gone.
            shown = (shown.0.max(waiting.get()), shown.1.max(oldest.get()));
        }
        waiting.set(shown.0);
        oldest.set(shown.1);
        Ok(outcome?)
    }
}

impl OrphanRescuer {
    /// Reclaims the entries of the silent workers, bucket by bucket.
    async fn reclaim(
        &self,
        claimants: Vec<(BucketKey, Vec<String>)>,
        silent: &BTreeSet<String>,
    ) -> Result<(), Error> {
        let orphans = claimants.into_iter().filter_map(|(bucket, mut workers)| {
            workers.retain(|worker| silent.contains(worker));
            (!workers.is_empty()).then_some((bucket, workers))
        });
        let reclaims = orphans
            .map(|(bucket, workers)| async move { self.outbox.reclaim(bucket, &workers).await });
        let mut reclaims = stream::iter(reclaims).buffer_unordered(BUCKETS_IN_PARALLEL);
        let (mut outcome, mut num_entries) = (Ok(()), 0);
        while let Some(reclaimed) = reclaims.next().await {
            match reclaimed {
                Ok(num) => num_entries += num,
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        self.metrics.rescued_entries.inc_by(num_entries);
        if num_entries > 0 {
            tracing::warn!(num_entries, workers = ?silent, "entries of silent workers reclaimed");
        }
        outcome
    }
}
