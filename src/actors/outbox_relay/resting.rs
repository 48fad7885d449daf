//! A relay worker between rounds, and on its way out.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{ActorFutureExt, AsyncContext, Context, fut};
use futures_util::StreamExt;

use super::{LOOKS_AT_ONCE, OutboxRelay};
use crate::actors::child::{spawn_step, step};
use crate::clock::now_monotonic;
use crate::messages::reply;
use crate::outbox::Worker;

/// Longest wait between two looks at the node's name.
const WAIT_MAX: Duration = Duration::from_secs(1);

impl OutboxRelay {
    /// Waits until there is something to do, or somebody pokes.
    pub(super) fn wait(&mut self, ctx: &mut Context<Self>, now: Instant) {
        let next = self.worker.as_ref().and_then(|_| self.rounds.next_at());
        let pause = next.map_or(WAIT_MAX, |at| at.saturating_duration_since(now).min(WAIT_MAX));
        // While nothing can be claimed, pokes are for whoever can.
        let is_away = self.rounds.is_broker_away();
        let hears = self.worker.is_some() && !is_away;
        let (door, renamed) = (self.parts.door.clone(), self.parts.node.changed());
        let waited = async move {
            let poked = async { if hears { door.poked().await } else { pending().await } };
            let recovered =
                async { if is_away { door.recovered().await } else { pending().await } };
            tokio::select! {
                () = tokio::time::sleep(pause) => false,
                () = poked => false,
                () = renamed => false,
                () = recovered => true,
            }
        };
        let then = fut::wrap_future::<_, Self>(waited).map(|recovered, relay, ctx| {
            relay.waiting = None;
            step(relay, ctx, |relay, ctx| {
                if recovered {
                    relay.rounds.broker_recovered(now_monotonic());
                }
                relay.go_on(ctx);
            });
        });
        self.waiting = Some(ctx.spawn(then));
    }

    /// Leaves at once, if it only waits; a round that is under way comes to it by itself.
    pub(super) fn quiet(&mut self, ctx: &mut Context<Self>) {
        self.is_quiet = true;
        if let Some(waiting) = self.waiting.take() {
            ctx.cancel_future(waiting);
            self.go_on(ctx);
        } else if self.has_left {
            self.quiet.drain(..).for_each(|done| reply(done, ()));
        }
    }

    /// Gives back what is in hand, in every bucket, and says that it is done. What cannot be given
    /// back is taken by a rescuer, once the lease of the node has ended.
    pub(super) fn leave(&mut self, ctx: &mut Context<Self>) {
        let outbox = Arc::clone(&self.parts.outbox);
        let worker = self.worker.take();
        let buckets: Vec<_> = self.rounds.buckets().collect();
        let work = async move {
            let Some(Worker { name, .. }) = worker else { return };
            let given = buckets.into_iter().map(|bucket| {
                let (outbox, name) = (&outbox, &name);
                async move { outbox.give_back(bucket, name).await }
            });
            let given = futures_util::stream::iter(given.collect::<Vec<_>>());
            let given: Vec<_> = given.buffer_unordered(LOOKS_AT_ONCE).collect().await;
            if let Some(error) = given.into_iter().find_map(Result::err) {
                tracing::warn!(%error, "a hand was not given back; a rescuer will");
            }
        };
        spawn_step(self, ctx, work, |relay, _, ()| {
            relay.in_hand.set(0);
            relay.has_left = true;
            relay.quiet.drain(..).for_each(|done| reply(done, ()));
        });
    }
}
