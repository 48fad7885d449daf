//! A subscription that delivers nothing while messages wait: the connection lives, and the broker
//! or its client has forgotten the consumer. Nothing would ever come again.

use std::time::{Duration, Instant};

use actix::Context;

use super::{Arc, OrderConsumer};
use crate::actors::supervisor::supervised::spawn_step;

/// How long nothing came before somebody looks, and between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// So many looks in a row that find messages waiting are too many.
const LOOKS_MAX: u32 = 2;

/// How long nothing was delivered.
#[derive(Debug, Default)]
pub(super) struct IdleWatch {
    /// Since when, or since the last look.
    since: Option<Instant>,
    /// Looks that found messages waiting.
    looks: u32,
}

impl OrderConsumer {
    /// Nothing was delivered for a moment. Whether the subscription must be given up.
    pub(super) fn is_silent(&mut self, ctx: &mut Context<Self>) -> bool {
        let now = self.deps.clock.now();
        let since = *self.hand.silence.since.get_or_insert(now);
        // Whoever has something in hand may have all that there is room for.
        if !self.hand.window.is_empty() || self.under_way.watching {
            self.hand.silence.since = Some(now);
        } else if now.duration_since(since) >= LOOK_EVERY {
            self.hand.silence.since = Some(now);
            self.look_at_queue(ctx);
        }
        self.hand.silence.looks >= LOOKS_MAX
    }

    fn look_at_queue(&mut self, ctx: &mut Context<Self>) {
        self.under_way.watching = true;
        let subscriber = Arc::clone(&self.deps.subscriber);
        let own = format!("orders.{}", self.deps.queue);
        let subscription = self.hand.subscription;
        let work = async move { subscriber.depths().await };
        spawn_step(self, ctx, work, move |intake, _, depths| {
            intake.under_way.watching = false;
            // A broker that cannot be asked is no news of this subscription; and what came while
            // it was asked has ended the silence.
            let Ok(depths) = depths else { return };
            if subscription == intake.hand.subscription && intake.hand.window.is_empty() {
                let waits = depths.iter().any(|it| it.queue == own && it.num_ready > 0);
                let looks = intake.hand.silence.looks;
                intake.hand.silence.looks = if waits { looks + 1 } else { 0 };
            }
        });
    }
}
