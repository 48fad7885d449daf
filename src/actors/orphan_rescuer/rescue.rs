//! One look of the rescuer.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;

use super::RescuerDeps;
use crate::outbox::{Error, OutboxStatus};
use crate::stock::BucketKey;

/// Buckets that are looked at at the same time.
const LOOKS_AT_ONCE: usize = 32;

/// What all outboxes hold.
#[derive(Debug, Default)]
pub(super) struct OutboxTotals {
    /// Entries that wait or are claimed.
    pub num_waiting: u64,
    /// When the oldest of them was accepted.
    pub oldest_ms: Option<i64>,
    /// The first error, after everything else was looked at.
    pub failure: Option<Error>,
}

impl OutboxTotals {
    fn add(&mut self, standing: &OutboxStatus) {
        let in_hand: u64 = standing.in_hand.iter().map(|(_, num)| num).sum();
        self.num_waiting += standing.num_waiting + in_hand;
        let oldest = [self.oldest_ms, standing.oldest_waiting_ms, standing.oldest_in_hand_ms];
        self.oldest_ms = oldest.into_iter().flatten().min();
    }
}

/// Returns to the outboxes what belongs to workers that are silent. Safe with several at once: what
/// one has moved, another does not find, and a worker that was only slow publishes twice.
pub(super) async fn rescue(deps: &RescuerDeps, buckets: &[BucketKey]) -> OutboxTotals {
    let outbox = &deps.outbox;
    let mut survey =
        OutboxTotals { failure: outbox.restore_claimants().await.err(), ..OutboxTotals::default() };
    let looks =
        buckets.iter().map(|bucket| async move { (*bucket, outbox.standing(*bucket).await) });
    let looks = futures_util::stream::iter(looks.collect::<Vec<_>>());
    let mut claimants = Vec::new();
    for (bucket, standing) in looks.buffered(LOOKS_AT_ONCE).collect::<Vec<_>>().await {
        match standing {
            Ok(standing) => {
                survey.add(&standing);
                claimants.extend(standing.in_hand.into_iter().map(|(worker, _)| (bucket, worker)));
            }
            // One bucket that cannot be read keeps no other from being looked at.
            Err(error) => {
                survey.failure.get_or_insert(error);
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
        survey.failure.get_or_insert(error);
    }
    survey
}

/// Reclaims in each bucket what these workers hold there.
async fn reclaim(
    deps: &RescuerDeps,
    orphans: &[(BucketKey, Vec<String>)],
    workers: &BTreeSet<String>,
) -> Result<(), Error> {
    let back = orphans.iter().map(|(bucket, workers)| deps.outbox.reclaim(*bucket, workers));
    let back = futures_util::stream::iter(back.collect::<Vec<_>>());
    let (mut outcome, mut num_entries) = (Ok(()), 0);
    for reclaimed in back.buffer_unordered(LOOKS_AT_ONCE).collect::<Vec<_>>().await {
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

/// How old something of that time is.
pub(super) fn age(oldest_ms: Option<i64>, wall_ms: i64) -> Duration {
    let ms = oldest_ms.map_or(0, |oldest| wall_ms.saturating_sub(oldest));
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
