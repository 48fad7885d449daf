//! From the broker to the intake: subscriptions, deliveries, and what the catalog must say first.

use std::time::Duration;

use actix::{AsyncContext, Context};
use futures_util::FutureExt;

use super::submission::{InFlightIntent, Submission};
use super::{Arc, Delivery, OrderConsumer, Subscription, SubscriptionState};
use crate::actors::order_consumer::idle_watch::IdleWatch;
use crate::actors::order_consumer::validation::{Validation, judge};
use crate::actors::supervisor::supervised::spawn_step;
use crate::broker::{Error, Source};

/// How long a reader waits before it shows that it is alive.
const PATIENCE: Duration = Duration::from_millis(200);

/// A delivery that came so often before has perhaps killed a consumer: it is tried alone.
const SUSPECT_AFTER: u32 = 3;

impl OrderConsumer {
    /// Subscribes, again and again until it succeeds.
    pub(super) fn subscribe(&mut self, ctx: &mut Context<Self>) {
        if self.is_quiet {
            return;
        }
        self.under_way.reading = true;
        let subscriber = Arc::clone(&self.deps.subscriber);
        let (source, prefetch) = (Source::Orders(self.deps.queue), self.deps.limits.prefetch);
        let work = async move { subscriber.subscribe(source, prefetch).await };
        spawn_step(self, ctx, work, |intake, ctx, subscribed| match subscribed {
            Ok(subscription) => {
                if intake.waits.subscribe.failures() > 0 {
                    tracing::info!(queue = intake.deps.queue, "orders are delivered again");
                }
                let acks = Arc::from(subscription.acks());
                let number = intake.hand.subscription + 1;
                intake.hand = SubscriptionState::new(number, Some(acks), &intake.deps);
                intake.read(ctx, subscription);
            }
            Err(error) => intake.lost(ctx, &error),
        });
    }

    /// The subscription is over: everything in hand comes again, to somebody.
    fn lost(&mut self, ctx: &mut Context<Self>, error: &Error) {
        self.under_way.reading = false;
        self.hand = SubscriptionState::new(self.hand.subscription + 1, None, &self.deps);
        self.note_in_hand();
        let queue = self.deps.queue;
        if self.waits.subscribe.failures() == 0 {
            tracing::warn!(queue, error = error as &dyn std::error::Error, "no orders delivered");
        }
        let wait = self.waits.subscribe.next_wait(fastrand::f64());
        ctx.run_later(wait, Self::subscribe);
        self.report_if_idle();
    }

    fn read(&mut self, ctx: &mut Context<Self>, mut subscription: Box<dyn Subscription>) {
        let max = usize::from(self.deps.limits.prefetch);
        let work = async move {
            let (deliveries, error) = next_few(subscription.as_mut(), max).await;
            (subscription, deliveries, error)
        };
        spawn_step(self, ctx, work, |intake, ctx, (subscription, deliveries, error)| {
            if intake.is_quiet {
                // What was just read goes back with the subscription.
                intake.under_way.reading = false;
                intake.unread = Some(subscription);
                intake.report_if_idle();
            } else if let Some(error) = error {
                drop(subscription);
                intake.lost(ctx, &error);
            } else if deliveries.is_empty() && intake.is_silent(ctx) {
                drop(subscription);
                let reason = "messages wait and none is delivered".to_owned();
                intake.lost(ctx, &Error::Ended { reason });
            } else {
                if !deliveries.is_empty() {
                    intake.waits.subscribe = intake.deps.reconnect();
                    intake.hand.silence = IdleWatch::default();
                    intake.receive(ctx, deliveries);
                }
                intake.read(ctx, subscription);
            }
        });
    }

    /// Takes deliveries in hand.
    fn receive(&mut self, ctx: &mut Context<Self>, deliveries: Vec<Delivery>) {
        let mut items = Vec::new();
        for delivery in deliveries {
            self.deps.metrics.intake_delivery(delivery.num_before > 0);
            self.hand.window.enter(delivery.tag);
            self.hand.published.took(&delivery);
            self.admit(ctx, Arc::new(delivery), false, &mut items);
        }
        self.note_in_hand();
        self.submit_together(ctx, items);
        self.refresh(ctx);
        self.publish(ctx);
    }

    /// Judges a delivery: what is good goes to `items`, or to the consumer at once if it must be
    /// alone there.
    fn admit(
        &mut self,
        ctx: &mut Context<Self>,
        delivery: Arc<Delivery>,
        is_fresh: bool,
        items: &mut Vec<InFlightIntent>,
    ) {
        let catalog = &self.deps.catalog;
        let judgement = judge(&delivery, &self.deps.installation, is_fresh, |no| {
            catalog.of_sku(no).map(|(listed, sku)| (sku, listed.sale.epoch))
        });
        match judgement {
            Validation::Poison(malformed) => self.dead_letter_whole(&delivery, &malformed),
            Validation::Stranger => self.hand.strangers.push(delivery),
            Validation::Parts { good, poison } => {
                self.hand.window.split(delivery.tag, good.len() + poison.len());
                for (bytes, malformed) in poison {
                    self.dead_letter_part(&delivery, bytes, &malformed);
                }
                let own = good.into_iter().map(|(bytes, intent)| {
                    InFlightIntent::new(Arc::clone(&delivery), bytes, intent)
                });
                if delivery.num_before >= SUSPECT_AFTER {
                    let own = Submission::exclusive(self.hand.subscription, own.collect());
                    self.submit(ctx, own);
                } else {
                    items.extend(own);
                }
            }
        }
    }

    /// Has the catalog refreshed for deliveries that it cannot judge, one look at a time.
    fn refresh(&mut self, ctx: &mut Context<Self>) {
        if self.under_way.refreshing || self.hand.strangers.is_empty() || self.is_quiet {
            return;
        }
        self.under_way.refreshing = true;
        let strangers = std::mem::take(&mut self.hand.strangers);
        let subscription = self.hand.subscription;
        let looking = (self.deps.refresh)();
        spawn_step(self, ctx, looking, move |intake, ctx, looked| {
            intake.under_way.refreshing = false;
            if subscription != intake.hand.subscription {
                return intake.refresh(ctx);
            }
            let Err(error) = looked else {
                intake.waits.refresh = intake.deps.ask_again();
                let mut items = Vec::new();
                for delivery in strangers {
                    intake.admit(ctx, delivery, true, &mut items);
                }
                intake.submit_together(ctx, items);
                intake.publish(ctx);
                return intake.refresh(ctx);
            };
            let queue = intake.deps.queue;
            if intake.waits.refresh.failures() == 0 {
                tracing::warn!(queue, error, "deliveries wait for a look at the sales");
            }
            for delivery in strangers {
                intake.hand.window.stick(delivery.tag);
                intake.hand.strangers.push(delivery);
            }
            intake.under_way.refreshing = true;
            let wait = intake.waits.refresh.next_wait(fastrand::f64());
            ctx.run_later(wait, |intake, ctx| {
                intake.under_way.refreshing = false;
                intake.refresh(ctx);
            });
            intake.acknowledge(ctx);
        });
    }
}

/// Waits for a delivery and takes what came with it. Nothing after a while.
async fn next_few(
    subscription: &mut dyn Subscription,
    max: usize,
) -> (Vec<Delivery>, Option<Error>) {
    let mut deliveries = Vec::new();
    match tokio::time::timeout(PATIENCE, subscription.next()).await {
        Ok(Ok(delivery)) => deliveries.push(delivery),
        Ok(Err(error)) => return (deliveries, Some(error)),
        Err(_nothing_came) => return (deliveries, None),
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
