//! Orders and what asks for them.

use super::ids::{BucketNo, BuyerId, Epoch, RequestId, SkuNo, TraceId};
use super::verdict::Refusal;

/// Where an order stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum OrderState {
    /// Placed; the buyer has until `pay_by` to pay.
    PendingPayment = 0,
    /// Paid.
    Paid = 1,
    /// Ended because nobody paid in time; its units went back.
    TimedOut = 2,
    /// Ended by the buyer before payment; its units went back.
    Cancelled = 3,
    /// Paid and given back; its units went back.
    Refunded = 4,
}

impl OrderState {
    /// Every state, in the order of its number.
    pub const ALL: [Self; 5] =
        [Self::PendingPayment, Self::Paid, Self::TimedOut, Self::Cancelled, Self::Refunded];

    /// The number stored in the ledger.
    #[must_use]
    pub fn to_db(self) -> i16 {
        self as i16
    }

    /// Reads the number stored in the ledger.
    #[must_use]
    pub fn from_db(number: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.to_db() == number)
    }

    /// Whether the order still holds its units.
    #[must_use]
    pub fn is_live(self) -> bool {
        matches!(self, Self::PendingPayment | Self::Paid)
    }

    /// The name in the interface.
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

/// Asks the ledger for an order; carries all that the row needs, so that any consumer can write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderIntent {
    /// The request; at most one order ever has it.
    pub request: RequestId,
    /// Which SKU.
    pub sku: SkuNo,
    /// The bucket that holds the units.
    pub bucket: BucketNo,
    /// The opening of the sale under which the units were taken.
    pub epoch: Epoch,
    /// Who buys.
    pub buyer: BuyerId,
    /// Units, at least 1.
    pub quantity: u32,
    /// Unique with `(sku, buyer)`; see [`super::Policy::slot`].
    pub slot: i64,
    /// The buyer's limit of units, where the policy has one.
    pub quota: Option<u32>,
    /// Price times quantity, in the currency's smallest unit.
    pub amount: i64,
    /// When the units were taken, epoch milliseconds.
    pub placed_at_ms: i64,
    /// When an unpaid order ends, epoch milliseconds.
    pub pay_by_ms: i64,
    /// The trace of the click.
    pub trace: TraceId,
    /// When the message that brought it was published, epoch milliseconds; `None` where no broker
    /// is on the way. Not part of its bytes: each copy of a message has a time of its own.
    pub published_at_ms: Option<i64>,
}

impl OrderIntent {
    /// The order that this intent becomes.
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

/// A row of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The request that became this order.
    pub request: RequestId,
    /// Which SKU.
    pub sku: SkuNo,
    /// The opening of the sale under which the units were taken.
    pub epoch: Epoch,
    /// Who bought.
    pub buyer: BuyerId,
    /// Units.
    pub quantity: u32,
    /// Unique with `(sku, buyer)`.
    pub slot: i64,
    /// Price times quantity, in the currency's smallest unit.
    pub amount: i64,
    /// Where it stands.
    pub state: OrderState,
    /// When the units were taken, epoch milliseconds.
    pub placed_at_ms: i64,
    /// When it ends unpaid, epoch milliseconds.
    pub pay_by_ms: i64,
}

/// An order with its way from the click into the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderTimeline {
    /// The order; `placed_at_ms` is when its way began.
    pub order: Order,
    /// The trace of the click.
    pub trace: TraceId,
    /// When the message that brought it was published, epoch milliseconds; `None` where no broker
    /// was on the way.
    pub published_at_ms: Option<i64>,
    /// When it was written, epoch milliseconds; `None` where an older version wrote it.
    pub recorded_at_ms: Option<i64>,
}

impl Order {
    /// Whether `intent` asks for exactly this order: same buyer, SKU and units.
    #[must_use]
    pub fn answers(&self, intent: &OrderIntent) -> bool {
        self.request == intent.request
            && self.sku == intent.sku
            && self.buyer == intent.buyer
            && self.quantity == intent.quantity
    }
}

/// The record of an accepted request that became no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The request.
    pub request: RequestId,
    /// Which SKU.
    pub sku: SkuNo,
    /// Who asked.
    pub buyer: BuyerId,
    /// Units asked for.
    pub quantity: u32,
    /// Why the ledger refused.
    pub reason: Refusal,
    /// When it was recorded, epoch milliseconds.
    pub recorded_at_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_survives_the_ledger() {
        for state in OrderState::ALL {
            assert_eq!(OrderState::from_db(state.to_db()), Some(state));
        }
        assert_eq!(OrderState::from_db(5), None);
    }
}
