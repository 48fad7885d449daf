//! What a bucket stores of an accepted request and its order.

use super::ids::{BucketNo, BuyerId, Epoch, RequestId};
use super::order::{Failure, Order, OrderIntent, OrderState, Refusal, Verdict};
use super::sale::Sku;

/// An accepted request, as its bucket stores it. Kept small: a book has one for each order of the
/// sale.
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
    Ordered {
        state: OrderState,
        /// Number of changes of the order. A bucket replaces its copy only by one of a larger
        /// version, so changes may arrive late, repeated or reordered.
        version: u16,
        /// In minor units of the sale's currency.
        amount: i64,
        pay_by: PayBy,
    },
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
            state: RecordState::Ordered {
                state: order.state,
                version: order.version,
                amount: order.amount,
                pay_by: PayBy::from_ms(order.pay_until_ms()),
            },
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
            RecordState::Ordered { .. } | RecordState::Failed(_) => Verdict::Repeat(*self),
        }
    }

    /// Units that the request holds.
    pub fn units(&self) -> u32 {
        let holds_units = match self.state {
            RecordState::Queued { .. } => true,
            RecordState::Ordered { state, .. } => state.is_live(),
            RecordState::Failed(_) => false,
        };
        if holds_units { self.quantity } else { 0 }
    }

    /// Whether this record of an order is later than what is stored of the same request.
    pub(super) fn replaces(&self, stored: &Self) -> bool {
        let is_later = match (self.state, stored.state) {
            (RecordState::Ordered { version, .. }, RecordState::Ordered { version: last, .. }) => {
                version > last
            }
            (_, before) => matches!(before, RecordState::Queued { .. }),
        };
        is_later && (self.buyer, self.quantity) == (stored.buyer, stored.quantity)
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
