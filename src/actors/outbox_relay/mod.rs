//! Flow step 5/12: outbox -> broker.
//!
//! A relay worker takes over the entries of its predecessors, claims entries of every bucket,
//! publishes them on a channel of its own, waits for the confirms, and acknowledges the entries
//! that were confirmed. An entry that its order queue refuses too often is published as a dead
//! letter. A worker runs these steps one after the other (`worker.rs`); throughput comes from large
//! rounds and several workers. `plan` decides the next step, `publish_round` interprets the publish
//! outcomes.
//!
//! Owns: a broker channel, and the claimed entries. Limits: `relay.claim_max` entries of a bucket,
//! `relay.confirm_window` unconfirmed messages. On error: a failed acknowledgement is retried
//! without publishing again; while the broker is unavailable, claimed entries stay claimed and no
//! further entries are claimed. On crash: the successor takes over under another name; without a
//! successor, the orphan rescuer reclaims the entries of names whose heartbeat expired. May repeat:
//! publishing; the ledger deduplicates by request id.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Context, Handler};
use actix_rt::ArbiterHandle;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::actors::supervisor::supervised::{
    Address, Incarnation, spawn_step, spawn_wait, step, step_later, supervised,
};
use crate::actors::supervisor::{ChildSpec, Supervisor};
use crate::broker::Publisher;
use crate::config::RelaySettings;
use crate::domain::BucketKey;
use crate::messages::Quiet;
use crate::observe::metrics::Metrics;
use crate::outbox::Outbox;
use crate::runtime::backoff::Backoff;
use crate::runtime::clock::SharedClock;
use crate::runtime::fault_injection::FaultInjector;
use crate::services::catalog::Catalog;

mod plan;
#[cfg(test)]
mod plan_tests;
mod publish_round;
mod worker;
mod worker_names;

use worker::RelayWorker;
use worker_names::WorkerNames;

/// Mailbox slots: room for `Quiet`.
const MAILBOX: usize = 16;

/// Interval at which the catalog is read for new buckets; a notification adds a bucket at once.
const CATALOG_EVERY: Duration = Duration::from_millis(100);

/// Longest wait between two rounds.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Heartbeats within the TTL of one heartbeat.
const HEARTBEATS_PER_TTL: u32 = 3;

/// Wakes the relay workers of the same process; cheap to clone and to call, never waits.
/// Notifications of one bucket are merged until a worker takes them. A lost notification delays its
/// entries until the next poll.
#[derive(Debug, Clone, Default)]
pub struct RelayHandle {
    /// Buckets that have entries, until a worker takes them; bounded by the number of buckets.
    buckets: Arc<Mutex<HashSet<BucketKey>>>,
    notified: Arc<Notify>,
    /// Wakes the workers that wait for the broker: a publish has succeeded.
    recovered: Arc<Notify>,
}

impl RelayHandle {
    /// Tells the workers that the outbox of this bucket has entries.
    pub fn notify(&self, bucket: BucketKey) {
        let is_new = self.buckets.lock().insert(bucket);
        if is_new {
            self.notified.notify_one();
        }
    }
}

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
    /// Waits after failures.
    pub backoff: Backoff,
    pub settings: RelaySettings,
    /// Source of message timestamps; waits use real time.
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl RelayDeps {
    fn heartbeat_ttl(&self) -> Duration {
        Duration::from_millis(self.settings.heartbeat_ttl_ms)
    }

    /// Starts `relay.workers` supervised workers. A restarted worker gets a new name, and the names
    /// of its predecessors.
    pub fn start_workers(
        &self,
        supervisor: &Supervisor,
        arbiter: &ArbiterHandle,
        fault_injector: FaultInjector,
    ) -> Vec<Address<OutboxRelay>> {
        let start = |index| {
            let (deps, names) = (self.clone(), WorkerNames::new(&self.process, index));
            supervisor.start(ChildSpec {
                name: format!("outbox_relay/{index}"),
                kind: "outbox_relay",
                arbiter: arbiter.clone(),
                mailbox: MAILBOX,
                ends_with_last_address: false,
                fault_injector,
                factory: Arc::new(move |incarnation| OutboxRelay {
                    incarnation,
                    deps: deps.clone(),
                    names: names.clone(),
                    quieted: Arc::default(),
                    has_given_back: false,
                }),
            })
        };
        (0..self.settings.workers).map(start).collect()
    }
}

/// The actor that runs the rounds and the heartbeat of one worker.
pub struct OutboxRelay {
    incarnation: Incarnation,
    deps: RelayDeps,
    names: WorkerNames,
    /// Ends the wait between two rounds.
    quieted: Arc<Notify>,
    /// Whether the claimed entries were given back; final.
    has_given_back: bool,
}

impl OutboxRelay {
    /// Starts the next round, or gives the entries back when the worker is quiet.
    fn start_round(&mut self, ctx: &mut Context<Self>, mut worker: Box<RelayWorker>) {
        if self.incarnation.is_quiet() {
            let work = async move { worker.give_back().await };
            spawn_step(self, ctx, work, |actor, _, ()| {
                actor.has_given_back = true;
                actor.report_if_given_back();
            });
            return;
        }
        let work = async move {
            worker.round().await;
            worker
        };
        spawn_step(self, ctx, work, Self::wait_for_work);
    }

    fn wait_for_work(&mut self, ctx: &mut Context<Self>, mut worker: Box<RelayWorker>) {
        let quieted = Arc::clone(&self.quieted);
        let waited = async move {
            worker.wait(&quieted).await;
            worker
        };
        spawn_wait(self, ctx, waited, Self::start_round);
    }

    fn report_if_given_back(&mut self) {
        if self.has_given_back {
            self.incarnation.report_quiet();
        }
    }

    /// Renews the heartbeat independently of the rounds: a round may wait long for the broker.
    fn renew_heartbeat(&mut self, ctx: &mut Context<Self>) {
        if self.incarnation.is_quiet() {
            return;
        }
        let (outbox, ttl) = (Arc::clone(&self.deps.outbox), self.deps.heartbeat_ttl());
        let name = self.names.current();
        let work = async move { outbox.renew_heartbeat(&name, ttl).await };
        spawn_step(self, ctx, work, move |actor, ctx, renewed| {
            if let Err(error) = renewed {
                actor.deps.metrics.outbox_error(&error);
            }
            let wait = (ttl / HEARTBEATS_PER_TTL).max(Duration::from_millis(1));
            step_later(ctx, wait, Self::renew_heartbeat);
        });
    }
}

supervised!(OutboxRelay);

impl Actor for OutboxRelay {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        step(self, ctx, |actor, ctx| {
            let worker = RelayWorker::new(actor.deps.clone(), actor.names.clone());
            actor.start_round(ctx, Box::new(worker));
            actor.renew_heartbeat(ctx);
        });
    }
}

impl Handler<Quiet> for OutboxRelay {
    type Result = ();

    /// Finishes the round, gives the claimed entries back, and replies.
    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |actor, _| {
            actor.incarnation.quiet(quiet);
            actor.quieted.notify_one();
            actor.report_if_given_back();
        });
    }
}
