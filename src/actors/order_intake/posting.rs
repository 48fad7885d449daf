//! From the intake back to the broker: copies for a later attempt, and dead letters.
//!
//! A copy counts when it is confirmed, and only then is the delivery that it replaces acknowledged;
//! until then it is published again and again.

use actix::{AsyncContext, Context};
use bytes::Bytes;

use super::landing::Item;
use super::{Delivery, OrderIntake, Outgoing};
use crate::actors::child::spawn_step;
use crate::broker::{Message, Route, Sent};
use crate::messages::wire::{self, Malformed};

/// A copy on its way.
#[derive(Debug, Clone)]
pub(super) struct Letter {
    tag: u64,
    message: Message,
}

impl OrderIntake {
    /// Nothing of the delivery can be used.
    pub(super) fn bury_whole(&mut self, delivery: &Delivery, malformed: &Malformed) {
        let queue = self.parts.queue;
        self.parts.metrics.intake_poison(malformed.flaw);
        let message = wire::dead(delivery, queue, &malformed.what);
        tracing::error!(
            queue,
            message_id = message.headers.message_id,
            routing_key = delivery.routing_key,
            bytes = delivery.body.len(),
            flaw = malformed.flaw.as_str(),
            reason = malformed.what,
            "a message becomes a dead letter"
        );
        self.hand.letters.push_back(Letter { tag: delivery.tag, message });
    }

    /// One intent of the delivery cannot be used.
    pub(super) fn bury_part(&mut self, delivery: &Delivery, bytes: Bytes, malformed: &Malformed) {
        self.parts.metrics.intake_poison(malformed.flaw);
        let attempts = delivery.headers.attempts;
        self.bury(delivery, bytes, attempts, malformed.flaw.as_str(), &malformed.what);
    }

    /// One intent has failed at the ledger for the last time.
    pub(super) fn bury_failed(&mut self, item: &Item, said: &str) {
        let attempts = item.delivery.headers.attempts.saturating_add(1);
        let reason = format!("it failed {attempts} times, the last time: {said}");
        self.bury(&item.delivery, item.bytes.clone(), attempts, "failed", &reason);
    }

    fn bury(
        &mut self,
        delivery: &Delivery,
        bytes: Bytes,
        attempts: u32,
        flaw: &'static str,
        reason: &str,
    ) {
        let queue = self.parts.queue;
        let message = wire::dead_part(delivery, bytes, queue, attempts, reason);
        tracing::error!(
            queue,
            message_id = message.headers.message_id,
            traceparent = message.headers.traceparent,
            attempts,
            flaw,
            reason,
            "an intent becomes a dead letter"
        );
        self.hand.letters.push_back(Letter { tag: delivery.tag, message });
    }

    /// One intent has failed at the ledger and waits for its next attempt outside.
    pub(super) fn delay(&mut self, item: &Item, step: usize, said: &str) {
        let Item { delivery, bytes, intent, .. } = item;
        let (queue, now_ms) = (self.parts.queue, self.parts.clock.wall_ms());
        tracing::warn!(
            queue,
            request = %intent.request,
            trace_id = %intent.trace,
            attempts = delivery.headers.attempts.saturating_add(1),
            said,
            "an intent failed while the ledger answers, and is tried again later"
        );
        let installation = &self.parts.installation;
        let message = wire::retry(intent, bytes.clone(), (queue, step), installation, now_ms);
        self.hand.letters.push_back(Letter { tag: delivery.tag, message });
    }

    /// Publishes what is to be published, one window at a time.
    pub(super) fn post(&mut self, ctx: &mut Context<Self>) {
        if self.under_way.posting || self.hand.letters.is_empty() {
            return;
        }
        self.under_way.posting = true;
        let window = self.parts.limits.confirm_window.max(1);
        let publisher = &self.parts.publisher;
        let mut outgoing = self.outgoing.take().unwrap_or_else(|| publisher.outgoing(window));
        let size = self.hand.letters.len().min(window);
        let letters: Vec<Letter> = self.hand.letters.drain(..size).collect();
        let messages = letters.iter().map(|letter| letter.message.clone()).collect();
        let subscription = self.hand.subscription;
        let work = async move {
            let sent = outgoing.publish(messages).await;
            (outgoing, sent)
        };
        spawn_step(self, ctx, work, move |intake, ctx, (outgoing, sent)| {
            intake.under_way.posting = false;
            // Crash here [copied_not_acknowledged]: the copy is in its queue and the original is
            // delivered again: both are one request, and one dead letter.
            intake.posted(ctx, outgoing, (subscription, letters), &sent);
            intake.acknowledge(ctx);
            intake.report_if_idle();
        });
    }

    fn posted(
        &mut self,
        ctx: &mut Context<Self>,
        outgoing: Box<dyn Outgoing>,
        (subscription, letters): (u64, Vec<Letter>),
        sent: &[Sent],
    ) {
        let mut again = Vec::new();
        let mut trouble = None;
        for (at, letter) in letters.into_iter().enumerate() {
            match sent.get(at) {
                Some(Sent::Confirmed) => {
                    let is_dead = letter.message.route == Route::Dead;
                    self.parts.metrics.intake_copy(is_dead);
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
            self.waits.post = self.parts.reconnect();
            return self.post(ctx);
        }
        if subscription == self.hand.subscription {
            for letter in again.into_iter().rev() {
                self.hand.window.stick(letter.tag);
                self.hand.letters.push_front(letter);
            }
        }
        if self.waits.post.failures() == 0 {
            let waiting = self.hand.letters.len();
            tracing::warn!(
                queue = self.parts.queue,
                waiting,
                ?trouble,
                "copies wait for the broker"
            );
        }
        if self.is_quiet {
            return;
        }
        self.under_way.posting = true;
        let wait = self.waits.post.next_wait(fastrand::f64());
        ctx.run_later(wait, |intake, ctx| {
            intake.under_way.posting = false;
            if intake.is_quiet {
                intake.report_if_idle();
            } else {
                intake.post(ctx);
            }
        });
    }
}
