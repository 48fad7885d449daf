//! Submits lost requests (accepted, in no stage) to the ledger, and writes the outcomes to their
//! bucket: for the repair of an audit, and for the reconciler.
//!
//! No message is involved: only ledger and bucket are needed. A request that was not lost after all
//! may be submitted, too. Its message may reach a consumer before, during or after the submission;
//! the ledger has one outcome for each request id, and every other submission reads it, as a repeat
//! or as the recorded refusal.
//!
//! On crash: an outcome that the bucket lacks is written by the next reconciler, submission or load
//! of the bucket. May repeat: everything.

use std::{mem, slice};

use crate::db::placement::place_each;
use crate::db::{self, ErrorClass, Ledger};
use crate::domain::{
    AuditVerdict, BucketKey, Failure, OrderIntent, PlaceOutcome, Refusal, Repair, RepairAction,
    RepairOutcome, RequestId, Sale, Sku,
};
use crate::observe::metrics::Metrics;
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
    /// This request contradicts its sale, and possibly others do. The others were submitted.
    #[error("lost request {request} not submitted: {what}")]
    Contradiction { request: RequestId, what: String },
}

/// Submits lost requests.
pub struct Submitter<'a> {
    pub ledger: &'a dyn Ledger,
    /// Has the buckets of the requests.
    pub stock: &'a dyn Stock,
    /// Count what the ledger writes, refuses and fails at.
    pub metrics: &'a Metrics,
    /// Time of the submission, epoch milliseconds.
    pub now_ms: i64,
}

impl Submitter<'_> {
    /// Submits lost requests of one bucket, except those that contradict their sale: the ledger
    /// trusts the price and limit of an intent. Returns the repair of each request that the ledger
    /// decided, for the caller to record, and the first error.
    pub async fn submit(
        &self,
        sale: &Sale,
        sku: &Sku,
        bucket: BucketKey,
        intents: &[OrderIntent],
    ) -> (Vec<Repair>, Result<(), Error>) {
        let (intents, valid) = without_contradictions(sale, sku, intents);
        let mut outcomes = vec![None; intents.len()];
        let placed = self.place(&intents, &mut outcomes).await;
        let (mut orders, mut refused) = (Vec::new(), Vec::new());
        for (intent, outcome) in intents.iter().zip(outcomes) {
            match outcome {
                Some(PlaceOutcome::Placed(order)) => {
                    self.metrics.orders_placed.inc();
                    orders.push((bucket.bucket, order));
                }
                Some(PlaceOutcome::Repeat(order)) => orders.push((bucket.bucket, order)),
                Some(PlaceOutcome::Refused(reason)) => {
                    refused.push(intent.failure(reason, self.now_ms));
                }
                None => {}
            }
        }
        // Units return only after the refusal is recorded.
        let recorded = self.record(&mut refused).await;
        let mut repairs = Vec::with_capacity(orders.len() + refused.len());
        for (_, order) in &orders {
            let outcome = RepairOutcome::Compensated;
            repairs.push(self.repair(bucket, order.request, outcome, "placed"));
        }
        for Failure { request, reason, .. } in &refused {
            self.metrics.ledger_refused(reason);
            let outcome = RepairOutcome::FailedFinal;
            repairs.push(self.repair(bucket, *request, outcome, reason.code()));
        }
        let mut written = Ok(());
        if !orders.is_empty() {
            written = self.stock.settle(orders).await;
        }
        if !refused.is_empty() {
            written = written.and(self.stock.release(bucket, refused).await);
        }
        (repairs, placed.and(recorded).and(written.map_err(Error::Stock)).and(valid))
    }

    fn repair(
        &self,
        bucket: BucketKey,
        request: RequestId,
        outcome: RepairOutcome,
        result: &str,
    ) -> Repair {
        Repair {
            sku: bucket.sku,
            request: Some(request),
            verdict: AuditVerdict::Leak,
            action: RepairAction::Submit,
            outcome,
            detail: format!("request {request}: submitted again: {result}"),
            at_ms: self.now_ms,
        }
    }

    /// Places intents: all at once, and after an error one by one, so that an order that the ledger
    /// cannot write holds no other back.
    async fn place(
        &self,
        intents: &[OrderIntent],
        outcomes: &mut [Option<PlaceOutcome>],
    ) -> Result<(), Error> {
        let Some(first) = intents.first() else { return Ok(()) };
        let Err(source) = self.place_all(intents, outcomes).await else { return Ok(()) };
        if intents.len() == 1 || source.class() == ErrorClass::Down {
            return Err(Error::Ledger { request: first.request, source });
        }
        let mut singles: Vec<_> = intents.iter().zip(outcomes.chunks_mut(1)).collect();
        // In random order: each submission places others, however many orders make the ledger fail.
        fastrand::shuffle(&mut singles);
        let (mut placed, mut has_failed) = (Ok(()), false);
        for (intent, outcome) in singles {
            let placing = self.place_all(slice::from_ref(intent), outcome);
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
        &self,
        intents: &[OrderIntent],
        outcomes: &mut [Option<PlaceOutcome>],
    ) -> Result<(), db::Error> {
        if let Err(error) = place_each(self.ledger, intents, outcomes).await {
            self.metrics.ledger_error(error.class());
            return Err(error);
        }
        if outcomes.iter().all(Option::is_some) {
            return Ok(());
        }
        let what = "the order: it conflicts with a row that the ledger does not show".to_owned();
        Err(db::Error::Unstorable { what })
    }

    /// Records refusals. Keeps those that the ledger has as failures then, with the recorded
    /// reason: a failure that was recorded before stands, and a request that another writer has
    /// placed meanwhile is none.
    async fn record(&self, refused: &mut Vec<Failure>) -> Result<(), Error> {
        let Some(request) = refused.first().map(|failure| failure.request) else { return Ok(()) };
        let recorded = match self.ledger.record_failures(refused.clone()).await {
            Ok(recorded) => recorded,
            Err(source) => {
                self.metrics.ledger_error(source.class());
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
}

/// The intents that do not contradict their sale, and the first contradiction as the error.
fn without_contradictions(
    sale: &Sale,
    sku: &Sku,
    intents: &[OrderIntent],
) -> (Vec<OrderIntent>, Result<(), Error>) {
    let mut valid = Ok(());
    let mut intents = intents.to_vec();
    intents.retain(|intent| {
        let terms = intent.contradiction(sku, sale.epoch);
        let Some(what) = terms.or_else(|| intent.window_contradiction(sale)) else { return true };
        if valid.is_ok() {
            valid = Err(Error::Contradiction { request: intent.request, what });
        }
        false
    });
    (intents, valid)
}
