//! One pass of the rescuer.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;

use super::RescuerDeps;
use crate::domain::BucketKey;
use crate::outbox::{Error, OutboxStatus};

/// Buckets that are read or reclaimed in parallel.
const BUCKETS_IN_PARALLEL: usize = 32;

/// The sums over all outboxes.
#[derive(Debug, Default)]
pub(super) struct OutboxTotals {
    /// Entries, waiting or claimed.
    pub num_waiting: u64,
    /// Acceptance time of the oldest entry, epoch milliseconds.
    pub oldest_ms: Option<i64>,
    /// The first error; the other buckets were rescued.
    pub error: Option<Error>,
}

impl OutboxTotals {
    fn add(&mut self, status: &OutboxStatus) {
        let num_claimed: u64 = status.claimed.iter().map(|(_, num)| num).sum();
        self.num_waiting += status.num_waiting + num_claimed;
        let oldest = [self.oldest_ms, status.oldest_waiting_ms, status.oldest_claimed_ms];
        self.oldest_ms = oldest.into_iter().flatten().min();
    }
}

/// Returns the claimed entries of workers without a heartbeat to their outboxes. Safe with several
/// rescuers at once: each entry is moved by one of them. If a worker was only slow, its entries are
/// published twice.
pub(super) async fn rescue(deps: &RescuerDeps, buckets: &[BucketKey]) -> OutboxTotals {
    let outbox = &deps.outbox;
    let mut totals =
        OutboxTotals { error: outbox.restore_claimants().await.err(), ..OutboxTotals::default() };
    let reads = buckets.iter().map(|bucket| async move { (*bucket, outbox.status(*bucket).await) });
    let reads = futures_util::stream::iter(reads.collect::<Vec<_>>());
    let mut claimants = Vec::new();
    for (bucket, status) in reads.buffered(BUCKETS_IN_PARALLEL).collect::<Vec<_>>().await {
        match status {
            Ok(status) => {
                totals.add(&status);
                claimants.extend(status.claimed.into_iter().map(|(worker, _)| (bucket, worker)));
            }
            Err(error) => {
                totals.error.get_or_insert(error);
            }
        }
    }
    let names = claimants.iter().map(|(_, worker)| worker.clone()).collect();
    let silent = outbox.silent(&names).await;
    let mut orphans: Vec<(BucketKey, Vec<String>)> = Vec::new();
    for (bucket, worker) in claimants.into_iter().filter(|(_, worker)| silent.contains(worker)) {
        match orphans.last_mut() {
            Some((last, workers)) if *last == bucket => workers.push(worker),
            _ => orphans.push((bucket, vec![worker])),
        }
    }
    if let Err(error) = reclaim(deps, &orphans, &silent).await {
        totals.error.get_or_insert(error);
    }
    totals
}

/// Reclaims the entries of these workers, bucket by bucket; `workers` is logged.
async fn reclaim(
    deps: &RescuerDeps,
    orphans: &[(BucketKey, Vec<String>)],
    workers: &BTreeSet<String>,
) -> Result<(), Error> {
    let reclaims = orphans.iter().map(|(bucket, workers)| deps.outbox.reclaim(*bucket, workers));
    let reclaims = futures_util::stream::iter(reclaims.collect::<Vec<_>>());
    let (mut outcome, mut num_entries) = (Ok(()), 0);
    for reclaimed in reclaims.buffer_unordered(BUCKETS_IN_PARALLEL).collect::<Vec<_>>().await {
        match reclaimed {
            Ok(num) => num_entries += num,
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    deps.metrics.rescued(num_entries);
    if num_entries > 0 {
        tracing::warn!(num_entries, ?workers, "entries of silent workers reclaimed");
    }
    outcome
}

/// The age of an entry accepted at `oldest_ms`; zero without an entry.
pub(super) fn age(oldest_ms: Option<i64>, wall_ms: i64) -> Duration {
    let ms = oldest_ms.map_or(0, |oldest| wall_ms.saturating_sub(oldest));
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
