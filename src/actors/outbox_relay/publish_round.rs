//! The messages of one round, and what their publish outcomes mean for the entries. Pure.

use std::collections::HashSet;
use std::iter::repeat_with;
use std::time::Instant;

use bytes::Bytes;

use super::plan::{InFlight, NO_JITTER, RelayPlan};
use crate::broker::{Message, PublishOutcome, Route};
use crate::domain::BucketKey;
use crate::messages::envelope;
use crate::outbox::{NewOutboxDeadLetter, OutboxEntry};

/// The result of one round.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RoundOutcome {
    /// Why messages were not sent, if no queue answered.
    pub unavailable: Option<String>,
    /// Why a message has no confirm, if its queue answered for none of its messages.
    pub stalled_queue: Option<String>,
}

impl RelayPlan {
    /// Takes the entries that are due, encoded as messages, until [`Self::apply_outcomes`].
    pub fn take_due(
        &mut self,
        now: Instant,
        sent_at_ms: i64,
    ) -> (Vec<Message>, Vec<(BucketKey, InFlight)>) {
        let (mut messages, mut batch) = (Vec::new(), Vec::new());
        for (key, bucket) in &mut self.buckets {
            let route = Route::orders_of(*key, self.queues);
            let confirmed = self.confirmed.get(&route).copied().unwrap_or(0);
            for mut in_flight in bucket.in_flight.extract_if(.., |entry| entry.due <= now) {
                in_flight.confirmed_before.get_or_insert(confirmed);
                let body = in_flight.entry.bytes.clone();
                let headers = envelope::headers(&body, &self.installation, sent_at_ms);
                messages.push(Message { route, headers, body });
                batch.push((*key, in_flight));
            }
        }
        (messages, batch)
    }

    /// Applies the publish outcomes of a batch to its entries.
    ///
    /// A refusal counts as an attempt if the same queue has confirmed another message since the
    /// entry's last counted attempt: only then is the entry the cause. A message without a confirm
    /// never counts as an attempt.
    pub fn apply_outcomes(
        &mut self,
        batch: Vec<(BucketKey, InFlight)>,
        outcomes: Vec<PublishOutcome>,
        now: Instant,
    ) -> RoundOutcome {
        let missing = || PublishOutcome::Unknown { reason: "there was no result".to_owned() };
        let published: Vec<_> =
            batch.into_iter().zip(outcomes.into_iter().chain(repeat_with(missing))).collect();
        let queues = self.queues;
        let route_of = |key: &BucketKey| Route::orders_of(*key, queues);
        let mut answering = HashSet::new();
        for ((key, _), outcome) in &published {
            if *outcome == PublishOutcome::Confirmed {
                *self.confirmed.entry(route_of(key)).or_default() += 1;
            }
            if matches!(outcome, PublishOutcome::Confirmed | PublishOutcome::Refused { .. }) {
                answering.insert(route_of(key));
            }
        }
        let mut round = RoundOutcome::default();
        for ((key, mut in_flight), outcome) in published {
            let route = route_of(&key);
            let Some(bucket) = self.buckets.get_mut(&key) else { continue };
            match outcome {
                PublishOutcome::Confirmed => {
                    bucket.ended.push(OutboxEntry { bytes: Bytes::new(), ..in_flight.entry });
                    continue;
                }
                PublishOutcome::Refused { reason } => {
                    let confirmed = self.confirmed.get(&route).copied().unwrap_or(0);
                    if in_flight.confirmed_before.is_some_and(|before| before < confirmed) {
                        in_flight.confirmed_before = Some(confirmed);
                        in_flight.attempts += 1;
                    }
                    if in_flight.attempts >= self.settings.attempts_max {
                        let InFlight { mut entry, attempts, .. } = in_flight;
                        let bytes = std::mem::take(&mut entry.bytes);
                        let reason = format!("refused in {attempts} attempts, last: {reason}");
                        entry.dead_letter = Some(NewOutboxDeadLetter { bytes, reason, attempts });
                        bucket.ended.push(entry);
                        continue;
                    }
                    in_flight.due = now + in_flight.backoff.next_wait(NO_JITTER);
                }
                PublishOutcome::Unknown { reason } => {
                    if !answering.contains(&route) {
                        round.stalled_queue.get_or_insert(reason);
                    }
                    in_flight.due = now + in_flight.backoff.next_wait(NO_JITTER);
                }
                PublishOutcome::NotSent { reason } => {
                    // Rounds with a queue that answers nothing are long; the others need not wait.
                    if !answering.is_empty() && !answering.contains(&route) {
                        in_flight.due = now + in_flight.backoff.next_wait(NO_JITTER);
                    }
                    round.unavailable.get_or_insert(reason);
                }
            }
            bucket.in_flight.push(in_flight);
        }
        if !answering.is_empty() {
            round.unavailable = None;
        }
        round
    }
}
