//! Late money buys again: the price of a timed-out order, received after its end, pays for a new
//! purchase of the same units, the order's *successor*.
//!
//! The purchase goes through the gate like every other, with a request id that follows from the
//! ended order's, so that a repeat is the same purchase. Where it is placed, the payment moves to
//! the successor, which is paid in the same transaction. Where it is refused, the money is due
//! back. On crash between two steps the payment is still `retaking`, and all steps are repeated.

use super::ids::RequestId;
use super::order::Order;
use super::payment::{AttemptKey, Payment, PaymentState};

/// Money that waits for its purchase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueRetake {
    pub key: AttemptKey,
    /// The order that timed out.
    pub order: Order,
    /// When the money was received, epoch milliseconds.
    pub received_ms: i64,
}

/// How a purchase with late money ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetakeEnd {
    /// The ledger has an order of this request.
    Placed(RequestId),
    /// There is none, for this reason.
    Refused(String),
}

/// What became of the money.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetakeOutcome {
    /// It paid this order.
    Applied(Order),
    /// It is due back.
    Owed,
    /// It was decided before.
    Known,
}

/// Whether the money of a payment can pay this successor: an unpaid order of exactly the price, of
/// which nothing was refunded.
pub fn pays(payment: &Payment, successor: &Order) -> bool {
    // The currency is the sale's, as the payment's price.
    let is_price = payment.received == Some(payment.price)
        && payment.price.amount == successor.amount
        && payment.refunded_total == 0;
    payment.state == PaymentState::Retaking && successor.state.is_unpaid() && is_price
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Money, OrderState, samples};

    #[test]
    fn money_pays_an_unpaid_order_of_its_price_only() {
        let successor = Order { amount: 250, ..samples::intent(2).order(1) };
        let price = Money { amount: 250, currency: "CNY".parse().unwrap() };
        let payment = Payment {
            key: AttemptKey { order: successor.key(), no: 1 },
            provider: "demo".to_owned(),
            started: None,
            price,
            state: PaymentState::Retaking,
            received: Some(price),
            refunded_total: 0,
        };
        for state in [OrderState::PendingPayment, OrderState::Paying] {
            assert!(pays(&payment, &Order { state, ..successor }));
        }
        for state in [OrderState::Paid, OrderState::TimedOut, OrderState::Cancelled] {
            assert!(!pays(&payment, &Order { state, ..successor }), "{state:?}");
        }
        assert!(!pays(&payment, &Order { amount: 251, ..successor }));
        assert!(!pays(&Payment { refunded_total: 1, ..payment.clone() }, &successor));
        assert!(!pays(&Payment { state: PaymentState::RefundDue, ..payment }, &successor));
    }
}
