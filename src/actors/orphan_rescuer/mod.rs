//! Flow step 10/12: the dead -> the living.
//!
//! Gives back what relays had in hand that died, so that other relays publish it; and when nothing
//! has been under way anywhere for a while, sends accepted requests to the consumers again that are
//! still without an answer ([`strays`]).
//!
//! Ticks on a timer, one look at a time; over all processes one at a time, by a lease. A node is
//! dead when its own lease can be had. On error: the next look. On death: the next rescuer, here or
//! in another process. May repeat: everything; an entry may be published twice, and a request is
//! one order.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};
use tokio::sync::oneshot;

use super::child::{ExitReason, Life, Living, end, spawn_step, step};
use super::outbox_relay::Node;
use super::served::Looks;
use crate::broker::{Publisher, Subscriber};
use crate::catalog::Catalog;
use crate::clock::SharedClock;
use crate::config::Settings;
use crate::db::Ledger;
use crate::lease::Lease;
use crate::messages::{Quiet, Stop, reply};
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::stock::{BucketKey, Stock};

mod rescuing;
pub mod strays;

use rescuing::{Failure, RESCUER, Survey, age, rescue, send_strays};
use strays::{Stillness, are_empty};

/// What the rescuer works with.
#[derive(Clone)]
pub struct RescuerParts {
    /// Where hands are given back.
    pub outbox: Arc<dyn Outbox>,
    /// Where strays are sent.
    pub publisher: Arc<dyn Publisher>,
    /// Who knows whether queues are empty.
    pub subscriber: Arc<dyn Subscriber>,
    /// Who knows which requests have no answer.
    pub stock: Arc<dyn Stock>,
    /// Who knows which of them are dead letters.
    pub ledger: Arc<dyn Ledger>,
    /// Which of many rescuers looks, and which nodes are alive.
    pub lease: Arc<dyn Lease>,
    /// Which buckets there are.
    pub catalog: Arc<Catalog>,
    /// The node of this process's relays; one without a name where there are none.
    pub node: Arc<Node>,
    /// This start of this process, as leases have it.
    pub holder: Arc<str>,
    /// Whose orders these are, as messages say it.
    pub installation: Arc<str>,
    /// Limits and waits.
    pub limits: RescueLimits,
    /// The time of leases and of rest.
    pub clock: SharedClock,
    /// What operators see.
    pub metrics: Arc<Metrics>,
}

/// Limits and waits of the rescuer.
#[derive(Debug, Clone, Copy)]
pub struct RescueLimits {
    /// How often it looks.
    pub every: Duration,
    /// How long rest must last before strays are searched, and how old these must be.
    pub stray_after: Duration,
    /// The rescuer's lease ends so long after it was renewed last.
    pub lease_ttl: Duration,
    /// A node's.
    pub node_ttl: Duration,
    /// Most orders in one message.
    pub envelope_max: usize,
    /// Messages that may be unconfirmed at once.
    pub window: usize,
    /// Order queues of the broker.
    pub queues: u16,
}

impl RescueLimits {
    /// As the settings want them.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        Self {
            every: Duration::from_millis(settings.keeper.rescue_every_ms),
            stray_after: Duration::from_millis(settings.keeper.stray_after_ms),
            lease_ttl: Duration::from_millis(settings.keeper.lease_ttl_ms),
            node_ttl: Duration::from_millis(settings.relay.lease_ttl_ms),
            envelope_max: settings.outbox.envelope_max,
            window: settings.relay.confirm_window,
            queues: settings.amqp.queues,
        }
    }
}

/// Brings back the work of the dead.
pub struct OrphanRescuer {
    life: Life,
    parts: RescuerParts,
    looking: bool,
    looks: Looks,
    /// Those of the present look.
    buckets: Arc<[BucketKey]>,
    still: Stillness,
    /// The last error, until a look succeeds; for one log line at each change.
    trouble: Option<String>,
    quiet: Vec<oneshot::Sender<()>>,
    is_quiet: bool,
}

impl OrphanRescuer {
    /// A rescuer that has not looked yet.
    #[must_use]
    pub fn new(life: Life, parts: RescuerParts) -> Self {
        let still = Stillness::new(parts.limits.stray_after);
        Self {
            life,
            parts,
            looking: false,
            looks: Looks::default(),
            buckets: Arc::default(),
            still,
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
        let buckets: Arc<[_]> = self.looks.next(&parts.catalog, parts.clock.wall_ms()).into();
        self.buckets = Arc::clone(&buckets);
        let work = async move { rescue(&parts, &buckets).await };
        spawn_step(self, ctx, work, |rescuer, ctx, looked| match looked {
            Ok(Some(survey)) => rescuer.surveyed(ctx, survey),
            Ok(None) => {
                rescuer.still.observe(false, rescuer.parts.clock.now());
                rescuer.parts.metrics.outbox_stands(0, Duration::ZERO);
                rescuer.done(ctx, None);
            }
            Err(failure) => {
                // What nobody looked at was perhaps not at rest.
                rescuer.still.observe(false, rescuer.parts.clock.now());
                rescuer.done(ctx, Some(failure));
            }
        });
    }

    fn surveyed(&mut self, ctx: &mut Context<Self>, survey: Survey) {
        let oldest = age(survey.oldest_ms, self.parts.clock.wall_ms());
        self.parts.metrics.outbox_stands(survey.num_waiting, oldest);
        if !survey.is_empty() {
            self.still.observe(false, self.parts.clock.now());
            self.done(ctx, survey.failure);
            return;
        }
        let subscriber = Arc::clone(&self.parts.subscriber);
        let work = async move { subscriber.depths().await };
        spawn_step(self, ctx, work, |rescuer, ctx, depths| {
            let is_at_rest = depths.as_ref().is_ok_and(|depths| are_empty(depths));
            if rescuer.still.observe(is_at_rest, rescuer.parts.clock.now()) {
                rescuer.search(ctx);
            } else {
                rescuer.done(ctx, depths.err().map(Into::into));
            }
        });
    }

    /// Sends again what has no answer although nothing is under way.
    fn search(&mut self, ctx: &mut Context<Self>) {
        let (parts, buckets) = (self.parts.clone(), Arc::clone(&self.buckets));
        let work = async move { send_strays(&parts, &buckets).await };
        spawn_step(self, ctx, work, |rescuer, ctx, sent| {
            // Some may have been sent where not all were.
            rescuer.still.searched(*sent.as_ref().unwrap_or(&1));
            rescuer.done(ctx, sent.err());
        });
    }

    fn done(&mut self, ctx: &mut Context<Self>, failure: Option<Failure>) {
        self.looking = false;
        let said = failure.map(|failure| failure.to_string());
        if let Some(said) = said.as_ref().filter(|said| self.trouble.as_ref() != Some(said)) {
            tracing::warn!(said, "a look for work that nobody has was not finished, trying again");
        }
        self.trouble = said;
        if self.is_quiet {
            self.leave(ctx);
        }
    }

    /// Lets another process begin at once.
    fn leave(&mut self, ctx: &mut Context<Self>) {
        let RescuerParts { lease, holder, .. } = self.parts.clone();
        let work = async move { lease.release(RESCUER, &holder).await };
        spawn_step(self, ctx, work, |rescuer, _, released| {
            if let Err(error) = released {
                tracing::warn!(error = &error as &dyn std::error::Error, "it ends by itself");
            }
            rescuer.quiet.drain(..).for_each(|done| reply(done, ()));
        });
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
        let every = self.parts.limits.every.max(Duration::from_millis(10));
        ctx.run_interval(every, |rescuer, ctx| step(rescuer, ctx, Self::look));
    }
}

impl Handler<Quiet> for OrphanRescuer {
    type Result = ();

    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |rescuer, ctx| {
            rescuer.is_quiet = true;
            rescuer.quiet.push(quiet.done);
            if !rescuer.looking {
                rescuer.leave(ctx);
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
