//! One pass over the buckets: what has been queued for long is looked up in the ledger, and brought
//! to its end.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::ReconcilerDeps;
use super::bucket_walk::{BucketWalk, OldestQueued};
use super::copies::RecentCopies;
use super::republishing::republish;
use crate::actors::reconciler::reconcile_metrics::Blocked;
use crate::broker::Route;
use crate::db;
use crate::domain::{BucketNo, Failure, Order, OrderIntent, RequestId, SkuNo};
use crate::stock::{self, BucketKey};
use crate::watermark;

/// Pages of records that one pass reads: 10,000 records keep Redis busy for some milliseconds.
const PAGES_MAX: usize = 768;

/// What a call costs besides its pages, in pages.
const PAGES_PER_CALL: usize = 4;

/// Requests that one pass looks up in the ledger.
const LOOKUPS_MAX: usize = 8_000;

/// Requests that the ledger is asked about at once.
const LOOKED_UP_AT_ONCE: usize = 500;

/// What the reconciler knows from pass to pass: for each bucket some numbers.
#[derive(Debug, Default)]
pub(super) struct Pass {
    walks: HashMap<BucketKey, BucketProgress>,
    /// What was published again.
    copies: RecentCopies,
    /// Where the last pass ended because it had done enough.
    goes_on_at: Option<BucketKey>,
}

/// One bucket.
#[derive(Debug, Default)]
struct BucketProgress {
    walk: BucketWalk,
    /// What the present walk met first.
    met: Option<Blocked>,
    /// What the last walk met that could decide anything.
    blocked: Option<Blocked>,
}

/// What one pass may still do, and what it has done.
#[derive(Debug)]
struct PassBudget {
    pages: usize,
    lookups: usize,
    matched: usize,
    republished: usize,
    /// Whether the topology was declared.
    has_declared: bool,
}

impl PassBudget {
    fn new() -> Self {
        let (pages, lookups) = (PAGES_MAX, LOOKUPS_MAX);
        Self { pages, lookups, matched: 0, republished: 0, has_declared: false }
    }

    fn is_enough(&self) -> bool {
        self.pages == 0 || self.lookups == 0
    }
}

/// Why a bucket is not walked any further in this pass.
struct Stopped {
    reason: Blocked,
    said: String,
}

type WatermarksRead = BTreeMap<u16, Result<Option<i64>, watermark::Error>>;

impl Pass {
    /// Why buckets are blocked: one reason for each that is.
    pub(super) fn blocked(&self) -> impl Iterator<Item = Blocked> + '_ {
        self.walks.values().filter_map(|seen| seen.blocked)
    }

    /// Goes over the buckets, at most once, from where the last pass ended.
    pub(super) async fn run(&mut self, deps: &ReconcilerDeps, buckets: &[BucketKey]) {
        let mut work = PassBudget::new();
        let first = self.goes_on_at.take().and_then(|at| buckets.iter().position(|b| *b == at));
        let (before, after) = buckets.split_at(first.unwrap_or_default());
        let mut watermarks = WatermarksRead::new();
        let mut idle: HashMap<SkuNo, bool> = HashMap::new();
        for bucket in after.iter().chain(before) {
            if work.is_enough() {
                self.goes_on_at = Some(*bucket);
                break;
            }
            let is_idle = match idle.entry(bucket.sku) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(unknown) => {
                    // A SKU that cannot be counted has a bucket in trouble, and others.
                    let queued = deps.stock.num_unsettled(bucket.sku).await;
                    *unknown.insert(matches!(queued, Ok(0)))
                }
            };
            if is_idle {
                self.walks.remove(bucket);
                continue;
            }
            let seen = self.walks.entry(*bucket).or_default();
            if seen.walk.is_due(deps.clock.wall_ms()) {
                let watermark = watermark_of(deps, *bucket, &mut watermarks).await;
                walk(deps, *bucket, seen, &watermark, &mut self.copies, &mut work).await;
            }
        }
        self.copies.forget(deps.clock.wall_ms());
        deps.metrics.reconcile_matched(work.matched);
        deps.metrics.reconcile_republished(work.republished);
        if work.matched > 0 {
            tracing::info!(num = work.matched, "results of the ledger written to their buckets");
        }
        if work.republished > 0 {
            tracing::warn!(num = work.republished, "lost requests published again");
        }
    }
}

/// The watermark of the bucket's order queue, read once in a pass.
async fn watermark_of(
    deps: &ReconcilerDeps,
    bucket: BucketKey,
    known: &mut WatermarksRead,
) -> Result<Option<i64>, watermark::Error> {
    let Route::Orders(queue) = Route::orders_of(bucket, deps.limits.queues) else {
        return Ok(None);
    };
    if let Some(before) = known.get(&queue) {
        return before.clone();
    }
    let read = deps.watermarks.of_queue(queue).await;
    known.insert(queue, read.clone());
    read
}

/// Walks on in one bucket until its end or until the pass has done enough.
async fn walk(
    deps: &ReconcilerDeps,
    bucket: BucketKey,
    seen: &mut BucketProgress,
    watermark: &Result<Option<i64>, watermark::Error>,
    copies: &mut RecentCopies,
    work: &mut PassBudget,
) {
    let before = seen.blocked;
    let mut stuck = Vec::new();
    if seen.walk.is_at_start() {
        seen.met = None;
        stuck.extend(begin(deps, bucket, &mut seen.walk, watermark).await);
    }
    while !work.is_enough() {
        let page = match deps.stock.queued(bucket, seen.walk.page()).await {
            Ok(page) => page,
            // It is being loaded, or has to be: whoever loads it brings the rest to the ledger.
            Err(stock::Error::NotLoaded(_) | stock::Error::Fenced { .. }) => {
                *seen = BucketProgress::default();
                seen.walk.go_on(None, deps.clock.wall_ms(), deps.limits.after_ms);
                return;
            }
            Err(error) => {
                stuck.push(Stopped { reason: Blocked::Records, said: error.to_string() });
                break;
            }
        };
        work.pages = work.pages.saturating_sub(usize::from(page.num_pages) + PAGES_PER_CALL);
        if let Some(said) = page.damage {
            stuck.push(Stopped { reason: Blocked::Records, said });
        }
        let (found, due) = due(deps, page.intents, watermark);
        seen.walk.find(found);
        if found > OldestQueued::Young {
            stuck.extend(waits_for(&seen.walk, watermark, deps.clock.wall_ms()));
        }
        work.lookups = work.lookups.saturating_sub(due.len());
        for asked in due.chunks(LOOKED_UP_AT_ONCE) {
            stuck.extend(look_up(deps, bucket, &seen.walk, asked, copies, work).await);
        }
        let has_decided = page.next.is_none() && seen.walk.decides();
        seen.walk.go_on(page.next, deps.clock.wall_ms(), deps.limits.after_ms);
        if has_decided && seen.met.is_none() && stuck.is_empty() {
            seen.blocked = None;
        }
        if page.next.is_none() {
            break;
        }
    }
    let Some(Stopped { reason, said }) = stuck.into_iter().next() else { return };
    seen.met.get_or_insert(reason);
    seen.blocked = Some(reason);
    if before != Some(reason) {
        let (sku, bucket, reason) = (bucket.sku, bucket.bucket, reason.as_str());
        tracing::warn!(%sku, %bucket, reason, said, "bucket not reconciled, retrying");
    }
}

/// Begins a walk, with a new checkpoint if it needs one; without it nothing can be lost.
async fn begin(
    deps: &ReconcilerDeps,
    bucket: BucketKey,
    walk: &mut BucketWalk,
    watermark: &Result<Option<i64>, watermark::Error>,
) -> Option<Stopped> {
    if !walk.begin(watermark.as_ref().ok().copied().flatten()) {
        return None;
    }
    match deps.outbox.standing(bucket).await {
        Ok(standing) => {
            let oldest = [standing.oldest_waiting_ms, standing.oldest_in_hand_ms];
            let oldest_ms = oldest.into_iter().flatten().min();
            walk.take_checkpoint(deps.clock.wall_ms(), oldest_ms, deps.limits.after_ms);
            None
        }
        Err(error) => Some(Stopped { reason: Blocked::Outbox, said: error.to_string() }),
    }
}

/// What has been queued for so long that something may be wrong with it. What was accepted at or
/// after the watermark was published after it, and is still to come to a consumer: it is left out.
fn due(
    deps: &ReconcilerDeps,
    mut queued: Vec<OrderIntent>,
    watermark: &Result<Option<i64>, watermark::Error>,
) -> (OldestQueued, Vec<OrderIntent>) {
    let aged_ms = deps.clock.wall_ms().saturating_sub(deps.limits.after_ms);
    queued.retain(|intent| intent.placed_at_ms < aged_ms);
    let is_any_aged = !queued.is_empty();
    if let Ok(Some(watermark_ms)) = watermark {
        queued.retain(|intent| intent.placed_at_ms < *watermark_ms);
    }
    let found = match (is_any_aged, queued.is_empty()) {
        (false, _) => OldestQueued::Young,
        (true, true) => OldestQueued::Waiting,
        (true, false) => OldestQueued::Due,
    };
    (found, queued)
}

/// Why nothing can be published again in this bucket for now, if that is so.
fn waits_for(
    walk: &BucketWalk,
    watermark: &Result<Option<i64>, watermark::Error>,
    now_ms: i64,
) -> Option<Stopped> {
    let stuck = |reason, said: String| Some(Stopped { reason, said });
    match watermark {
        Err(error) => stuck(Blocked::Watermark, error.to_string()),
        Ok(None) => stuck(Blocked::NoConsumer, "its order queue has no living consumer".into()),
        Ok(Some(_)) if walk.is_behind(now_ms) => {
            let said = "the consumers are far behind, or one has held a delivery for long";
            stuck(Blocked::ConsumersBehind, said.into())
        }
        Ok(Some(_)) => None,
    }
}

/// Brings what has ended in the ledger to the bucket, and publishes what is lost.
async fn look_up(
    deps: &ReconcilerDeps,
    bucket: BucketKey,
    walk: &BucketWalk,
    asked: &[OrderIntent],
    copies: &mut RecentCopies,
    work: &mut PassBudget,
) -> Vec<Stopped> {
    let mut stuck = Vec::new();
    let of_ledger = |error: db::Error| Stopped { reason: Blocked::Ledger, said: error.to_string() };
    let found = match deps.ledger.examine(asked.to_vec()).await {
        Ok(found) => found,
        Err(error) => return vec![of_ledger(error)],
    };
    let recorded_at_ms = deps.clock.wall_ms();
    let (mut orders, mut failures, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    for intent in asked {
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
            // An order of another buyer with this id is none of this one: the consumer says so.
            (None, _)
                if walk.is_lost(intent.placed_at_ms) && copies.may(request, recorded_at_ms) =>
            {
                lost.push(*intent);
            }
            (None, _) => {}
        }
    }
    let num = orders.len() + failures.len();
    match write_results(deps, bucket, orders, failures).await {
        Ok(()) => work.matched += num,
        // It is being loaded, or has to be: the results are written after that.
        Err(stock::Error::NotLoaded(_) | stock::Error::Fenced { .. }) => {}
        Err(error) => stuck.push(Stopped { reason: Blocked::Results, said: error.to_string() }),
    }
    if lost.is_empty() {
        return stuck;
    }
    let requests: Vec<RequestId> = lost.iter().map(|intent| intent.request).collect();
    match deps.ledger.dead_among(requests).await {
        Ok(dead) => {
            let dead: HashSet<RequestId> = dead.into_iter().collect();
            lost.retain(|intent| !dead.contains(&intent.request));
        }
        Err(error) => {
            stuck.push(of_ledger(error));
            return stuck;
        }
    }
    let (confirmed, failure) = republish(deps, bucket, &lost, &mut work.has_declared).await;
    if confirmed > 0 {
        copies.sent(lost.iter().map(|intent| intent.request), deps.clock.wall_ms());
    }
    work.republished += confirmed;
    stuck.extend(failure.map(|said| Stopped { reason: Blocked::Broker, said }));
    stuck
}

/// Writes results to the bucket.
async fn write_results(
    deps: &ReconcilerDeps,
    bucket: BucketKey,
    orders: Vec<(BucketNo, Order)>,
    failures: Vec<Failure>,
) -> Result<(), stock::Error> {
    let settled = together_or_each(orders, |orders| deps.stock.settle(orders)).await;
    let released = together_or_each(failures, |failures| deps.stock.release(bucket, failures));
    settled.and(released.await)
}

/// Writes results in one call; where one damaged page refuses all of them, each by itself. Returns
/// the first error.
async fn together_or_each<T: Clone>(
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
    let mut first = Ok(());
    for one in results {
        first = first.and(write(vec![one]).await);
    }
    first
}
