//! What a relay worker says when outbox or broker fail: one log line at each change.

use std::time::Instant;

use actix::Context;

use super::OutboxRelay;
use crate::actors::child::{ExitReason, end};
use crate::broker::Reach;
use crate::messages::wire;
use crate::outbox::{Error, Fate, Hand};
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
        let said = errors().next().map(ToString::to_string);
        if said != self.trouble {
            match (&said, answers.is_empty()) {
                (Some(said), _) => tracing::warn!(place = self.place, said, "the outbox fails"),
                (None, false) => tracing::info!(place = self.place, "the outbox answers again"),
                (None, true) => return false,
            }
            self.trouble = said;
        }
        false
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
            tracing::warn!(place = self.place, reason, "the broker answers for no message");
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

/// A dead letter is never silent.
pub(super) fn log_dead(hand: &Hand, fates: &[Fate]) {
    for (entry, fate) in hand.entries.iter().zip(fates) {
        let Fate::Dead { reason } = fate else { continue };
        let BucketKey { sku, bucket } = hand.bucket;
        let requests = wire::requests_in(&entry.bytes);
        tracing::error!(%sku, %bucket, reason, ?requests, "an entry becomes a dead letter");
    }
}
