//! Publishes the dead letters of an order consumer.
//!
//! A delivery is acknowledged once its dead letter is confirmed; an unconfirmed dead letter is
//! published again.

use actix::{AsyncContext, Context};
use bytes::Bytes;

use super::submission::InFlightIntent;
use super::{Delivery, OrderConsumer, PublishChannel};
use crate::actors::supervisor::supervised::spawn_step;
use crate::broker::{Message, PublishOutcome};
use crate::messages::envelope;
use crate::messages::envelope::MalformedEnvelope;

/// A dead letter that is not confirmed.
#[derive(Debug, Clone)]
pub(super) struct OutgoingDeadLetter {
    /// The delivery that it completes a part of.
    tag: u64,
    message: Message,
}

impl OrderConsumer {
    /// Dead-letters a whole delivery.
    pub(super) fn dead_letter_whole(&mut self, delivery: &Delivery, malformed: &MalformedEnvelope) {
        let queue = self.deps.queue;
        self.deps.metrics.consumer_poison(malformed.flaw);
        let message = envelope::dead_letter(delivery, queue, &malformed.what);
        tracing::error!(
            queue,
            message_id = message.headers.message_id,
            routing_key = delivery.routing_key,
            bytes = delivery.body.len(),
            flaw = malformed.flaw.as_str(),
            reason = malformed.what,
            "message dead-lettered"
        );
        self.enqueue_dead_letter(delivery, message);
    }

    /// Dead-letters one malformed intent of a delivery.
    pub(super) fn dead_letter_part(
        &mut self,
        delivery: &Delivery,
        bytes: Bytes,
        malformed: &MalformedEnvelope,
    ) {
        self.deps.metrics.consumer_poison(malformed.flaw);
        self.dead_letter(delivery, bytes, 0, malformed.flaw.as_str(), &malformed.what);
    }

    /// Dead-letters an intent that has used up its attempts at the ledger.
    pub(super) fn dead_letter_failed(&mut self, item: &InFlightIntent, last_error: &str) {
        let attempts = item.attempts.saturating_add(1);
        let reason = format!("it failed {attempts} times, the last time: {last_error}");
        self.dead_letter(&item.delivery, item.bytes.clone(), attempts, "failed", &reason);
    }

    fn dead_letter(
        &mut self,
        delivery: &Delivery,
        bytes: Bytes,
        attempts: u32,
        flaw: &'static str,
        reason: &str,
    ) {
        let queue = self.deps.queue;
        let message = envelope::dead_letter_of_intent(delivery, bytes, queue, attempts, reason);
        tracing::error!(
            queue,
            message_id = message.headers.message_id,
            traceparent = message.headers.traceparent,
            attempts,
            flaw,
            reason,
            "intent dead-lettered"
        );
        self.enqueue_dead_letter(delivery, message);
    }

    fn enqueue_dead_letter(&mut self, delivery: &Delivery, message: Message) {
        let dead_letter = OutgoingDeadLetter { tag: delivery.tag, message };
        self.subscription.dead_letters.push_back(dead_letter);
    }

    /// Publishes the queued dead letters, one confirm window at a time.
    pub(super) fn publish(&mut self, ctx: &mut Context<Self>) {
        if self.in_progress.publishing || self.subscription.dead_letters.is_empty() {
            return;
        }
        self.in_progress.publishing = true;
        let window = self.deps.limits.confirm_window.max(1);
        let publisher = &self.deps.publisher;
        let mut channel =
            self.publish_channel.take().unwrap_or_else(|| publisher.open_channel(window));
        let size = self.subscription.dead_letters.len().min(window);
        let batch: Vec<OutgoingDeadLetter> = self.subscription.dead_letters.drain(..size).collect();
        let messages = batch.iter().map(|dead_letter| dead_letter.message.clone()).collect();
        let subscription_no = self.subscription.number;
        let work = async move {
            let outcomes = channel.publish(messages).await;
            (channel, outcomes)
        };
        spawn_step(self, ctx, work, move |consumer, ctx, (channel, outcomes)| {
            consumer.in_progress.publishing = false;
            // Crash here [dead_lettered_not_acknowledged]: the dead letter is in its queue and the
            // original is redelivered; both have the same request id, and become one dead letter.
            consumer.published(ctx, channel, (subscription_no, batch), &outcomes);
            consumer.acknowledge(ctx);
            consumer.report_if_idle();
        });
    }

    fn published(
        &mut self,
        ctx: &mut Context<Self>,
        channel: Box<dyn PublishChannel>,
        (subscription_no, batch): (u64, Vec<OutgoingDeadLetter>),
        outcomes: &[PublishOutcome],
    ) {
        let mut unconfirmed = Vec::new();
        let mut last_outcome = None;
        for (index, dead_letter) in batch.into_iter().enumerate() {
            match outcomes.get(index) {
                Some(PublishOutcome::Confirmed) => {
                    self.deps.metrics.consumer_dead_letters.inc();
                    // Delivery tags are valid for their own subscription only.
                    if subscription_no == self.subscription.number {
                        self.subscription.window.complete_part(dead_letter.tag);
                    }
                }
                outcome => {
                    last_outcome = outcome.cloned();
                    unconfirmed.push(dead_letter);
                }
            }
        }
        if unconfirmed.is_empty() {
            self.publish_channel = Some(channel);
            self.backoffs.publish = self.deps.reconnect_backoff();
            return self.publish(ctx);
        }
        if subscription_no == self.subscription.number {
            for dead_letter in unconfirmed.into_iter().rev() {
                self.subscription.window.mark_stuck(dead_letter.tag);
                self.subscription.dead_letters.push_front(dead_letter);
            }
        }
        if self.backoffs.publish.failures() == 0 {
            tracing::warn!(
                queue = self.deps.queue,
                waiting = self.subscription.dead_letters.len(),
                ?last_outcome,
                "dead letters wait for the broker"
            );
        }
        if self.is_quiet {
            return;
        }
        self.in_progress.publishing = true;
        let wait = self.backoffs.publish.next_wait(fastrand::f64());
        ctx.run_later(wait, |consumer, ctx| {
            consumer.in_progress.publishing = false;
            if consumer.is_quiet {
                consumer.report_if_idle();
            } else {
                consumer.publish(ctx);
            }
        });
    }
}
