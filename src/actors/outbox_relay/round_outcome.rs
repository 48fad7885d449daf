//! What goes to the broker in one round, and what its answers mean for each entry. Pure.

use std::collections::HashSet;
use std::time::Instant;

use super::plan::{InFlight, RelayPlan};
use crate::broker::{Message, PublishOutcome, Route};
use crate::outbox::{EndedEntry, GivenUpEntry, OutboxEntry};
use crate::stock::BucketKey;

/// What becomes of one entry: a message of what can be read of it, and a dead letter of the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedEntry {
    /// `None`: nothing of it can be read.
    pub message: Option<Message>,
    /// `None`: all of it can be read.
    pub letter: Option<GivenUpEntry>,
}

/// One message of a batch.
#[derive(Debug)]
struct PackedMessage {
    bucket: BucketKey,
    id: Box<[u8]>,
    route: Route,
    /// What of its entry could not be read.
    letter: Option<GivenUpEntry>,
}

/// The messages of one round, as they were packed.
#[derive(Debug, Default)]
pub struct Batch(Vec<PackedMessage>);

impl Batch {
    /// Whether there is nothing to publish.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a round came to, by number of entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundCounts {
    /// Confirmed.
    pub published: usize,
    /// The broker said no.
    pub refused: usize,
    /// No answer came.
    pub unknown: usize,
    /// Certainly not sent.
    pub not_sent: usize,
    /// Given up after too many refusals.
    pub dead: usize,
}

/// What the broker's answers came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RoundOutcome {
    /// By number.
    pub tally: RoundCounts,
    /// Why the broker took nothing, if it is away.
    pub away: Option<String>,
    /// What became of a message, if a queue answered for none of its messages.
    pub silence: Option<String>,
}

impl RelayPlan {
    /// Makes messages of what is due. An entry of which nothing can be read ends here.
    pub fn pack(
        &mut self,
        now: Instant,
        mut seal: impl FnMut(BucketKey, &OutboxEntry) -> PackedEntry,
    ) -> (Vec<Message>, Batch) {
        let (mut messages, mut batch) = (Vec::new(), Batch::default());
        for (key, bucket) in &mut self.buckets {
            let (confirmed, ended) = (&self.confirmed, &mut bucket.ended);
            bucket.in_flight.retain_mut(|in_flight| {
                if in_flight.due > now {
                    return true;
                }
                let id = in_flight.entry.id.clone();
                let PackedEntry { message, letter } = seal(*key, &in_flight.entry);
                let Some(message) = message else {
                    ended.push(EndedEntry { id, letter });
                    return false;
                };
                let route = message.route;
                in_flight.seen.get_or_insert(confirmed.get(&route).copied().unwrap_or(0));
                batch.0.push(PackedMessage { bucket: *key, id, route, letter });
                messages.push(message);
                true
            });
        }
        (messages, batch)
    }

    /// Decides what the broker's answers mean.
    ///
    /// A refusal counts as an attempt of its entry if the same queue confirmed another message
    /// since the attempt before: then it is the entry that the queue does not want. A message
    /// without an answer is no attempt, whatever became of others.
    pub fn judge(&mut self, batch: Batch, sent: Vec<PublishOutcome>, now: Instant) -> RoundOutcome {
        let lost = || PublishOutcome::Unknown { reason: "there was no result".to_owned() };
        let sent = sent.into_iter().chain(std::iter::repeat_with(lost));
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
        let mut verdict = RoundOutcome::default();
        for (packed, sent) in sent {
            let tally = &mut verdict.tally;
            match sent {
                PublishOutcome::Confirmed => {
                    tally.published += 1;
                    self.end(packed.bucket, packed.id, packed.letter);
                }
                PublishOutcome::Refused { reason } => {
                    tally.refused += 1;
                    tally.dead += usize::from(self.refused(packed, &reason, now));
                }
                PublishOutcome::Unknown { reason } => {
                    tally.unknown += 1;
                    if !answering.contains(&packed.route) {
                        verdict.silence.get_or_insert(reason);
                    }
                    self.rest(packed.bucket, &packed.id, now);
                }
                PublishOutcome::NotSent { reason } => {
                    tally.not_sent += 1;
                    verdict.away.get_or_insert(reason);
                }
            }
        }
        if !answering.is_empty() {
            verdict.away = None;
        }
        verdict
    }

    /// The entry is to be acknowledged.
    fn end(&mut self, key: BucketKey, id: Box<[u8]>, letter: Option<GivenUpEntry>) {
        if let Some(bucket) = self.buckets.get_mut(&key) {
            // In the order of claiming, so the first is the one in most cases.
            if let Some(at) = bucket.in_flight.iter().position(|other| other.entry.id == id) {
                bucket.in_flight.remove(at);
            }
            bucket.ended.push(EndedEntry { id, letter });
        }
    }

    /// The entry is published again after a wait, which grows.
    fn rest(&mut self, key: BucketKey, id: &[u8], now: Instant) -> Option<&mut InFlight> {
        let limits = self.limits;
        let in_flight = &mut self.buckets.get_mut(&key)?.in_flight;
        let resting = in_flight.iter_mut().find(|other| *other.entry.id == *id)?;
        resting.failures = resting.failures.saturating_add(1);
        resting.due = now + limits.rest(resting.failures);
        Some(resting)
    }

    /// The broker said no. True: the entry becomes a dead letter.
    fn refused(&mut self, packed: PackedMessage, reason: &str, now: Instant) -> bool {
        let PackedMessage { bucket, id, route, .. } = packed;
        let confirmed = self.confirmed.get(&route).copied().unwrap_or(0);
        let attempts_max = self.limits.attempts_max;
        let Some(resting) = self.rest(bucket, &id, now) else { return false };
        if resting.seen.is_some_and(|seen| seen < confirmed) {
            resting.seen = Some(confirmed);
            resting.attempts += 1;
        }
        let attempts = resting.attempts;
        if attempts < attempts_max {
            return false;
        }
        let reason = format!("refused in {attempts} attempts, last: {reason}");
        let bytes = resting.entry.bytes.clone();
        self.end(bucket, id, Some(GivenUpEntry { bytes, reason, attempts }));
        true
    }
}
