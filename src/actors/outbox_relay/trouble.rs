//! What a relay worker says when outbox or broker fail: one log line at each change.

use std::collections::HashMap;
use std::time::Instant;

use actix::Context;

use super::OutboxRelay;
use crate::actors::child::{ExitReason, end};
use crate::broker::Reach;
use crate::messages::wire;
use crate::outbox::{Entry, Error, Fate, Hand};
use crate::stock::BucketKey;

impl OutboxRelay {
    pub(super) fn is_broker_up(&self) -> bool {
        self.parts.publisher.reach() == Reach::Up
    }

    /// Looks for errors in what the outbox answered. True: the hands are others' now, and this
    /// life is over.
    pub(super) fn must_end<T>(
        &mut self,
        ctx: &mut Context<Self>,
        answers: &[(BucketKey, Result<T, Error>)],
    ) -> bool {
        let errors = || answers.iter().filter_map(|(_, answer)| answer.as_ref().err());
        errors().for_each(|error| self.parts.metrics.outbox_error(error));
        let replaced = errors().find(|error| matches!(error, Error::Replaced { .. }));
        if let Some(replaced) = replaced {
            end(self, ctx, ExitReason::Failed(replaced.to_string()));
            return true;
        }
        for (bucket, answer) in answers {
            self.note_outbox(*bucket, answer.as_ref().err());
        }
        false
    }

    /// Notes how one bucket's outbox is: one log line for each trouble, however many buckets have
    /// it, and one when the last bucket is well again.
    fn note_outbox(&mut self, bucket: BucketKey, error: Option<&Error>) {
        let Some(error) = error else {
            if self.trouble.remove(&bucket).is_some() && self.trouble.is_empty() {
                tracing::info!(place = self.place, "the outbox answers again");
            }
            return;
        };
        let said = error.to_string();
        if self.trouble.values().all(|known| *known != said) {
            tracing::warn!(place = self.place, said, "the outbox fails");
        }
        self.trouble.insert(bucket, said);
    }

    /// Notes how the broker is after a round; `away` is what it said of messages that it did not
    /// take, `silence` what became of the others if it answered for none.
    pub(super) fn note_broker(
        &mut self,
        away: Option<String>,
        silence: Option<String>,
        now: Instant,
    ) {
        // Not a reason to claim nothing: it may be the fault of what this worker has in hand.
        if let Some(reason) = &silence
            && !self.is_in_silence
        {
            tracing::warn!(
                place = self.place,
                reason,
                "a queue of the broker answers for no message"
            );
        }
        self.is_in_silence = silence.is_some();
        let away = away.or_else(|| match self.parts.publisher.reach() {
            Reach::Up => None,
            Reach::Blocked => Some("it accepts no messages for now: memory or disk".to_owned()),
            Reach::Down => Some("it cannot be reached".to_owned()),
        });
        if let Some(reason) = away {
            if self.rounds.broker_away(now) {
                tracing::warn!(place = self.place, reason, "the broker takes nothing");
            }
        } else if self.rounds.broker_well() {
            tracing::info!(place = self.place, "the broker takes messages again");
            self.parts.door.recover();
        }
    }
}

/// The entries of a report that become dead letters, with the reason.
pub(super) fn dead_in(hands: &[(Hand, Vec<Fate>)]) -> HashMap<BucketKey, Vec<(Entry, String)>> {
    let mut dead: HashMap<BucketKey, Vec<(Entry, String)>> = HashMap::new();
    for (hand, fates) in hands {
        for (entry, fate) in hand.entries.iter().zip(fates) {
            if let Fate::Dead { reason } = fate {
                dead.entry(hand.bucket).or_default().push((entry.clone(), reason.clone()));
            }
        }
    }
    dead
}

/// A dead letter is never silent; it is one when the outbox has taken the report.
pub(super) fn log_dead(bucket: BucketKey, dead: &[(Entry, String)]) {
    let BucketKey { sku, bucket } = bucket;
    for (entry, reason) in dead {
        let requests = wire::requests_in(&entry.bytes);
        tracing::error!(%sku, %bucket, reason, ?requests, "an entry becomes a dead letter");
    }
}
