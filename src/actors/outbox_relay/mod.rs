//! Flow step 5/12: outbox -> broker.
//!
//! One worker of many: takes over what its predecessors hold, claims entries of every bucket,
//! publishes them on a channel of its own, waits for the confirmations, and acknowledges what
//! ended. It does one thing at a time (`relay.rs`); speed comes from large rounds and from several
//! workers. What to do next is decided in [`plan`], what the broker's answers mean in
//! [`round_outcome`].
//!
//! Owns: a channel of the broker, and the entries that it claimed. Limits: `relay.claim_max`
//! entries of a bucket, `relay.confirm_window` messages unconfirmed. On error: what was confirmed
//! is acknowledged again, and not published again; while the broker is away, everything stays
//! claimed and nothing more is claimed. If it crashes: its successor takes over under another name;
//! where none comes, the orphan rescuer reclaims what a silent name holds. May repeat: publishing;
//! the ledger makes one order of it.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, SpawnHandle, fut};
use tokio::sync::oneshot;

use crate::actors::supervisor::supervised::{
    ExitReason, Incarnation, Supervised, end, spawn_step, step,
};
use crate::broker::{Message, Publisher, Route};
use crate::config::RelaySettings;
use crate::messages::envelope;
use crate::messages::{Quiet, Stop, reply};
use crate::observe::metrics::Metrics;
use crate::outbox::{GivenUpEntry, Outbox, OutboxEntry};
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;
use crate::stock::BucketKey;

mod failure_log;
pub mod handle;
pub mod plan;
#[cfg(test)]
mod plan_model_tests;
#[cfg(test)]
mod plan_tests;
pub mod pool;
mod relay;
mod relay_metrics;
pub mod round_outcome;
pub mod worker_names;

pub use handle::RelayHandle;
pub use pool::RelayPool;
pub use worker_names::WorkerNames;

use plan::PlanLimits;
use relay::Relay;
use round_outcome::PackedEntry;

/// How often new sales are looked for; a poke makes a bucket known at once.
const CATALOG_EVERY: Duration = Duration::from_millis(100);

/// Longest wait between two rounds.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Announcements in the time that one lasts.
const BEATS: u32 = 3;

/// What relays work with; the same for every worker of a process.
#[derive(Clone)]
pub struct RelayDeps {
    /// Where entries wait.
    pub outbox: Arc<dyn Outbox>,
    /// Where messages go.
    pub publisher: Arc<dyn Publisher>,
    /// Which buckets there are.
    pub catalog: Arc<Catalog>,
    /// The process part of the workers' names.
    pub process: Arc<str>,
    /// Who wakes the workers.
    pub door: RelayHandle,
    /// Whose orders these are, as messages say it.
    pub installation: Arc<str>,
    /// Order queues of the broker.
    pub queues: u16,
    /// First wait after something failed, and the longest.
    pub retry: (Duration, Duration),
    /// Limits and waits.
    pub settings: RelaySettings,
    /// The time of messages; waits are slept, in real time.
    pub clock: SharedClock,
    /// What operators see.
    pub metrics: Arc<Metrics>,
}

impl RelayDeps {
    fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.settings.heartbeat_ttl_ms)
    }

    fn limits(&self) -> PlanLimits {
        let settings = &self.settings;
        PlanLimits {
            claim_max: settings.claim_max,
            window: settings.confirm_window,
            attempts_max: settings.attempts_max,
            workers: settings.workers,
            poll_min: Duration::from_millis(settings.poll_min_ms),
            poll_max: Duration::from_millis(settings.poll_max_ms),
            retry_min: self.retry.0,
            retry_max: self.retry.1,
        }
    }

    /// The message of all that can be read of an entry, and a dead letter of the rest.
    fn seal(&self, bucket: BucketKey, entry: &OutboxEntry, sent_at_ms: i64) -> PackedEntry {
        let envelope::EncodedEntry { message, unreadable } =
            envelope::seal(&entry.bytes, &self.installation, sent_at_ms);
        let route = Route::orders_of(bucket, self.queues);
        let letter = |(bytes, malformed): (_, envelope::MalformedEnvelope)| GivenUpEntry {
            bytes,
            reason: malformed.to_string(),
            attempts: 0,
        };
        PackedEntry {
            message: message.map(|(headers, body)| Message { route, headers, body }),
            letter: unreadable.map(letter),
        }
    }
}

/// The actor around one worker: its rounds and its heartbeat.
pub struct OutboxRelay {
    life: Incarnation,
    deps: RelayDeps,
    names: WorkerNames,
    /// Elsewhere while a round is under way.
    relay: Option<Box<Relay>>,
    waiting: Option<SpawnHandle>,
    is_announcing: bool,
    quiet: Vec<oneshot::Sender<()>>,
    is_quiet: bool,
    has_left: bool,
}

impl OutboxRelay {
    /// A worker that has looked at nothing. `names` has those of its predecessors.
    #[must_use]
    pub fn new(life: Incarnation, deps: RelayDeps, names: WorkerNames) -> Self {
        let relay = Some(Box::new(Relay::new(deps.clone(), names.clone())));
        Self {
            life,
            deps,
            names,
            relay,
            waiting: None,
            is_announcing: false,
            quiet: Vec::new(),
            is_quiet: false,
            has_left: false,
        }
    }

    /// Begins the next round, or the end.
    fn go_on(&mut self, ctx: &mut Context<Self>) {
        let Some(mut relay) = self.relay.take() else { return };
        if self.is_quiet {
            let work = async move { relay.leave().await };
            spawn_step(self, ctx, work, |actor, _, ()| {
                actor.has_left = true;
                actor.quiet.drain(..).for_each(|done| reply(done, ()));
            });
            return;
        }
        let work = async move {
            relay.round().await;
            relay
        };
        spawn_step(self, ctx, work, |actor, ctx, relay| {
            actor.relay = Some(relay);
            actor.wait(ctx);
        });
    }

    /// Waits until there is something to do, or a poke comes.
    fn wait(&mut self, ctx: &mut Context<Self>) {
        let Some(relay) = &self.relay else { return };
        let pause = relay.pause().map_or(WAIT_MAX, |pause| pause.min(WAIT_MAX));
        if self.is_quiet || pause.is_zero() {
            self.go_on(ctx);
            return;
        }
        // While nothing can be claimed, pokes are for workers that can.
        let (door, is_away) = (self.deps.door.clone(), relay.is_broker_away());
        let waited = async move {
            let poked = async { if is_away { pending().await } else { door.poked().await } };
            let recovered =
                async { if is_away { door.recovered().await } else { pending().await } };
            tokio::select! {
                () = tokio::time::sleep(pause) => false,
                () = poked => false,
                () = recovered => true,
            }
        };
        let then = fut::wrap_future::<_, Self>(waited).map(|recovered, actor, ctx| {
            actor.waiting = None;
            step(actor, ctx, |actor, ctx| {
                if let Some(relay) = actor.relay.as_mut().filter(|_| recovered) {
                    relay.broker_recovered();
                }
                actor.go_on(ctx);
            });
        });
        self.waiting = Some(ctx.spawn(then));
    }

    /// Says that the worker works, beside its rounds: one may wait long for the broker.
    fn announce(&mut self, ctx: &mut Context<Self>) {
        if self.is_announcing || self.is_quiet {
            return;
        }
        self.is_announcing = true;
        let (outbox, heartbeat) = (Arc::clone(&self.deps.outbox), self.deps.heartbeat());
        let name = self.names.present();
        let work = async move { outbox.announce(&name, heartbeat).await };
        spawn_step(self, ctx, work, |actor, _, announced| {
            actor.is_announcing = false;
            if let Err(error) = announced {
                actor.deps.metrics.outbox_error(&error);
            }
        });
    }
}

impl Supervised for OutboxRelay {
    fn life(&mut self) -> &mut Incarnation {
        &mut self.life
    }
}

impl Actor for OutboxRelay {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let every = (self.deps.heartbeat() / BEATS).max(Duration::from_millis(1));
        ctx.run_interval(every, |actor, ctx| step(actor, ctx, Self::announce));
        step(self, ctx, Self::go_on);
    }
}

impl Handler<Quiet> for OutboxRelay {
    type Result = ();

    /// Finishes the round, gives back what is claimed, and says so.
    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |actor, ctx| {
            actor.quiet.push(quiet.done);
            actor.is_quiet = true;
            if let Some(waiting) = actor.waiting.take() {
                ctx.cancel_future(waiting);
                actor.go_on(ctx);
            } else if actor.has_left {
                actor.quiet.drain(..).for_each(|done| reply(done, ()));
            }
        });
    }
}

impl Handler<Stop> for OutboxRelay {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
