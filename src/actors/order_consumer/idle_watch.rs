//! Detects a subscription that delivers nothing while messages are ready in its queue: the
//! connection is up, and the broker or its client has lost the consumer.

use std::time::{Duration, Instant};

use actix::Context;

use super::{Arc, OrderConsumer};
use crate::actors::supervisor::supervised::spawn_step;

/// Time without a delivery before the queue depth is checked, and between two checks.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// Checks in a row that find ready messages before the subscription counts as stalled.
const STALLED_AFTER: u32 = 2;

/// How long a subscription has delivered nothing.
#[derive(Debug, Default)]
pub(super) struct IdleWatch {
    /// Start of the idle time, or the last check.
    since: Option<Instant>,
    /// Checks in a row that found ready messages.
    num_stalled: u32,
}

impl OrderConsumer {
    /// Records that a read timed out, and starts a check of the queue depth when one is due.
    /// Returns whether the subscription is stalled and must be replaced.
    pub(super) fn observe_idle(&mut self, ctx: &mut Context<Self>) -> bool {
        let now = self.deps.clock.now();
        let since = *self.subscription.idle.since.get_or_insert(now);
        // Unacknowledged deliveries may fill the whole prefetch: nothing more is delivered then.
        if !self.subscription.window.is_empty() || self.in_progress.checking_depth {
            self.subscription.idle.since = Some(now);
        } else if now.duration_since(since) >= CHECK_EVERY {
            self.subscription.idle.since = Some(now);
            self.check_depth(ctx);
        }
        self.subscription.idle.num_stalled >= STALLED_AFTER
    }

    fn check_depth(&mut self, ctx: &mut Context<Self>) {
        self.in_progress.checking_depth = true;
        let subscriber = Arc::clone(&self.deps.subscriber);
        let own_queue = format!("orders.{}", self.deps.queue);
        let subscription_no = self.subscription.number;
        let work = async move { subscriber.depths().await };
        spawn_step(self, ctx, work, move |consumer, _, depths| {
            consumer.in_progress.checking_depth = false;
            // A failed query proves nothing about this subscription, and a delivery that
            // arrived meanwhile has ended the idle time.
            let Ok(depths) = depths else { return };
            let subscription = &mut consumer.subscription;
            if subscription_no == subscription.number && subscription.window.is_empty() {
                let has_ready = depths.iter().any(|it| it.queue == own_queue && it.num_ready > 0);
                let num_stalled = subscription.idle.num_stalled;
                subscription.idle.num_stalled = if has_ready { num_stalled + 1 } else { 0 };
            }
        });
    }
}
