//! From the intake back to the broker: dead letters.
//!
//! A delivery is acknowledged when its dead letter is confirmed; until then the dead letter is
//! published again and again.

use actix::{AsyncContext, Context};
use bytes::Bytes;

use super::submission::InFlightIntent;
use super::{Delivery, OrderConsumer, PublishChannel};
use crate::actors::supervisor::supervised::spawn_step;
use crate::broker::{Message, PublishOutcome};
use crate::messages::envelope;
use crate::messages::envelope::MalformedEnvelope;

/// A dead letter on its way.
#[derive(Debug, Clone)]
pub(super) struct OutgoingDeadLetter {
    tag: u64,
    message: Message,
}

impl OrderConsumer {
    /// Nothing of the delivery can be used.
    pub(super) fn dead_letter_whole(&mut self, delivery: &Delivery, malformed: &MalformedEnvelope) {
        let queue = self.deps.queue;
        self.deps.metrics.intake_poison(malformed.flaw);
        let message = envelope::dead(delivery, queue, &malformed.what);
        tracing::error!(
            queue,
            message_id = message.headers.message_id,
            routing_key = delivery.routing_key,
            bytes = delivery.body.len(),
            flaw = malformed.flaw.as_str(),
            reason = malformed.what,
            "a message becomes a dead letter"
        );
        self.hand.letters.push_back(OutgoingDeadLetter { tag: delivery.tag, message });
    }

    /// One intent of the delivery cannot be used.
    pub(super) fn dead_letter_part(
        &mut self,
        delivery: &Delivery,
        bytes: Bytes,
        malformed: &MalformedEnvelope,
    ) {
        self.deps.metrics.intake_poison(malformed.flaw);
        self.dead_letter(delivery, bytes, 0, malformed.flaw.as_str(), &malformed.what);
    }

    /// One intent has failed at the ledger for the last time.
    pub(super) fn dead_letter_failed(&mut self, item: &InFlightIntent, text: &str) {
        let attempts = item.attempts.saturating_add(1);
        let reason = format!("it failed {attempts} times, the last time: {text}");
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
        let message = envelope::dead_part(delivery, bytes, queue, attempts, reason);
        tracing::error!(
            queue,
            message_id = message.headers.message_id,
            traceparent = message.headers.traceparent,
            attempts,
            flaw,
            reason,
            "an intent becomes a dead letter"
        );
        self.hand.letters.push_back(OutgoingDeadLetter { tag: delivery.tag, message });
    }

    /// Publishes what is to be published, one window at a time.
    pub(super) fn publish(&mut self, ctx: &mut Context<Self>) {
        if self.under_way.publishing || self.hand.letters.is_empty() {
            return;
        }
        self.under_way.publishing = true;
        let window = self.deps.limits.confirm_window.max(1);
        let publisher = &self.deps.publisher;
        let mut outgoing = self.outgoing.take().unwrap_or_else(|| publisher.outgoing(window));
        let size = self.hand.letters.len().min(window);
        let letters: Vec<OutgoingDeadLetter> = self.hand.letters.drain(..size).collect();
        let messages = letters.iter().map(|letter| letter.message.clone()).collect();
        let subscription = self.hand.subscription;
        let work = async move {
            let sent = outgoing.publish(messages).await;
            (outgoing, sent)
        };
        spawn_step(self, ctx, work, move |intake, ctx, (outgoing, sent)| {
            intake.under_way.publishing = false;
            // Crash here [dead_lettered_not_acknowledged]: the dead letter is in its queue and the
            // original is delivered again: both are one request, and one dead letter.
            intake.published(ctx, outgoing, (subscription, letters), &sent);
            intake.acknowledge(ctx);
            intake.report_if_idle();
        });
    }

    fn published(
        &mut self,
        ctx: &mut Context<Self>,
        outgoing: Box<dyn PublishChannel>,
        (subscription, letters): (u64, Vec<OutgoingDeadLetter>),
        sent: &[PublishOutcome],
    ) {
        let mut again = Vec::new();
        let mut trouble = None;
        for (at, letter) in letters.into_iter().enumerate() {
            match sent.get(at) {
                Some(PublishOutcome::Confirmed) => {
                    self.deps.metrics.intake_dead_letter();
                    // Numbers of an older subscription name other deliveries now.
                    if subscription == self.hand.subscription {
                        self.hand.window.end_one(letter.tag);
                    }
                }
                not => {
                    trouble = not.cloned();
                    again.push(letter);
                }
            }
        }
        if again.is_empty() {
            self.outgoing = Some(outgoing);
            self.waits.publish = self.deps.reconnect();
            return self.publish(ctx);
        }
        if subscription == self.hand.subscription {
            for letter in again.into_iter().rev() {
                self.hand.window.stick(letter.tag);
                self.hand.letters.push_front(letter);
            }
        }
        if self.waits.publish.failures() == 0 {
            let waiting = self.hand.letters.len();
            tracing::warn!(
                queue = self.deps.queue,
                waiting,
                ?trouble,
                "dead letters wait for the broker"
            );
        }
        if self.is_quiet {
            return;
        }
        self.under_way.publishing = true;
        let wait = self.waits.publish.next_wait(fastrand::f64());
        ctx.run_later(wait, |intake, ctx| {
            intake.under_way.publishing = false;
            if intake.is_quiet {
                intake.report_if_idle();
            } else {
                intake.publish(ctx);
            }
        });
    }
}
