//! What a relay worker logs when outbox or broker fail: one line at each change.

use std::collections::HashMap;
use std::time::Instant;

use super::plan::RelayPlan;
use crate::actors::outbox_relay::round_outcome::RoundOutcome;
use crate::broker::BrokerStatus;
use crate::messages::envelope;
use crate::observe::metrics::Metrics;
use crate::outbox::{EndedEntry, Error};
use crate::stock::BucketKey;

/// What fails at present.
#[derive(Debug)]
pub(super) struct FailureLog {
    worker: String,
    /// The last error of each bucket's outbox, until it answers again.
    outboxes: HashMap<BucketKey, String>,
    /// Whether a queue answered for no message of the last round.
    is_silent: bool,
}

impl FailureLog {
    pub(super) fn new(worker: &str) -> Self {
        Self { worker: worker.to_owned(), outboxes: HashMap::new(), is_silent: false }
    }

    /// Notes what one bucket's outbox answered: one log line for each error, however many buckets
    /// have it, and one when the last bucket answers again.
    pub(super) fn outbox<T>(
        &mut self,
        metrics: &Metrics,
        bucket: BucketKey,
        answer: Result<T, Error>,
    ) -> Result<T, Error> {
        let worker = &*self.worker;
        match &answer {
            Ok(_) => {
                if self.outboxes.remove(&bucket).is_some() && self.outboxes.is_empty() {
                    tracing::info!(worker, "outbox answers again");
                }
            }
            Err(error) => {
                metrics.outbox_error(error);
                let said = error.to_string();
                if self.outboxes.values().all(|known| *known != said) {
                    tracing::warn!(worker, said, "outbox failed, retrying");
                }
                self.outboxes.insert(bucket, said);
            }
        }
        answer
    }

    /// Notes how the broker is after a round. True: it takes messages again.
    pub(super) fn broker(
        &mut self,
        plan: &mut RelayPlan,
        verdict: RoundOutcome,
        reach: BrokerStatus,
        now: Instant,
    ) -> bool {
        let worker = &*self.worker;
        let RoundOutcome { away, silence, .. } = verdict;
        // Not a reason to claim nothing: it may be the fault of what this worker holds.
        if let Some(reason) = silence.as_ref().filter(|_| !self.is_silent) {
            tracing::warn!(worker, reason, "a queue of the broker answers for no message");
        }
        self.is_silent = silence.is_some();
        let away = away.or_else(|| match reach {
            BrokerStatus::Up => None,
            BrokerStatus::Blocked => {
                Some("it accepts no messages for now: memory or disk".to_owned())
            }
            BrokerStatus::Down => Some("it cannot be reached".to_owned()),
        });
        if let Some(reason) = away {
            if plan.broker_away(now) {
                tracing::warn!(worker, reason, "the broker takes nothing");
            }
            return false;
        }
        let is_back = plan.broker_well();
        if is_back {
            tracing::info!(worker, "the broker takes messages again");
        }
        is_back
    }
}

/// Each dead letter is logged, once the outbox has it.
pub(super) fn log_dead(bucket: BucketKey, ended: &[EndedEntry]) {
    let BucketKey { sku, bucket } = bucket;
    for letter in ended.iter().filter_map(|ended| ended.letter.as_ref()) {
        let (reason, requests) = (&letter.reason, envelope::requests_in(&letter.bytes));
        tracing::error!(%sku, %bucket, reason, ?requests, "an entry becomes a dead letter");
    }
}
