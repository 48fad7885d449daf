//! Flow step 11/12: Redis, broker, ledger -> the same again.
//!
//! Compares what buckets call `queued` with the ledger, and repairs what differs: a result that was
//! not written to the bucket is written; a request that is in no stage any more is published again
//! ([`bucket_walk`] says when that is certain enough). What becomes of it is the consumer's and the
//! ledger's to decide, as for every other delivery: also when its sale takes no orders any more.
//!
//! Ticks on a timer, one pass at a time; one process of an installation does it, by a lease.
//! Limits: pages and look-ups of one pass, after which the next one goes on there; copies of one
//! request. On error: the bucket that has it is skipped and counted as blocked, every other one
//! goes on. On a crash: the next reconciler begins anew, here or in another process. May repeat:
//! everything; two reconcilers at once publish a request twice, and the ledger makes one order of
//! it.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};
use tokio::sync::oneshot;

use super::served::Looks;
use crate::actors::supervisor::supervised::{
    ExitReason, Incarnation, Supervised, end, spawn_step, step,
};
use crate::broker::Publisher;
use crate::config::Settings;
use crate::db::Ledger;
use crate::lease::Lease;
use crate::messages::{Quiet, Stop, reply};
use crate::observe::metrics::Metrics;
use crate::outbox::Outbox;
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;
use crate::stock::Stock;
use crate::watermark::Watermarks;

pub mod bucket_walk;
mod copies;
mod pass;
mod reconcile_metrics;
mod republishing;

use pass::Pass;

/// The lease of which there is one over all processes.
const RECONCILER: &str = "reconciler";

/// What the reconciler works with.
#[derive(Clone)]
pub struct ReconcilerDeps {
    /// Tells what has left it.
    pub outbox: Arc<dyn Outbox>,
    /// Tells what consumers have behind them.
    pub watermarks: Arc<dyn Watermarks>,
    /// Where requests are published again.
    pub publisher: Arc<dyn Publisher>,
    /// Tells what is queued; takes results.
    pub stock: Arc<dyn Stock>,
    /// Tells what has ended.
    pub ledger: Arc<dyn Ledger>,
    /// Which of many reconcilers works.
    pub lease: Arc<dyn Lease>,
    /// Which buckets there are.
    pub catalog: Arc<Catalog>,
    /// This start of this process, as leases have it.
    pub holder: Arc<str>,
    /// Whose orders these are, as messages say it.
    pub installation: Arc<str>,
    /// Limits and waits.
    pub limits: ReconcilerLimits,
    /// Which time it is.
    pub clock: SharedClock,
    /// What operators see.
    pub metrics: Arc<Metrics>,
}

/// Limits and waits of the reconciler.
#[derive(Debug, Clone, Copy)]
pub struct ReconcilerLimits {
    /// How often it ticks.
    pub every: Duration,
    /// A request that has been queued for less is left alone.
    pub after_ms: i64,
    /// The lease ends so long after it was renewed last.
    pub lease_ttl: Duration,
    /// Most orders in one message.
    pub envelope_max: usize,
    /// Messages that may be unconfirmed at once.
    pub window: usize,
    /// Order queues of the broker.
    pub queues: u16,
}

impl ReconcilerLimits {
    /// As configured.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        Self {
            every: Duration::from_millis(settings.maintenance.rescue_every_ms),
            after_ms: i64::try_from(settings.reconciler.after_ms).unwrap_or(i64::MAX),
            lease_ttl: Duration::from_millis(settings.maintenance.lease_ttl_ms),
            envelope_max: settings.outbox.envelope_max,
            window: settings.relay.confirm_window,
            queues: settings.amqp.queues,
        }
    }
}

/// Repairs what Redis, broker and ledger disagree about.
pub struct Reconciler {
    life: Incarnation,
    deps: ReconcilerDeps,
    looks: Looks,
    /// Away while a pass is under way.
    pass: Option<Pass>,
    /// The last error of the lease, until it answers; for one log line at each change.
    last_error: Option<String>,
    quiet: Vec<oneshot::Sender<()>>,
    is_quiet: bool,
}

impl Reconciler {
    /// A reconciler that has seen nothing yet.
    #[must_use]
    pub fn new(life: Incarnation, deps: ReconcilerDeps) -> Self {
        Self {
            life,
            deps,
            looks: Looks::default(),
            pass: Some(Pass::default()),
            last_error: None,
            quiet: Vec::new(),
            is_quiet: false,
        }
    }

    fn tick(&mut self, ctx: &mut Context<Self>) {
        if self.is_quiet {
            return;
        }
        let Some(mut pass) = self.pass.take() else { return };
        let deps = self.deps.clone();
        let buckets = self.looks.next(&deps.catalog, deps.clock.wall_ms());
        let work = async move {
            let held = deps.lease.hold(RECONCILER, &deps.holder, deps.limits.lease_ttl).await;
            match held {
                Ok(ref hold) if hold.is_held(deps.clock.now()) => pass.run(&deps, &buckets).await,
                // Another process works; what this one saw is too old when it is its turn again.
                _ => pass = Pass::default(),
            }
            deps.metrics.reconcile_blocked(pass.blocked());
            (pass, held.err())
        };
        spawn_step(self, ctx, work, |reconciler, ctx, (pass, error)| {
            reconciler.pass = Some(pass);
            let error = error.map(|error| error.to_string());
            if let Some(error) = error.as_ref().filter(|_| error != reconciler.last_error) {
                tracing::warn!(error, "reconciler lease not available, retrying");
            }
            reconciler.last_error = error;
            if reconciler.is_quiet {
                reconciler.leave(ctx);
            }
        });
    }

    /// Lets another process begin at once.
    fn leave(&mut self, ctx: &mut Context<Self>) {
        let ReconcilerDeps { lease, holder, .. } = self.deps.clone();
        let work = async move { lease.release(RECONCILER, &holder).await };
        spawn_step(self, ctx, work, |reconciler, _, released| {
            if let Err(error) = released {
                tracing::warn!(%error, "reconciler lease not released, it expires by itself");
            }
            reconciler.quiet.drain(..).for_each(|done| reply(done, ()));
        });
    }
}

impl Supervised for Reconciler {
    fn life(&mut self) -> &mut Incarnation {
        &mut self.life
    }
}

impl Actor for Reconciler {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let every = self.deps.limits.every.max(Duration::from_millis(10));
        ctx.run_interval(every, |reconciler, ctx| step(reconciler, ctx, Self::tick));
    }
}

impl Handler<Quiet> for Reconciler {
    type Result = ();

    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |reconciler, ctx| {
            reconciler.is_quiet = true;
            reconciler.quiet.push(quiet.done);
            if reconciler.pass.is_some() {
                reconciler.leave(ctx);
            }
        });
    }
}

impl Handler<Stop> for Reconciler {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
