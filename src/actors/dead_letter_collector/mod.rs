//! Flow step 10/12: outbox, broker -> ledger.
//!
//! Brings what was given up into the ledger, where operators find it: dead letters of the broker
//! and dead entries of the outboxes. Nothing is acknowledged or collected before the ledger has it.
//!
//! Owns: nothing; everything in hand is still where it came from. Limits:
//! `maintenance.dead_letters_max` letters in hand of each source, a mebibyte each. On error: while
//! the
//! ledger is away everything is held and tried again; a letter that the ledger refuses alone is
//! set aside, unacknowledged, and the others go on. On death: what was not acknowledged is
//! delivered again, and known by its digest. May repeat: every letter.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};

use self::outbox_collector::OutboxCollector;
use self::queue_collector::QueueCollector;
use crate::actors::supervisor::supervised::{
    ExitReason, Incarnation, Supervised, end, spawn_step, step,
};
use crate::db::Ledger;
use crate::messages::Stop;
use crate::observe::metrics::Metrics;
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;
use crate::tier::Pipeline;

mod failure_policy;
mod outbox_collector;
mod queue_collector;
mod store;

/// What the keeper works with.
#[derive(Clone)]
pub struct CollectorDeps {
    /// Where letters are kept.
    pub ledger: Arc<dyn Ledger>,
    /// Where they come from.
    pub pipeline: Pipeline,
    /// Which buckets there are.
    pub catalog: Arc<Catalog>,
    /// Letters of one source in hand at once.
    pub letters_max: u16,
    /// How often outboxes are looked at, and the longest wait for a delivery, milliseconds.
    pub every_ms: u64,
    /// First wait after an error, milliseconds.
    pub backoff_min_ms: u64,
    /// Longest such wait, milliseconds.
    pub backoff_max_ms: u64,
    /// Time.
    pub clock: SharedClock,
    /// What operators see.
    pub metrics: Arc<Metrics>,
}

/// Keeps dead letters. Each source has a lane of its own, so that none waits for another.
pub struct DeadLetterCollector {
    life: Incarnation,
    deps: Arc<CollectorDeps>,
}

impl DeadLetterCollector {
    /// A keeper with nothing in hand.
    #[must_use]
    pub fn new(life: Incarnation, deps: Arc<CollectorDeps>) -> Self {
        Self { life, deps }
    }

    /// One round after the other; a lane that has trouble rests in between.
    fn consume(&mut self, ctx: &mut Context<Self>, mut lane: QueueCollector) {
        let deps = Arc::clone(&self.deps);
        let work = async move {
            let rest = lane.round(&deps).await;
            (lane, rest)
        };
        spawn_step(self, ctx, work, |keeper, ctx, (lane, rest)| match rest {
            None => keeper.consume(ctx, lane),
            Some(rest) => keeper.later(ctx, rest, move |keeper, ctx| keeper.consume(ctx, lane)),
        });
    }

    fn collect(&mut self, ctx: &mut Context<Self>, mut lane: OutboxCollector) {
        let deps = Arc::clone(&self.deps);
        let work = async move {
            let rest = lane.round(&deps).await;
            (lane, rest)
        };
        spawn_step(self, ctx, work, |keeper, ctx, (lane, rest)| {
            keeper.later(ctx, rest, move |keeper, ctx| keeper.collect(ctx, lane));
        });
    }

    /// Not a step: a wait is no work, and must not look like a stall.
    #[expect(clippy::unused_self, reason = "reads as what the keeper does")]
    fn later(
        &self,
        ctx: &mut Context<Self>,
        rest: Duration,
        then: impl FnOnce(&mut Self, &mut Context<Self>) + 'static,
    ) {
        ctx.run_later(rest, move |keeper, ctx| step(keeper, ctx, then));
    }
}

impl Supervised for DeadLetterCollector {
    fn life(&mut self) -> &mut Incarnation {
        &mut self.life
    }
}

impl Actor for DeadLetterCollector {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let lane = QueueCollector::new(&self.deps);
        self.consume(ctx, lane);
        let lane = OutboxCollector::new(&self.deps);
        self.collect(ctx, lane);
    }
}

impl Handler<Stop> for DeadLetterCollector {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
