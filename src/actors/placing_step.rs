//! One batch of the order consumer: ledger first, then results, then (by the caller) answers.
//!
//! The order of these steps is the promise: an answer without a committed order would lose it, a
//! result before COMMIT could go back. Units come back only after the refusal is on record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::breaker::Breaker;
use crate::backoff::Backoff;
use crate::clock::SharedClock;
use crate::db::ladder::climb;
use crate::db::{self, Class, Ledger};
use crate::domain::{BucketNo, Counting, Failure, Order, OrderIntent, Outcome, Refusal};
use crate::messages::{Fault, Landing};
use crate::metrics::Metrics;
use crate::stock::{self, BucketKey, Stock};

/// A batch that takes longer is a sign that the ledger is away.
const SLOW: Duration = Duration::from_millis(1500);

/// What the consumer works with; the same for every consumer that follows it.
pub struct PlacingParts {
    /// Where orders become true.
    pub ledger: Arc<dyn Ledger>,
    /// Where results are read.
    pub stock: Arc<dyn Stock>,
    /// Who counts units: where the gates do, a refusal of the ledger is recorded as a failure of an
    /// accepted request; where the ledger does, it simply is the answer.
    pub counting: Counting,
    /// Most intents in one transaction.
    pub batch_max: usize,
    /// Tries at one batch before it is given up.
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
pub enum GiveUp {
    /// Results cannot be entered.
    #[error("results cannot be entered in the stock")]
    Stock(#[from] stock::Error),
    /// Another process writes the ledger now.
    #[error(transparent)]
    Fenced(db::Error),
}

/// Brings a batch to outcomes and enters them in the stock: one landing each. A result that the
/// stock cannot take at the moment is entered when the intent is submitted again; the ledger's word
/// stands meanwhile. `alone`: whoever submits asks again by itself, so a doubt is told at once.
///
/// # Errors
/// When the consumer must end; every intent may have been written then.
pub async fn write_batch(
    parts: &PlacingParts,
    intents: &[OrderIntent],
    alone: bool,
) -> Result<Vec<Landing>, GiveUp> {
    let mut landings = Vec::with_capacity(intents.len());
    for chunk in intents.chunks(parts.batch_max.max(1)) {
        landings.extend(place_with_retries(parts, chunk, alone).await?);
    }
    let entered = enter_orders(parts, intents, &landings).await;
    bear(parts, entered, &mut landings, |outcome| outcome.order().is_some())?;
    let entered = enter_refusals(parts, intents, &mut landings).await;
    bear(parts, entered, &mut landings, |outcome| matches!(outcome, Outcome::Refused(_)))?;
    Ok(landings)
}

/// Notes that the results chosen by `of` are not in the stock. Only a book that is half-written
/// ends the consumer: nothing it says can be believed.
fn bear(
    parts: &PlacingParts,
    entered: Result<(), stock::Error>,
    landings: &mut [Landing],
    of: impl Fn(&Outcome) -> bool,
) -> Result<(), stock::Error> {
    let Err(error) = entered else { return Ok(()) };
    if matches!(error, stock::Error::HalfWritten { .. }) {
        return Err(error);
    }
    parts.metrics.stock_error(&error);
    tracing::warn!(error = &error as &dyn std::error::Error, "results wait for the stock");
    let is_away = matches!(error, stock::Error::Unavailable { .. } | stock::Error::Unknown { .. });
    let said: Arc<str> = error.to_string().into();
    for landing in landings.iter_mut().filter(|landing| landing.outcome.as_ref().is_some_and(&of)) {
        landing.fault = Some(Fault::Stock { is_away, said: Arc::clone(&said) });
    }
    Ok(())
}

/// Climbs the conflict ladder until every intent has an outcome or the tries are used up.
async fn place_with_retries(
    parts: &PlacingParts,
    intents: &[OrderIntent],
    alone: bool,
) -> Result<Vec<Landing>, GiveUp> {
    let mut outcomes = vec![None; intents.len()];
    let mut backoff = Backoff::new(parts.backoff_min_ms, parts.backoff_max_ms);
    let mut fault = None;
    for attempt in 1..=parts.attempts_max.max(1) {
        let Err(error) = climb_watched(parts, intents, &mut outcomes).await else {
            if parts.breaker.close() {
                tracing::info!("the ledger answers again");
            }
            break;
        };
        let class = error.class();
        if matches!(class, Class::Down | Class::Unknown) {
            open_breaker(parts);
        }
        parts.metrics.ledger_error(class);
        tracing::error!(
            attempt,
            intents = outcomes.iter().filter(|outcome| outcome.is_none()).count(),
            error = &error as &dyn std::error::Error,
            ?class,
            "orders not written"
        );
        if matches!(error, db::Error::Fenced { .. }) {
            return Err(GiveUp::Fenced(error));
        }
        // A doubt stays one, whatever is said afterwards.
        if !matches!(fault, Some((Class::Unknown, _))) {
            fault = Some((class, full_text(&error)));
        }
        if class == Class::Bug || (alone && class == Class::Unknown) {
            break;
        }
        tokio::time::sleep(backoff.next_wait(fastrand::f64())).await;
    }
    Ok(outcomes.into_iter().map(|outcome| land(outcome, fault.as_ref())).collect())
}

/// What an intent came to at the ledger, whose last error is `fault`.
fn land(outcome: Option<Outcome>, fault: Option<&(Class, Arc<str>)>) -> Landing {
    let fault_of = |class, said: &Arc<str>| Some(Fault::Ledger { class, said: Arc::clone(said) });
    match (outcome, fault) {
        (Some(Outcome::Unavailable), _) => {
            let said = "it conflicts again and again, and the ledger does not say with what";
            Landing { outcome, fault: fault_of(Class::Bug, &said.into()) }
        }
        (None, Some((class, said))) => Landing {
            outcome: (*class != Class::Unknown).then_some(Outcome::Unavailable),
            fault: fault_of(*class, said),
        },
        (outcome, _) => Landing { outcome, fault: None },
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

/// Climbs, and opens the breaker while that takes unusually long: a ledger that is frozen or cut
/// off says nothing, and a crowd must not wait for its deadlines.
async fn climb_watched(
    parts: &PlacingParts,
    intents: &[OrderIntent],
    outcomes: &mut [Option<Outcome>],
) -> Result<(), db::Error> {
    let climbing = climb(parts.ledger.as_ref(), intents, outcomes);
    tokio::pin!(climbing);
    match tokio::time::timeout(SLOW, &mut climbing).await {
        Ok(climbed) => climbed,
        Err(_elapsed) => {
            open_breaker(parts);
            climbing.await
        }
    }
}

fn open_breaker(parts: &PlacingParts) {
    if parts.breaker.open() {
        tracing::error!("the ledger fails: new requests hear `busy` until it answers");
    }
}

async fn enter_orders(
    parts: &PlacingParts,
    intents: &[OrderIntent],
    landings: &[Landing],
) -> Result<(), stock::Error> {
    let orders: Vec<(BucketNo, Order)> = intents
        .iter()
        .zip(landings)
        .filter_map(|(intent, landing)| Some((intent.bucket, *landing.outcome.as_ref()?.order()?)))
        .collect();
    let is_placed = |landing: &&Landing| matches!(landing.outcome, Some(Outcome::Placed(_)));
    parts.metrics.orders_placed(landings.iter().filter(is_placed).count());
    // Crash here [committed_not_settled]: the ledger has the orders, the stock still waits; the
    // next gate submits again and is told so.
    if orders.is_empty() { Ok(()) } else { parts.stock.settle(orders).await }
}

async fn enter_refusals(
    parts: &PlacingParts,
    intents: &[OrderIntent],
    landings: &mut [Landing],
) -> Result<(), stock::Error> {
    let refused: Vec<(OrderIntent, Refusal)> = intents
        .iter()
        .zip(landings.iter())
        .filter_map(|(intent, landing)| match landing.outcome {
            Some(Outcome::Refused(reason)) => Some((*intent, reason)),
            _ => None,
        })
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    for (_, reason) in &refused {
        parts.metrics.ledger_refused(reason);
    }
    match parts.counting {
        Counting::Here => record_failures(parts, &refused, landings).await,
        Counting::InLedger => pass_on(parts, &refused).await,
    }
}

/// The gate had accepted: the refusal is put on record, then the units go back.
async fn record_failures(
    parts: &PlacingParts,
    refused: &[(OrderIntent, Refusal)],
    landings: &mut [Landing],
) -> Result<(), stock::Error> {
    let recorded_at_ms = parts.clock.wall_ms();
    let failures: Vec<(BucketNo, Failure)> = refused
        .iter()
        .map(|(intent, reason)| {
            (
                intent.bucket,
                Failure {
                    request: intent.request,
                    sku: intent.sku,
                    buyer: intent.buyer,
                    quantity: intent.quantity,
                    reason: *reason,
                    recorded_at_ms,
                },
            )
        })
        .collect();
    let records = failures.iter().map(|(_, failure)| *failure).collect();
    if let Err(error) = parts.ledger.record_failures(records).await {
        tracing::error!(error = &error as &dyn std::error::Error, "refusals not recorded");
        // Without a record nothing goes back: the intents stay unsettled and are put again.
        let (class, said) = (error.class(), full_text(&error));
        for landing in landings.iter_mut() {
            if matches!(landing.outcome, Some(Outcome::Refused(_))) {
                let fault = Some(Fault::Ledger { class, said: Arc::clone(&said) });
                *landing = Landing { outcome: None, fault };
            }
        }
        return Ok(());
    }
    // Crash here [recorded_not_released]: the next submission of the intent finds the record and
    // releases.
    let mut by_bucket: BTreeMap<_, Vec<Failure>> = BTreeMap::new();
    for (bucket, failure) in failures {
        by_bucket.entry((failure.sku, bucket)).or_default().push(failure);
    }
    for ((sku, bucket), released) in by_bucket {
        parts.stock.release(BucketKey { sku, bucket }, released).await?;
    }
    Ok(())
}

/// The ledger itself is the gate: its refusal is the answer, and the books forget the request.
async fn pass_on(
    parts: &PlacingParts,
    refused: &[(OrderIntent, Refusal)],
) -> Result<(), stock::Error> {
    let mut sold_out = Vec::new();
    for (intent, reason) in refused {
        let key = BucketKey { sku: intent.sku, bucket: intent.bucket };
        parts.stock.withdraw(key, vec![intent.request]).await?;
        if *reason == Refusal::SoldOut && !sold_out.contains(&intent.sku) {
            sold_out.push(intent.sku);
        }
    }
    for sku in sold_out {
        match parts.ledger.available(sku).await {
            Ok(left) => parts.stock.note_left(sku, left),
            Err(error) => {
                tracing::warn!(%sku, error = &error as &dyn std::error::Error, "stock not read");
            }
        }
    }
    Ok(())
}
