//! What the ledger does with a batch of intents, as a pure function of what it already holds.
//!
//! The ledger first writes a batch blindly, because nearly every batch is clean. When a unique key,
//! a quota or the stock objects, the batch is rolled back and examined: what the ledger holds
//! decides, intent by intent, which are repeats or refusals, and only the rest is written.

use std::collections::HashMap;

use super::ids::{BuyerId, RequestId, SkuNo};
use super::order::{Order, OrderIntent};
use super::verdict::Refusal;

/// What became of one intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceOutcome {
    /// The order was written.
    Placed(Order),
    /// The order was there already, by the same request: success.
    Repeat(Order),
    /// The ledger refuses, for good.
    Refused(Refusal),
    /// The ledger certainly did not write it and cannot now; asking again later may succeed.
    Unavailable,
}

impl PlaceOutcome {
    /// The order, where there is one.
    #[must_use]
    pub fn order(&self) -> Option<&Order> {
        match self {
            Self::Placed(order) | Self::Repeat(order) => Some(order),
            Self::Refused(_) | Self::Unavailable => None,
        }
    }
}

/// What the ledger holds that bears on a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Examination {
    /// Orders with a request id of the batch, and those in slot 0 of its buyers.
    pub orders: HashMap<RequestId, Order>,
    /// Recorded failures with a request id of the batch.
    pub failures: HashMap<RequestId, Refusal>,
    /// The order in slot 0 of a buyer of the batch.
    pub firsts: HashMap<(SkuNo, BuyerId), RequestId>,
    /// Units that a buyer of the batch has, for SKUs with a quota.
    pub owned: HashMap<(SkuNo, BuyerId), u32>,
    /// Units left of each SKU of the batch.
    pub available: HashMap<SkuNo, u32>,
}

impl Examination {
    /// Decides one intent by what is here. `None`: it may be written.
    #[must_use]
    pub fn judge(&self, intent: &OrderIntent) -> Option<PlaceOutcome> {
        if let Some(reason) = self.failures.get(&intent.request) {
            return Some(PlaceOutcome::Refused(*reason));
        }
        if let Some(order) = self.orders.get(&intent.request) {
            return Some(if order.answers(intent) {
                PlaceOutcome::Repeat(*order)
            } else {
                PlaceOutcome::Refused(Refusal::RequestIdReused)
            });
        }
        let buyer = (intent.sku, intent.buyer);
        if let (0, Some(first)) = (intent.slot, self.firsts.get(&buyer)) {
            return Some(PlaceOutcome::Refused(Refusal::AlreadyPurchased { first: *first }));
        }
        let owned = self.owned(intent);
        if let Some(limit) = intent.quota
            && owned.saturating_add(intent.quantity) > limit
        {
            return Some(PlaceOutcome::Refused(Refusal::QuotaExceeded { owned, limit }));
        }
        (self.available(intent) < intent.quantity)
            .then_some(PlaceOutcome::Refused(Refusal::SoldOut))
    }

    /// Decides one intent and enters it when it may be written, so that two intents of one batch
    /// see each other. `None`: it may be written.
    pub fn admit(&mut self, intent: &OrderIntent) -> Option<PlaceOutcome> {
        let judged = self.judge(intent);
        if judged.is_none() {
            let buyer = (intent.sku, intent.buyer);
            let rest = self.available(intent).saturating_sub(intent.quantity);
            let owned = self.owned(intent).saturating_add(intent.quantity);
            self.available.insert(intent.sku, rest);
            self.orders.insert(intent.request, intent.order());
            if intent.slot == 0 {
                self.firsts.insert(buyer, intent.request);
            }
            if intent.quota.is_some() {
                self.owned.insert(buyer, owned);
            }
        }
        judged
    }

    fn owned(&self, intent: &OrderIntent) -> u32 {
        self.owned.get(&(intent.sku, intent.buyer)).copied().unwrap_or(0)
    }

    fn available(&self, intent: &OrderIntent) -> u32 {
        self.available.get(&intent.sku).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::samples;

    fn intent(request: u64, buyer: u64, quantity: u32) -> OrderIntent {
        let buyer = BuyerId::new(buyer).unwrap();
        OrderIntent { buyer, quantity, ..samples::intent(request) }
    }

    fn with_stock(units: u32) -> Examination {
        Examination { available: HashMap::from([(SkuNo(1), units)]), ..Examination::default() }
    }

    #[test]
    fn the_same_request_twice_in_a_batch_is_written_once() {
        let mut seen = with_stock(5);
        assert_eq!(seen.admit(&intent(1, 1, 1)), None);
        assert!(matches!(seen.admit(&intent(1, 1, 1)), Some(PlaceOutcome::Repeat(_))));
        let reused = Some(PlaceOutcome::Refused(Refusal::RequestIdReused));
        assert_eq!(seen.admit(&intent(1, 1, 2)), reused);
        assert_eq!(seen.admit(&intent(1, 2, 1)), reused);
    }

    #[test]
    fn the_last_unit_goes_to_the_first_who_fits() {
        let mut seen = with_stock(1);
        assert_eq!(seen.admit(&intent(1, 1, 2)), Some(PlaceOutcome::Refused(Refusal::SoldOut)));
        assert_eq!(seen.admit(&intent(2, 2, 1)), None);
        assert_eq!(seen.admit(&intent(3, 3, 1)), Some(PlaceOutcome::Refused(Refusal::SoldOut)));
    }
}
