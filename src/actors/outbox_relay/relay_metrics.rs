//! Metrics of the relay workers and the outbox.

use std::sync::Arc;
use std::time::Duration;

use crate::actors::outbox_relay::round_outcome::RoundCounts;
use crate::observe::metrics::{KindLabel, Metrics};
use crate::outbox;

impl Metrics {
    /// Counts the entries of a round by outcome; `took` is the time until the confirms.
    pub fn relayed(&self, counts: &RoundCounts, took: Duration) {
        self.relay_published.inc_by(counts.published as u64);
        if counts.published > 0 {
            self.relay_confirm.observe(took.as_secs_f64());
        }
        let RoundCounts { refused, unknown, not_sent, dead, .. } = *counts;
        let kinds =
            [("refused", refused), ("unknown", unknown), ("not_sent", not_sent), ("dead", dead)];
        for (kind, count) in kinds.into_iter().filter(|(_, count)| *count > 0) {
            self.relay_failures.get_or_create(&KindLabel { kind }).inc_by(count as u64);
        }
    }

    /// Counts a failed outbox call of a relay.
    pub fn outbox_error(&self, error: &outbox::Error) {
        let kind = match error {
            outbox::Error::Unavailable { .. } => "outbox_unavailable",
            outbox::Error::Unknown { .. } => "outbox_unknown",
            outbox::Error::Damaged { .. } => "outbox_damaged",
        };
        self.relay_failures.get_or_create(&KindLabel { kind }).inc();
    }

    /// Sets the number of entries in all outboxes, waiting or claimed, and the age of the oldest.
    pub fn set_outbox_backlog(&self, num_waiting: u64, oldest: Duration) {
        self.outbox_waiting.set(i64::try_from(num_waiting).unwrap_or(i64::MAX));
        self.outbox_oldest.set(oldest.as_secs_f64());
    }

    /// Counts reclaimed entries.
    pub fn rescued(&self, num_entries: u64) {
        self.rescued_entries.inc_by(num_entries);
    }
}

/// One worker's share of the gauge of claimed entries; zero after drop.
#[derive(Debug)]
pub struct InFlightGauge {
    metrics: Arc<Metrics>,
    count: i64,
}

impl InFlightGauge {
    #[must_use]
    pub fn new(metrics: &Arc<Metrics>) -> Self {
        Self { metrics: Arc::clone(metrics), count: 0 }
    }

    /// Sets the worker's share.
    pub fn set(&mut self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.relay_in_flight.inc_by(count - self.count);
        self.count = count;
    }
}

impl Drop for InFlightGauge {
    fn drop(&mut self) {
        self.set(0);
    }
}
