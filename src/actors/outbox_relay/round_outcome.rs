//! The messages of one round, and what their publish outcomes mean for the entries. Pure.

use std::collections::HashSet;
use std::time::Instant;

use super::plan::{InFlight, RelayPlan};
use crate::broker::{Message, PublishOutcome, Route};
use crate::domain::BucketKey;
use crate::outbox::{EndedEntry, GivenUpEntry, OutboxEntry};

/// One entry, encoded: its readable intents as a message, the others as a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedEntry {
    /// `None`: no intent is readable.
    pub message: Option<Message>,
    /// `None`: every intent is readable.
    pub dead_letter: Option<GivenUpEntry>,
}

/// One message of a batch.
#[derive(Debug)]
struct PackedMessage {
    bucket: BucketKey,
    id: Box<[u8]>,
    route: Route,
    /// The unreadable intents of its entry.
    dead_letter: Option<GivenUpEntry>,
}

/// The messages of one round, in the order of their packing.
#[derive(Debug, Default)]
pub struct Batch(Vec<PackedMessage>);

impl Batch {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Entries of one round by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundCounts {
    /// Confirmed by the broker.
    pub published: usize,
    /// Negatively acknowledged or returned by the broker.
    pub refused: usize,
    /// Sent without a confirm.
    pub unknown: usize,
    /// Certainly not sent.
    pub not_sent: usize,
    /// Given up after `relay.attempts_max` counted refusals; also in `refused`.
    pub dead: usize,
}

/// The result of one round.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RoundOutcome {
    pub counts: RoundCounts,
    /// Why messages were not sent, if no queue answered.
    pub unavailable: Option<String>,
    /// Why a message has no confirm, if its queue answered for none of its messages.
    pub stalled_queue: Option<String>,
}

impl RelayPlan {
    /// Encodes the entries that are due as messages. An entry without a readable intent ends here.
    pub fn pack(
        &mut self,
        now: Instant,
        mut encode: impl FnMut(BucketKey, &OutboxEntry) -> PackedEntry,
    ) -> (Vec<Message>, Batch) {
        let (mut messages, mut batch) = (Vec::new(), Batch::default());
        for (key, bucket) in &mut self.buckets {
            let (confirmed, ended) = (&self.confirmed, &mut bucket.ended);
            bucket.in_flight.retain_mut(|in_flight| {
                if in_flight.due > now {
                    return true;
                }
                let id = in_flight.entry.id.clone();
                let PackedEntry { message, dead_letter } = encode(*key, &in_flight.entry);
                let Some(message) = message else {
                    ended.push(EndedEntry { id, dead_letter });
                    return false;
                };
                let route = message.route;
                let confirmed = confirmed.get(&route).copied().unwrap_or(0);
                in_flight.confirmed_before.get_or_insert(confirmed);
                batch.0.push(PackedMessage { bucket: *key, id, route, dead_letter });
                messages.push(message);
                true
            });
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
        batch: Batch,
        sent: Vec<PublishOutcome>,
        now: Instant,
    ) -> RoundOutcome {
        let missing = || PublishOutcome::Unknown { reason: "there was no result".to_owned() };
        let sent = sent.into_iter().chain(std::iter::repeat_with(missing));
        let sent: Vec<(PackedMessage, PublishOutcome)> = batch.0.into_iter().zip(sent).collect();
        let mut answering = HashSet::new();
        for (packed, sent) in &sent {
            if matches!(sent, PublishOutcome::Confirmed) {
                *self.confirmed.entry(packed.route).or_default() += 1;
            }
            if matches!(sent, PublishOutcome::Confirmed | PublishOutcome::Refused { .. }) {
                answering.insert(packed.route);
            }
        }
        let mut outcome = RoundOutcome::default();
        for (packed, sent) in sent {
            let counts = &mut outcome.counts;
            match sent {
                PublishOutcome::Confirmed => {
                    counts.published += 1;
                    self.end_entry(packed.bucket, packed.id, packed.dead_letter);
                }
                PublishOutcome::Refused { reason } => {
                    counts.refused += 1;
                    counts.dead += usize::from(self.record_refusal(packed, &reason, now));
                }
                PublishOutcome::Unknown { reason } => {
                    counts.unknown += 1;
                    if !answering.contains(&packed.route) {
                        outcome.stalled_queue.get_or_insert(reason);
                    }
                    self.schedule_retry(packed.bucket, &packed.id, now);
                }
                PublishOutcome::NotSent { reason } => {
                    counts.not_sent += 1;
                    outcome.unavailable.get_or_insert(reason);
                }
            }
        }
        if !answering.is_empty() {
            outcome.unavailable = None;
        }
        outcome
    }

    /// Moves the entry to the ones to acknowledge.
    fn end_entry(&mut self, key: BucketKey, id: Box<[u8]>, letter: Option<GivenUpEntry>) {
        if let Some(bucket) = self.buckets.get_mut(&key) {
            // Entries end in the order of their claims, so the first one matches in most cases.
            if let Some(at) = bucket.in_flight.iter().position(|other| other.entry.id == id) {
                bucket.in_flight.remove(at);
            }
            bucket.ended.push(EndedEntry { id, dead_letter: letter });
        }
    }

    /// Delays the next publish of the entry, longer after each failure.
    fn schedule_retry(&mut self, key: BucketKey, id: &[u8], now: Instant) -> Option<&mut InFlight> {
        let limits = self.limits;
        let in_flight = &mut self.buckets.get_mut(&key)?.in_flight;
        let delayed = in_flight.iter_mut().find(|other| *other.entry.id == *id)?;
        delayed.failures = delayed.failures.saturating_add(1);
        delayed.due = now + limits.retry_delay(delayed.failures);
        Some(delayed)
    }

    /// Counts a refusal, or delays the entry. Returns whether the entry becomes a dead letter.
    fn record_refusal(&mut self, packed: PackedMessage, reason: &str, now: Instant) -> bool {
        let PackedMessage { bucket, id, route, .. } = packed;
        let confirmed = self.confirmed.get(&route).copied().unwrap_or(0);
        let attempts_max = self.limits.attempts_max;
        let Some(delayed) = self.schedule_retry(bucket, &id, now) else { return false };
        if delayed.confirmed_before.is_some_and(|before| before < confirmed) {
            delayed.confirmed_before = Some(confirmed);
            delayed.attempts += 1;
        }
        let attempts = delayed.attempts;
        if attempts < attempts_max {
            return false;
        }
        let reason = format!("refused in {attempts} attempts, last: {reason}");
        let bytes = delayed.entry.bytes.clone();
        self.end_entry(bucket, id, Some(GivenUpEntry { bytes, reason, attempts }));
        true
    }
}
