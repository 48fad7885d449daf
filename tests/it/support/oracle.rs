//! The reference model of one SKU: the oracle of the property tests.
//!
//! The model keeps a list of accepted purchases and scans the whole list for every decision. Book,
//! scripts and SQL must agree with it.

use floodgate::domain::{BuyerId, Policy, Refusal, RequestId};

/// The decision on a purchase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelAnswer {
    /// Newly accepted.
    Yes,
    /// A repeat of an accepted purchase.
    Again,
    No(Refusal),
}

#[derive(Debug, Clone, Copy)]
struct Sold {
    request: RequestId,
    buyer: BuyerId,
    quantity: u32,
}

/// The model of one SKU.
#[derive(Debug, Clone)]
pub struct Model {
    policy: Policy,
    initial: u32,
    sold: Vec<Sold>,
}

impl Model {
    /// A SKU with `initial` units.
    #[must_use]
    pub fn new(policy: Policy, initial: u32) -> Self {
        Self { policy, initial, sold: Vec::new() }
    }

    /// Unsold units.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.initial - self.sold.iter().map(|sold| sold.quantity).sum::<u32>()
    }

    /// Units that one buyer bought.
    #[must_use]
    pub fn owned(&self, buyer: BuyerId) -> u32 {
        self.sold.iter().filter(|sold| sold.buyer == buyer).map(|sold| sold.quantity).sum()
    }

    /// The accepted purchases, in order: request, buyer, units.
    pub fn orders(&self) -> impl Iterator<Item = (RequestId, BuyerId, u32)> + '_ {
        self.sold.iter().map(|sold| (sold.request, sold.buyer, sold.quantity))
    }

    /// Ends an accepted purchase: its units are unsold again, and no longer the buyer's.
    pub fn end(&mut self, request: RequestId) {
        self.sold.retain(|sold| sold.request != request);
    }

    /// Decides on one purchase and records it if accepted.
    pub fn buy(&mut self, request: RequestId, buyer: BuyerId, quantity: u32) -> ModelAnswer {
        if let Some(earlier) = self.sold.iter().find(|sold| sold.request == request) {
            return if earlier.buyer == buyer && earlier.quantity == quantity {
                ModelAnswer::Again
            } else {
                ModelAnswer::No(Refusal::RequestIdReused)
            };
        }
        if let Policy::OnePerBuyer { .. } = self.policy
            && let Some(earlier) = self.sold.iter().find(|sold| sold.buyer == buyer)
        {
            return ModelAnswer::No(Refusal::AlreadyPurchased { first: earlier.request });
        }
        if let Policy::Quota { limit, .. } = self.policy {
            let owned = self.owned(buyer);
            if owned + quantity > limit {
                return ModelAnswer::No(Refusal::QuotaExceeded { owned, limit });
            }
        }
        if quantity > self.available() {
            return ModelAnswer::No(Refusal::SoldOut);
        }
        self.sold.push(Sold { request, buyer, quantity });
        ModelAnswer::Yes
    }
}
