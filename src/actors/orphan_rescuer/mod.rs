//! Flow step 10/12: abandoned claims -> outbox.
//!
//! Returns what silent relay workers claimed to the outbox, so that others publish it.
//!
//! Ticks on a timer, one look at a time; any number of processes may do so at once. On error: the
//! next look. If it crashes: the next rescuer, here or in another process. May repeat: everything;
//! an entry may be published twice, and a request is one order.

mod rescue;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};
use tokio::sync::oneshot;

use super::served::Looks;
use crate::actors::supervisor::supervised::{
    ExitReason, Incarnation, Supervised, end, spawn_step, step,
};
use crate::messages::{Quiet, Stop, reply};
use crate::observe::metrics::Metrics;
use crate::outbox::Outbox;
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;

use rescue::{OutboxTotals, age, rescue};

/// What the rescuer works with.
#[derive(Clone)]
pub struct RescuerDeps {
    /// Where entries are reclaimed.
    pub outbox: Arc<dyn Outbox>,
    /// Which buckets there are.
    pub catalog: Arc<Catalog>,
    /// How often it looks.
    pub every: Duration,
    /// The time by which entries have an age.
    pub clock: SharedClock,
    /// What operators see.
    pub metrics: Arc<Metrics>,
}

/// Brings back the work of relays that are gone.
pub struct OrphanRescuer {
    life: Incarnation,
    deps: RescuerDeps,
    looking: bool,
    looks: Looks,
    /// The last error, until a look succeeds; for one log line at each change.
    trouble: Option<String>,
    quiet: Vec<oneshot::Sender<()>>,
    is_quiet: bool,
}

impl OrphanRescuer {
    /// A rescuer that has not looked yet.
    #[must_use]
    pub fn new(life: Incarnation, deps: RescuerDeps) -> Self {
        Self {
            life,
            deps,
            looking: false,
            looks: Looks::default(),
            trouble: None,
            quiet: Vec::new(),
            is_quiet: false,
        }
    }

    fn look(&mut self, ctx: &mut Context<Self>) {
        if self.looking || self.is_quiet {
            return;
        }
        self.looking = true;
        let deps = self.deps.clone();
        let buckets = self.looks.next(&deps.catalog, deps.clock.wall_ms());
        let work = async move { rescue(&deps, &buckets).await };
        spawn_step(self, ctx, work, |rescuer, _, survey| rescuer.surveyed(survey));
    }

    fn surveyed(&mut self, survey: OutboxTotals) {
        self.looking = false;
        let oldest = age(survey.oldest_ms, self.deps.clock.wall_ms());
        self.deps.metrics.outbox_stands(survey.num_waiting, oldest);
        let said = survey.failure.map(|failure| failure.to_string());
        if let Some(said) = said.as_ref().filter(|said| self.trouble.as_ref() != Some(said)) {
            tracing::warn!(said, "orphan rescue failed, retrying");
        }
        self.trouble = said;
        self.quiet.drain(..).for_each(|done| reply(done, ()));
    }
}

impl Supervised for OrphanRescuer {
    fn life(&mut self) -> &mut Incarnation {
        &mut self.life
    }
}

impl Actor for OrphanRescuer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let every = self.deps.every.max(Duration::from_millis(10));
        ctx.run_interval(every, |rescuer, ctx| step(rescuer, ctx, Self::look));
    }
}

impl Handler<Quiet> for OrphanRescuer {
    type Result = ();

    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |rescuer, _| {
            rescuer.is_quiet = true;
            if rescuer.looking {
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
