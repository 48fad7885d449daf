//! Publishes the dead letters of an order consumer.
//!
//! A delivery is acknowledged once its dead letter is confirmed; an unconfirmed dead letter is
//! published again.

use tokio::time::sleep;

use super::deliveries::Deliveries;
use crate::broker::{Message, PublishOutcome};

/// A dead letter, and the tag of the delivery of which it completes a part.
pub(super) type TaggedDeadLetter = (u64, Message);

impl Deliveries {
    /// Logs a dead letter for [`Self::publish`]. `flaw`: the name of an `EnvelopeFlaw`, or `failed`
    /// if the ledger did not write the order.
    pub(super) fn dead_letter(
        &self,
        tag: u64,
        message: Message,
        flaw: &'static str,
    ) -> TaggedDeadLetter {
        let headers = &message.headers;
        tracing::error!(
            queue = self.deps.queue,
            message_id = headers.message_id,
            origin = headers.origin,
            traceparent = headers.traceparent,
            bytes = message.body.len(),
            attempts = headers.attempts,
            flaw,
            reason = headers.reason,
            "message dead-lettered"
        );
        (tag, message)
    }

    /// Publishes dead letters until each is confirmed, or the consumer is quiet.
    pub(super) async fn publish(&self, mut dead_letters: Vec<TaggedDeadLetter>) {
        let mut backoff = self.deps.reconnect;
        loop {
            let turn = self.supervision.wait(self.publish_channel.lock()).await;
            let Some(mut channel) = turn else { return };
            let messages = dead_letters.iter().map(|(_, message)| message.clone()).collect();
            let outcomes = self.supervision.call(channel.publish(messages)).await;
            drop(channel);
            // Crash here [dead_lettered_not_acknowledged]: the dead letter is in its queue and the
            // original is redelivered; both have the same request id, and become one dead letter.
            let (mut outcomes, mut last_outcome) = (outcomes.into_iter(), None);
            dead_letters.retain(|(tag, _)| {
                let outcome = outcomes.next();
                let is_confirmed = outcome == Some(PublishOutcome::Confirmed);
                if is_confirmed {
                    self.deps.metrics.consumer_dead_letters.inc();
                    self.unacked.borrow_mut().complete_part(*tag);
                } else {
                    self.unacked.borrow_mut().mark_stuck(*tag);
                    last_outcome = outcome;
                }
                !is_confirmed
            });
            self.acknowledge().await;
            let (queue, waiting) = (self.deps.queue, dead_letters.len());
            if waiting == 0 {
                return;
            }
            if backoff.failures() == 0 {
                tracing::warn!(queue, waiting, ?last_outcome, "dead letters wait for the broker");
            }
            let wait = backoff.next_wait(fastrand::f64());
            self.supervision.wait(sleep(wait)).await;
        }
    }
}
