//! Flow step 5/12: outbox -> broker.
//!
//! A relay worker takes over the entries of its predecessors, claims entries of every bucket,
//! publishes them on a channel of its own, waits for the confirms, and acknowledges the entries
//! that were confirmed or given up. A worker runs these steps one after the other (`relay.rs`);
//! throughput comes from large rounds and several workers. [`plan`] decides the next step,
//! [`round_outcome`] interprets the publish outcomes.
//!
//! Owns: a broker channel, and the claimed entries. Limits: `relay.claim_max` entries of a bucket,
//! `relay.confirm_window` unconfirmed messages. On error: a failed acknowledgement is retried
//! without publishing again; while the broker is unavailable, claimed entries stay claimed and no
//! further entries are claimed. On crash: the successor takes over under another name; without a
//! successor, the orphan rescuer reclaims the entries of names whose heartbeat expired. May repeat:
//! publishing; the ledger deduplicates by request id.

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
use crate::domain::BucketKey;
use crate::messages::envelope;
use crate::messages::{Quiet, Stop, reply};
use crate::observe::metrics::Metrics;
use crate::outbox::{GivenUpEntry, Outbox, OutboxEntry};
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;

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

/// Interval at which the catalog is read for new buckets; a notification adds a bucket at once.
const CATALOG_EVERY: Duration = Duration::from_millis(100);

/// Longest wait between two rounds.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Heartbeats within the TTL of one heartbeat.
const HEARTBEATS_PER_TTL: u32 = 3;

/// Dependencies of the relay workers; the same for every worker of a process.
#[derive(Clone)]
pub struct RelayDeps {
    pub outbox: Arc<dyn Outbox>,
    pub publisher: Arc<dyn Publisher>,
    pub catalog: Arc<Catalog>,
    /// The process part of the workers' names.
    pub process: Arc<str>,
    /// Wakes the workers.
    pub relay_handle: RelayHandle,
    /// Installation id that messages carry.
    pub installation: Arc<str>,
    /// Number of order queues.
    pub queues: u16,
    /// First and longest wait after a failure.
    pub retry: (Duration, Duration),
    pub settings: RelaySettings,
    /// Source of message timestamps; waits use real time.
    pub clock: SharedClock,
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

    /// Encodes the readable intents of an entry as a message, the others as a dead letter.
    fn encode(&self, bucket: BucketKey, entry: &OutboxEntry, sent_at_ms: i64) -> PackedEntry {
        let envelope::EncodedEntry { message, unreadable } =
            envelope::encode(&entry.bytes, &self.installation, sent_at_ms);
        let route = Route::orders_of(bucket, self.queues);
        let dead_letter = |(bytes, malformed): (_, envelope::MalformedEnvelope)| GivenUpEntry {
            bytes,
            reason: malformed.to_string(),
            attempts: 0,
        };
        PackedEntry {
            message: message.map(|(headers, body)| Message { route, headers, body }),
            dead_letter: unreadable.map(dead_letter),
        }
    }
}

/// The actor that runs the rounds and the heartbeat of one worker.
pub struct OutboxRelay {
    incarnation: Incarnation,
    deps: RelayDeps,
    names: WorkerNames,
    /// `None` during a round.
    relay: Option<Box<Relay>>,
    waiting: Option<SpawnHandle>,
    is_announcing: bool,
    quiet: Vec<oneshot::Sender<()>>,
    is_quiet: bool,
    /// Whether the claimed entries were given back; final.
    has_given_back: bool,
}

impl OutboxRelay {
    /// A worker with a new name; `names` holds the names of its predecessors.
    #[must_use]
    pub fn new(incarnation: Incarnation, deps: RelayDeps, names: WorkerNames) -> Self {
        let relay = Some(Box::new(Relay::new(deps.clone(), names.clone())));
        Self {
            incarnation,
            deps,
            names,
            relay,
            waiting: None,
            is_announcing: false,
            quiet: Vec::new(),
            is_quiet: false,
            has_given_back: false,
        }
    }

    /// Starts the next round, or gives the entries back when the worker is quiet.
    fn start_round(&mut self, ctx: &mut Context<Self>) {
        let Some(mut relay) = self.relay.take() else { return };
        if self.is_quiet {
            let work = async move { relay.give_back().await };
            spawn_step(self, ctx, work, |actor, _, ()| {
                actor.has_given_back = true;
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
            actor.wait_for_work(ctx);
        });
    }

    /// Waits until the next round is due, or a notification arrives.
    fn wait_for_work(&mut self, ctx: &mut Context<Self>) {
        let Some(relay) = &self.relay else { return };
        let pause = relay.pause().map_or(WAIT_MAX, |pause| pause.min(WAIT_MAX));
        if self.is_quiet || pause.is_zero() {
            self.start_round(ctx);
            return;
        }
        // A worker whose broker is unavailable claims nothing: notifications are for the others.
        let (handle, is_down) = (self.deps.relay_handle.clone(), relay.is_broker_unavailable());
        let waited = async move {
            let notified =
                async { if is_down { pending().await } else { handle.notified().await } };
            let recovered =
                async { if is_down { handle.recovered().await } else { pending().await } };
            tokio::select! {
                () = tokio::time::sleep(pause) => false,
                () = notified => false,
                () = recovered => true,
            }
        };
        let then = fut::wrap_future::<_, Self>(waited).map(|recovered, actor, ctx| {
            actor.waiting = None;
            step(actor, ctx, |actor, ctx| {
                if let Some(relay) = actor.relay.as_mut().filter(|_| recovered) {
                    relay.retry_broker_now();
                }
                actor.start_round(ctx);
            });
        });
        self.waiting = Some(ctx.spawn(then));
    }

    /// Renews the heartbeat independently of the rounds: a round may wait long for the broker.
    fn announce(&mut self, ctx: &mut Context<Self>) {
        if self.is_announcing || self.is_quiet {
            return;
        }
        self.is_announcing = true;
        let (outbox, heartbeat) = (Arc::clone(&self.deps.outbox), self.deps.heartbeat());
        let name = self.names.current();
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
    fn incarnation(&mut self) -> &mut Incarnation {
        &mut self.incarnation
    }
}

impl Actor for OutboxRelay {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let every = (self.deps.heartbeat() / HEARTBEATS_PER_TTL).max(Duration::from_millis(1));
        ctx.run_interval(every, |actor, ctx| step(actor, ctx, Self::announce));
        step(self, ctx, Self::start_round);
    }
}

impl Handler<Quiet> for OutboxRelay {
    type Result = ();

    /// Finishes the round, gives the claimed entries back, and replies.
    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |actor, ctx| {
            actor.quiet.push(quiet.done);
            actor.is_quiet = true;
            if let Some(waiting) = actor.waiting.take() {
                ctx.cancel_future(waiting);
                actor.start_round(ctx);
            } else if actor.has_given_back {
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
