//! What a bucket stores of an accepted request and its order.

use super::ids::{BucketNo, BuyerId, Epoch, RequestId};
use super::order::{Failure, Order, OrderIntent, OrderState, Refusal, Verdict};
use super::sale::Sku;

/// An accepted request, as its bucket stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRecord {
    pub buyer: BuyerId,
    pub quantity: u32,
    /// Time of the request, epoch milliseconds; of a recorded failure, the time of its record.
    pub placed_at_ms: i64,
    pub state: RecordState,
}

/// The state of an accepted request in its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordState {
    /// The ledger has not decided. The epoch is that of its terms.
    Queued { epoch: Epoch },
    /// The order is committed in the ledger.
    Ordered(RecordedOrder),
    /// The ledger refused. The bucket gave the units back, unless the ledger was sold out.
    Failed(Refusal),
}

impl RequestRecord {
    /// The record of a newly accepted request.
    pub fn queued(intent: &OrderIntent) -> Self {
        Self {
            buyer: intent.buyer,
            quantity: intent.quantity,
            placed_at_ms: intent.placed_at_ms,
            state: RecordState::Queued { epoch: intent.epoch },
        }
    }

    pub fn ordered(order: &Order) -> Self {
        Self {
            buyer: order.buyer,
            quantity: order.quantity,
            placed_at_ms: order.placed_at_ms,
            state: RecordState::Ordered(order.into()),
        }
    }

    pub fn failed(failure: &Failure) -> Self {
        Self {
            buyer: failure.buyer,
            quantity: failure.quantity,
            placed_at_ms: failure.recorded_at_ms,
            state: RecordState::Failed(failure.reason),
        }
    }

    /// The intent of a queued request, as the gate built it, without the trace; `None` for others.
    pub fn intent(&self, request: RequestId, sku: &Sku, bucket: BucketNo) -> Option<OrderIntent> {
        let RecordState::Queued { epoch } = self.state else { return None };
        let Self { buyer, quantity, placed_at_ms, .. } = *self;
        let intent = sku.intent(request, buyer, epoch, quantity, placed_at_ms);
        Some(OrderIntent { bucket, ..intent })
    }

    /// The gate's answer to a repeat of the request; `intent` is that of a queued one.
    pub fn verdict(&self, intent: Option<OrderIntent>) -> Verdict {
        match self.state {
            RecordState::Queued { .. } => Verdict::Queued { intent },
            RecordState::Ordered(_) | RecordState::Failed(_) => Verdict::Repeat(*self),
        }
    }
}

/// State, version, amount and payment deadline of an order, as its bucket stores them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedOrder {
    pub state: OrderState,
    /// Number of changes of the order. A bucket replaces its copy only by one of a larger version,
    /// so changes may arrive late, repeated or reordered.
    pub version: u16,
    /// In minor units of the sale's currency.
    pub amount: i64,
    pub pay_by: PayBy,
}

impl From<&Order> for RecordedOrder {
    fn from(order: &Order) -> Self {
        let pay_by = PayBy::from_ms(order.pay_until_ms());
        Self { state: order.state, version: order.version, amount: order.amount, pay_by }
    }
}

/// A payment deadline to the second, or none: seconds since 2025-01-01T00:00Z, 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayBy(pub u32);

/// 2025-01-01T00:00Z, epoch milliseconds.
const FIRST_MS: i64 = 1_735_689_600_000;

impl PayBy {
    pub const NONE: Self = Self(0);

    /// The last whole second of a deadline in epoch milliseconds. A time outside the range of
    /// 136 years is no deadline.
    pub fn from_ms(ms: Option<i64>) -> Self {
        let seconds = ms.map(|ms| ms.saturating_sub(FIRST_MS).div_euclid(1_000));
        seconds.and_then(|seconds| u32::try_from(seconds).ok()).map_or(Self::NONE, Self)
    }

    /// Epoch milliseconds; `None` without a deadline.
    pub fn ms(self) -> Option<i64> {
        (self != Self::NONE).then(|| FIRST_MS + i64::from(self.0) * 1_000)
    }
}

/// A request in the book. Kept small: the book has one for each order of the sale.
#[derive(Debug, Clone, Copy)]
pub(super) struct BookRecord {
    pub(super) buyer: BuyerId,
    pub(super) placed_at_ms: i64,
    pub(super) quantity: u32,
    /// `None`: no order; the request is in `Book::unsettled` or in `Book::failures`.
    pub(super) order: Option<RecordedOrder>,
    pub(super) counts_for_limit: bool,
}

impl BookRecord {
    /// Units that the request holds.
    pub(super) fn units(&self) -> u32 {
        if self.order.is_none_or(|order| order.state.is_live()) { self.quantity } else { 0 }
    }

    /// Units that count for the buyer's limit.
    pub(super) fn counted(&self) -> u32 {
        if self.counts_for_limit { self.quantity } else { 0 }
    }

    /// Whether this is a later decision of the same request.
    pub(super) fn replaces(&self, stored: &Self) -> bool {
        let version = |record: &Self| record.order.map(|order| order.version);
        (self.buyer, self.quantity) == (stored.buyer, stored.quantity)
            && version(self) > version(stored)
    }
}

impl From<&Order> for BookRecord {
    fn from(order: &Order) -> Self {
        let Order { buyer, placed_at_ms, quantity, counts_for_limit, .. } = *order;
        Self { buyer, placed_at_ms, quantity, order: Some(order.into()), counts_for_limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{SkuHistory, Terms, TermsSince, samples};

    #[test]
    fn a_queued_request_has_the_terms_of_its_epoch_whenever_it_arrived() {
        let terms = |epoch, price| TermsSince {
            epoch: Epoch(epoch),
            since_ms: 1_000 * epoch,
            terms: Terms { price, ..samples::sku().terms() },
        };
        let terms = vec![terms(0, 100), terms(2, 200)];
        let sku = Sku { history: SkuHistory { terms, ..SkuHistory::default() }, ..samples::sku() };
        for (epoch, price) in [(1, 100), (2, 200), (5, 200)] {
            for placed_at_ms in [1, 1_999, 2_000, 9_000] {
                let placed = samples::intent(1);
                let amount = price * i64::from(placed.quantity);
                let epoch = Epoch(epoch);
                let intent = OrderIntent { epoch, amount, placed_at_ms, ..placed };
                let record = RequestRecord::queued(&intent);
                let found = record.intent(intent.request, &sku, intent.bucket);
                assert_eq!(found.map(|it| (it.epoch, it.amount)), Some((epoch, amount)));
            }
        }
        let failed = RecordState::Failed(Refusal::Ended);
        let record = RequestRecord { state: failed, ..RequestRecord::queued(&samples::intent(1)) };
        assert_eq!(record.intent(samples::intent(1).request, &sku, BucketNo(0)), None);
    }

    #[test]
    fn a_deadline_is_kept_to_the_second() {
        let kept = |ms| PayBy::from_ms(Some(ms)).ms();
        assert_eq!(kept(1_795_000_000_999), Some(1_795_000_000_000));
        assert_eq!(kept(FIRST_MS + 1_000), Some(FIRST_MS + 1_000));
        let last = FIRST_MS + i64::from(u32::MAX) * 1_000;
        assert_eq!(kept(last + 999), Some(last));
        for outside in [i64::MIN, 0, FIRST_MS - 1, FIRST_MS, last + 1_000, i64::MAX] {
            assert_eq!(kept(outside), None, "{outside}");
        }
        assert_eq!((PayBy::from_ms(None), PayBy::NONE.ms()), (PayBy::NONE, None));
    }
}
