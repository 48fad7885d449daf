//! What one relay worker does, round after round.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;

use super::plan::{PollInterest, RelayPlan};
use super::{CATALOG_EVERY, RelayDeps};
use crate::actors::outbox_relay::failure_log::{FailureLog, log_dead};
use crate::actors::outbox_relay::relay_metrics::InFlightGauge;
use crate::actors::outbox_relay::worker_names::WorkerNames;
use crate::broker::{BrokerStatus, PublishChannel};
use crate::domain::Phase;
use crate::outbox::{EndedEntry, Error, OutboxEntry, PerBucket};
use crate::runtime::clock::now_monotonic;
use crate::stock::BucketKey;

/// Buckets to which entries are given back at the same time.
const RECLAIMS_AT_ONCE: usize = 32;

/// A worker: its name, what it holds, and its channel to the broker.
pub(super) struct Relay {
    deps: RelayDeps,
    names: WorkerNames,
    name: String,
    is_announced: bool,
    plan: RelayPlan,
    outgoing: Box<dyn PublishChannel>,
    /// When sales are looked for.
    watch_at: Instant,
    in_hand: InFlightGauge,
    trouble: FailureLog,
}

impl Relay {
    /// A worker under a fresh name that has looked at nothing.
    pub(super) fn new(deps: RelayDeps, names: WorkerNames) -> Self {
        let name = names.renew();
        Self {
            plan: RelayPlan::new(deps.limits(), !names.predecessors().is_empty()),
            outgoing: deps.publisher.outgoing(deps.settings.confirm_window),
            watch_at: now_monotonic(),
            in_hand: InFlightGauge::new(&deps.metrics),
            trouble: FailureLog::new(&name),
            is_announced: false,
            name,
            names,
            deps,
        }
    }

    /// One round: take over, claim, publish, confirm, acknowledge. Every entry is on the list of
    /// this worker or of a predecessor until it is acknowledged.
    pub(super) async fn round(&mut self) {
        let (outbox, now) = (Arc::clone(&self.deps.outbox), now_monotonic());
        self.watch(now);
        if !self.is_announced {
            // Without it the worker only risks that its entries are given to others.
            self.is_announced = outbox.announce(&self.name, self.deps.heartbeat()).await.is_ok();
        }

        let inherited = self.plan.to_take_over(now);
        if !inherited.is_empty() {
            let predecessors = self.names.predecessors();
            let taken = outbox.take_over(&self.name, &predecessors, &inherited).await;
            // Crash here [taken_over_not_published]: the entries are on this worker's list; its
            // successor takes them over.
            self.took_over(taken);
        }

        let asked = if self.is_broker_up() { self.plan.to_claim(now) } else { Vec::new() };
        if !asked.is_empty() {
            let claimed = outbox.claim(&self.name, &asked).await;
            // Crash here [claimed_not_published]: the entries are on this worker's list; its
            // successor takes them over, or the orphan rescuer returns them to the outbox.
            self.claimed(asked, claimed);
        }
        self.in_hand.set(self.plan.num_claimed());

        let begun = now_monotonic();
        if self.plan.is_broker_due(begun) {
            let sent_at_ms = self.deps.clock.wall_ms();
            let seal = |bucket, entry: &OutboxEntry| self.deps.seal(bucket, entry, sent_at_ms);
            let (messages, batch) = self.plan.pack(begun, seal);
            // While the broker is away, also nothing is published, to learn how it is.
            if !batch.is_empty() || !self.is_broker_up() {
                let sent = self.outgoing.publish(messages).await;
                // Crash here [confirmed_not_acknowledged]: the broker has the messages and this
                // worker's list the entries; they are published once more.
                let now = now_monotonic();
                let verdict = self.plan.judge(batch, sent, now);
                self.deps.metrics.relayed(&verdict.tally, now.duration_since(begun));
                let reach = self.deps.publisher.reach();
                if self.trouble.broker(&mut self.plan, verdict, reach, now) {
                    self.deps.door.recover();
                }
            }
        }

        let ended = self.plan.take_ended(now_monotonic());
        if !ended.is_empty() {
            let acknowledged = outbox.acknowledge(&self.name, &ended).await;
            self.acknowledged(ended, acknowledged);
        }
        self.in_hand.set(self.plan.num_claimed());
    }

    /// Whether it is worth to claim and to publish.
    fn is_broker_up(&self) -> bool {
        !self.plan.is_broker_away() && self.deps.publisher.reach() == BrokerStatus::Up
    }

    pub(super) fn is_broker_away(&self) -> bool {
        self.plan.is_broker_away()
    }

    pub(super) fn broker_recovered(&mut self) {
        self.plan.broker_recovered(now_monotonic());
    }

    /// How long there is nothing to do, if nobody pokes.
    pub(super) fn pause(&self) -> Option<Duration> {
        self.plan.next_at().map(|at| at.saturating_duration_since(now_monotonic()))
    }

    /// Serves every bucket of every sale; those of closed ones rarely, because only reclaimed
    /// entries can appear there.
    fn watch(&mut self, now: Instant) {
        if now >= self.watch_at {
            self.watch_at = now + CATALOG_EVERY;
            let wall_ms = self.deps.clock.wall_ms();
            for listed in self.deps.catalog.all() {
                let interest = match listed.sale.phase {
                    Phase::Open | Phase::Paused => PollInterest::Selling,
                    _ if listed.sale.is_forgotten(wall_ms) => PollInterest::Forgotten,
                    _ => PollInterest::Resting,
                };
                for sku in &listed.skus {
                    for key in BucketKey::all_of(sku) {
                        self.plan.watch(key, interest, now);
                    }
                }
            }
        }
        for bucket in self.deps.door.take() {
            self.plan.poke(bucket, now);
        }
    }

    fn took_over(&mut self, taken: PerBucket<Vec<OutboxEntry>>) {
        let now = now_monotonic();
        let mut doubtful = Vec::new();
        for (bucket, entries) in taken {
            match self.trouble.outbox(&self.deps.metrics, bucket, entries) {
                Ok(entries) => self.plan.took_over(bucket, entries, now),
                Err(error) => self.failed(bucket, &error, now, &mut doubtful),
            }
        }
        if !self.plan.takes_over() {
            self.names.forget_predecessors();
        }
        self.rename(&doubtful, now);
    }

    fn claimed(&mut self, asked: Vec<(BucketKey, usize)>, claimed: PerBucket<Vec<OutboxEntry>>) {
        let now = now_monotonic();
        let mut claimed: HashMap<_, _> = claimed.into_iter().collect();
        let mut doubtful = Vec::new();
        for (bucket, max) in asked {
            let entries = claimed.remove(&bucket).unwrap_or(Ok(Vec::new()));
            match self.trouble.outbox(&self.deps.metrics, bucket, entries) {
                Ok(entries) => {
                    if self.plan.claimed(bucket, max, entries, now) {
                        // There may be more: another worker can help.
                        self.deps.door.poke(bucket);
                    }
                }
                Err(error) => self.failed(bucket, &error, now, &mut doubtful),
            }
        }
        self.rename(&doubtful, now);
    }

    /// Notes that a call failed that moves entries to this worker.
    fn failed(
        &mut self,
        key: BucketKey,
        error: &Error,
        now: Instant,
        doubtful: &mut Vec<BucketKey>,
    ) {
        self.plan.failed(key, now);
        if matches!(error, Error::Unknown { .. }) {
            doubtful.push(key);
        }
    }

    /// A call without an answer may still take effect later and move entries that this worker does
    /// not know of. So it goes on under a fresh name and takes over what it holds; what comes later
    /// belongs to a name that nobody announces, and is reclaimed.
    fn rename(&mut self, doubtful: &[BucketKey], now: Instant) {
        if !doubtful.is_empty() {
            self.name = self.names.renew();
            self.is_announced = false;
            self.plan.renamed(doubtful, now);
        }
    }

    fn acknowledged(&mut self, ended: Vec<(BucketKey, Vec<EndedEntry>)>, answers: PerBucket<()>) {
        let now = now_monotonic();
        let mut answers: HashMap<_, _> = answers.into_iter().collect();
        for (bucket, ended) in ended {
            let answer = answers.remove(&bucket).unwrap_or(Ok(()));
            match self.trouble.outbox(&self.deps.metrics, bucket, answer) {
                Ok(()) => {
                    log_dead(bucket, &ended);
                    self.plan.acknowledged(bucket);
                }
                Err(_) => self.plan.not_acknowledged(bucket, ended, now),
            }
        }
    }

    /// Gives back what it holds, in every bucket. What cannot be given back is reclaimed by a
    /// rescuer.
    pub(super) async fn leave(&mut self) {
        let outbox = Arc::clone(&self.deps.outbox);
        let mut names = self.names.predecessors();
        names.push(self.name.clone());
        let given = self.plan.served().map(|bucket| {
            let (outbox, names) = (&outbox, &names);
            async move { outbox.reclaim(bucket, names).await }
        });
        let given = futures_util::stream::iter(given.collect::<Vec<_>>());
        let given: Vec<_> = given.buffer_unordered(RECLAIMS_AT_ONCE).collect().await;
        let silenced = outbox.announce(&self.name, Duration::ZERO).await;
        let failed = given.into_iter().find_map(Result::err).or(silenced.err());
        if let Some(error) = failed {
            tracing::warn!(%error, "entries were not given back; a rescuer reclaims them");
        }
        self.in_hand.set(0);
    }
}
