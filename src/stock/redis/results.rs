//! Records the ledger's results of accepted requests in their buckets.

use super::super::Error;
use super::RedisStock;
use crate::domain::{BucketKey, BucketNo, Failure, Order, RequestId, SkuNo};
use crate::redis::scripts::settle::{RefusedRequest, SettleOutcome, SettleOutcomes};
use crate::redis::scripts::{Release, Settle, codes};
use crate::redis::transport::ConnectionPurpose;

impl RedisStock {
    pub(super) async fn settle_bucket(
        &self,
        sku: SkuNo,
        bucket: BucketNo,
        orders: &[Order],
    ) -> Result<(), Error> {
        let cache = self.cache(sku)?;
        let keys = cache.keys(bucket)?;
        let connection = self.executor.connection(ConnectionPurpose::Results, keys).await?;
        let fence = self.executor.fence(&connection);
        for orders in orders.chunks(codes::ITEMS_MAX_USIZE) {
            let script = Settle { keys, fence: &fence, policy: cache.sku.policy, orders };
            let answer = self.executor.call(&connection, script.call(), "recording orders").await?;
            let outcomes =
                script.parse(answer).map_err(|error| cache.invalidate_on(&keys.bucket(), error))?;
            let request = |at: usize| orders.get(at).map(|order| order.request);
            log_contradictions(cache.sku.no, bucket, &outcomes, request);
            cache.record_level(bucket, outcomes.left);
        }
        Ok(())
    }

    pub(super) async fn release_bucket(
        &self,
        bucket: BucketKey,
        refused: &[Failure],
    ) -> Result<(), Error> {
        let cache = self.cache(bucket.sku)?;
        let keys = cache.keys(bucket.bucket)?;
        let connection = self.executor.connection(ConnectionPurpose::Results, keys).await?;
        let fence = self.executor.fence(&connection);
        let refused: Vec<RefusedRequest> = refused
            .iter()
            .map(|failure| RefusedRequest {
                request: failure.request,
                buyer: failure.buyer,
                quantity: failure.quantity,
                reason: failure.reason,
                recorded_at_ms: failure.recorded_at_ms,
            })
            .collect();
        for refused in refused.chunks(codes::ITEMS_MAX_USIZE) {
            let script = Release { keys, fence: &fence, policy: cache.sku.policy, refused };
            let answer =
                self.executor.call(&connection, script.call(), "recording refusals").await?;
            let outcomes =
                script.parse(answer).map_err(|error| cache.invalidate_on(&keys.bucket(), error))?;
            let request = |at: usize| refused.get(at).map(|item| item.request);
            log_contradictions(bucket.sku, bucket.bucket, &outcomes, request);
            cache.record_level(bucket.bucket, outcomes.left);
        }
        Ok(())
    }
}

/// A contradiction between ledger and bucket is a bug or tampering. The bucket keeps its first
/// result.
fn log_contradictions(
    sku: SkuNo,
    bucket: BucketNo,
    outcomes: &SettleOutcomes,
    request: impl Fn(usize) -> Option<RequestId>,
) {
    for (at, outcome) in outcomes.items.iter().enumerate() {
        if matches!(outcome, SettleOutcome::Contradicts | SettleOutcome::Mismatch) {
            let request = request(at).map(RequestId::get);
            tracing::error!(%sku, %bucket, request, ?outcome, "ledger and bucket contradict");
        }
    }
}
