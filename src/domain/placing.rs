//! The ledger's decision on a batch of intents, as a pure function of its present rows.
//!
//! The ledger first writes a batch blindly, because nearly every batch has no conflict. When a
//! unique key, a quota or the stock rejects the batch, it is rolled back and examined: the present
//! rows decide for each intent whether it is a repeat or a refusal; the remaining ones are written.

use std::collections::HashMap;

use super::ids::{BuyerId, RequestId, SkuNo};
use super::order::{Order, OrderIntent, PlaceOutcome, Refusal};

/// The ledger's rows that are relevant to a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Examination {
    /// Orders with a request id of the batch, and those in slot 0 of its buyers.
    pub orders: HashMap<RequestId, Order>,
    /// Recorded failures with a request id of the batch.
    pub failures: HashMap<RequestId, Refusal>,
    /// The request of the order in slot 0 of each buyer of the batch.
    pub first_requests: HashMap<(SkuNo, BuyerId), RequestId>,
    /// Units of each buyer of the batch, for SKUs with a quota.
    pub owned: HashMap<(SkuNo, BuyerId), u32>,
    /// The buyers of the batch who may not order in the SKU's sale any more, each with the requests
    /// that this does not apply to.
    pub barred: HashMap<(SkuNo, BuyerId), Vec<RequestId>>,
    /// Units left of each SKU of the batch.
    pub available: HashMap<SkuNo, u32>,
}

impl Examination {
    /// Whether the request has an order or a recorded failure.
    pub fn has_ended(&self, request: RequestId) -> bool {
        self.orders.contains_key(&request) || self.failures.contains_key(&request)
    }

    /// The outcome of one intent by these rows. `None`: it may be written.
    #[must_use]
    pub fn outcome_of(&self, intent: &OrderIntent) -> Option<PlaceOutcome> {
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
        if self.barred.get(&buyer).is_some_and(|exempt| !exempt.contains(&intent.request)) {
            return Some(PlaceOutcome::Refused(Refusal::Barred));
        }
        if let (0, Some(first)) = (intent.slot, self.first_requests.get(&buyer)) {
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

    /// As [`Self::outcome_of`], and adds an intent that may be written to these rows, so that later
    /// intents of the batch are decided with it.
    pub fn admit(&mut self, intent: &OrderIntent) -> Option<PlaceOutcome> {
        let outcome = self.outcome_of(intent);
        if outcome.is_none() {
            let buyer = (intent.sku, intent.buyer);
            let available = self.available(intent).saturating_sub(intent.quantity);
            let owned = self.owned(intent).saturating_add(intent.quantity);
            self.available.insert(intent.sku, available);
            // The caller corrects the time once the order is written.
            self.orders.insert(intent.request, intent.order(intent.placed_at_ms));
            if intent.slot == 0 {
                self.first_requests.insert(buyer, intent.request);
            }
            if intent.quota.is_some() {
                self.owned.insert(buyer, owned);
            }
        }
        outcome
    }

    fn owned(&self, intent: &OrderIntent) -> u32 {
        self.owned.get(&(intent.sku, intent.buyer)).copied().unwrap_or(0)
    }

    fn available(&self, intent: &OrderIntent) -> u32 {
        self.available.get(&intent.sku).copied().unwrap_or(0)
    }
}
