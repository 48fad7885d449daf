//! Compares one order row with the terms of its SKU and the openings of its sale.

use super::ids::SkuNo;
use super::order::Order;
use super::phase_history::PhaseHistory;
use super::policy::{Policy, SkuHistory};
use super::sale::window_fault;

/// The ledger's rows of one SKU and its sale.
#[derive(Debug, Clone)]
pub struct SkuFacts {
    pub sku: SkuNo,
    pub initial: u32,
    pub available: i64,
    pub policy: Policy,
    /// Price of one unit.
    pub price: i64,
    pub history: SkuHistory,
    /// First instant of the sale's window, epoch milliseconds.
    pub starts_at_ms: i64,
    /// First instant after the window, epoch milliseconds.
    pub ends_at_ms: i64,
    pub phases: PhaseHistory,
    /// Units of the recorded failures whose refusal gives units back.
    pub given_back_units: u64,
}

impl SkuFacts {
    /// Why the order cannot have been accepted when it was: outside the window, or outside the time
    /// in which its opening sold. The process that compares a request with the window sets its
    /// time, so that this comparison is exact.
    pub(super) fn time_fault(&self, order: &Order) -> Option<String> {
        window_fault(&(self.starts_at_ms..self.ends_at_ms), order.placed_at_ms)
            .or_else(|| self.phases.fault(order.epoch, order.placed_at_ms))
    }

    /// How the row differs from the one that the SKU's terms in its epoch give; `None`: not at all.
    pub(super) fn terms_fault(&self, order: &Order) -> Option<String> {
        let terms = self.history.terms_in(order.epoch);
        let present = (self.price, self.policy.max_quantity());
        let (price, max) = terms.map_or(present, |terms| (terms.price, terms.max_quantity));
        let amount = price.saturating_mul(i64::from(order.quantity));
        let is_released = !order.counts_for_limit;
        let slot =
            if is_released { order.request.to_db() } else { self.policy.slot(order.request) };
        if !(1..=max).contains(&order.quantity) {
            Some(format!("quantity {} is not from 1 to {max}", order.quantity))
        } else if order.amount != amount {
            Some(format!("amount {}, price times quantity is {amount}", order.amount))
        } else if order.slot != slot {
            Some(format!("slot {}, the policy's is {slot}", order.slot))
        } else if order.state.is_live() && is_released {
            Some("a live order that does not count for the limit".to_owned())
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ids::Epoch;
    use super::super::order::OrderState;
    use super::super::phase_history::PhaseChange;
    use super::super::policy::{Terms, TermsSince};
    use super::super::sale::Phase;
    use super::super::samples::intent;
    use super::*;

    const AT_MS: i64 = 1_800_000_000_000;

    fn facts() -> SkuFacts {
        let opened = PhaseChange {
            epoch: Epoch(1),
            phase: Phase::Open,
            changed_at_ms: AT_MS,
            applied_at_ms: None,
        };
        SkuFacts {
            sku: SkuNo(1),
            initial: 10,
            available: 9,
            policy: Policy::OnePerBuyer { max_quantity: 2 },
            price: 100,
            history: SkuHistory::default(),
            starts_at_ms: AT_MS,
            ends_at_ms: AT_MS + 60_000,
            phases: PhaseHistory::new(vec![opened]),
            given_back_units: 0,
        }
    }

    #[test]
    fn each_column_is_compared_with_the_terms() {
        let order = intent(7).order(AT_MS);
        assert_eq!(facts().terms_fault(&order), None);
        let ended = Order { state: OrderState::Cancelled, counts_for_limit: false, ..order };
        assert_eq!(facts().terms_fault(&Order { slot: 7, ..ended }), None);
        for (wrong, expected) in [
            (Order { quantity: 0, ..order }, "quantity 0"),
            (Order { quantity: 3, amount: 300, ..order }, "quantity 3"),
            (Order { amount: 99, ..order }, "amount 99"),
            (Order { slot: 7, ..order }, "slot 7"),
            (ended, "slot 0"),
            (Order { slot: 7, counts_for_limit: false, ..order }, "a live order"),
        ] {
            let fault = facts().terms_fault(&wrong).unwrap();
            assert!(fault.starts_with(expected), "{fault}");
        }
    }

    #[test]
    fn an_order_is_compared_with_the_terms_of_its_epoch() {
        let terms = |epoch, price| TermsSince {
            epoch: Epoch(epoch),
            since_ms: 0,
            terms: Terms { price, limit: None, max_quantity: 1, payment_window_s: 0 },
        };
        let history =
            SkuHistory { terms: vec![terms(0, 100), terms(2, 200)], ..SkuHistory::default() };
        let facts = SkuFacts { price: 200, history, ..facts() };
        let order = intent(7).order(AT_MS);
        assert_eq!(facts.terms_fault(&order), None);
        let later = Order { epoch: Epoch(2), ..order };
        assert!(facts.terms_fault(&later).unwrap().starts_with("amount 100"));
        assert_eq!(facts.terms_fault(&Order { amount: 200, ..later }), None);
    }

    #[test]
    fn the_window_and_the_opening_are_compared() {
        let order = intent(7).order(AT_MS);
        assert_eq!(facts().time_fault(&order), None);
        let at = |placed_at_ms| facts().time_fault(&Order { placed_at_ms, ..order });
        assert_eq!(at(AT_MS + 59_999), None);
        assert!(at(AT_MS + 60_000).unwrap().contains("window"));
        assert!(at(AT_MS - 1).unwrap().contains("window"));
        assert!(facts().time_fault(&Order { epoch: Epoch(2), ..order }).is_some());
    }
}
