//! What operators see of the way from outbox to broker.

use std::sync::Arc;
use std::time::Duration;

use crate::actors::outbox_relay::round_outcome::RoundCounts;
use crate::observe::metrics::{KindLabel, Metrics};
use crate::outbox;

impl Metrics {
    /// What a round of a relay came to, and how long the broker took for it.
    pub fn relayed(&self, tally: &RoundCounts, took: Duration) {
        self.relay_published.inc_by(tally.published as u64);
        if tally.published > 0 {
            self.relay_confirm.observe(took.as_secs_f64());
        }
        let RoundCounts { refused, unknown, not_sent, dead, .. } = *tally;
        let kinds =
            [("refused", refused), ("unknown", unknown), ("not_sent", not_sent), ("dead", dead)];
        for (kind, count) in kinds.into_iter().filter(|(_, count)| *count > 0) {
            self.relay_failures.get_or_create(&KindLabel { kind }).inc_by(count as u64);
        }
    }

    /// The outbox did not do what a relay asked for.
    pub fn outbox_error(&self, error: &outbox::Error) {
        let kind = match error {
            outbox::Error::Unavailable { .. } => "outbox_unavailable",
            outbox::Error::Unknown { .. } => "outbox_unknown",
            outbox::Error::Damaged { .. } => "outbox_damaged",
        };
        self.relay_failures.get_or_create(&KindLabel { kind }).inc();
    }

    /// What waits in all outboxes, in line or in hand; told by whoever rescues.
    pub fn outbox_stands(&self, num_waiting: u64, oldest: Duration) {
        self.outbox_waiting.set(i64::try_from(num_waiting).unwrap_or(i64::MAX));
        self.outbox_oldest.set(oldest.as_secs_f64());
    }

    /// Entries of workers that are gone were reclaimed.
    pub fn rescued(&self, num_entries: u64) {
        self.rescued_entries.inc_by(num_entries);
    }
}

/// One relay worker's part of the claimed entries; none when it is gone.
#[derive(Debug)]
pub struct InFlightGauge {
    metrics: Arc<Metrics>,
    count: i64,
}

impl InFlightGauge {
    /// Nothing in hand.
    #[must_use]
    pub fn new(metrics: &Arc<Metrics>) -> Self {
        Self { metrics: Arc::clone(metrics), count: 0 }
    }

    /// So many are in hand now.
    pub fn set(&mut self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.relay_hand.inc_by(count - self.count);
        self.count = count;
    }
}

impl Drop for InFlightGauge {
    fn drop(&mut self) {
        self.set(0);
    }
}
