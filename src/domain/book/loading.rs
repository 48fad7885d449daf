//! Rebuilds a book from the ledger, before it accepts reservations.

use super::super::order::{Failure, Order, OrderIntent};
use super::{Book, BookRecord, BookStage, gives_back};

impl Book {
    /// Reserves capacity for `orders` requests, so that the maps do not grow while a large ledger
    /// is loaded.
    pub fn reserve_capacity(&mut self, orders: usize) {
        self.requests.reserve(orders);
        if self.counts_buyers() {
            self.buyers.reserve(orders);
        }
    }

    /// Adds an order of the ledger. Idempotent.
    pub fn load_order(&mut self, order: &Order) {
        let record = BookRecord {
            buyer: order.buyer,
            placed_at_ms: order.placed_at_ms,
            quantity: order.quantity,
            stage: BookStage::Ordered(order.state),
        };
        let previous = self.requests.insert(order.request, record);
        if previous.is_none() && order.state.is_live() {
            self.add_owned(order.buyer, order.quantity);
        }
    }

    /// Adds a recorded failure of the ledger. Idempotent.
    pub fn load_failure(&mut self, failure: &Failure) {
        let record = BookRecord {
            buyer: failure.buyer,
            placed_at_ms: failure.recorded_at_ms,
            quantity: failure.quantity,
            stage: BookStage::Failed,
        };
        if self.requests.insert(failure.request, record).is_none() {
            self.failures.insert(failure.request, failure.reason);
            if gives_back(&failure.reason) {
                self.released_units += u64::from(failure.quantity);
            }
        }
    }

    /// Adds a request that was accepted before the rebuild and has no result in the ledger. Returns
    /// its units, which are not free; 0 if the request is present already. Call it after all orders
    /// and failures: the request may be among them.
    pub fn load_queued(&mut self, intent: &OrderIntent) -> u32 {
        if self.requests.contains_key(&intent.request) {
            return 0;
        }
        let record = BookRecord {
            buyer: intent.buyer,
            placed_at_ms: intent.placed_at_ms,
            quantity: intent.quantity,
            stage: BookStage::Queued,
        };
        self.requests.insert(intent.request, record);
        self.add_owned(intent.buyer, intent.quantity);
        self.unsettled.insert(intent.request, *intent);
        intent.quantity
    }

    /// Sets the free units, once, at the end of the rebuild.
    pub fn stock(&mut self, units: u32) {
        self.available = units;
    }
}
