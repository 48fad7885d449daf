//! What a buyer asks a gate for.

use super::ids::{BucketNo, BuyerId, Epoch, RequestId, SkuNo, TraceId};
use super::order::OrderIntent;
use super::sale::Sku;

/// One request for units, complete enough to be decided by any gate backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// The wish; a repeat carries the same id.
    pub request: RequestId,
    /// Which SKU.
    pub sku: SkuNo,
    /// The buyer's home bucket.
    pub bucket: BucketNo,
    /// The opening of the sale that the asker knows; a gate of another opening refuses.
    pub epoch: Epoch,
    /// Who asks.
    pub buyer: BuyerId,
    /// Units, at least 1.
    pub quantity: u32,
    /// When it was asked, epoch milliseconds.
    pub asked_at_ms: i64,
    /// The trace of the click.
    pub trace: TraceId,
}

impl Reservation {
    /// The intent that asks the ledger for the order, once the units are taken.
    #[must_use]
    pub fn intent(&self, sku: &Sku) -> OrderIntent {
        OrderIntent {
            request: self.request,
            sku: self.sku,
            bucket: self.bucket,
            epoch: self.epoch,
            buyer: self.buyer,
            quantity: self.quantity,
            slot: sku.policy.slot(self.request),
            quota: sku.policy.quota(),
            amount: sku.price.saturating_mul(i64::from(self.quantity)),
            placed_at_ms: self.asked_at_ms,
            pay_by_ms: sku.pay_by_ms(self.asked_at_ms),
            trace: self.trace,
            published_at_ms: None,
        }
    }
}
