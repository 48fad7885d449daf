//! Publishes the dead letters of an order consumer.
//!
//! A delivery is acknowledged once its dead letter is confirmed; an unconfirmed dead letter is
//! published again.

use actix::Context;

use super::{Arc, Operation, OrderConsumer};
use crate::broker::{Message, PublishOutcome};

impl OrderConsumer {
    /// Queues the dead letter of a delivery, or of one intent of it, for
    /// [`Self::publish_dead_letters`]. `flaw` is logged: the name of an `EnvelopeFlaw`, or `failed`
    /// if the ledger did not write the order.
    pub(super) fn dead_letter(&mut self, tag: u64, message: Message, flaw: &'static str) {
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
        self.subscription.dead_letters.push_back((tag, message));
    }

    /// Publishes the queued dead letters, one confirm window at a time.
    pub(super) fn publish_dead_letters(&mut self, ctx: &mut Context<Self>) {
        let subscription = &mut self.subscription;
        if subscription.is_running(Operation::Publish) || subscription.dead_letters.is_empty() {
            return;
        }
        let batch_max = self.deps.confirm_window.max(1);
        let publisher = &self.deps.publisher;
        let mut channel =
            self.publish_channel.take().unwrap_or_else(|| publisher.open_channel(batch_max));
        let size = subscription.dead_letters.len().min(batch_max);
        let batch: Vec<(u64, Message)> = subscription.dead_letters.drain(..size).collect();
        let messages = batch.iter().map(|(_, message)| message.clone()).collect();
        let metrics = Arc::clone(&self.deps.metrics);
        let work = async move {
            let outcomes = channel.publish(messages).await;
            let confirmed = outcomes.iter().filter(|it| **it == PublishOutcome::Confirmed);
            metrics.consumer_dead_letters.inc_by(confirmed.count() as u64);
            (channel, outcomes)
        };
        self.spawn(ctx, Operation::Publish, work, move |consumer, ctx, (channel, outcomes)| {
            // Crash here [dead_lettered_not_acknowledged]: the dead letter is in its queue and the
            // original is redelivered; both have the same request id, and become one dead letter.
            if consumer.handle_outcomes(batch, &outcomes) {
                consumer.publish_channel = Some(channel);
                consumer.subscription.publish_backoff = consumer.deps.reconnect;
                consumer.publish_dead_letters(ctx);
            } else if !consumer.incarnation.is_quiet() {
                let wait = consumer.subscription.publish_backoff.next_wait(fastrand::f64());
                consumer.retry_later(ctx, Operation::Publish, wait, Self::publish_dead_letters);
            }
            consumer.acknowledge(ctx);
        });
    }

    /// Completes the confirmed dead letters, and queues the others again. Returns whether all were
    /// confirmed.
    fn handle_outcomes(&mut self, batch: Vec<(u64, Message)>, outcomes: &[PublishOutcome]) -> bool {
        let subscription = &mut self.subscription;
        let mut unconfirmed = Vec::new();
        for (index, (tag, message)) in batch.into_iter().enumerate().rev() {
            let outcome = outcomes.get(index);
            if outcome == Some(&PublishOutcome::Confirmed) {
                subscription.unacked.complete_part(tag);
            } else {
                subscription.unacked.mark_stuck(tag);
                subscription.dead_letters.push_front((tag, message));
                unconfirmed.push(outcome);
            }
        }
        if let Some(last_outcome) = unconfirmed.first()
            && subscription.publish_backoff.failures() == 0
        {
            tracing::warn!(
                queue = self.deps.queue,
                waiting = subscription.dead_letters.len(),
                ?last_outcome,
                "dead letters wait for the broker"
            );
        }
        unconfirmed.is_empty()
    }
}
