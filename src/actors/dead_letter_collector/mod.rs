//! Flow step 10/12: outbox, broker -> ledger.
//!
//! Stores dead letters in the ledger, where operators find them: those of the broker's queue, and
//! the dead entries of the outboxes. They are acknowledged or removed only after COMMIT.
//!
//! Owns: nothing; every dead letter stays at its source until it is stored. Limits:
//! `maintenance.dead_letters_max` unacknowledged dead letters of each source, a mebibyte each. On
//! error: while the ledger is unavailable, all are held and retried; a dead letter that the ledger
//! rejects is set aside, unacknowledged, and the others are stored. On crash: unacknowledged dead
//! letters are redelivered, and recognized by their digest. May repeat: every dead letter.

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

/// Dependencies of the collector; shared by all its incarnations.
#[derive(Clone)]
pub struct CollectorDeps {
    pub ledger: Arc<dyn Ledger>,
    /// The sources of dead letters.
    pub pipeline: Pipeline,
    /// The sales whose outboxes are read.
    pub catalog: Arc<Catalog>,
    /// Unacknowledged dead letters of one source.
    pub dead_letters_max: u16,
    /// Interval between reads of the outboxes, and longest wait for a delivery, milliseconds.
    pub every_ms: u64,
    /// First wait after an error, milliseconds.
    pub backoff_min_ms: u64,
    /// Longest wait after an error, milliseconds.
    pub backoff_max_ms: u64,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

/// Stores dead letters. Each source is collected by itself, so that neither waits for the other.
pub struct DeadLetterCollector {
    incarnation: Incarnation,
    deps: Arc<CollectorDeps>,
}

impl DeadLetterCollector {
    #[must_use]
    pub fn new(incarnation: Incarnation, deps: Arc<CollectorDeps>) -> Self {
        Self { incarnation, deps }
    }

    /// Collects from the broker's queue, one round after the other, with a pause after an error.
    fn collect_queue(&mut self, ctx: &mut Context<Self>, mut queue: QueueCollector) {
        let deps = Arc::clone(&self.deps);
        let work = async move {
            let pause = queue.round(&deps).await;
            (queue, pause)
        };
        spawn_step(self, ctx, work, |collector, ctx, (queue, pause)| match pause {
            None => collector.collect_queue(ctx, queue),
            Some(pause) => step_after(ctx, pause, |collector, ctx| {
                collector.collect_queue(ctx, queue);
            }),
        });
    }

    /// Collects from the outboxes, with a pause after each round.
    fn collect_outboxes(&mut self, ctx: &mut Context<Self>, mut outboxes: OutboxCollector) {
        let deps = Arc::clone(&self.deps);
        let work = async move {
            let pause = outboxes.round(&deps).await;
            (outboxes, pause)
        };
        spawn_step(self, ctx, work, |_, ctx, (outboxes, pause)| {
            step_after(ctx, pause, |collector, ctx| collector.collect_outboxes(ctx, outboxes));
        });
    }
}

/// Runs a step after a pause. The pause is outside of the step: it must not count as a stall.
fn step_after(
    ctx: &mut Context<DeadLetterCollector>,
    pause: Duration,
    then: impl FnOnce(&mut DeadLetterCollector, &mut Context<DeadLetterCollector>) + 'static,
) {
    ctx.run_later(pause, move |collector, ctx| step(collector, ctx, then));
}

impl Supervised for DeadLetterCollector {
    fn incarnation(&mut self) -> &mut Incarnation {
        &mut self.incarnation
    }
}

impl Actor for DeadLetterCollector {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.collect_queue(ctx, QueueCollector::new(&self.deps));
        self.collect_outboxes(ctx, OutboxCollector::new(&self.deps));
    }
}

impl Handler<Stop> for DeadLetterCollector {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
