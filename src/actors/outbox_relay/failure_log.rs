//! Logs failures of outbox and broker, one line per change of state.

use std::collections::HashMap;
use std::time::Instant;

use super::plan::RelayPlan;
use crate::actors::outbox_relay::round_outcome::RoundOutcome;
use crate::broker::BrokerStatus;
use crate::domain::BucketKey;
use crate::messages::envelope;
use crate::observe::metrics::Metrics;
use crate::outbox::{EndedEntry, Error};

/// The present failures of one worker.
#[derive(Debug)]
pub(super) struct FailureLog {
    worker: String,
    /// The last error of each bucket's outbox, until a call succeeds.
    outboxes: HashMap<BucketKey, String>,
    /// Whether a queue confirmed no message of the last round.
    is_queue_stalled: bool,
}

impl FailureLog {
    pub(super) fn new(worker: &str) -> Self {
        Self { worker: worker.to_owned(), outboxes: HashMap::new(), is_queue_stalled: false }
    }

    /// Logs and counts the result of an outbox call, and returns it. One line per error text,
    /// however many buckets have it, and one when the last failing bucket recovers.
    pub(super) fn record_outbox<T>(
        &mut self,
        metrics: &Metrics,
        bucket: BucketKey,
        answer: Result<T, Error>,
    ) -> Result<T, Error> {
        let worker = &*self.worker;
        match &answer {
            Ok(_) => {
                if self.outboxes.remove(&bucket).is_some() && self.outboxes.is_empty() {
                    tracing::info!(worker, "outbox: available again");
                }
            }
            Err(error) => {
                metrics.outbox_error(error);
                let error = error.to_string();
                if self.outboxes.values().all(|known| *known != error) {
                    tracing::warn!(worker, error, "outbox failed, retrying");
                }
                self.outboxes.insert(bucket, error);
            }
        }
        answer
    }

    /// Updates the plan's broker state after a round and logs changes. Returns whether the broker
    /// became available.
    pub(super) fn record_broker(
        &mut self,
        plan: &mut RelayPlan,
        outcome: RoundOutcome,
        status: BrokerStatus,
        now: Instant,
    ) -> bool {
        let worker = &*self.worker;
        let RoundOutcome { unavailable, stalled_queue, .. } = outcome;
        // Claiming goes on: the entries of this worker may be the cause.
        if let Some(reason) = stalled_queue.as_ref().filter(|_| !self.is_queue_stalled) {
            tracing::warn!(worker, reason, "broker queue confirms nothing, retrying");
        }
        self.is_queue_stalled = stalled_queue.is_some();
        let unavailable = unavailable.or_else(|| match status {
            BrokerStatus::Up => None,
            BrokerStatus::Blocked => {
                Some("it accepts no messages for now: memory or disk".to_owned())
            }
            BrokerStatus::Down => Some("it cannot be reached".to_owned()),
        });
        if let Some(reason) = unavailable {
            if plan.set_broker_unavailable(now) {
                tracing::warn!(worker, reason, "broker unavailable, publishing paused");
            }
            return false;
        }
        let has_recovered = plan.set_broker_available();
        if has_recovered {
            tracing::info!(worker, "broker available, publishing resumed");
        }
        has_recovered
    }
}

/// Logs each dead letter, after the outbox has stored it.
pub(super) fn log_dead_letters(bucket: BucketKey, ended: &[EndedEntry]) {
    let BucketKey { sku, bucket } = bucket;
    for dead_letter in ended.iter().filter_map(|ended| ended.dead_letter.as_ref()) {
        let (reason, requests) = (&dead_letter.reason, envelope::requests_in(&dead_letter.bytes));
        tracing::error!(%sku, %bucket, reason, ?requests, "outbox entry given up: dead letter");
    }
}
