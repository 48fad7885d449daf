//! One batch of the order consumer: the ledger's part, and the results that the stock gets of it.
//!
//! The order of these steps is the promise: an answer without a committed order would lose it, a
//! result before COMMIT could go back. Units come back only after the refusal is on record.
//! Results are written once: the ledger has them, and what the stock could not take is written by
//! whoever compares the two, or when a gate submits the intent again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::db::conflict_resolution::climb;
use crate::db::{self, ErrorClass, Ledger};
use crate::domain::{BucketNo, Counting, Failure, Order, OrderIntent, PlaceOutcome, Refusal};
use crate::messages::{WriteError, WriteResult};
use crate::observe::metrics::Metrics;
use crate::runtime::backoff::Backoff;
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::stock::{self, BucketKey, Stock};

/// A batch that takes longer is a sign that the ledger is away.
const SLOW: Duration = Duration::from_millis(1500);

/// What the consumer works with; the same for every consumer that follows it.
pub struct WriterDeps {
    /// Where orders become true.
    pub ledger: Arc<dyn Ledger>,
    /// Where results are read.
    pub stock: Arc<dyn Stock>,
    /// Who counts units: where the gates do, a refusal of the ledger is recorded as a failure of an
    /// accepted request; where the ledger does, it simply is the answer.
    pub counting: Counting,
    /// Most intents in one transaction.
    pub batch_max: usize,
    /// Tries at one batch before its sender hears of the failure.
    pub attempts_max: u32,
    /// First wait between tries, milliseconds.
    pub backoff_min_ms: u64,
    /// Longest wait between tries, milliseconds.
    pub backoff_max_ms: u64,
    /// Opened when the ledger fails.
    pub breaker: Breaker,
    /// The time of records.
    pub clock: SharedClock,
    /// What operators see.
    pub metrics: Arc<Metrics>,
}

/// Why a consumer must not go on.
#[derive(Debug, thiserror::Error)]
pub enum WriterFailure {
    /// Results cannot be entered.
    #[error("results cannot be entered in the stock")]
    Stock(#[from] stock::Error),
    /// Another process writes the ledger now.
    #[error(transparent)]
    Fenced(db::Error),
}

/// Brings a batch to outcomes, one result each; a refusal of what a gate had accepted is on record
/// then. `exclusive`: the sender submits again by itself, so a doubt is told at once.
///
/// # Errors
/// When the consumer must end; every intent may have been written then.
pub async fn write_batch(
    deps: &WriterDeps,
    intents: &[OrderIntent],
    exclusive: bool,
) -> Result<Vec<WriteResult>, WriterFailure> {
    let mut written = Vec::with_capacity(intents.len());
    for chunk in intents.chunks(deps.batch_max.max(1)) {
        written.extend(place_with_retries(deps, chunk, exclusive).await?);
    }
    let is_placed = |written: &&WriteResult| matches!(written, Ok(PlaceOutcome::Placed(_)));
    deps.metrics.orders_placed(written.iter().filter(is_placed).count());
    record_refusals(deps, intents, &mut written).await;
    Ok(written)
}

/// Tells the stock what was committed, once and as far as it can take it.
///
/// # Errors
/// The stock is half-written: nothing that it says can be believed, and the consumer must end.
pub async fn enter_results(
    deps: &WriterDeps,
    intents: &[OrderIntent],
    written: &[WriteResult],
) -> Result<(), WriterFailure> {
    // Crash here [committed_not_settled]: the ledger has the orders and the refusals, the stock
    // still waits; the next submission of the intents, or a comparison of the two, tells it.
    let orders = enter_orders(deps, intents, written).await;
    let refused = refusals(intents, written);
    for entered in [orders, release(deps, &refused).await] {
        match entered {
            Err(error @ stock::Error::HalfWritten { .. }) => return Err(error.into()),
            Err(error) => {
                deps.metrics.stock_error(&error);
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "committed, results not written to the stock"
                );
            }
            Ok(()) => {}
        }
    }
    if deps.counting == Counting::InLedger {
        note_sold_out(deps, &refused).await;
    }
    Ok(())
}

/// Resolves conflicts until every intent has an outcome or the tries are used up.
async fn place_with_retries(
    deps: &WriterDeps,
    intents: &[OrderIntent],
    exclusive: bool,
) -> Result<Vec<WriteResult>, WriterFailure> {
    let mut outcomes = vec![None; intents.len()];
    let mut backoff = Backoff::new(deps.backoff_min_ms, deps.backoff_max_ms);
    let mut fault: Option<WriteError> = None;
    let mut num_placed = 0;
    for attempt in 1..=deps.attempts_max.max(1) {
        let climbed = climb_watched(deps, intents, &mut outcomes).await;
        let before = num_placed;
        num_placed =
            outcomes.iter().filter(|it| matches!(it, Some(PlaceOutcome::Placed(_)))).count();
        if num_placed > before {
            deps.breaker.committed();
        }
        let Err(error) = climbed else {
            if deps.breaker.close() {
                tracing::info!("the ledger answers again");
            }
            break;
        };
        let class = error.class();
        deps.metrics.ledger_error(class);
        tracing::error!(
            attempt,
            intents = outcomes.iter().filter(|outcome| outcome.is_none()).count(),
            error = &error as &dyn std::error::Error,
            ?class,
            "orders not written"
        );
        if matches!(error, db::Error::Fenced { .. }) {
            return Err(WriterFailure::Fenced(error));
        }
        // A doubt stays one, whatever is said afterwards.
        if !fault.as_ref().is_some_and(|fault| fault.class == ErrorClass::Unknown) {
            fault = Some(WriteError { class, text: full_text(&error) });
        }
        if matches!(class, ErrorClass::Down | ErrorClass::Unknown) {
            open_breaker(deps);
        }
        if class == ErrorClass::Bug || (exclusive && class == ErrorClass::Unknown) {
            break;
        }
        tokio::time::sleep(backoff.next_wait(fastrand::f64())).await;
    }
    if outcomes.iter().any(Option::is_none) {
        note_failure(deps, intents);
    }
    Ok(outcomes.into_iter().map(|outcome| written(outcome, fault.as_ref())).collect())
}

/// Opens the breaker when one batch after the other fails, whatever the errors say.
fn note_failure(deps: &WriterDeps, intents: &[OrderIntent]) {
    if let Some(first) = intents.first()
        && deps.breaker.failed(first.request, intents.len())
    {
        tracing::error!("the ledger refuses one batch after the other: new requests hear `busy`");
    }
}

/// What an intent came to at the ledger, whose last error is `fault`.
fn written(outcome: Option<PlaceOutcome>, fault: Option<&WriteError>) -> WriteResult {
    let unexplained = || {
        let text = "it conflicts again and again, and the ledger does not say with what";
        WriteError { class: ErrorClass::Bug, text: text.into() }
    };
    match outcome {
        Some(PlaceOutcome::Unavailable) => Err(unexplained()),
        Some(outcome) => Ok(outcome),
        None => Err(fault.cloned().unwrap_or_else(unexplained)),
    }
}

/// An error with its causes, for people.
fn full_text(error: &db::Error) -> Arc<str> {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text.into()
}

/// Resolves conflicts, and opens the breaker while that takes unusually long: a ledger that is
/// frozen or cut off says nothing, and a crowd must not wait for its deadlines.
async fn climb_watched(
    deps: &WriterDeps,
    intents: &[OrderIntent],
    outcomes: &mut [Option<PlaceOutcome>],
) -> Result<(), db::Error> {
    let climbing = climb(deps.ledger.as_ref(), intents, outcomes);
    tokio::pin!(climbing);
    match tokio::time::timeout(SLOW, &mut climbing).await {
        Ok(climbed) => climbed,
        Err(_elapsed) => {
            open_breaker(deps);
            climbing.await
        }
    }
}

fn open_breaker(deps: &WriterDeps) {
    if deps.breaker.open() {
        tracing::error!("the ledger fails: new requests hear `busy` until it answers");
    }
}

async fn enter_orders(
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

/// What the ledger refused.
fn refusals(intents: &[OrderIntent], written: &[WriteResult]) -> Vec<(OrderIntent, Refusal)> {
    let refusal = |(intent, written): (&OrderIntent, &WriteResult)| match written {
        Ok(PlaceOutcome::Refused(reason)) => Some((*intent, *reason)),
        _ => None,
    };
    intents.iter().zip(written).filter_map(refusal).collect()
}

/// A gate had accepted: the refusal is put on record, before any unit goes back. Where the ledger
/// counts, its refusal is the answer and leaves no record.
async fn record_refusals(deps: &WriterDeps, intents: &[OrderIntent], written: &mut [WriteResult]) {
    let refused = refusals(intents, written);
    for (_, reason) in &refused {
        deps.metrics.ledger_refused(reason);
    }
    if refused.is_empty() || deps.counting == Counting::InLedger {
        return;
    }
    let now_ms = deps.clock.wall_ms();
    let records = refused.iter().map(|(intent, reason)| failure(intent, *reason, now_ms));
    match deps.ledger.record_failures(records.collect()).await {
        Ok(()) => deps.breaker.committed(),
        Err(error) => {
            deps.metrics.ledger_error(error.class());
            tracing::error!(error = &error as &dyn std::error::Error, "refusals not recorded");
            note_failure(deps, intents);
            // Without a record nothing goes back: to whoever submitted them it is a doubt.
            let fault = WriteError { class: ErrorClass::Unknown, text: full_text(&error) };
            let is_refused = |it: &&mut WriteResult| matches!(it, Ok(PlaceOutcome::Refused(_)));
            written.iter_mut().filter(is_refused).for_each(|it| *it = Err(fault.clone()));
        }
    }
}

fn failure(intent: &OrderIntent, reason: Refusal, recorded_at_ms: i64) -> Failure {
    Failure {
        request: intent.request,
        sku: intent.sku,
        buyer: intent.buyer,
        quantity: intent.quantity,
        reason,
        recorded_at_ms,
    }
}

/// Returns the units of recorded refusals, bucket by bucket; one that cannot be told does not keep
/// the others waiting.
async fn release(
    deps: &WriterDeps,
    refused: &[(OrderIntent, Refusal)],
) -> Result<(), stock::Error> {
    // Crash here [recorded_not_released]: the next submission of the intent, or a comparison of
    // stock and ledger, finds the record and releases.
    let now_ms = deps.clock.wall_ms();
    let mut by_bucket: BTreeMap<_, Vec<Failure>> = BTreeMap::new();
    for (intent, reason) in refused {
        let of_bucket = by_bucket.entry((intent.sku, intent.bucket)).or_default();
        of_bucket.push(failure(intent, *reason, now_ms));
    }
    let releasing = by_bucket
        .into_iter()
        .map(|((sku, bucket), refused)| deps.stock.release(BucketKey { sku, bucket }, refused));
    join_all(releasing).await.into_iter().collect()
}

/// Tells this process what a ledger that counts has left of what it says is sold out, once: a crowd
/// that is refused must not wait for a look at the ledger with each batch.
async fn note_sold_out(deps: &WriterDeps, refused: &[(OrderIntent, Refusal)]) {
    let is_news = |(intent, reason): &&(OrderIntent, Refusal)| {
        *reason == Refusal::SoldOut && !deps.stock.is_sold_out(intent.sku)
    };
    let sold_out = refused.iter().filter(is_news);
    for sku in sold_out.map(|(intent, _)| intent.sku).collect::<BTreeSet<_>>() {
        match deps.ledger.available(sku).await {
            Ok(left) => deps.stock.note_left(sku, left),
            Err(error) => {
                tracing::warn!(%sku, error = &error as &dyn std::error::Error, "stock not read");
            }
        }
    }
}
