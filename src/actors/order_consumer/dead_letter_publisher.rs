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
        // What is read after them is acknowledged singly.
        for (tag, _) in &dead_letters {
            self.unacked.borrow_mut().mark_stuck(*tag);
        }
        let (mut backoff, window) = (self.deps.reconnect, self.deps.confirm_window.max(1));
        while !dead_letters.is_empty() {
            let turn = self.supervision.wait(self.publish_channel.lock()).await;
            let Some(mut channel) = turn else { return };
            let messages = dead_letters.iter().take(window).map(|(_, message)| message.clone());
            let outcomes = self.supervision.call(channel.publish(messages.collect())).await;
            drop(channel);
            // Crash here [dead_lettered_not_acknowledged]: the dead letter is in its queue and the
            // original is redelivered; both have the same request id, and become one dead letter.
            let mut confirmed = outcomes.iter().map(|it| *it == PublishOutcome::Confirmed);
            dead_letters.retain(|(tag, _)| {
                let is_confirmed = confirmed.next().unwrap_or(false);
                if is_confirmed {
                    self.deps.metrics.consumer_dead_letters.inc();
                    self.unacked.borrow_mut().complete_part(*tag);
                }
                !is_confirmed
            });
            self.acknowledge().await;
            let Some(last_outcome) = outcomes.iter().find(|it| **it != PublishOutcome::Confirmed)
            else {
                continue;
            };
            let (queue, waiting) = (self.deps.queue, dead_letters.len());
            if backoff.failures() == 0 {
                tracing::warn!(queue, waiting, ?last_outcome, "dead letters wait for the broker");
            }
            let wait = backoff.next_wait(fastrand::f64());
            self.supervision.wait(sleep(wait)).await;
        }
    }
}
