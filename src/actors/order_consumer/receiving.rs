//! Subscribes, receives and validates deliveries, and refreshes the catalog for unknown SKUs.

use std::time::Duration;

use actix::{AsyncContext, Context};
use futures_util::FutureExt;

use super::submission::{InFlightIntent, Submission};
use super::{Arc, Delivery, OrderConsumer, Subscription, SubscriptionState};
use crate::actors::order_consumer::idle_watch::IdleWatch;
use crate::actors::order_consumer::validation::{Validation, validate};
use crate::actors::supervisor::supervised::spawn_step;
use crate::broker::{Error, Source};

/// Longest wait for a delivery; the end of the read shows progress to the supervisor.
const READ_TIMEOUT: Duration = Duration::from_millis(200);

/// Earlier deliveries of a message after which it is suspected of crashing consumers, and submitted
/// exclusively.
const SUSPECT_AFTER: u32 = 3;

impl OrderConsumer {
    /// Subscribes, with backoff until it succeeds.
    pub(super) fn subscribe(&mut self, ctx: &mut Context<Self>) {
        if self.is_quiet {
            return;
        }
        self.in_progress.reading = true;
        let subscriber = Arc::clone(&self.deps.subscriber);
        let (source, prefetch) = (Source::Orders(self.deps.queue), self.deps.limits.prefetch);
        let work = async move { subscriber.subscribe(source, prefetch).await };
        spawn_step(self, ctx, work, |consumer, ctx, subscribed| match subscribed {
            Ok(subscription) => {
                if consumer.backoffs.subscribe.failures() > 0 {
                    tracing::info!(queue = consumer.deps.queue, "orders are delivered again");
                }
                let acks = Arc::from(subscription.acks());
                let number = consumer.subscription.number + 1;
                consumer.subscription = SubscriptionState::new(number, Some(acks), &consumer.deps);
                consumer.read(ctx, subscription);
            }
            Err(error) => consumer.subscription_lost(ctx, &error),
        });
    }

    /// Drops the state of the subscription and subscribes again: the broker redelivers all
    /// unacknowledged deliveries to the consumers of the queue.
    fn subscription_lost(&mut self, ctx: &mut Context<Self>, error: &Error) {
        self.in_progress.reading = false;
        let number = self.subscription.number + 1;
        self.subscription = SubscriptionState::new(number, None, &self.deps);
        self.report_unacknowledged();
        let queue = self.deps.queue;
        if self.backoffs.subscribe.failures() == 0 {
            tracing::warn!(queue, error = error as &dyn std::error::Error, "no orders delivered");
        }
        let wait = self.backoffs.subscribe.next_wait(fastrand::f64());
        ctx.run_later(wait, Self::subscribe);
        self.report_if_idle();
    }

    fn read(&mut self, ctx: &mut Context<Self>, mut subscription: Box<dyn Subscription>) {
        let max = usize::from(self.deps.limits.prefetch);
        let work = async move {
            let (deliveries, error) = next_deliveries(subscription.as_mut(), max).await;
            (subscription, deliveries, error)
        };
        spawn_step(self, ctx, work, |consumer, ctx, (subscription, deliveries, error)| {
            if consumer.is_quiet {
                // The deliveries just read return to the queue when the subscription is closed.
                consumer.in_progress.reading = false;
                consumer.closing_subscription = Some(subscription);
                consumer.report_if_idle();
            } else if let Some(error) = error {
                drop(subscription);
                consumer.subscription_lost(ctx, &error);
            } else if deliveries.is_empty() && consumer.observe_idle(ctx) {
                drop(subscription);
                let reason = "messages are ready and none is delivered".to_owned();
                consumer.subscription_lost(ctx, &Error::Ended { reason });
            } else {
                if !deliveries.is_empty() {
                    consumer.backoffs.subscribe = consumer.deps.reconnect_backoff();
                    consumer.subscription.idle = IdleWatch::default();
                    consumer.receive(ctx, deliveries);
                }
                consumer.read(ctx, subscription);
            }
        });
    }

    fn receive(&mut self, ctx: &mut Context<Self>, deliveries: Vec<Delivery>) {
        let mut batch = Vec::new();
        for delivery in deliveries {
            self.deps.metrics.consumer_delivery(delivery.num_previous > 0);
            self.subscription.window.add(delivery.tag);
            self.subscription.publish_times.record(&delivery);
            self.admit(ctx, Arc::new(delivery), false, &mut batch);
        }
        self.report_unacknowledged();
        self.submit_batched(ctx, batch);
        self.refresh(ctx);
        self.publish(ctx);
    }

    /// Validates a delivery. Valid intents are added to `batch`, or submitted exclusively if the
    /// delivery is suspect.
    fn admit(
        &mut self,
        ctx: &mut Context<Self>,
        delivery: Arc<Delivery>,
        is_fresh: bool,
        batch: &mut Vec<InFlightIntent>,
    ) {
        let catalog = &self.deps.catalog;
        let validation = validate(&delivery, &self.deps.installation, is_fresh, |no| {
            catalog.of_sku(no).map(|(listed, sku)| (sku, listed.sale.epoch))
        });
        match validation {
            Validation::Poison(malformed) => self.dead_letter_whole(&delivery, &malformed),
            Validation::UnknownSku => self.subscription.awaiting_catalog.push(delivery),
            Validation::Parts { good, poison } => {
                self.subscription.window.split(delivery.tag, good.len() + poison.len());
                for (bytes, malformed) in poison {
                    self.dead_letter_part(&delivery, bytes, &malformed);
                }
                let items = good.into_iter().map(|(bytes, intent)| {
                    InFlightIntent::new(Arc::clone(&delivery), bytes, intent)
                });
                if delivery.num_previous >= SUSPECT_AFTER {
                    let number = self.subscription.number;
                    self.submit(ctx, Submission::exclusive(number, items.collect()));
                } else {
                    batch.extend(items);
                }
            }
        }
    }

    /// Refreshes the catalog for the deliveries that wait for it, one refresh at a time.
    fn refresh(&mut self, ctx: &mut Context<Self>) {
        let is_needed = !self.subscription.awaiting_catalog.is_empty();
        if self.in_progress.refreshing || !is_needed || self.is_quiet {
            return;
        }
        self.in_progress.refreshing = true;
        let deliveries = std::mem::take(&mut self.subscription.awaiting_catalog);
        let subscription_no = self.subscription.number;
        let work = (self.deps.refresh)();
        spawn_step(self, ctx, work, move |consumer, ctx, refreshed| {
            consumer.in_progress.refreshing = false;
            if subscription_no != consumer.subscription.number {
                return consumer.refresh(ctx);
            }
            let Err(error) = refreshed else {
                consumer.backoffs.refresh = consumer.deps.retry_backoff();
                let mut batch = Vec::new();
                for delivery in deliveries {
                    consumer.admit(ctx, delivery, true, &mut batch);
                }
                consumer.submit_batched(ctx, batch);
                consumer.publish(ctx);
                return consumer.refresh(ctx);
            };
            let queue = consumer.deps.queue;
            if consumer.backoffs.refresh.failures() == 0 {
                tracing::warn!(queue, error, "catalog not refreshed, deliveries wait");
            }
            for delivery in deliveries {
                consumer.subscription.window.mark_stuck(delivery.tag);
                consumer.subscription.awaiting_catalog.push(delivery);
            }
            consumer.in_progress.refreshing = true;
            let wait = consumer.backoffs.refresh.next_wait(fastrand::f64());
            ctx.run_later(wait, |consumer, ctx| {
                consumer.in_progress.refreshing = false;
                consumer.refresh(ctx);
            });
            consumer.acknowledge(ctx);
        });
    }
}

/// Waits for one delivery and takes those that are already there, `max` in all. Returns none after
/// [`READ_TIMEOUT`].
async fn next_deliveries(
    subscription: &mut dyn Subscription,
    max: usize,
) -> (Vec<Delivery>, Option<Error>) {
    let mut deliveries = Vec::new();
    match tokio::time::timeout(READ_TIMEOUT, subscription.next()).await {
        Ok(Ok(delivery)) => deliveries.push(delivery),
        Ok(Err(error)) => return (deliveries, Some(error)),
        Err(_elapsed) => return (deliveries, None),
    }
    while deliveries.len() < max {
        match subscription.next().now_or_never() {
            Some(Ok(delivery)) => deliveries.push(delivery),
            Some(Err(error)) => return (deliveries, Some(error)),
            None => break,
        }
    }
    (deliveries, None)
}
