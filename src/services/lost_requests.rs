//! Submits lost requests (accepted, in no stage) to the ledger, and writes the outcomes to their
//! bucket: for the repair of an audit, and for the reconciler.
//!
//! No message is involved: the store that lost a request is not needed to heal it. A request that
//! was not lost after all may be submitted, too. Its message may reach a consumer before, during
//! or after the submission; the ledger has one outcome for each request id, and every other
//! submission reads it, as a repeat or as the recorded refusal.
//!
//! On crash: an outcome that the bucket lacks is written by the next reconciler, submission or load
//! of the bucket. May repeat: everything.

use std::{mem, slice};

use crate::db::placement::place_each;
use crate::db::{self, ErrorClass, Ledger};
use crate::domain::{
    AuditVerdict, BucketKey, Failure, OrderIntent, PlaceOutcome, Refusal, Repair, RepairAction,
    RepairOutcome, RequestId,
};
use crate::stock::{self, Stock};

/// Why a submission is not complete. The requests stay queued in their bucket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ledger has no outcome of this request, and possibly none of others.
    #[error("lost request {request} not decided")]
    Ledger { request: RequestId, source: db::Error },
    /// The ledger has outcomes that the bucket lacks.
    #[error("outcomes of lost requests not written to their bucket")]
    Stock(#[source] stock::Error),
}

/// Submits lost requests of one bucket. Returns the repair of each request that the ledger decided,
/// for the caller to record, and the first error.
pub async fn submit(
    ledger: &dyn Ledger,
    stock: &dyn Stock,
    bucket: BucketKey,
    intents: &[OrderIntent],
    now_ms: i64,
) -> (Vec<Repair>, Result<(), Error>) {
    let mut outcomes = vec![None; intents.len()];
    let placed = place(ledger, intents, &mut outcomes).await;
    let (mut orders, mut refused) = (Vec::new(), Vec::new());
    for (intent, outcome) in intents.iter().zip(outcomes) {
        match outcome {
            Some(PlaceOutcome::Placed(order) | PlaceOutcome::Repeat(order)) => {
                orders.push((bucket.bucket, order));
            }
            Some(PlaceOutcome::Refused(reason)) => refused.push(intent.failure(reason, now_ms)),
            None => {}
        }
    }
    // Units return only after the refusal is recorded.
    let recorded = record(ledger, &mut refused).await;
    let repair = |request: RequestId, outcome, result: &str| Repair {
        sku: bucket.sku,
        request: Some(request),
        verdict: AuditVerdict::Leak,
        action: RepairAction::Submit,
        outcome,
        detail: format!("request {request}: submitted again: {result}"),
        at_ms: now_ms,
    };
    let mut repairs = Vec::with_capacity(orders.len() + refused.len());
    for (_, order) in &orders {
        repairs.push(repair(order.request, RepairOutcome::Compensated, "placed"));
    }
    for failure in &refused {
        repairs.push(repair(failure.request, RepairOutcome::FailedFinal, failure.reason.code()));
    }
    let mut written = Ok(());
    if !orders.is_empty() {
        written = stock.settle(orders).await;
    }
    if !refused.is_empty() {
        written = written.and(stock.release(bucket, refused).await);
    }
    (repairs, placed.and(recorded).and(written.map_err(Error::Stock)))
}

/// Places intents: all at once, and after an error one by one, so that an order that the ledger
/// cannot write holds no other back.
async fn place(
    ledger: &dyn Ledger,
    intents: &[OrderIntent],
    outcomes: &mut [Option<PlaceOutcome>],
) -> Result<(), Error> {
    let Some(first) = intents.first() else { return Ok(()) };
    let Err(source) = place_all(ledger, intents, outcomes).await else { return Ok(()) };
    if intents.len() == 1 || source.class() == ErrorClass::Down {
        return Err(Error::Ledger { request: first.request, source });
    }
    let mut singles: Vec<_> = intents.iter().zip(outcomes.chunks_mut(1)).collect();
    // In random order: each submission places others, however many orders make the ledger fail.
    fastrand::shuffle(&mut singles);
    let (mut placed, mut has_failed) = (Ok(()), false);
    for (intent, outcome) in singles {
        let placing = place_all(ledger, slice::from_ref(intent), outcome);
        let Err(source) = placing.await else { continue };
        let is_rejected = source.class() == ErrorClass::Bug;
        placed = placed.and(Err(Error::Ledger { request: intent.request, source }));
        // The second error that is no rejection: the ledger is the cause, not the orders.
        if !is_rejected && mem::replace(&mut has_failed, true) {
            break;
        }
    }
    placed
}

/// As [`place_each`]; an intent without an outcome is an error.
async fn place_all(
    ledger: &dyn Ledger,
    intents: &[OrderIntent],
    outcomes: &mut [Option<PlaceOutcome>],
) -> Result<(), db::Error> {
    place_each(ledger, intents, outcomes).await?;
    if outcomes.iter().all(Option::is_some) {
        return Ok(());
    }
    let what = "the order: it conflicts with a row that the ledger does not show".to_owned();
    Err(db::Error::Unstorable { what })
}

/// Records refusals. Keeps those that the ledger has as failures then, with the recorded reason: a
/// failure that was recorded before stands, and a request that another writer has placed meanwhile
/// is none.
async fn record(ledger: &dyn Ledger, refused: &mut Vec<Failure>) -> Result<(), Error> {
    let Some(request) = refused.first().map(|failure| failure.request) else { return Ok(()) };
    let recorded = match ledger.record_failures(refused.clone()).await {
        Ok(recorded) => recorded,
        Err(source) => {
            refused.clear();
            return Err(Error::Ledger { request, source });
        }
    };
    refused.retain_mut(|failure| match recorded.get(&failure.request) {
        // The order of a reused id is another buyer's.
        _ if failure.reason == Refusal::RequestIdReused => true,
        Some(reason) => {
            failure.reason = *reason;
            true
        }
        None => false,
    });
    Ok(())
}
