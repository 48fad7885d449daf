//! A buyer's request to a gate.

use super::ids::{BucketNo, BuyerId, Epoch, RequestId, SkuNo, TraceId};
use super::order::OrderIntent;
use super::sale::Sku;

/// One request for units, with all that a gate backend needs to decide it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// A repeat carries the same id.
    pub request: RequestId,
    pub sku: SkuNo,
    /// The buyer's home bucket.
    pub bucket: BucketNo,
    /// The opening of the sale in the sender's catalog; a gate with another epoch answers
    /// [`super::Verdict::StaleEpoch`].
    pub epoch: Epoch,
    pub buyer: BuyerId,
    /// Units, at least 1.
    pub quantity: u32,
    /// When the request arrived, epoch milliseconds.
    pub asked_at_ms: i64,
    /// The trace of the HTTP request.
    pub trace: TraceId,
}

impl Reservation {
    /// The order intent of this reservation, once the units are reserved.
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
