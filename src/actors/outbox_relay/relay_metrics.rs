//! Metrics of the relay workers and the outbox.

use std::time::Duration;

use crate::broker::PublishOutcome;
use crate::observe::metrics::{KindLabel, Metrics};
use crate::outbox;

impl Metrics {
    /// Counts the entries of a round by outcome; `took` is the time until the confirms.
    pub fn relayed(&self, outcomes: &[PublishOutcome], took: Duration) {
        let mut num_confirmed = 0;
        for outcome in outcomes {
            match outcome {
                PublishOutcome::Confirmed => num_confirmed += 1,
                PublishOutcome::Refused { .. } => self.relay_failed("refused", 1),
                PublishOutcome::Unknown { .. } => self.relay_failed("unknown", 1),
                PublishOutcome::NotSent { .. } => self.relay_failed("not_sent", 1),
            }
        }
        self.relay_published.inc_by(num_confirmed);
        if num_confirmed > 0 {
            self.relay_confirm.observe(took.as_secs_f64());
        }
    }

    /// Counts entries of one kind of failure.
    pub fn relay_failed(&self, kind: &'static str, count: usize) {
        if count > 0 {
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
        self.relay_failed(kind, 1);
    }

    /// Sets the number of entries in all outboxes, waiting or claimed, and the age of the oldest.
    pub fn set_outbox_backlog(&self, num_waiting: u64, oldest: Duration) {
        self.outbox_waiting.set(i64::try_from(num_waiting).unwrap_or(i64::MAX));
        self.outbox_oldest.set(oldest.as_secs_f64());
    }
}
