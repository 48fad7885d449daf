//! A book is built from what the ledger has, before anything is sold from it.

use super::super::order::{Failure, Order, OrderIntent};
use super::{Book, BookRecord, BookStage, gives_back};

impl Book {
    /// Makes room for `orders` requests, so that loading a large ledger does not grow step by step.
    pub fn make_room(&mut self, orders: usize) {
        self.requests.reserve(orders);
        if self.counts_buyers() {
            self.buyers.reserve(orders);
        }
    }

    /// Enters an order that the ledger has; used to rebuild the book. Repeat-safe.
    pub fn load_order(&mut self, order: &Order) {
        let record = BookRecord {
            buyer: order.buyer,
            placed_at_ms: order.placed_at_ms,
            quantity: order.quantity,
            stage: BookStage::Ordered(order.state),
        };
        let known = self.requests.insert(order.request, record);
        if known.is_none() && order.state.is_live() {
            self.hold(order.buyer, order.quantity);
        }
    }

    /// Enters a failure that the ledger has; used to rebuild the book. Repeat-safe.
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

    /// Enters a request that was accepted before the book was built and that the ledger does not
    /// have, and returns its units: they are not free. To be called after orders and failures, of
    /// which it may be one.
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
        self.hold(intent.buyer, intent.quantity);
        self.unsettled.insert(intent.request, *intent);
        intent.quantity
    }

    /// Sets the free units; used once, when the book is built.
    pub fn stock(&mut self, units: u32) {
        self.available = units;
    }
}
