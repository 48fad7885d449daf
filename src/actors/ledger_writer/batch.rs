//! Writes one batch of the ledger writer to the ledger, and its results to the stock.
//!
//! The order of the steps is the promise: orders are committed before any answer and before any
//! result, and a refusal is recorded before its units are released. Results are written once: the
//! ledger has them, and a result that the stock did not take is written again by the reconciler, or
//! when a gate resubmits the intent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::config::ConsumerSettings;
use crate::db::placement::place_each;
use crate::db::{self, ErrorClass, Ledger};
use crate::domain::{
    BucketKey, BucketNo, Counting, Failure, Order, OrderIntent, PlaceOutcome, Refusal,
};
use crate::messages::{WriteError, WriteResult};
use crate::observe::metrics::Metrics;
use crate::runtime::backoff::Backoff;
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::stock::{self, Stock};

/// Time after which a batch in progress opens the breaker.
const SLOW_AFTER: Duration = Duration::from_millis(1500);

/// Parts of a batch or submission that is split because an order in it may be the cause of its
/// failure: two splits isolate one order of 64, three one of 512.
pub const SPLIT_PARTS: usize = 8;

/// Dependencies of the ledger writer; shared by all its incarnations.
pub struct WriterDeps {
    pub ledger: Arc<dyn Ledger>,
    /// Receives the results, which buyers read there.
    pub stock: Arc<dyn Stock>,
    /// Where units are counted. Counted by the gates: a refusal of the ledger is recorded as the
    /// failure of an accepted request. Counted by the ledger: the refusal is the answer.
    pub counting: Counting,
    pub settings: ConsumerSettings,
    /// The ledger writer opens it when the ledger fails.
    pub breaker: Breaker,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

/// Writes a batch, and returns one result per intent, in order. A refusal of an intent that a gate
/// had accepted is recorded. `is_exclusive`: an unknown outcome is returned at once instead of
/// being retried, because the sender resubmits.
///
/// # Errors
/// Another process writes the ledger now: the ledger writer must exit. Every intent may have been
/// written.
pub async fn write_batch(
    deps: &WriterDeps,
    intents: &[OrderIntent],
    is_exclusive: bool,
) -> Result<Vec<WriteResult>, db::Error> {
    let mut written = Vec::with_capacity(intents.len());
    for chunk in intents.chunks(deps.settings.batch_max.max(1)) {
        written.extend(place_in_parts(deps, chunk, is_exclusive).await?);
    }
    let is_placed = |written: &&WriteResult| matches!(written, Ok(PlaceOutcome::Placed(_)));
    deps.metrics.orders_placed.inc_by(written.iter().filter(is_placed).count() as u64);
    record_refusals(deps, intents, &mut written).await;
    Ok(written)
}

/// Writes the committed results to the stock, once. Errors other than `HalfWritten` are logged.
///
/// # Errors
/// The stock is half-written: its state is not trustworthy, and the ledger writer must exit.
pub async fn write_results(
    deps: &WriterDeps,
    intents: &[OrderIntent],
    written: &[WriteResult],
) -> Result<(), stock::Error> {
    // Crash here [committed_not_settled]: the orders and refusals are in the ledger, and unsettled
    // in the stock; the next submission of the intents, or the reconciler, settles them.
    let settled = settle_orders(deps, intents, written).await;
    let refused = refusals(deps, intents, written);
    for result in [settled, release(deps, &refused).await] {
        match result {
            Err(error @ stock::Error::HalfWritten { .. }) => return Err(error),
            Err(error) => {
                deps.metrics.stock_error(&error);
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "orders committed, results not written to the stock"
                );
            }
            Ok(()) => {}
        }
    }
    if deps.counting == Counting::InLedger {
        cache_sold_out(deps, &refused).await;
    }
    Ok(())
}

/// Writes the intents; those that the ledger rejects are written again in smaller parts, so that
/// one order that it cannot write keeps no other unwritten. A ledger that rejects every part is
/// itself the cause. An exclusive submission is divided by its sender.
async fn place_in_parts(
    deps: &WriterDeps,
    intents: &[OrderIntent],
    is_exclusive: bool,
) -> Result<Vec<WriteResult>, db::Error> {
    let mut written = place_with_retries(deps, intents, is_exclusive).await?;
    let is_rejected = |written: &WriteResult| {
        matches!(written, Err(WriteError::Ledger { class: ErrorClass::Bug, .. }))
    };
    let mut size = intents.len();
    while !is_exclusive && size > 1 {
        size = size.div_ceil(SPLIT_PARTS);
        let again = intents.iter().zip(&mut written).filter(|(_, written)| is_rejected(written));
        let mut again: Vec<(&OrderIntent, &mut WriteResult)> = again.collect();
        let mut num_written = 0;
        for part in again.chunks_mut(size) {
            let of_part: Vec<OrderIntent> = part.iter().map(|(intent, _)| **intent).collect();
            let results = place_with_retries(deps, &of_part, false).await?;
            num_written += results.iter().filter(|result| result.is_ok()).count();
            part.iter_mut().zip(results).for_each(|((_, written), result)| **written = result);
        }
        if num_written == 0 {
            break;
        }
    }
    Ok(written)
}

/// Writes the intents, and retries after errors until every intent has an outcome or the attempts
/// are used up.
async fn place_with_retries(
    deps: &WriterDeps,
    intents: &[OrderIntent],
    is_exclusive: bool,
) -> Result<Vec<WriteResult>, db::Error> {
    let mut outcomes = vec![None; intents.len()];
    let settings = &deps.settings;
    let mut backoff = Backoff::new(settings.retry_backoff_min_ms, settings.retry_backoff_max_ms);
    let mut last_error: Option<WriteError> = None;
    let mut num_placed = 0;
    for attempt in 1..=settings.attempts_max.max(1) {
        let placed = place_watched(deps, intents, &mut outcomes).await;
        let before = num_placed;
        num_placed =
            outcomes.iter().filter(|it| matches!(it, Some(PlaceOutcome::Placed(_)))).count();
        if num_placed > before {
            deps.breaker.committed();
        }
        let Err(error) = placed else {
            if deps.breaker.close() {
                tracing::info!("ledger recovered, breaker closed");
            }
            // The ledger has decided every intent, or has shown that it was not written: errors of
            // earlier attempts tell nothing more.
            last_error = None;
            break;
        };
        let class = error.class();
        deps.metrics.ledger_error(class);
        let text = full_text(&error);
        if !matches!(&last_error, Some(WriteError::Ledger { text: last, .. }) if *last == text) {
            let intents = outcomes.iter().filter(|outcome| outcome.is_none()).count();
            tracing::error!(attempt, intents, error = %text, ?class, "orders not written");
        }
        if matches!(error, db::Error::Fenced { .. }) {
            return Err(error);
        }
        // An unknown outcome stays unknown, whatever later attempts return.
        if !matches!(last_error, Some(WriteError::Ledger { class: ErrorClass::Unknown, .. })) {
            last_error = Some(WriteError::Ledger { class, text });
        }
        if matches!(class, ErrorClass::Down | ErrorClass::Unknown) {
            open_breaker(deps);
        }
        // The sender of an exclusive submission retries it, and the writer goes on with others.
        let is_slow = matches!(class, ErrorClass::Unknown | ErrorClass::Retry);
        if class == ErrorClass::Bug || (is_exclusive && is_slow) {
            break;
        }
        tokio::time::sleep(backoff.next_wait(fastrand::f64())).await;
    }
    if last_error.is_some() && outcomes.iter().any(Option::is_none) {
        count_failure(deps, intents);
    }
    Ok(outcomes.into_iter().map(|outcome| result_of(outcome, last_error.as_ref())).collect())
}

/// Counts a failed batch; several in a row open the breaker, whatever the errors.
fn count_failure(deps: &WriterDeps, intents: &[OrderIntent]) {
    if let Some(first) = intents.first()
        && deps.breaker.failed(first.request, intents.len())
    {
        tracing::error!(
            "ledger rejects every batch, breaker open: without a broker, new requests get `busy`"
        );
    }
}

/// The result of an intent: its outcome, or the last error of the ledger; without one, the intent
/// conflicts for a reason that the ledger does not show.
fn result_of(outcome: Option<PlaceOutcome>, last_error: Option<&WriteError>) -> WriteResult {
    let unexplained = || {
        let text = "unexplained conflict: the ledger does not say with which row";
        WriteError::Ledger { class: ErrorClass::Bug, text: text.into() }
    };
    outcome.ok_or_else(|| last_error.cloned().unwrap_or_else(unexplained))
}

/// An error with its causes.
pub fn full_text(error: &(dyn std::error::Error + 'static)) -> Arc<str> {
    let first: &dyn std::error::Error = error;
    let causes = std::iter::successors(Some(first), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ").into()
}

/// Makes one attempt to write the intents without an outcome. Opens the breaker after
/// [`SLOW_AFTER`]: a frozen or unreachable ledger returns no error, and new requests must not wait
/// for the time-out.
async fn place_watched(
    deps: &WriterDeps,
    intents: &[OrderIntent],
    outcomes: &mut [Option<PlaceOutcome>],
) -> Result<(), db::Error> {
    let placing = place_each(deps.ledger.as_ref(), intents, outcomes);
    tokio::pin!(placing);
    match tokio::time::timeout(SLOW_AFTER, &mut placing).await {
        Ok(placed) => placed,
        Err(_elapsed) => {
            open_breaker(deps);
            placing.await
        }
    }
}

fn open_breaker(deps: &WriterDeps) {
    if deps.breaker.open() {
        tracing::error!("ledger failing, breaker open: without a broker, new requests get `busy`");
    }
}

async fn settle_orders(
    deps: &WriterDeps,
    intents: &[OrderIntent],
    written: &[WriteResult],
) -> Result<(), stock::Error> {
    let orders: Vec<(BucketNo, Order)> = intents
        .iter()
        .zip(written)
        .filter_map(|(intent, written)| Some((intent.bucket, *written.as_ref().ok()?.order()?)))
        .collect();
    if orders.is_empty() { Ok(()) } else { deps.stock.settle(orders).await }
}

/// The refusals among the results, each with its bucket.
fn refusals(
    deps: &WriterDeps,
    intents: &[OrderIntent],
    written: &[WriteResult],
) -> Vec<(BucketNo, Failure)> {
    let recorded_at_ms = deps.clock.wall_ms();
    let refusal = |(intent, written): (&OrderIntent, &WriteResult)| {
        let Ok(PlaceOutcome::Refused(reason)) = *written else { return None };
        Some((intent.bucket, intent.failure(reason, recorded_at_ms)))
    };
    intents.iter().zip(written).filter_map(refusal).collect()
}

/// Records the refusals of intents that a gate had accepted, before any unit is released. Where the
/// ledger counts, its refusal is the answer and is not recorded.
async fn record_refusals(deps: &WriterDeps, intents: &[OrderIntent], written: &mut [WriteResult]) {
    let refused = refusals(deps, intents, written);
    if refused.is_empty() || deps.counting == Counting::InLedger {
        return;
    }
    for (_, failure) in &refused {
        deps.metrics.ledger_refused(&failure.reason);
    }
    let records = refused.into_iter().map(|(_, failure)| failure).collect();
    let recorded = deps.ledger.record_failures(records).await;
    let (recorded, unrecorded) = match recorded {
        Ok(recorded) => {
            deps.breaker.committed();
            (Some(recorded), "another writer has placed the order".into())
        }
        Err(error) => {
            deps.metrics.ledger_error(error.class());
            tracing::error!(error = &error as &dyn std::error::Error, "refusals not recorded");
            (None, full_text(&error))
        }
    };
    // Without a record no unit is released: the outcome is unknown to the sender.
    let unrecorded = WriteError::Ledger { class: ErrorClass::Unknown, text: unrecorded };
    for (intent, written) in intents.iter().zip(written) {
        let Ok(PlaceOutcome::Refused(reason)) = written else { continue };
        match recorded.as_ref().map(|recorded| recorded.get(&intent.request)) {
            // The order of a reused id is another buyer's.
            Some(_) if *reason == Refusal::RequestIdReused => {}
            // A failure that was recorded before, as by the buyer's cancellation, stands.
            Some(Some(earlier)) => *reason = *earlier,
            Some(None) | None => *written = Err(unrecorded.clone()),
        }
    }
}

/// Releases the units of recorded refusals. The buckets are released concurrently: one that fails
/// does not block the others.
async fn release(deps: &WriterDeps, refused: &[(BucketNo, Failure)]) -> Result<(), stock::Error> {
    // Crash here [recorded_not_released]: the next submission of the intent, or the reconciler,
    // finds the record and releases.
    let mut by_bucket: BTreeMap<_, Vec<Failure>> = BTreeMap::new();
    for (bucket, failure) in refused {
        by_bucket.entry((failure.sku, *bucket)).or_default().push(*failure);
    }
    let releasing = by_bucket
        .into_iter()
        .map(|((sku, bucket), refused)| deps.stock.release(BucketKey { sku, bucket }, refused));
    join_all(releasing).await.into_iter().collect()
}

/// Caches the units left of SKUs that the ledger has just refused as sold out, so that further
/// requests are refused without a query per batch.
async fn cache_sold_out(deps: &WriterDeps, refused: &[(BucketNo, Failure)]) {
    let is_new = |failure: &&Failure| {
        failure.reason == Refusal::SoldOut && !deps.stock.is_sold_out(failure.sku)
    };
    let sold_out = refused.iter().map(|(_, failure)| failure).filter(is_new);
    for sku in sold_out.map(|failure| failure.sku).collect::<BTreeSet<_>>() {
        match deps.ledger.available(sku).await {
            Ok(left) => deps.stock.cache_left(sku, left),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%sku, error, "units left not read");
            }
        }
    }
}
