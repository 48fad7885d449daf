//! Flow step 10/12: abandoned claims -> outbox.
//!
//! Returns the claimed entries of relay workers without a heartbeat to the outbox, so that running
//! workers publish them.
//!
//! Ticks on a timer, one pass at a time; any number of processes may run it at once. On error: the
//! next pass retries. On crash: the next rescuer, here or in another process. May repeat:
//! everything; an entry may be published twice, and the ledger deduplicates by request id.

mod rescue;

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};
use tokio::sync::oneshot;

use super::served::BucketRotation;
use crate::actors::supervisor::supervised::{
    ExitReason, Incarnation, Supervised, end, spawn_step, step,
};
use crate::messages::{Quiet, Stop, reply};
use crate::observe::metrics::Metrics;
use crate::outbox::Outbox;
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;

use rescue::{OutboxTotals, age, rescue};

/// Dependencies of the rescuer.
#[derive(Clone)]
pub struct RescuerDeps {
    pub outbox: Arc<dyn Outbox>,
    pub catalog: Arc<Catalog>,
    /// Interval of the passes.
    pub every: Duration,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

/// Reclaims abandoned outbox entries.
pub struct OrphanRescuer {
    incarnation: Incarnation,
    deps: RescuerDeps,
    is_running: bool,
    rotation: BucketRotation,
    /// The last error, until a pass succeeds; one log line per change.
    last_error: Option<String>,
    quiet: Vec<oneshot::Sender<()>>,
    is_quiet: bool,
}

impl OrphanRescuer {
    #[must_use]
    pub fn new(incarnation: Incarnation, deps: RescuerDeps) -> Self {
        Self {
            incarnation,
            deps,
            is_running: false,
            rotation: BucketRotation::default(),
            last_error: None,
            quiet: Vec::new(),
            is_quiet: false,
        }
    }

    fn start_pass(&mut self, ctx: &mut Context<Self>) {
        if self.is_running || self.is_quiet {
            return;
        }
        self.is_running = true;
        let deps = self.deps.clone();
        let buckets = self.rotation.next(&deps.catalog, deps.clock.wall_ms());
        let work = async move { rescue(&deps, &buckets).await };
        spawn_step(self, ctx, work, |rescuer, _, totals| rescuer.end_pass(totals));
    }

    fn end_pass(&mut self, totals: OutboxTotals) {
        self.is_running = false;
        let oldest = age(totals.oldest_ms, self.deps.clock.wall_ms());
        self.deps.metrics.set_outbox_backlog(totals.num_waiting, oldest);
        let error = totals.error.map(|error| error.to_string());
        if let Some(error) = error.as_ref().filter(|_| error != self.last_error) {
            tracing::warn!(error, "orphan rescue failed, retrying");
        }
        self.last_error = error;
        self.quiet.drain(..).for_each(|done| reply(done, ()));
    }
}

impl Supervised for OrphanRescuer {
    fn incarnation(&mut self) -> &mut Incarnation {
        &mut self.incarnation
    }
}

impl Actor for OrphanRescuer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let every = self.deps.every.max(Duration::from_millis(10));
        ctx.run_interval(every, |rescuer, ctx| step(rescuer, ctx, Self::start_pass));
    }
}

impl Handler<Quiet> for OrphanRescuer {
    type Result = ();

    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |rescuer, _| {
            rescuer.is_quiet = true;
            if rescuer.is_running {
                rescuer.quiet.push(quiet.done);
            } else {
                reply(quiet.done, ());
            }
        });
    }
}

impl Handler<Stop> for OrphanRescuer {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
