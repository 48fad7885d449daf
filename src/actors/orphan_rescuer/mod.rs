//! Flow step 10/12: abandoned claims -> outbox.
//!
//! Returns what silent relay workers claimed to the outbox, so that others publish it.
//!
//! Ticks on a timer, one look at a time; any number of processes may do so at once. On error: the
//! next look. If it crashes: the next rescuer, here or in another process. May repeat: everything;
//! an entry may be published twice, and a request is one order.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};
use tokio::sync::oneshot;

use super::child::{ExitReason, Life, Living, end, spawn_step, step};
use super::served::Looks;
use crate::catalog::Catalog;
use crate::clock::SharedClock;
use crate::messages::{Quiet, Stop, reply};
use crate::metrics::Metrics;
use crate::outbox::Outbox;

mod rescuing;

use rescuing::{Survey, age, rescue};

/// What the rescuer works with.
#[derive(Clone)]
pub struct RescuerParts {
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
    life: Life,
    parts: RescuerParts,
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
    pub fn new(life: Life, parts: RescuerParts) -> Self {
        Self {
            life,
            parts,
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
        let parts = self.parts.clone();
        let buckets = self.looks.next(&parts.catalog, parts.clock.wall_ms());
        let work = async move { rescue(&parts, &buckets).await };
        spawn_step(self, ctx, work, |rescuer, _, survey| rescuer.surveyed(survey));
    }

    fn surveyed(&mut self, survey: Survey) {
        self.looking = false;
        let oldest = age(survey.oldest_ms, self.parts.clock.wall_ms());
        self.parts.metrics.outbox_stands(survey.num_waiting, oldest);
        let said = survey.failure.map(|failure| failure.to_string());
        if let Some(said) = said.as_ref().filter(|said| self.trouble.as_ref() != Some(said)) {
            tracing::warn!(said, "orphan rescue failed, retrying");
        }
        self.trouble = said;
        self.quiet.drain(..).for_each(|done| reply(done, ()));
    }
}

impl Living for OrphanRescuer {
    fn life(&mut self) -> &mut Life {
        &mut self.life
    }
}

impl Actor for OrphanRescuer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let every = self.parts.every.max(Duration::from_millis(10));
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
