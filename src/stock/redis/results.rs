//! What the ledger did with accepted requests, entered in their buckets.

use super::super::{BucketKey, Error};
use super::RedisStock;
use crate::domain::{BucketNo, Failure, Order, RequestId, SkuNo};
use crate::redis::scripts::settle::{RefusedRequest, SettleOutcome, SettleOutcomes};
use crate::redis::scripts::{Release, Settle, codes};
use crate::redis::transport::ConnectionPurpose;

impl RedisStock {
    /// Records orders of one bucket.
    pub(super) async fn settle_bucket(
        &self,
        sku: SkuNo,
        bucket: BucketNo,
        orders: &[Order],
    ) -> Result<(), Error> {
        let shelf = self.shelf(sku)?;
        let keys = shelf.keys(bucket)?;
        let link = self.wire.link(ConnectionPurpose::Results, keys).await?;
        let fence = self.wire.fence(&link);
        for orders in orders.chunks(codes::ITEMS_MAX_USIZE) {
            let door = Settle { keys, fence: &fence, policy: shelf.sku.policy, orders };
            let answer = self.wire.ask(&link, door.call(), "recording orders").await?;
            let notes = door.parse(answer).map_err(|error| shelf.told(&keys.bucket(), error))?;
            let request = |at: usize| orders.get(at).map(|order| order.request);
            complain(shelf.sku.no, bucket, &notes, request);
            shelf.note(bucket, notes.left);
        }
        Ok(())
    }

    /// Records refusals.
    pub(super) async fn release_bucket(
        &self,
        bucket: BucketKey,
        refused: &[Failure],
    ) -> Result<(), Error> {
        let shelf = self.shelf(bucket.sku)?;
        let keys = shelf.keys(bucket.bucket)?;
        let link = self.wire.link(ConnectionPurpose::Results, keys).await?;
        let fence = self.wire.fence(&link);
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
            let door = Release { keys, fence: &fence, policy: shelf.sku.policy, refused };
            let answer = self.wire.ask(&link, door.call(), "recording refusals").await?;
            let notes = door.parse(answer).map_err(|error| shelf.told(&keys.bucket(), error))?;
            let request = |at: usize| refused.get(at).map(|item| item.request);
            complain(bucket.sku, bucket.bucket, &notes, request);
            shelf.note(bucket.bucket, notes.left);
        }
        Ok(())
    }
}

/// Two stores that contradict each other are a defect or foul play; the first answer stays.
fn complain(
    sku: SkuNo,
    bucket: BucketNo,
    notes: &SettleOutcomes,
    request: impl Fn(usize) -> Option<RequestId>,
) {
    for (at, noted) in notes.items.iter().enumerate() {
        if matches!(noted, SettleOutcome::Contradicts | SettleOutcome::Mismatch) {
            let request = request(at).map(RequestId::get);
            tracing::error!(%sku, %bucket, request, ?noted, "ledger and bucket contradict");
        }
    }
}
