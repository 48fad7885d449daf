//! Flow step 11/12: Redis, broker, ledger -> the same again.
//!
//! Compares the requests that buckets call `queued` with the ledger and repairs differences: writes
//! missing results to the bucket, and publishes lost requests again ([`bucket_walk`] defines when a
//! request is lost). Consumer and ledger decide a copy like every other delivery, even if its sale
//! is closed.
//!
//! Ticks on a timer, one pass at a time; a lease selects one process of the installation. Limits:
//! pages and lookups of one pass, after which the next pass resumes; copies of one request. On
//! error: the bucket is skipped and counted as blocked, the other buckets are reconciled. On crash:
//! the next reconciler starts from the beginning, here or in another process. May repeat:
//! everything; two reconcilers at once publish a request twice, and the ledger deduplicates by
//! request id.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};
use tokio::sync::oneshot;

use super::served::BucketRotation;
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

/// The name of the lease.
const LEASE: &str = "reconciler";

/// Dependencies of the reconciler.
#[derive(Clone)]
pub struct ReconcilerDeps {
    pub outbox: Arc<dyn Outbox>,
    /// Progress of the consumers of each order queue.
    pub watermarks: Arc<dyn Watermarks>,
    pub publisher: Arc<dyn Publisher>,
    pub stock: Arc<dyn Stock>,
    pub ledger: Arc<dyn Ledger>,
    /// Selects one reconciler of all processes.
    pub lease: Arc<dyn Lease>,
    pub catalog: Arc<Catalog>,
    /// Unique name of this process start, the holder of the lease.
    pub holder: Arc<str>,
    /// Installation id that messages carry.
    pub installation: Arc<str>,
    pub limits: ReconcilerLimits,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

/// Limits and waits of the reconciler.
#[derive(Debug, Clone, Copy)]
pub struct ReconcilerLimits {
    /// Interval of the passes.
    pub every: Duration,
    /// Requests queued for less than this time are not reconciled, milliseconds.
    pub after_ms: i64,
    pub lease_ttl: Duration,
    /// Most intents of one message.
    pub envelope_max: usize,
    /// Most unconfirmed messages.
    pub window: usize,
    /// Number of order queues.
    pub queues: u16,
}

impl ReconcilerLimits {
    /// The configured limits.
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

/// Repairs differences between Redis, broker and ledger.
pub struct Reconciler {
    incarnation: Incarnation,
    deps: ReconcilerDeps,
    rotation: BucketRotation,
    /// `None` during a pass.
    pass: Option<Pass>,
    /// The last error of the lease, until a call succeeds; one log line per change.
    last_error: Option<String>,
    quiet: Vec<oneshot::Sender<()>>,
    is_quiet: bool,
}

impl Reconciler {
    #[must_use]
    pub fn new(incarnation: Incarnation, deps: ReconcilerDeps) -> Self {
        Self {
            incarnation,
            deps,
            rotation: BucketRotation::default(),
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
        let buckets = self.rotation.next(&deps.catalog, deps.clock.wall_ms());
        let work = async move {
            let held = deps.lease.hold(LEASE, &deps.holder, deps.limits.lease_ttl).await;
            match held {
                Ok(ref hold) if hold.is_held(deps.clock.now()) => pass.run(&deps, &buckets).await,
                // Another process reconciles; the progress of this one is outdated by then.
                _ => pass = Pass::default(),
            }
            deps.metrics.set_reconcile_blocked(pass.blocked());
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
                reconciler.release_lease(ctx);
            }
        });
    }

    /// Releases the lease, so that another process can reconcile at once, and ends as quiet.
    fn release_lease(&mut self, ctx: &mut Context<Self>) {
        let ReconcilerDeps { lease, holder, .. } = self.deps.clone();
        let work = async move { lease.release(LEASE, &holder).await };
        spawn_step(self, ctx, work, |reconciler, _, released| {
            if let Err(error) = released {
                tracing::warn!(%error, "reconciler lease not released, it expires on its own");
            }
            reconciler.quiet.drain(..).for_each(|done| reply(done, ()));
        });
    }
}

impl Supervised for Reconciler {
    fn incarnation(&mut self) -> &mut Incarnation {
        &mut self.incarnation
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
                reconciler.release_lease(ctx);
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
