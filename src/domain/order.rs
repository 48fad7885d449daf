//! Orders, order intents and recorded failures.

use super::ids::{BucketNo, BuyerId, Epoch, RequestId, SkuNo, TraceId};
use super::verdict::Refusal;

/// The state of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum OrderState {
    /// Placed; the payment is due until `pay_by_ms`.
    PendingPayment = 0,
    Paid = 1,
    /// Not paid in time; its units are free again.
    TimedOut = 2,
    /// Cancelled by the buyer before payment; its units are free again.
    Cancelled = 3,
    /// Paid and refunded; its units are free again.
    Refunded = 4,
}

impl OrderState {
    /// In the order of the ledger's numbers.
    pub const ALL: [Self; 5] =
        [Self::PendingPayment, Self::Paid, Self::TimedOut, Self::Cancelled, Self::Refunded];

    #[must_use]
    pub fn to_db(self) -> i16 {
        self as i16
    }

    /// Converts from the ledger's column; `None`: unknown number.
    #[must_use]
    pub fn from_db(number: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.to_db() == number)
    }

    /// Whether the order still holds its units.
    #[must_use]
    pub fn is_live(self) -> bool {
        matches!(self, Self::PendingPayment | Self::Paid)
    }

    /// The name in the HTTP API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PendingPayment => "pending_payment",
            Self::Paid => "paid",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Refunded => "refunded",
        }
    }
}

/// The command to write an order. Contains every column of the row, so that any consumer can
/// write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderIntent {
    /// At most one order has this request id.
    pub request: RequestId,
    pub sku: SkuNo,
    /// The bucket that reserved the units.
    pub bucket: BucketNo,
    /// The opening of the sale under which the units were reserved.
    pub epoch: Epoch,
    pub buyer: BuyerId,
    /// Units, at least 1.
    pub quantity: u32,
    /// Unique with `(sku, buyer)`; see [`super::Policy::slot`].
    pub slot: i64,
    /// The buyer's limit of units, if the policy has one.
    pub quota: Option<u32>,
    /// Price times quantity, in the currency's smallest unit.
    pub amount: i64,
    /// When the units were reserved, epoch milliseconds.
    pub placed_at_ms: i64,
    /// When an unpaid order times out, epoch milliseconds.
    pub pay_by_ms: i64,
    /// The trace of the HTTP request.
    pub trace: TraceId,
    /// When the message with this intent was published, epoch milliseconds; `None` without a
    /// broker. Not part of the encoded intent: each copy of a message has its own time.
    pub published_at_ms: Option<i64>,
}

impl OrderIntent {
    /// The order row that this intent writes.
    #[must_use]
    pub fn order(&self) -> Order {
        Order {
            request: self.request,
            sku: self.sku,
            epoch: self.epoch,
            buyer: self.buyer,
            quantity: self.quantity,
            slot: self.slot,
            amount: self.amount,
            state: OrderState::PendingPayment,
            placed_at_ms: self.placed_at_ms,
            pay_by_ms: self.pay_by_ms,
        }
    }
}

/// An order row of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    pub request: RequestId,
    pub sku: SkuNo,
    /// The opening of the sale under which the units were reserved.
    pub epoch: Epoch,
    pub buyer: BuyerId,
    pub quantity: u32,
    /// Unique with `(sku, buyer)`.
    pub slot: i64,
    /// Price times quantity, in the currency's smallest unit.
    pub amount: i64,
    pub state: OrderState,
    /// When the units were reserved, epoch milliseconds.
    pub placed_at_ms: i64,
    /// When the order times out unless paid, epoch milliseconds.
    pub pay_by_ms: i64,
}

/// An order with the times of its stages from the HTTP request to the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderTimeline {
    /// `placed_at_ms` is the start of the timeline.
    pub order: Order,
    /// The trace of the HTTP request.
    pub trace: TraceId,
    /// When the message with the intent was published, epoch milliseconds; `None` without a broker.
    pub published_at_ms: Option<i64>,
    /// When the row was written, epoch milliseconds; `None` in rows of older versions.
    pub recorded_at_ms: Option<i64>,
}

impl Order {
    /// Whether `intent` has the same request, SKU, buyer and quantity.
    #[must_use]
    pub fn answers(&self, intent: &OrderIntent) -> bool {
        self.request == intent.request
            && self.sku == intent.sku
            && self.buyer == intent.buyer
            && self.quantity == intent.quantity
    }
}

/// The record of an accepted request that did not become an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    pub request: RequestId,
    pub sku: SkuNo,
    pub buyer: BuyerId,
    pub quantity: u32,
    pub reason: Refusal,
    /// Epoch milliseconds.
    pub recorded_at_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_read_back_from_its_number() {
        for state in OrderState::ALL {
            assert_eq!(OrderState::from_db(state.to_db()), Some(state));
        }
        assert_eq!(OrderState::from_db(5), None);
    }
}
