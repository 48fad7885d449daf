//! One pass over the buckets: compares requests that have been queued for long with the ledger,
//! writes missing results, publishes lost requests again.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::ReconcilerDeps;
use super::bucket_walk::{BucketWalk, OldestQueued};
use super::copies::RecentCopies;
use super::republishing::republish;
use crate::actors::reconciler::reconcile_metrics::Blocked;
use crate::broker::Route;
use crate::db;
use crate::domain::{BucketKey, BucketNo, Failure, Order, OrderIntent, RequestId, SkuNo};
use crate::stock;
use crate::watermark;

/// Most pages of records that one pass reads; 10,000 records take Redis some milliseconds.
const PAGES_MAX: usize = 768;

/// Fixed cost of one call, in pages.
const PAGES_PER_CALL: usize = 4;

/// Most requests that one pass looks up in the ledger.
const LOOKUPS_MAX: usize = 8_000;

/// Requests per ledger query.
const LOOKUP_BATCH: usize = 500;

/// The state that the reconciler keeps from pass to pass, in memory.
#[derive(Debug, Default)]
pub(super) struct Pass {
    walks: HashMap<BucketKey, BucketProgress>,
    copies: RecentCopies,
    /// The bucket at which the last pass used up its budget.
    resume_at: Option<BucketKey>,
}

#[derive(Debug, Default)]
struct BucketProgress {
    walk: BucketWalk,
    /// The first obstacle of the present walk.
    walk_blocked: Option<Blocked>,
    /// The reported obstacle: the last one, until a conclusive walk has none.
    blocked: Option<Blocked>,
}

/// The remaining budget of one pass, and the counts of its work.
#[derive(Debug)]
struct PassBudget {
    pages: usize,
    lookups: usize,
    matched: usize,
    republished: usize,
    topology_declared: bool,
}

impl PassBudget {
    fn new() -> Self {
        let (pages, lookups) = (PAGES_MAX, LOOKUPS_MAX);
        Self { pages, lookups, matched: 0, republished: 0, topology_declared: false }
    }

    fn is_spent(&self) -> bool {
        self.pages == 0 || self.lookups == 0
    }
}

/// Why a bucket is not reconciled completely in this pass.
struct Obstacle {
    reason: Blocked,
    error: String,
}

/// The watermarks read in this pass, by order queue.
type WatermarksRead = BTreeMap<u16, Result<Option<i64>, watermark::Error>>;

impl Pass {
    /// The reason of each blocked bucket.
    pub(super) fn blocked(&self) -> impl Iterator<Item = Blocked> + '_ {
        self.walks.values().filter_map(|progress| progress.blocked)
    }

    /// Reconciles each bucket at most once, beginning where the last pass used up its budget.
    pub(super) async fn run(&mut self, deps: &ReconcilerDeps, buckets: &[BucketKey]) {
        let mut budget = PassBudget::new();
        let first = self.resume_at.take().and_then(|at| buckets.iter().position(|b| *b == at));
        let (before, after) = buckets.split_at(first.unwrap_or_default());
        let mut watermarks = WatermarksRead::new();
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
                    let queued = deps.stock.num_unsettled(bucket.sku).await;
                    *unknown.insert(matches!(queued, Ok(0)))
                }
            };
            if is_idle {
                self.walks.remove(bucket);
                continue;
            }
            let progress = self.walks.entry(*bucket).or_default();
            if progress.walk.is_due(deps.clock.wall_ms()) {
                let watermark = watermark_of(deps, *bucket, &mut watermarks).await;
                walk(deps, *bucket, progress, &watermark, &mut self.copies, &mut budget).await;
            }
        }
        self.copies.prune(deps.clock.wall_ms());
        deps.metrics.reconcile_matched(budget.matched);
        deps.metrics.reconcile_republished(budget.republished);
        if budget.matched > 0 {
            tracing::info!(num = budget.matched, "results of the ledger written to their buckets");
        }
        if budget.republished > 0 {
            tracing::warn!(num = budget.republished, "lost requests published again");
        }
    }
}

/// The watermark of the bucket's order queue, read once per pass; `None`: no consumer runs.
async fn watermark_of(
    deps: &ReconcilerDeps,
    bucket: BucketKey,
    known: &mut WatermarksRead,
) -> Result<Option<i64>, watermark::Error> {
    let Route::Orders(queue) = Route::orders_of(bucket, deps.limits.queues) else {
        return Ok(None);
    };
    if let Some(watermark) = known.get(&queue) {
        return watermark.clone();
    }
    let read = deps.watermarks.of_queue(queue).await;
    known.insert(queue, read.clone());
    read
}

/// Continues the walk of one bucket to its end, or until the budget is spent.
async fn walk(
    deps: &ReconcilerDeps,
    bucket: BucketKey,
    progress: &mut BucketProgress,
    watermark: &Result<Option<i64>, watermark::Error>,
    copies: &mut RecentCopies,
    budget: &mut PassBudget,
) {
    let before = progress.blocked;
    let mut obstacles = Vec::new();
    if progress.walk.is_at_start() {
        progress.walk_blocked = None;
        obstacles.extend(begin(deps, bucket, &mut progress.walk, watermark).await);
    }
    while !budget.is_spent() {
        let page = match deps.stock.queued(bucket, progress.walk.page()).await {
            Ok(page) => page,
            // Its queued requests are read again once the bucket is loaded.
            Err(stock::Error::NotLoaded(_) | stock::Error::Fenced { .. }) => {
                *progress = BucketProgress::default();
                progress.walk.advance(None, deps.clock.wall_ms(), deps.limits.after_ms);
                return;
            }
            Err(error) => {
                obstacles.push(Obstacle { reason: Blocked::Records, error: error.to_string() });
                break;
            }
        };
        budget.pages = budget.pages.saturating_sub(usize::from(page.num_pages) + PAGES_PER_CALL);
        if let Some(error) = page.damage {
            obstacles.push(Obstacle { reason: Blocked::Records, error });
        }
        let (oldest, due) = due(deps, page.intents, watermark);
        progress.walk.record_oldest(oldest);
        if oldest > OldestQueued::Recent {
            obstacles.extend(consumer_obstacle(&progress.walk, watermark, deps.clock.wall_ms()));
        }
        budget.lookups = budget.lookups.saturating_sub(due.len());
        for batch in due.chunks(LOOKUP_BATCH) {
            obstacles.extend(resolve(deps, bucket, &progress.walk, batch, copies, budget).await);
        }
        let is_conclusive = page.next.is_none() && progress.walk.is_conclusive();
        progress.walk.advance(page.next, deps.clock.wall_ms(), deps.limits.after_ms);
        if is_conclusive && progress.walk_blocked.is_none() && obstacles.is_empty() {
            progress.blocked = None;
        }
        if page.next.is_none() {
            break;
        }
    }
    let Some(Obstacle { reason, error }) = obstacles.into_iter().next() else { return };
    progress.walk_blocked.get_or_insert(reason);
    progress.blocked = Some(reason);
    if before != Some(reason) {
        let (sku, bucket, reason) = (bucket.sku, bucket.bucket, reason.as_str());
        tracing::warn!(%sku, %bucket, reason, error, "bucket not reconciled, retrying");
    }
}

/// Begins a walk, and takes a new checkpoint if needed. Without a checkpoint no request counts as
/// lost.
async fn begin(
    deps: &ReconcilerDeps,
    bucket: BucketKey,
    walk: &mut BucketWalk,
    watermark: &Result<Option<i64>, watermark::Error>,
) -> Option<Obstacle> {
    if !walk.begin(watermark.as_ref().ok().copied().flatten()) {
        return None;
    }
    match deps.outbox.status(bucket).await {
        Ok(status) => {
            let oldest = [status.oldest_waiting_ms, status.oldest_claimed_ms];
            let oldest_ms = oldest.into_iter().flatten().min();
            walk.take_checkpoint(deps.clock.wall_ms(), oldest_ms, deps.limits.after_ms);
            None
        }
        Err(error) => Some(Obstacle { reason: Blocked::Outbox, error: error.to_string() }),
    }
}

/// The requests to look up: queued for more than `reconciler.after_ms` and accepted before the
/// watermark. Requests accepted at or after the watermark were published after it, so the consumers
/// have not reached them.
fn due(
    deps: &ReconcilerDeps,
    mut queued: Vec<OrderIntent>,
    watermark: &Result<Option<i64>, watermark::Error>,
) -> (OldestQueued, Vec<OrderIntent>) {
    let aged_ms = deps.clock.wall_ms().saturating_sub(deps.limits.after_ms);
    queued.retain(|intent| intent.placed_at_ms < aged_ms);
    let has_aged = !queued.is_empty();
    if let Ok(Some(watermark_ms)) = watermark {
        queued.retain(|intent| intent.placed_at_ms < *watermark_ms);
    }
    let oldest = match (has_aged, queued.is_empty()) {
        (false, _) => OldestQueued::Recent,
        (true, true) => OldestQueued::Waiting,
        (true, false) => OldestQueued::Due,
    };
    (oldest, queued)
}

/// Why no request of this bucket can count as lost for now: the watermark is missing or behind.
fn consumer_obstacle(
    walk: &BucketWalk,
    watermark: &Result<Option<i64>, watermark::Error>,
    now_ms: i64,
) -> Option<Obstacle> {
    let (reason, error) = match watermark {
        Err(error) => (Blocked::Watermark, error.to_string()),
        Ok(None) => (Blocked::NoConsumer, "its order queue has no running consumer".into()),
        Ok(Some(_)) if walk.is_behind(now_ms) => {
            let error = "the consumers are far behind, or a delivery is unacknowledged for long";
            (Blocked::ConsumersBehind, error.into())
        }
        Ok(Some(_)) => return None,
    };
    Some(Obstacle { reason, error })
}

/// Reads the results of requests from the ledger, writes them to the bucket, and publishes the lost
/// requests again.
async fn resolve(
    deps: &ReconcilerDeps,
    bucket: BucketKey,
    walk: &BucketWalk,
    intents: &[OrderIntent],
    copies: &mut RecentCopies,
    budget: &mut PassBudget,
) -> Vec<Obstacle> {
    let mut obstacles = Vec::new();
    let ledger_obstacle =
        |error: db::Error| Obstacle { reason: Blocked::Ledger, error: error.to_string() };
    let found = match deps.ledger.examine(intents.to_vec()).await {
        Ok(found) => found,
        Err(error) => return vec![ledger_obstacle(error)],
    };
    let recorded_at_ms = deps.clock.wall_ms();
    let (mut orders, mut failures, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    for intent in intents {
        let request = intent.request;
        match (found.failures.get(&request), found.orders.get(&request)) {
            (Some(reason), _) => failures.push(Failure {
                request,
                sku: intent.sku,
                buyer: intent.buyer,
                quantity: intent.quantity,
                reason: *reason,
                recorded_at_ms,
            }),
            (None, Some(order)) if order.answers(intent) => orders.push((intent.bucket, *order)),
            // An order of another buyer under this request id: the consumer rejects the copy.
            (None, _)
                if walk.is_lost(intent.placed_at_ms)
                    && copies.can_republish(request, recorded_at_ms) =>
            {
                lost.push(*intent);
            }
            (None, _) => {}
        }
    }
    let num = orders.len() + failures.len();
    match write_results(deps, bucket, orders, failures).await {
        Ok(()) => budget.matched += num,
        // Results are written after the bucket is loaded.
        Err(stock::Error::NotLoaded(_) | stock::Error::Fenced { .. }) => {}
        Err(error) => {
            obstacles.push(Obstacle { reason: Blocked::Results, error: error.to_string() });
        }
    }
    if lost.is_empty() {
        return obstacles;
    }
    let requests: Vec<RequestId> = lost.iter().map(|intent| intent.request).collect();
    match deps.ledger.dead_lettered_among(requests).await {
        Ok(dead) => {
            let dead: HashSet<RequestId> = dead.into_iter().collect();
            lost.retain(|intent| !dead.contains(&intent.request));
        }
        Err(error) => {
            obstacles.push(ledger_obstacle(error));
            return obstacles;
        }
    }
    let (confirmed, failure) = republish(deps, bucket, &lost, &mut budget.topology_declared).await;
    if confirmed > 0 {
        copies.record(lost.iter().map(|intent| intent.request), deps.clock.wall_ms());
    }
    budget.republished += confirmed;
    obstacles.extend(failure.map(|error| Obstacle { reason: Blocked::Broker, error }));
    obstacles
}

async fn write_results(
    deps: &ReconcilerDeps,
    bucket: BucketKey,
    orders: Vec<(BucketNo, Order)>,
    failures: Vec<Failure>,
) -> Result<(), stock::Error> {
    let settled = write_batch_or_each(orders, |orders| deps.stock.settle(orders)).await;
    let released = write_batch_or_each(failures, |failures| deps.stock.release(bucket, failures));
    settled.and(released.await)
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
