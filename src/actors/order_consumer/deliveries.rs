//! Subscribes, receives and validates deliveries, and refreshes the catalog for unknown SKUs.

use std::time::Duration;

use actix::Context;

use super::submission::{InFlightIntent, Submission};
use super::{Arc, Delivery, Inbox, Operation, OrderConsumer, SubscriptionState};
use crate::actors::supervisor::supervised::{spawn_step, step_later};
use crate::broker::{Acknowledger, Error, Route};
use crate::domain::{OrderIntent, Sale, Sku, SkuNo, window_fault};
use crate::messages::envelope;
use crate::messages::envelope::{DecodedIntents, EnvelopeFlaw, EnvelopeReader, MalformedEnvelope};

/// Longest wait for a delivery; the end of the read shows progress to the supervisor.
const READ_TIMEOUT: Duration = Duration::from_millis(200);

/// How far outside its sale's window an accepted request is still written, milliseconds, and left
/// to the audit: a process that does not read the ledger for a while sells by the old window.
const WINDOW_SLACK_MS: i64 = 60_000;

/// Earlier deliveries of a message after which it is suspected of crashing consumers, and submitted
/// exclusively.
const SUSPECT_AFTER: u32 = 3;

impl OrderConsumer {
    /// Subscribes, with backoff until it succeeds.
    pub(super) fn subscribe(&mut self, ctx: &mut Context<Self>) {
        if self.incarnation.is_quiet() {
            return;
        }
        self.is_reading = true;
        let deps = self.deps.clone();
        let (source, prefetch) = (Route::Orders(deps.queue), deps.settings.prefetch);
        let work =
            async move { Inbox::open(&deps.subscriber, source, prefetch, &deps.clock).await };
        spawn_step(self, ctx, work, |consumer, ctx, opened| match opened {
            Ok(inbox) => {
                if consumer.subscribe_backoff.failures() > 0 {
                    tracing::info!(queue = consumer.deps.queue, "order queue: subscribed again");
                }
                consumer.replace_subscription(Some(Arc::from(inbox.acks())));
                consumer.read(ctx, inbox);
            }
            Err(error) => consumer.subscription_lost(ctx, &error),
        });
    }

    fn replace_subscription(&mut self, acknowledger: Option<Arc<dyn Acknowledger>>) {
        let number = self.subscription.number + 1;
        self.subscription = SubscriptionState::new(number, acknowledger, &self.deps);
        self.report_unacknowledged();
    }

    /// Drops the state of the subscription and subscribes again: the broker redelivers all
    /// unacknowledged deliveries to the consumers of the queue.
    fn subscription_lost(&mut self, ctx: &mut Context<Self>, error: &Error) {
        self.is_reading = false;
        self.replace_subscription(None);
        let queue = self.deps.queue;
        if self.subscribe_backoff.failures() == 0 {
            tracing::warn!(queue, error = error as &dyn std::error::Error, "no orders delivered");
        }
        let wait = self.subscribe_backoff.next_wait(fastrand::f64());
        step_later(ctx, wait, Self::subscribe);
        self.report_if_idle();
    }

    fn read(&mut self, ctx: &mut Context<Self>, mut inbox: Inbox) {
        let num_held = self.subscription.unacked.len();
        let work = async move {
            let deliveries = inbox.next_batch(READ_TIMEOUT, num_held).await;
            (inbox, deliveries)
        };
        spawn_step(self, ctx, work, |consumer, ctx, (inbox, deliveries)| match deliveries {
            _ if consumer.incarnation.is_quiet() => {
                // The deliveries just read return to the queue when the subscription is closed.
                consumer.is_reading = false;
                consumer.closing_subscription = Some(inbox);
                consumer.report_if_idle();
            }
            Err(error) => consumer.subscription_lost(ctx, &error),
            Ok(deliveries) => {
                if !deliveries.is_empty() {
                    consumer.receive(ctx, deliveries);
                }
                consumer.read(ctx, inbox);
            }
        });
    }

    fn receive(&mut self, ctx: &mut Context<Self>, deliveries: Vec<Delivery>) {
        self.subscribe_backoff = self.deps.reconnect;
        let mut batch = Vec::new();
        for delivery in deliveries {
            self.deps.metrics.consumer_deliveries.inc();
            self.deps.metrics.consumer_redelivered.inc_by(u64::from(delivery.num_previous > 0));
            self.subscription.unacked.add(delivery.tag, delivery.headers.sent_at_ms);
            self.check_delivery(ctx, Arc::new(delivery), false, &mut batch);
        }
        self.report_unacknowledged();
        self.submit_batched(ctx, batch);
        self.refresh_catalog(ctx);
        self.publish_dead_letters(ctx);
    }

    /// Validates a delivery. Valid intents are added to `batch`, or submitted exclusively if the
    /// delivery is suspect.
    fn check_delivery(
        &mut self,
        ctx: &mut Context<Self>,
        delivery: Arc<Delivery>,
        is_fresh: bool,
        batch: &mut Vec<InFlightIntent>,
    ) {
        let catalog = &self.deps.catalog;
        let validation = validate(&delivery, &self.deps.reader, is_fresh, |no| catalog.of_sku(no));
        let (queue, metrics) = (self.deps.queue, Arc::clone(&self.deps.metrics));
        match validation {
            Err(MalformedEnvelope { flaw, what }) => {
                metrics.consumer_poison(flaw);
                let message = envelope::dead_letter(&delivery, queue, &what);
                self.dead_letter(delivery.tag, message, flaw.name());
            }
            Ok(None) => self.subscription.awaiting_catalog.push(delivery),
            Ok(Some(intents)) => {
                self.subscription.unacked.split(delivery.tag, intents.len());
                let mut items = Vec::with_capacity(intents.len());
                for (position, decoded) in intents.into_iter().enumerate() {
                    match decoded {
                        Ok(intent) => items.push(InFlightIntent {
                            delivery: Arc::clone(&delivery),
                            position,
                            intent,
                        }),
                        Err(MalformedEnvelope { flaw, what }) => {
                            metrics.consumer_poison(flaw);
                            let message = envelope::dead_letter_of_intent(
                                &delivery, position, queue, 0, &what,
                            );
                            self.dead_letter(delivery.tag, message, flaw.name());
                        }
                    }
                }
                if delivery.num_previous >= SUSPECT_AFTER {
                    self.submit(ctx, Submission::exclusive(items));
                } else {
                    batch.extend(items);
                }
            }
        }
    }

    /// Refreshes the catalog for the deliveries that wait for it, one refresh at a time.
    fn refresh_catalog(&mut self, ctx: &mut Context<Self>) {
        let subscription = &mut self.subscription;
        let is_needed = !subscription.awaiting_catalog.is_empty() && !self.incarnation.is_quiet();
        if subscription.is_running(Operation::Refresh) || !is_needed {
            return;
        }
        let deliveries = std::mem::take(&mut subscription.awaiting_catalog);
        let work = (self.deps.refresh)();
        self.spawn(ctx, Operation::Refresh, work, move |consumer, ctx, refreshed| {
            let Err(error) = refreshed else {
                consumer.subscription.refresh_backoff = consumer.deps.retry_backoff();
                let mut batch = Vec::new();
                for delivery in deliveries {
                    consumer.check_delivery(ctx, delivery, true, &mut batch);
                }
                consumer.submit_batched(ctx, batch);
                consumer.publish_dead_letters(ctx);
                return consumer.refresh_catalog(ctx);
            };
            let queue = consumer.deps.queue;
            let subscription = &mut consumer.subscription;
            if subscription.refresh_backoff.failures() == 0 {
                tracing::warn!(queue, error, "catalog not refreshed, deliveries wait");
            }
            for delivery in deliveries {
                subscription.unacked.mark_stuck(delivery.tag);
                subscription.awaiting_catalog.push(delivery);
            }
            let wait = subscription.refresh_backoff.next_wait(fastrand::f64());
            consumer.retry_later(ctx, Operation::Refresh, wait, Self::refresh_catalog);
            consumer.acknowledge(ctx);
        });
    }
}

/// Validates the intents of one delivery against the catalog, because the ledger trusts the price,
/// slot and quota of an intent: a lookup for every row would be too expensive. `is_fresh`: the
/// catalog was read from the ledger after the delivery arrived, so that a SKU or epoch it lacks
/// does not exist, and its windows are the present ones. `None`: the catalog may be older than the
/// delivery: refresh it and validate again.
///
/// # Errors
/// The whole delivery is malformed.
pub fn validate(
    delivery: &Delivery,
    reader: &EnvelopeReader,
    is_fresh: bool,
    lookup: impl Fn(SkuNo) -> Option<(Arc<Sale>, Arc<Sku>)>,
) -> Result<Option<DecodedIntents>, MalformedEnvelope> {
    let mut intents = reader.decode(&delivery.headers, &delivery.body)?;
    for decoded in &mut intents {
        let Ok(intent) = decoded else { continue };
        intent.published_at_ms = delivery.headers.sent_at_ms;
        let found = lookup(intent.sku);
        let may_be_newer = |(sale, _): &(Arc<Sale>, Arc<Sku>)| {
            let window = sale.starts_at_ms..sale.ends_at_ms;
            intent.epoch > sale.epoch || !window.contains(&intent.placed_at_ms)
        };
        if !is_fresh && found.as_ref().is_none_or(may_be_newer) {
            return Ok(None);
        }
        let malformed = match found {
            None => {
                let what = format!("no sale has sku {}", intent.sku);
                Some(MalformedEnvelope::new(EnvelopeFlaw::Sku, what))
            }
            Some((sale, sku)) => flaw_of(intent, &sale, &sku),
        };
        if let Some(malformed) = malformed {
            *decoded = Err(malformed);
        }
    }
    Ok(Some(intents))
}

/// Why the ledger must not write an intent of this SKU; `None`: it may.
pub fn flaw_of(intent: &OrderIntent, sale: &Sale, sku: &Sku) -> Option<MalformedEnvelope> {
    if let Some(what) = intent.contradiction(sku, sale.epoch) {
        return Some(MalformedEnvelope::new(EnvelopeFlaw::Content, what));
    }
    let window = sale.starts_at_ms..sale.ends_at_ms;
    let tolerated =
        window.start.saturating_sub(WINDOW_SLACK_MS)..window.end.saturating_add(WINDOW_SLACK_MS);
    let fault = window_fault(&window, intent.placed_at_ms);
    let fault = fault.filter(|_| !tolerated.contains(&intent.placed_at_ms));
    fault.map(|what| MalformedEnvelope::new(EnvelopeFlaw::Window, what))
}

#[cfg(test)]
#[path = "deliveries_tests.rs"]
mod tests;
