//! Ends requests that the ledger has not decided: cancelled by their buyer, queued for too long, or
//! in a dead letter that an operator discards.
//!
//! The ledger records the failure, then the bucket releases the units. From the record on, the
//! ledger refuses every copy of the request, in a gate, an outbox or a message. It excludes order
//! and failure from each other: of an end and a submission at once, one wins, and the other one
//! reads it.
//!
//! On crash between the two steps the request is a failure in the ledger and still `queued` in its
//! bucket: the next submission, end, reconciler or load of the bucket finds the record and
//! releases. May repeat: everything; the first recorded reason stays.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::db::{self, Ledger};
use crate::domain::{
    BucketKey, BucketNo, Examination, Failure, OrderIntent, RecordState, Refusal, RequestId,
    RequestRecord, Sku,
};
use crate::observe::metrics::{Metrics, ReasonLabel};
use crate::runtime::clock::SharedClock;
use crate::services::trusted_time::TrustedTime;
use crate::stock::Stock;

/// Requests that one transaction ends.
const BATCH: usize = 500;

/// Ends queued requests. Cheap to clone.
#[derive(Clone)]
pub struct RequestService {
    ledger: Arc<dyn Ledger>,
    stock: Arc<dyn Stock>,
    clock: SharedClock,
    metrics: Arc<Metrics>,
    time: Arc<TrustedTime>,
}

impl RequestService {
    pub fn new(
        ledger: Arc<dyn Ledger>,
        stock: Arc<dyn Stock>,
        clock: SharedClock,
        metrics: Arc<Metrics>,
        time: Arc<TrustedTime>,
    ) -> Self {
        Self { ledger, stock, clock, metrics, time }
    }

    /// Records a failure of each request without an order, and releases its units. Returns what the
    /// ledger has of these requests then. A bucket that does not take the result now is reconciled
    /// with the ledger later.
    ///
    /// # Errors
    /// The ledger's: failures may be recorded, and no units were released.
    pub async fn end(
        &self,
        intents: &[OrderIntent],
        reason: Refusal,
    ) -> Result<Examination, db::Error> {
        let recorded_at_ms = self.clock.wall_ms();
        let failures = intents.iter().map(|intent| intent.failure(reason, recorded_at_ms));
        self.ledger.record_failures(failures.collect()).await?;
        // Crash here [ended_not_released]: the failures are recorded and the buckets call the
        // requests queued; the next submission or end, the reconciler or a load releases them.
        // An order has no failure, and an earlier failure keeps its reason.
        let examined = self.ledger.examine(intents.to_vec()).await?;
        let mut by_bucket: BTreeMap<_, Vec<Failure>> = BTreeMap::new();
        for intent in intents {
            let Some(recorded) = examined.failures.get(&intent.request).copied() else { continue };
            if recorded == reason {
                let label = ReasonLabel { reason: reason.code() };
                self.metrics.requests_ended.get_or_create(&label).inc();
            }
            let failures = by_bucket.entry((intent.sku, intent.bucket)).or_default();
            failures.push(intent.failure(recorded, recorded_at_ms));
        }
        for ((sku, bucket), failures) in by_bucket {
            let num = failures.len();
            if let Err(error) = self.stock.release(BucketKey { sku, bucket }, failures).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%sku, %bucket, num, error, "failures recorded, bucket not updated");
            }
        }
        Ok(examined)
    }

    /// Cancels a request, if it is queued; `record` is what the stock has of it.
    /// Returns its record then: failed with [`Refusal::CancelledByBuyer`] if it was cancelled, now
    /// or before.
    ///
    /// # Errors
    /// The ledger's: the request may be cancelled.
    pub async fn cancel(
        &self,
        sku: &Sku,
        request: RequestId,
        record: &RequestRecord,
    ) -> Result<RequestRecord, db::Error> {
        let home = BucketNo::home_of(record.buyer, sku.buckets);
        let Some(intent) = record.intent(request, sku, home) else { return Ok(*record) };
        let found = self.end(&[intent], Refusal::CancelledByBuyer).await?;
        let order = found.orders.get(&request).filter(|order| order.answers(&intent));
        let failure = found.failures.get(&request).copied().map(RecordState::Failed);
        let failed = failure.map(|state| RequestRecord { state, ..*record });
        // Neither: another request has this id, and the ledger will refuse this one.
        Ok(order.map(RequestRecord::ordered).or(failed).unwrap_or(*record))
    }

    /// Ends those of these queued requests of one SKU that were queued for longer than its
    /// `queue_timeout_s`, and removes them from the list, except those that are orders. None while
    /// the clock is not trusted.
    ///
    /// # Errors
    /// The ledger's. The expired requests are removed, too, because they should become no orders:
    /// they are still queued, or failed and not released, and a repeat ends them.
    pub async fn end_expired(
        &self,
        sku: &Sku,
        queued: &mut Vec<OrderIntent>,
    ) -> Result<(), db::Error> {
        let timeout_ms = i64::from(sku.queue_timeout_s) * 1_000;
        let is_over = |intent: &OrderIntent, now_ms: i64| {
            timeout_ms > 0 && intent.placed_at_ms.saturating_add(timeout_ms) < now_ms
        };
        let now_ms = self.clock.wall_ms();
        let mut expired: Vec<OrderIntent> =
            queued.extract_if(.., |intent| is_over(intent, now_ms)).collect();
        if expired.is_empty() {
            return Ok(());
        }
        match self.time.now().await? {
            // A step of the clock is no time in the queue.
            Some(now) => queued.extend(
                expired.extract_if(.., |intent| !is_over(intent, now.since(intent.placed_at_ms))),
            ),
            None => queued.append(&mut expired),
        }
        if expired.is_empty() {
            return Ok(());
        }
        for batch in expired.chunks(BATCH) {
            let found = self.end(batch, Refusal::QueueTimeout).await?;
            let is_open = |intent: &&OrderIntent| !found.failures.contains_key(&intent.request);
            queued.extend(batch.iter().filter(is_open));
        }
        tracing::info!(sku = %sku.no, num_expired = expired.len(), "queued requests: timed out");
        Ok(())
    }
}
