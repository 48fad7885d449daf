//! The rounds of one relay worker: take over, claim, publish, confirm, acknowledge.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;

use super::plan::{PollInterest, RelayPlan};
use super::{CATALOG_EVERY, RelayDeps};
use crate::actors::outbox_relay::failure_log::{FailureLog, log_dead_letters};
use crate::actors::outbox_relay::relay_metrics::InFlightGauge;
use crate::actors::outbox_relay::worker_names::WorkerNames;
use crate::broker::{BrokerStatus, PublishChannel};
use crate::domain::{BucketKey, Phase};
use crate::outbox::{EndedEntry, Error, OutboxEntry, PerBucket};
use crate::runtime::clock::now_monotonic;

/// Buckets to which entries are given back in parallel.
const RECLAIMS_IN_PARALLEL: usize = 32;

/// One relay worker, without its actor.
pub(super) struct Relay {
    deps: RelayDeps,
    names: WorkerNames,
    name: String,
    has_heartbeat: bool,
    plan: RelayPlan,
    outgoing: Box<dyn PublishChannel>,
    /// Next read of the catalog.
    watch_at: Instant,
    in_flight: InFlightGauge,
    failure_log: FailureLog,
}

impl Relay {
    /// A worker with a new name and no claimed entries.
    pub(super) fn new(deps: RelayDeps, names: WorkerNames) -> Self {
        let name = names.renew();
        Self {
            plan: RelayPlan::new(deps.limits(), !names.predecessors().is_empty()),
            outgoing: deps.publisher.open_channel(deps.settings.confirm_window),
            watch_at: now_monotonic(),
            in_flight: InFlightGauge::new(&deps.metrics),
            failure_log: FailureLog::new(&name),
            has_heartbeat: false,
            name,
            names,
            deps,
        }
    }

    /// Runs one round. Until its acknowledgement, an entry stays on the list of this worker or of a
    /// predecessor.
    pub(super) async fn round(&mut self) {
        let (outbox, now) = (Arc::clone(&self.deps.outbox), now_monotonic());
        self.watch(now);
        if !self.has_heartbeat {
            // The round goes on without a heartbeat: at worst a rescuer reclaims its entries.
            self.has_heartbeat = outbox.announce(&self.name, self.deps.heartbeat()).await.is_ok();
        }

        let inherited = self.plan.takeover_due(now);
        if !inherited.is_empty() {
            let predecessors = self.names.predecessors();
            let taken = outbox.take_over(&self.name, &predecessors, &inherited).await;
            // Crash here [taken_over_not_published]: the entries are on this worker's list; its
            // successor takes them over.
            self.record_takeover(taken);
        }

        let asked = if self.is_broker_up() { self.plan.claims_due(now) } else { Vec::new() };
        if !asked.is_empty() {
            let claimed = outbox.claim(&self.name, &asked).await;
            // Crash here [claimed_not_published]: the entries are on this worker's list; its
            // successor takes them over, or the orphan rescuer returns them to the outbox.
            self.record_claims(asked, claimed);
        }
        self.in_flight.set(self.plan.num_claimed());

        let begun = now_monotonic();
        if self.plan.is_broker_due(begun) {
            let sent_at_ms = self.deps.clock.wall_ms();
            let encode = |bucket, entry: &OutboxEntry| self.deps.encode(bucket, entry, sent_at_ms);
            let (messages, batch) = self.plan.pack(begun, encode);
            // While the broker is unavailable, an empty publish probes the connection.
            if !batch.is_empty() || !self.is_broker_up() {
                let sent = self.outgoing.publish(messages).await;
                // Crash here [confirmed_not_acknowledged]: the broker has the messages and this
                // worker's list still has the entries; the successor publishes them again.
                let now = now_monotonic();
                let outcome = self.plan.apply_outcomes(batch, sent, now);
                self.deps.metrics.relayed(&outcome.counts, now.duration_since(begun));
                let status = self.deps.publisher.status();
                if self.failure_log.record_broker(&mut self.plan, outcome, status, now) {
                    self.deps.relay_handle.notify_recovered();
                }
            }
        }

        let ended = self.plan.take_ended(now_monotonic());
        if !ended.is_empty() {
            let acknowledged = outbox.acknowledge(&self.name, &ended).await;
            self.record_acknowledged(ended, acknowledged);
        }
        self.in_flight.set(self.plan.num_claimed());
    }

    /// Whether entries may be claimed and published.
    fn is_broker_up(&self) -> bool {
        !self.plan.is_broker_unavailable() && self.deps.publisher.status() == BrokerStatus::Up
    }

    pub(super) fn is_broker_unavailable(&self) -> bool {
        self.plan.is_broker_unavailable()
    }

    pub(super) fn retry_broker_now(&mut self) {
        self.plan.retry_broker_now(now_monotonic());
    }

    /// Time until the next step if no notification arrives; `None`: no step is scheduled.
    pub(super) fn pause(&self) -> Option<Duration> {
        self.plan.next_at().map(|at| at.saturating_duration_since(now_monotonic()))
    }

    /// Adds the buckets of every sale to the plan, and takes the notifications.
    fn watch(&mut self, now: Instant) {
        if now >= self.watch_at {
            self.watch_at = now + CATALOG_EVERY;
            let wall_ms = self.deps.clock.wall_ms();
            for listed in self.deps.catalog.all() {
                let interest = match listed.sale.phase {
                    Phase::Open | Phase::Paused => PollInterest::Selling,
                    _ if listed.sale.is_dormant(wall_ms) => PollInterest::Dormant,
                    _ => PollInterest::Idle,
                };
                for sku in &listed.skus {
                    for key in BucketKey::all_of(sku) {
                        self.plan.watch(key, interest, now);
                    }
                }
            }
        }
        for bucket in self.deps.relay_handle.take_poked() {
            self.plan.notify(bucket, now);
        }
    }

    fn record_takeover(&mut self, taken: PerBucket<Vec<OutboxEntry>>) {
        let now = now_monotonic();
        let mut uncertain = Vec::new();
        for (bucket, entries) in taken {
            match self.failure_log.record_outbox(&self.deps.metrics, bucket, entries) {
                Ok(entries) => self.plan.record_takeover(bucket, entries, now),
                Err(error) => self.record_failure(bucket, &error, now, &mut uncertain),
            }
        }
        if !self.plan.has_pending_takeover() {
            self.names.forget_predecessors();
        }
        self.rename(&uncertain, now);
    }

    fn record_claims(
        &mut self,
        asked: Vec<(BucketKey, usize)>,
        claimed: PerBucket<Vec<OutboxEntry>>,
    ) {
        let now = now_monotonic();
        let mut claimed: HashMap<_, _> = claimed.into_iter().collect();
        let mut uncertain = Vec::new();
        for (bucket, max) in asked {
            let entries = claimed.remove(&bucket).unwrap_or(Ok(Vec::new()));
            match self.failure_log.record_outbox(&self.deps.metrics, bucket, entries) {
                Ok(entries) => {
                    if self.plan.record_claim(bucket, max, entries, now) {
                        // The outbox may have more entries: wake another worker.
                        self.deps.relay_handle.notify(bucket);
                    }
                }
                Err(error) => self.record_failure(bucket, &error, now, &mut uncertain),
            }
        }
        self.rename(&uncertain, now);
    }

    /// Backs off after a failed call that moves entries to this worker.
    fn record_failure(
        &mut self,
        key: BucketKey,
        error: &Error,
        now: Instant,
        uncertain: &mut Vec<BucketKey>,
    ) {
        self.plan.record_failure(key, now);
        if matches!(error, Error::Unknown { .. }) {
            uncertain.push(key);
        }
    }

    /// Renames the worker after an unanswered call, which may still move entries to the old name at
    /// any later time. The worker takes over the entries of the old name; entries that arrive there
    /// later are reclaimed by a rescuer, because the old name has no heartbeat.
    fn rename(&mut self, uncertain: &[BucketKey], now: Instant) {
        if !uncertain.is_empty() {
            self.name = self.names.renew();
            self.has_heartbeat = false;
            self.plan.begin_takeover(uncertain, now);
        }
    }

    fn record_acknowledged(
        &mut self,
        ended: Vec<(BucketKey, Vec<EndedEntry>)>,
        answers: PerBucket<()>,
    ) {
        let now = now_monotonic();
        let mut answers: HashMap<_, _> = answers.into_iter().collect();
        for (bucket, ended) in ended {
            let answer = answers.remove(&bucket).unwrap_or(Ok(()));
            match self.failure_log.record_outbox(&self.deps.metrics, bucket, answer) {
                Ok(()) => {
                    log_dead_letters(bucket, &ended);
                    self.plan.record_acknowledged(bucket);
                }
                Err(_) => self.plan.retry_acknowledgement(bucket, ended, now),
            }
        }
    }

    /// Gives the claimed entries of every bucket back and ends the heartbeat. A rescuer reclaims
    /// the entries that could not be given back.
    pub(super) async fn give_back(&mut self) {
        let outbox = Arc::clone(&self.deps.outbox);
        let mut names = self.names.predecessors();
        names.push(self.name.clone());
        let reclaims = self.plan.active().map(|bucket| {
            let (outbox, names) = (&outbox, &names);
            async move { outbox.reclaim(bucket, names).await }
        });
        let reclaims = futures_util::stream::iter(reclaims.collect::<Vec<_>>());
        let reclaimed: Vec<_> = reclaims.buffer_unordered(RECLAIMS_IN_PARALLEL).collect().await;
        let expired = outbox.announce(&self.name, Duration::ZERO).await;
        let failed = reclaimed.into_iter().find_map(Result::err).or(expired.err());
        if let Some(error) = failed {
            tracing::warn!(%error, "outbox entries not given back, a rescuer reclaims them");
        }
        self.in_flight.set(0);
    }
}
