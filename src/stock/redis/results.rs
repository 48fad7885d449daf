//! What the ledger did with accepted requests, entered in their buckets.

use super::super::{BucketKey, Error};
use super::RedisStock;
use super::local::Shelf;
use crate::domain::{BucketNo, Failure, Order, RequestId, SkuNo};
use crate::redis_link::Lane;
use crate::scripts::settle::{Noted, Notes, Refused};
use crate::scripts::{Release, Settle, codes};

impl RedisStock {
    /// Records orders of one bucket. What the bucket cannot take now is entered later: a store that
    /// was lost meanwhile, or is being loaded from what the ledger had before, has no intent that
    /// would remind anybody.
    pub(super) async fn settle_bucket(
        &self,
        sku: SkuNo,
        bucket: BucketNo,
        orders: &[Order],
    ) -> Result<(), Error> {
        let shelf = self.shelf(sku)?;
        let entered = self.enter_orders(&shelf, bucket, orders).await;
        shelf.note_late(bucket, orders, entered.is_err());
        entered
    }

    /// Enters what the bucket could not take before. On death of this process, what is late is
    /// entered by the next load.
    pub(super) async fn enter_late(&self, shelf: &Shelf, bucket: BucketNo) -> Result<(), Error> {
        let late = shelf.late(bucket);
        if late.is_empty() {
            return Ok(());
        }
        self.enter_orders(shelf, bucket, &late).await?;
        tracing::info!(sku = %shelf.sku.no, %bucket, orders = late.len(), "entered late orders");
        shelf.note_late(bucket, &late, false);
        Ok(())
    }

    async fn enter_orders(
        &self,
        shelf: &Shelf,
        bucket: BucketNo,
        orders: &[Order],
    ) -> Result<(), Error> {
        let keys = shelf.keys(bucket)?;
        let link = self.wire.link(Lane::Results, keys).await?;
        let fence = self.wire.fence(&link);
        for orders in orders.chunks(codes::ITEMS_MAX_USIZE) {
            let door = Settle { keys, fence: &fence, policy: shelf.sku.policy, orders };
            let answer = self.wire.ask(&link, door.call(), "recording orders").await?;
            let notes = door.parse(answer).map_err(|error| shelf.told(&keys.bucket(), error))?;
            let request = |at: usize| orders.get(at).map(|order| order.request);
            complain(shelf.sku.no, bucket, &notes, request);
            if notes.items.contains(&Noted::Adopted) {
                shelf.forget_known();
            }
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
        let link = self.wire.link(Lane::Results, keys).await?;
        let fence = self.wire.fence(&link);
        let refused: Vec<Refused> = refused
            .iter()
            .map(|failure| Refused {
                request: failure.request,
                buyer: failure.buyer,
                quantity: failure.quantity,
                reason: failure.reason,
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
    notes: &Notes,
    request: impl Fn(usize) -> Option<RequestId>,
) {
    for (at, noted) in notes.items.iter().enumerate() {
        if matches!(noted, Noted::Contradicts | Noted::Mismatch) {
            let request = request(at).map(RequestId::get);
            tracing::error!(%sku, %bucket, request, ?noted, "ledger and bucket contradict");
        }
    }
}
