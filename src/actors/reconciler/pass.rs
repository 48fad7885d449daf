//! One pass over the buckets: compares requests that have been queued for long with the ledger,
//! writes missing results, submits lost requests.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use super::bucket_walk::{BucketWalk, OldestQueued};
use super::{Blocked, Reconciler};
use crate::actors::ledger_writer::batch::full_text;
use crate::broker::order_queue_of;
use crate::db::{self, ErrorClass};
use crate::domain::{BucketKey, Examination, OrderIntent, Repair, RequestId, SkuNo};
use crate::redis::transport;
use crate::services::lost_requests::{self, Submitter};
use crate::stock;

/// Most pages of records that one pass reads; 10,000 records take Redis some milliseconds.
const PAGES_MAX: usize = 768;

/// Fixed cost of one call, in pages.
const PAGES_PER_CALL: usize = 4;

/// Most requests that one pass looks up in the ledger.
const LOOKUPS_MAX: usize = 8_000;

/// Requests per ledger query, and per submission of lost ones.
const LOOKUP_BATCH: usize = 500;

/// Most repairs kept while the ledger does not record them. More are not recorded.
const REPAIRS_MAX: usize = 20_000;

/// The state that the reconciler keeps from pass to pass, in memory.
#[derive(Debug, Default)]
pub(super) struct Pass {
    walks: HashMap<BucketKey, BucketProgress>,
    /// Repairs that the ledger has not recorded yet.
    repairs: Vec<Repair>,
    /// The bucket at which the last pass used up its budget.
    resume_at: Option<BucketKey>,
    /// Wall time at the beginning of the last pass.
    begun_at_ms: i64,
}

#[derive(Debug, Default)]
struct BucketProgress {
    walk: BucketWalk,
    /// Whether the present walk has met an obstacle.
    is_walk_blocked: bool,
    /// The reported obstacle: the last one, until a conclusive walk has none.
    blocked: Option<Blocked>,
}

/// The remaining budget of one pass, and the counts of its work.
#[derive(Debug, Default)]
struct PassBudget {
    pages: usize,
    lookups: usize,
    /// Whether a submission failed. The next ones may take as long: the pass ends.
    has_failed: bool,
    matched: usize,
    submitted: usize,
}

impl PassBudget {
    fn is_spent(&self) -> bool {
        self.has_failed || self.pages == 0 || self.lookups == 0
    }
}

/// The watermark of an order queue; `None`: no consumer runs.
type WatermarkRead = Result<Option<i64>, transport::Error>;

impl Pass {
    /// The reason of each blocked bucket.
    pub(super) fn blocked(&self) -> impl Iterator<Item = Blocked> + '_ {
        self.walks.values().filter_map(|progress| progress.blocked)
    }

    /// Reconciles each bucket at most once, beginning where the last pass used up its budget.
    pub(super) async fn run(&mut self, deps: &Reconciler, buckets: &[BucketKey]) {
        let now_ms = deps.clock.wall_ms();
        if now_ms < std::mem::replace(&mut self.begun_at_ms, now_ms) {
            // The wall clock stepped back: walks with earlier times would wait for its length.
            self.walks.clear();
        }
        let (pages, lookups) = (PAGES_MAX, LOOKUPS_MAX);
        let mut budget = PassBudget { pages, lookups, ..PassBudget::default() };
        let first = self.resume_at.take().and_then(|at| buckets.iter().position(|b| *b == at));
        let (before, after) = buckets.split_at(first.unwrap_or_default());
        let mut watermarks: HashMap<u16, WatermarkRead> = HashMap::new();
        let mut idle: HashMap<SkuNo, bool> = HashMap::new();
        for bucket in after.iter().chain(before) {
            if budget.is_spent() {
                self.resume_at = Some(*bucket);
                break;
            }
            let is_idle = match idle.entry(bucket.sku) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(unknown) => {
                    // A SKU that cannot be counted is walked: only one of its buckets may fail.
                    let queued = deps.backends.stock.num_unsettled(bucket.sku).await;
                    *unknown.insert(matches!(queued, Ok(0)))
                }
            };
            if is_idle {
                self.walks.remove(bucket);
                continue;
            }
            let progress = self.walks.entry(*bucket).or_default();
            if !progress.walk.is_due(deps.clock.wall_ms()) {
                continue;
            }
            let queue = order_queue_of(*bucket, deps.settings.amqp.queues);
            let watermark = match watermarks.entry(queue) {
                Entry::Occupied(known) => known.get().clone(),
                Entry::Vacant(unknown) => {
                    unknown.insert(deps.pipeline.watermarks.of_queue(queue).await).clone()
                }
            };
            let (bucket, repairs, budget) = (*bucket, &mut self.repairs, &mut budget);
            let pass = BucketPass { deps, bucket, watermark, repairs, budget, obstacle: None };
            pass.run(progress).await;
        }
        deps.metrics.reconcile_matched.inc_by(budget.matched as u64);
        deps.metrics.reconcile_submitted.inc_by(budget.submitted as u64);
        if budget.matched > 0 {
            tracing::info!(num = budget.matched, "results of the ledger written to their buckets");
        }
        if budget.submitted > 0 {
            tracing::warn!(num = budget.submitted, "lost requests submitted");
        }
        self.record_repairs(deps).await;
    }

    /// Forgets the progress. Records the repairs that are not recorded yet, or keeps them.
    pub(super) async fn forget_progress(&mut self, deps: &Reconciler) {
        *self = Self { repairs: std::mem::take(&mut self.repairs), ..Self::default() };
        self.record_repairs(deps).await;
    }

    /// Records the repairs of this pass, and those that an earlier pass could not record.
    async fn record_repairs(&mut self, deps: &Reconciler) {
        let mut num_recorded = 0;
        for batch in self.repairs.chunks(LOOKUP_BATCH) {
            if let Err(error) = deps.backends.ledger.record_repairs(batch.to_vec()).await {
                tracing::warn!(%error, "repairs of lost requests not recorded, retrying");
                break;
            }
            for repair in batch {
                deps.metrics.repair(repair.verdict, repair.outcome);
            }
            num_recorded += batch.len();
        }
        self.repairs.drain(..num_recorded);
        self.repairs.truncate(REPAIRS_MAX);
    }
}

/// The work of one pass in one bucket.
struct BucketPass<'a> {
    deps: &'a Reconciler,
    bucket: BucketKey,
    watermark: WatermarkRead,
    repairs: &'a mut Vec<Repair>,
    budget: &'a mut PassBudget,
    /// Why the bucket is not reconciled completely: the first reason, with the error.
    obstacle: Option<(Blocked, String)>,
}

impl BucketPass<'_> {
    fn block(&mut self, reason: Blocked, error: impl fmt::Display) {
        self.obstacle.get_or_insert_with(|| (reason, error.to_string()));
    }

    /// Continues the walk to its end, or until the budget is spent.
    async fn run(mut self, progress: &mut BucketProgress) {
        let (deps, before) = (self.deps, progress.blocked);
        if progress.walk.page() == 0 {
            progress.is_walk_blocked = false;
            self.begin(&mut progress.walk).await;
        }
        while !self.budget.is_spent() {
            let page = match deps.backends.stock.queued(self.bucket, progress.walk.page()).await {
                Ok(page) => page,
                // Its queued requests are read again once the bucket is loaded.
                Err(error) if error.is_not_loaded() => {
                    *progress = BucketProgress::default();
                    progress.walk.advance(None, deps.clock.wall_ms(), deps.after_ms());
                    return;
                }
                Err(error) => {
                    self.block(Blocked::Records, error);
                    break;
                }
            };
            let num_pages = usize::from(page.num_pages) + PAGES_PER_CALL;
            self.budget.pages = self.budget.pages.saturating_sub(num_pages);
            if let Some(error) = page.damage {
                self.block(Blocked::Records, error);
            }
            let mut queued = page.intents;
            self.end_expired(&mut queued).await;
            let (oldest, mut due) = self.due(queued);
            progress.walk.record_oldest(oldest);
            if oldest > OldestQueued::Recent {
                self.check_consumer(&progress.walk);
            }
            self.budget.lookups = self.budget.lookups.saturating_sub(due.len());
            // In random order: the batches that a failed submission skips are others in each walk.
            fastrand::shuffle(&mut due);
            for batch in due.chunks(LOOKUP_BATCH) {
                self.resolve(&progress.walk, batch).await;
            }
            let is_conclusive = page.next.is_none() && progress.walk.is_conclusive();
            progress.walk.advance(page.next, deps.clock.wall_ms(), deps.after_ms());
            if is_conclusive && !progress.is_walk_blocked && self.obstacle.is_none() {
                progress.blocked = None;
            }
            if page.next.is_none() {
                break;
            }
        }
        let Some((reason, error)) = self.obstacle else { return };
        progress.is_walk_blocked = true;
        progress.blocked = Some(reason);
        if before != Some(reason) {
            let (sku, bucket, reason) = (self.bucket.sku, self.bucket.bucket, reason.name());
            tracing::warn!(%sku, %bucket, reason, error, "bucket not reconciled, retrying");
        }
    }

    /// Begins a walk, and takes a new checkpoint if needed. Without a checkpoint no request counts
    /// as lost.
    async fn begin(&mut self, walk: &mut BucketWalk) {
        if !walk.begin(self.watermark.as_ref().ok().copied().flatten()) {
            return;
        }
        match self.deps.pipeline.outbox.status(self.bucket).await {
            Ok(status) => {
                let oldest = [status.oldest_waiting_ms, status.oldest_claimed_ms];
                let oldest_ms = oldest.into_iter().flatten().min();
                let now_ms = self.deps.clock.wall_ms();
                walk.take_checkpoint(now_ms, oldest_ms, self.deps.after_ms());
            }
            Err(error) => self.block(Blocked::Outbox, error),
        }
    }

    /// Ends the requests that were queued for longer than their SKU allows, and removes them.
    async fn end_expired(&mut self, queued: &mut Vec<OrderIntent>) {
        let deps = self.deps;
        let Some((_, sku)) = deps.catalog.of_sku(self.bucket.sku) else { return };
        let num_queued = queued.len();
        if let Err(error) = deps.requests.end_expired(&sku, queued).await {
            self.block(Blocked::Ledger, error);
        }
        let num_ended = num_queued - queued.len();
        self.budget.lookups = self.budget.lookups.saturating_sub(num_ended);
    }

    /// The requests to look up: queued for more than `reconciler.after_ms` and accepted before the
    /// watermark. Requests accepted at or after the watermark were published after it, so the
    /// consumers have not reached them.
    fn due(&self, mut queued: Vec<OrderIntent>) -> (OldestQueued, Vec<OrderIntent>) {
        let aged_ms = self.deps.clock.wall_ms().saturating_sub(self.deps.after_ms());
        queued.retain(|intent| intent.placed_at_ms < aged_ms);
        let has_aged = !queued.is_empty();
        if let Ok(Some(watermark_ms)) = self.watermark {
            queued.retain(|intent| intent.placed_at_ms < watermark_ms);
        }
        let oldest = match (has_aged, queued.is_empty()) {
            (false, _) => OldestQueued::Recent,
            (true, true) => OldestQueued::Waiting,
            (true, false) => OldestQueued::Due,
        };
        (oldest, queued)
    }

    /// While the watermark is missing or behind, no request of this bucket can count as lost.
    fn check_consumer(&mut self, walk: &BucketWalk) {
        match &self.watermark {
            Err(error) => self.block(Blocked::Watermark, error.to_string()),
            Ok(None) => {
                self.block(Blocked::NoConsumer, "its order queue has no running consumer");
            }
            Ok(Some(_)) if walk.is_behind(self.deps.clock.wall_ms()) => self.block(
                Blocked::ConsumersBehind,
                "the consumers are far behind, or a delivery is unacknowledged for long",
            ),
            Ok(Some(_)) => {}
        }
    }

    /// Reads the results of requests from the ledger, and applies them; none after a submission
    /// failed. A row that is not readable keeps only its own request waiting.
    async fn resolve(&mut self, walk: &BucketWalk, intents: &[OrderIntent]) {
        let (deps, mut parts) = (self.deps, vec![intents]);
        while let Some(part) = parts.pop().filter(|_| !self.budget.has_failed) {
            match deps.backends.ledger.examine(part.to_vec()).await {
                Ok(found) => self.apply(walk, part, &found).await,
                Err(error) => {
                    if part.len() > 1 && matches!(error, db::Error::Unreadable { .. }) {
                        let (first, second) = part.split_at(part.len() / 2);
                        parts.extend([second, first]);
                    } else {
                        self.block(Blocked::Ledger, error);
                    }
                }
            }
        }
    }

    /// Writes the results of requests to the bucket, and submits the lost requests.
    async fn apply(&mut self, walk: &BucketWalk, intents: &[OrderIntent], found: &Examination) {
        let deps = self.deps;
        let recorded_at_ms = deps.clock.wall_ms();
        let (mut orders, mut failures, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        for intent in intents {
            let request = intent.request;
            match (found.failures.get(&request), found.orders.get(&request)) {
                (Some(reason), _) => failures.push(intent.failure(*reason, recorded_at_ms)),
                (None, Some(order)) if order.answers(intent) => {
                    orders.push((intent.bucket, *order));
                }
                // An order of another buyer under this request id: the ledger refuses the request.
                (None, _) if walk.is_lost(intent.placed_at_ms) => lost.push(*intent),
                (None, _) => {}
            }
        }
        let num = orders.len() + failures.len();
        let settled =
            write_batch_or_each(orders, |orders| deps.backends.stock.settle(orders)).await;
        let release = |failures| deps.backends.stock.release(self.bucket, failures);
        match settled.and(write_batch_or_each(failures, release).await) {
            Ok(()) => self.budget.matched += num,
            // Results are written after the bucket is loaded.
            Err(error) if error.is_not_loaded() => {}
            Err(error) => self.block(Blocked::Results, error),
        }
        if let Some(passed_at_ms) = walk.passed_at_ms().filter(|_| !lost.is_empty()) {
            self.submit(lost, passed_at_ms).await;
        }
    }

    /// Submits lost requests, except those whose end state is a dead letter, or whose dead letter
    /// was replayed after the checkpoint: a consumer may hold that message. A request that
    /// contradicts its sale is not submitted, because the ledger trusts price and limit.
    async fn submit(&mut self, mut lost: Vec<OrderIntent>, passed_at_ms: i64) {
        let (deps, bucket) = (self.deps, self.bucket);
        let (ledger, stock) = (deps.backends.ledger.as_ref(), deps.backends.stock.as_ref());
        let requests: Vec<RequestId> = lost.iter().map(|intent| intent.request).collect();
        match ledger.dead_lettered_among(requests, passed_at_ms).await {
            Ok(dead) => lost.retain(|intent| !dead.contains(&intent.request)),
            Err(error) => return self.block(Blocked::Ledger, error),
        }
        let Some((sale, sku)) = deps.catalog.of_sku(bucket.sku) else { return };
        let now_ms = deps.clock.wall_ms();
        let submitter = Submitter { ledger, stock, metrics: &deps.metrics, now_ms };
        let (repairs, submitted) = submitter.submit(&sale, &sku, bucket, &lost).await;
        self.budget.submitted += repairs.len();
        self.repairs.extend(repairs);
        let Err(error) = submitted else { return };
        let reason = match &error {
            // Results are written after the bucket is loaded.
            lost_requests::Error::Stock(error) if error.is_not_loaded() => return,
            lost_requests::Error::Stock(_) => Blocked::Results,
            lost_requests::Error::Contradiction { .. } => Blocked::Order,
            lost_requests::Error::Ledger { source, .. } => {
                self.budget.has_failed = true;
                let is_rejected = source.class() == ErrorClass::Bug;
                if is_rejected { Blocked::Order } else { Blocked::Ledger }
            }
        };
        self.block(reason, full_text(&error));
    }
}

/// Writes results in one call; if a damaged page makes the call fail, one call per result. Returns
/// the first error.
async fn write_batch_or_each<T: Clone>(
    results: Vec<T>,
    write: impl AsyncFn(Vec<T>) -> Result<(), stock::Error>,
) -> Result<(), stock::Error> {
    if results.is_empty() {
        return Ok(());
    }
    let num_results = results.len();
    let written = write(results.clone()).await;
    if num_results == 1 || !matches!(written, Err(stock::Error::Damaged { .. })) {
        return written;
    }
    let mut outcome = Ok(());
    for result in results {
        outcome = outcome.and(write(vec![result]).await);
    }
    outcome
}
