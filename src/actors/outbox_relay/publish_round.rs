//! The messages of one round, and what their publish outcomes mean for the entries. Pure.

use std::collections::HashSet;
use std::iter::repeat_with;
use std::time::Instant;

use super::plan::{InFlight, NO_JITTER, RelayPlan};
use crate::broker::{Message, PublishOutcome, Route};
use crate::domain::{BucketKey, RequestId};
use crate::messages::envelope;

/// The result of one round.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RoundOutcome {
    /// Why messages were not sent, if no queue answered.
    pub unavailable: Option<String>,
    /// Why a queue answers for none of its messages, or refuses a dead letter.
    pub stalled_queue: Option<String>,
    /// The confirmed dead letters: the readable requests of the entry, and why it was given up.
    pub dead_letters: Vec<(BucketKey, Vec<RequestId>, String)>,
}

impl InFlight {
    /// Where its message goes: to `orders`, or to the dead letters once it is given up.
    fn route(&self, orders: Route) -> Route {
        if self.given_up.is_some() { Route::Dead } else { orders }
    }

    fn message(&self, orders: Route, installation: &str, sent_at_ms: i64) -> Message {
        let bytes = &self.entry.bytes;
        match &self.given_up {
            Some(reason) => {
                envelope::dead_letter_of_entry(bytes, installation, self.attempts, reason)
            }
            None => Message {
                route: orders,
                headers: envelope::headers(bytes, installation, sent_at_ms),
                body: bytes.clone(),
            },
        }
    }

    /// Counts a refusal as an attempt if its queue has confirmed messages since the last counted
    /// one; `confirmed`: those of its queue. After `attempts_max` attempts the entry is given up:
    /// it is due at once, as a dead letter.
    fn record_refusal(&mut self, reason: &str, confirmed: u64, attempts_max: u32, now: Instant) {
        if self.confirmed_before.is_some_and(|before| before < confirmed) {
            self.confirmed_before = Some(confirmed);
            self.attempts += 1;
        }
        let attempts = self.attempts;
        self.due = now + self.backoff.next_wait(NO_JITTER);
        if attempts >= attempts_max {
            self.given_up = Some(format!("refused in {attempts} attempts, last: {reason}"));
            self.due = now;
        }
    }
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
            let orders = Route::orders_of(*key, self.queues);
            let confirmed = self.confirmed.get(&orders).copied().unwrap_or(0);
            for mut in_flight in bucket.in_flight.extract_if(.., |entry| entry.due <= now) {
                in_flight.confirmed_before.get_or_insert(confirmed);
                messages.push(in_flight.message(orders, &self.installation, sent_at_ms));
                batch.push((*key, in_flight));
            }
        }
        (messages, batch)
    }

    /// Applies the publish outcomes of a batch to its entries.
    ///
    /// A refusal counts as an attempt if the same queue has confirmed another message since the
    /// entry's last counted attempt: only then is the entry the cause. A message without a confirm
    /// never counts as an attempt. An entry that is given up stays claimed until its dead letter is
    /// confirmed.
    pub fn apply_outcomes(
        &mut self,
        batch: Vec<(BucketKey, InFlight)>,
        outcomes: Vec<PublishOutcome>,
        now: Instant,
    ) -> RoundOutcome {
        let missing = || PublishOutcome::Unknown { reason: "there was no result".to_owned() };
        let published: Vec<_> =
            batch.into_iter().zip(outcomes.into_iter().chain(repeat_with(missing))).collect();
        let (queues, attempts_max) = (self.queues, self.settings.attempts_max);
        let route_of =
            |key: &BucketKey, in_flight: &InFlight| in_flight.route(Route::orders_of(*key, queues));
        let mut answering = HashSet::new();
        for ((key, in_flight), outcome) in &published {
            let route = route_of(key, in_flight);
            if *outcome == PublishOutcome::Confirmed {
                *self.confirmed.entry(route).or_default() += 1;
            }
            if matches!(outcome, PublishOutcome::Confirmed | PublishOutcome::Refused { .. }) {
                answering.insert(route);
            }
        }
        let mut round = RoundOutcome::default();
        for ((key, mut in_flight), outcome) in published {
            let route = route_of(&key, &in_flight);
            let Some(bucket) = self.buckets.get_mut(&key) else { continue };
            match outcome {
                PublishOutcome::Confirmed => {
                    if let Some(reason) = in_flight.given_up {
                        let requests = envelope::requests_in(&in_flight.entry.bytes);
                        round.dead_letters.push((key, requests, reason));
                    }
                    bucket.ended.push(in_flight.entry.id);
                    continue;
                }
                PublishOutcome::Refused { reason } if in_flight.given_up.is_some() => {
                    round.stalled_queue.get_or_insert(reason);
                    in_flight.due = now + in_flight.backoff.next_wait(NO_JITTER);
                }
                PublishOutcome::Refused { reason } => {
                    let confirmed = self.confirmed.get(&route).copied().unwrap_or(0);
                    in_flight.record_refusal(&reason, confirmed, attempts_max, now);
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
