//! The reference model: one SKU, as plainly as it can be written.
//!
//! It keeps a list of what was accepted and answers every question by reading the list from the
//! start. It is the oracle of the property tests: book, scripts and SQL must agree with it.

use floodgate::domain::{BuyerId, Policy, Refusal, RequestId};

/// What the model answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// Accepted now.
    Yes,
    /// Accepted before.
    Again,
    /// Refused.
    No(Refusal),
}

#[derive(Debug, Clone, Copy)]
struct Sold {
    request: RequestId,
    buyer: BuyerId,
    quantity: u32,
}

/// One SKU.
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

    /// Units nobody has.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.initial - self.sold.iter().map(|sold| sold.quantity).sum::<u32>()
    }

    /// Units of one buyer.
    #[must_use]
    pub fn owned(&self, buyer: BuyerId) -> u32 {
        self.sold.iter().filter(|sold| sold.buyer == buyer).map(|sold| sold.quantity).sum()
    }

    /// What was accepted, in order: request, buyer, units.
    pub fn orders(&self) -> impl Iterator<Item = (RequestId, BuyerId, u32)> + '_ {
        self.sold.iter().map(|sold| (sold.request, sold.buyer, sold.quantity))
    }

    /// One purchase.
    pub fn buy(&mut self, request: RequestId, buyer: BuyerId, quantity: u32) -> Said {
        if let Some(known) = self.sold.iter().find(|sold| sold.request == request) {
            return if known.buyer == buyer && known.quantity == quantity {
                Said::Again
            } else {
                Said::No(Refusal::RequestIdReused)
            };
        }
        if let Policy::OnePerBuyer { .. } = self.policy
            && let Some(known) = self.sold.iter().find(|sold| sold.buyer == buyer)
        {
            return Said::No(Refusal::AlreadyPurchased { first: known.request });
        }
        if let Policy::Quota { limit, .. } = self.policy {
            let owned = self.owned(buyer);
            if owned + quantity > limit {
                return Said::No(Refusal::QuotaExceeded { owned, limit });
            }
        }
        if quantity > self.available() {
            return Said::No(Refusal::SoldOut);
        }
        self.sold.push(Sold { request, buyer, quantity });
        Said::Yes
    }
}
