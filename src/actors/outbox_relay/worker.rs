//! The rounds of one relay worker: take over, claim, publish, confirm, acknowledge.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::Notify;

use super::plan::{NO_JITTER, PollInterest, RelayPlan};
use super::{CATALOG_EVERY, RelayDeps, WAIT_MAX};
use crate::actors::outbox_relay::publish_round::RoundOutcome;
use crate::actors::outbox_relay::worker_names::WorkerNames;
use crate::broker::{BrokerStatus, PublishChannel};
use crate::domain::{BucketKey, Phase};
use crate::outbox::{EntryId, Error, OutboxEntry, PerBucket};
use crate::runtime::backoff::Backoff;
use crate::runtime::clock::now_monotonic;

/// Buckets to which entries are given back in parallel.
const RECLAIMS_IN_PARALLEL: usize = 32;

/// One relay worker, without its actor.
pub(super) struct RelayWorker {
    deps: RelayDeps,
    names: WorkerNames,
    name: String,
    has_heartbeat: bool,
    plan: RelayPlan,
    publish_channel: Box<dyn PublishChannel>,
    /// Next read of the catalog.
    watch_at: Instant,
    /// This worker's share of the gauge of claimed entries.
    num_reported: i64,
    /// The last error of each bucket's outbox calls, until one succeeds.
    outbox_errors: HashMap<BucketKey, String>,
    /// Whether a queue confirmed no message of the last round.
    is_queue_stalled: bool,
    /// While the broker is unavailable: the time of the next try, and the backoff after it.
    broker_retry: Option<(Instant, Backoff)>,
}

impl RelayWorker {
    /// A worker with a new name and no claimed entries.
    pub(super) fn new(deps: RelayDeps, names: WorkerNames) -> Self {
        let name = names.renew();
        Self {
            plan: RelayPlan::new(
                deps.settings.clone(),
                names.index,
                (Arc::clone(&deps.installation), deps.queues),
                deps.backoff,
                !names.predecessors().is_empty(),
            ),
            publish_channel: deps.publisher.open_channel(deps.settings.confirm_window),
            watch_at: now_monotonic(),
            num_reported: 0,
            outbox_errors: HashMap::new(),
            is_queue_stalled: false,
            broker_retry: None,
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
            let renewed = outbox.renew_heartbeat(&self.name, self.deps.heartbeat_ttl()).await;
            self.has_heartbeat = renewed.is_ok();
        }

        let inherited = self.plan.takeover_due(now);
        if !inherited.is_empty() {
            let predecessors = self.names.predecessors();
            let taken = outbox.take_over(&self.name, &predecessors, &inherited).await;
            // Crash here [taken_over_not_published]: the entries are on this worker's list; its
            // successor takes them over.
            let now = now_monotonic();
            self.record_moved(taken, |worker, bucket, entries| {
                worker.plan.record_takeover(bucket, entries, now);
            });
            if !self.plan.has_pending_takeover() {
                self.names.forget_predecessors();
            }
        }

        let asked = if self.is_broker_up() { self.plan.claims_due(now) } else { Vec::new() };
        if !asked.is_empty() {
            let claimed = outbox.claim(&self.name, &asked).await;
            // Crash here [claimed_not_published]: the entries are on this worker's list; its
            // successor takes them over, or the orphan rescuer returns them to the outbox.
            self.record_claims(asked, claimed);
        }
        self.report_in_flight(self.plan.num_claimed());

        let started_at = now_monotonic();
        if self.broker_retry.is_none_or(|(at, _)| at <= started_at) {
            let (messages, batch) = self.plan.take_due(started_at, self.deps.clock.wall_ms());
            // While the broker is unavailable, an empty publish probes the connection.
            if !batch.is_empty() || !self.is_broker_up() {
                let outcomes = self.publish_channel.publish(messages).await;
                // Crash here [confirmed_not_acknowledged]: the broker has the messages and this
                // worker's list still has the entries; the successor publishes them again.
                let now = now_monotonic();
                self.deps.metrics.relayed(&outcomes, now.duration_since(started_at));
                let round = self.plan.apply_outcomes(batch, outcomes, now);
                self.record_dead_letters(&round);
                self.record_broker(round, now);
            }
        }

        let ended = self.plan.take_ended(now_monotonic());
        if !ended.is_empty() {
            let acknowledged = outbox.acknowledge(&self.name, &ended).await;
            self.record_acknowledged(ended, acknowledged);
        }
        let had_errors = !self.outbox_errors.is_empty();
        self.outbox_errors.retain(|bucket, _| self.plan.is_failing(*bucket));
        if had_errors && self.outbox_errors.is_empty() {
            tracing::info!(worker = self.name, "outbox: available again");
        }
        self.report_in_flight(self.plan.num_claimed());
    }

    /// Whether entries may be claimed and published.
    fn is_broker_up(&self) -> bool {
        self.broker_retry.is_none() && self.deps.publisher.status() == BrokerStatus::Up
    }

    /// Waits until the next round is due, a notification arrives or `quieted` ends the wait.
    pub(super) async fn wait(&mut self, quieted: &Notify) {
        let now = now_monotonic();
        let broker_at = self.broker_retry.map(|(at, _)| at);
        let pause = self.plan.next_at(broker_at).map(|at| at.saturating_duration_since(now));
        let pause = pause.map_or(WAIT_MAX, |pause| pause.min(WAIT_MAX));
        if pause.is_zero() {
            return;
        }
        let handle = &self.deps.relay_handle;
        let recovered = tokio::select! {
            () = tokio::time::sleep(pause) => false,
            () = quieted.notified() => false,
            () = handle.notified.notified(), if broker_at.is_none() => false,
            () = handle.recovered.notified(), if broker_at.is_some() => true,
        };
        // The broker counts as unavailable until this worker has published too.
        if let Some((at, _)) = self.broker_retry.as_mut().filter(|_| recovered) {
            *at = now_monotonic();
        }
    }

    /// Adds the buckets of every sale to the plan, removes those that a purge has deleted, and
    /// takes the notifications if the broker is up: otherwise they are for the other workers.
    fn watch(&mut self, now: Instant) {
        if now >= self.watch_at {
            self.watch_at = now + CATALOG_EVERY;
            let wall_ms = self.deps.clock.wall_ms();
            for sale in self.deps.catalog.all() {
                let interest = match sale.phase {
                    _ if !sale.has_buckets() => None,
                    Phase::Open | Phase::Paused => Some(PollInterest::Selling),
                    _ if sale.is_dormant(wall_ms) => Some(PollInterest::Dormant),
                    _ => Some(PollInterest::Idle),
                };
                for key in sale.skus.iter().flat_map(|sku| BucketKey::all_of(sku)) {
                    match interest {
                        Some(interest) => self.plan.watch(key, interest, now),
                        None => self.plan.remove_idle(key),
                    }
                }
            }
        }
        if !self.is_broker_up() {
            return;
        }
        let notified = std::mem::take(&mut *self.deps.relay_handle.buckets.lock());
        for bucket in notified {
            self.plan.notify(bucket, now);
        }
    }

    fn record_claims(
        &mut self,
        asked: Vec<(BucketKey, usize)>,
        claimed: PerBucket<Vec<OutboxEntry>>,
    ) {
        let now = now_monotonic();
        let mut claimed: HashMap<_, _> = claimed.into_iter().collect();
        let answers = asked.into_iter().map(|(bucket, max)| {
            let entries = claimed.remove(&bucket).unwrap_or(Ok(Vec::new()));
            (bucket, entries.map(|entries| (max, entries)))
        });
        self.record_moved(answers.collect(), |worker, bucket, (max, entries)| {
            if worker.plan.record_claim(bucket, max, entries, now) {
                // The outbox may have more entries: wake another worker.
                worker.deps.relay_handle.notify(bucket);
            }
        });
    }

    /// Records the answers to a call that moves entries to this worker; a failed one backs off.
    ///
    /// An unanswered call may still move entries to the worker's name at any later time, so the
    /// worker is renamed. It takes over the entries of the old name; entries that arrive there
    /// later are reclaimed by a rescuer, because the old name has no heartbeat.
    fn record_moved<T>(
        &mut self,
        answers: PerBucket<T>,
        mut record: impl FnMut(&mut Self, BucketKey, T),
    ) {
        let now = now_monotonic();
        let mut uncertain = Vec::new();
        for (bucket, answer) in answers {
            match answer {
                Ok(moved) => record(self, bucket, moved),
                Err(error) => {
                    self.record_outbox_error(bucket, &error);
                    self.plan.record_failure(bucket, now);
                    if matches!(error, Error::Unknown { .. }) {
                        uncertain.push(bucket);
                    }
                }
            }
        }
        if !uncertain.is_empty() {
            self.name = self.names.renew();
            self.has_heartbeat = false;
            self.plan.begin_takeover(&uncertain, now);
        }
    }

    fn record_acknowledged(
        &mut self,
        ended: Vec<(BucketKey, Vec<EntryId>)>,
        answers: PerBucket<()>,
    ) {
        let now = now_monotonic();
        let mut answers: HashMap<_, _> = answers.into_iter().collect();
        for (bucket, ended) in ended {
            match answers.remove(&bucket).unwrap_or(Ok(())) {
                Ok(()) => self.plan.record_acknowledged(bucket),
                Err(error) => {
                    self.record_outbox_error(bucket, &error);
                    self.plan.retry_acknowledgement(bucket, ended, now);
                }
            }
        }
    }

    /// Logs and counts the dead letters that the broker has confirmed.
    fn record_dead_letters(&self, round: &RoundOutcome) {
        self.deps.metrics.relay_failed("dead", round.dead_letters.len());
        for (BucketKey { sku, bucket }, requests, reason) in &round.dead_letters {
            tracing::error!(%sku, %bucket, reason, ?requests, "outbox entry given up: dead letter");
        }
    }

    /// Logs and counts a failed outbox call: one line per error text, however many buckets have it.
    fn record_outbox_error(&mut self, bucket: BucketKey, error: &Error) {
        self.deps.metrics.outbox_error(error);
        let text = error.to_string();
        if self.outbox_errors.values().all(|known| *known != text) {
            tracing::warn!(worker = self.name, error = text, "outbox failed, retrying");
        }
        self.outbox_errors.insert(bucket, text);
    }

    /// Updates the broker state and logs its changes.
    fn record_broker(&mut self, round: RoundOutcome, now: Instant) {
        let worker = &*self.name;
        let RoundOutcome { unavailable, stalled_queue, .. } = round;
        // Claiming goes on: the entries of this worker may be the cause.
        if let Some(reason) = stalled_queue.as_ref().filter(|_| !self.is_queue_stalled) {
            tracing::warn!(worker, reason, "broker queue confirms nothing, retrying");
        }
        self.is_queue_stalled = stalled_queue.is_some();
        let unavailable = unavailable.or_else(|| match self.deps.publisher.status() {
            BrokerStatus::Up => None,
            BrokerStatus::Blocked => {
                Some("it accepts no messages for now: memory or disk".to_owned())
            }
            BrokerStatus::Down => Some("it cannot be reached".to_owned()),
        });
        if let Some(reason) = unavailable {
            let mut backoff = self.broker_retry.map_or(self.deps.backoff, |(_, backoff)| backoff);
            if backoff.failures() == 0 {
                tracing::warn!(worker, reason, "broker unavailable, publishing paused");
            }
            // Claiming and publishing pause, longer after each failed round.
            self.broker_retry = Some((now + backoff.next_wait(NO_JITTER), backoff));
        } else if self.broker_retry.take().is_some() {
            tracing::info!(worker, "broker available, publishing resumed");
            self.deps.relay_handle.recovered.notify_waiters();
        }
    }

    fn report_in_flight(&mut self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.deps.metrics.relay_in_flight.inc_by(count - self.num_reported);
        self.num_reported = count;
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
        let expired = outbox.renew_heartbeat(&self.name, Duration::ZERO).await;
        let failed = reclaimed.into_iter().find_map(Result::err).or(expired.err());
        if let Some(error) = failed {
            tracing::warn!(%error, "outbox entries not given back, a rescuer reclaims them");
        }
    }
}

impl Drop for RelayWorker {
    fn drop(&mut self) {
        self.report_in_flight(0);
    }
}
