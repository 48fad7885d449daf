//! The payments of the demo provider. Pure, without clock and I/O.

use std::collections::{HashMap, VecDeque};

use super::{DemoAction, PAGE};
use crate::domain::{AttemptKey, Money, PaymentReport, StartedPayment};
use crate::payment::{PaymentStart, RefundAnswer, StopAnswer};

/// Most payments in memory.
pub const PAYMENTS_MAX: usize = 10_000;

/// Whether the buyer can pay, until money arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DemoState {
    Open,
    Failed,
    Stopped,
}

/// A payment of the demo provider.
#[derive(Debug, Clone)]
pub struct DemoPayment {
    pub(super) id: String,
    pub(super) start: PaymentStart,
    state: DemoState,
    /// Once money arrived.
    received: Option<Money>,
    refunded_total: i64,
}

impl DemoPayment {
    pub(super) fn started(&self) -> StartedPayment {
        StartedPayment { payment_id: self.id.clone(), url: format!("{PAGE}{}", self.id) }
    }

    /// `None`: the buyer can pay.
    pub(super) fn report(&self, now_ms: i64) -> Option<PaymentReport> {
        match (self.received, self.state) {
            (Some(received), _) if self.refunded_total > 0 => {
                Some(PaymentReport::Refunded { received, total: self.refunded_total })
            }
            (Some(received), _) => Some(PaymentReport::Succeeded(received)),
            (None, DemoState::Open) if !self.has_expired(now_ms) => None,
            (None, _) => Some(PaymentReport::Closed),
        }
    }

    /// The state in words, for the page.
    pub(super) fn status(&self, now_ms: i64) -> &'static str {
        match self.state {
            _ if self.refunded_total > 0 => "refunded",
            _ if self.received.is_some() => "paid",
            DemoState::Failed => "failed",
            DemoState::Stopped => "stopped by the shop",
            DemoState::Open if self.has_expired(now_ms) => "expired",
            DemoState::Open => "open",
        }
    }

    fn has_expired(&self, now_ms: i64) -> bool {
        self.start.expires_at_ms.is_some_and(|expires_at_ms| expires_at_ms <= now_ms)
    }

    /// Whether this payment allows the action; [`DemoPayments::allows`] looks at earlier ones, too.
    fn allows(&self, action: DemoAction, now_ms: i64) -> bool {
        match action {
            DemoAction::Pay
            | DemoAction::Fail
            | DemoAction::PayTwice
            | DemoAction::WrongAmount
            | DemoAction::OutOfOrder => self.report(now_ms).is_none(),
            DemoAction::PayLate => self.received.is_none(),
            DemoAction::Refund => self.received.is_some() && self.refunded_total == 0,
        }
    }

    /// Changes the payment. Returns what the webhooks report of it, in the order of their arrival.
    fn press(&mut self, action: DemoAction) -> Vec<PaymentReport> {
        let price = self.start.price;
        match action {
            DemoAction::Pay | DemoAction::PayLate | DemoAction::PayTwice => {
                vec![self.receive(price)]
            }
            DemoAction::Fail => {
                self.state = DemoState::Failed;
                vec![PaymentReport::Closed]
            }
            DemoAction::WrongAmount => {
                vec![self.receive(Money { amount: price.amount.saturating_add(1), ..price })]
            }
            DemoAction::Refund => {
                let received = self.received.unwrap_or(price);
                self.refunded_total = received.amount;
                vec![PaymentReport::Refunded { received, total: received.amount }]
            }
            DemoAction::OutOfOrder => vec![self.receive(price), PaymentReport::Closed],
        }
    }

    fn receive(&mut self, money: Money) -> PaymentReport {
        self.received = Some(money);
        PaymentReport::Succeeded(money)
    }

    pub(super) fn stop(&mut self, now_ms: i64) -> StopAnswer {
        match self.report(now_ms) {
            Some(PaymentReport::Closed) => StopAnswer::Stopped,
            Some(report) => StopAnswer::TooLate(report),
            None => {
                self.state = DemoState::Stopped;
                StopAnswer::Stopped
            }
        }
    }

    /// The shop refunds whole payments: a repeat is the same refund.
    pub(super) fn refund(&mut self, amount: i64) -> RefundAnswer {
        match self.received {
            Some(received) if (1..=received.amount).contains(&amount) => {
                self.refunded_total = self.refunded_total.max(amount);
                RefundAnswer::Done
            }
            _ => RefundAnswer::Refused("more than was received".to_owned()),
        }
    }
}

/// At most [`PAYMENTS_MAX`] payments, by id and by attempt.
#[derive(Default)]
pub(super) struct DemoPayments {
    by_id: HashMap<String, DemoPayment>,
    ids: HashMap<AttemptKey, String>,
    /// Oldest first.
    in_order: VecDeque<String>,
}

impl DemoPayments {
    /// The payment of the attempt, which a repeat starts again.
    pub fn start(&mut self, start: PaymentStart) -> StartedPayment {
        if let Some(payment) = self.of_attempt(start.attempt) {
            return payment.started();
        }
        if self.in_order.len() >= PAYMENTS_MAX
            && let Some(oldest) = self.in_order.pop_front()
            && let Some(forgotten) = self.by_id.remove(&oldest)
        {
            self.ids.remove(&forgotten.start.attempt);
        }
        let id = format!("demo_{:016x}", fastrand::u64(..));
        let (state, received, refunded_total) = (DemoState::Open, None, 0);
        let payment = DemoPayment { id: id.clone(), start, state, received, refunded_total };
        let started = payment.started();
        self.ids.insert(start.attempt, id.clone());
        self.in_order.push_back(id.clone());
        self.by_id.insert(id, payment);
        started
    }

    pub fn get(&self, id: &str) -> Option<&DemoPayment> {
        self.by_id.get(id)
    }

    /// Whether a payment, with the earlier one of its order, allows the action.
    pub fn allows(&self, payment: &DemoPayment, action: DemoAction, now_ms: i64) -> bool {
        let needs_earlier = action == DemoAction::PayTwice;
        payment.allows(action, now_ms) && (!needs_earlier || self.earlier(payment).is_some())
    }

    /// The attempt before this one, if no money was received for it.
    fn earlier(&self, payment: &DemoPayment) -> Option<String> {
        let AttemptKey { order, no } = payment.start.attempt;
        let earlier = self.of_attempt(AttemptKey { order, no: no.checked_sub(1)? })?;
        earlier.received.is_none().then(|| earlier.id.clone())
    }

    /// Changes payments by an allowed action. Returns what the webhooks report, in the order of
    /// their arrival.
    pub fn press(&mut self, id: &str, action: DemoAction) -> Vec<(DemoPayment, PaymentReport)> {
        let earlier = self.by_id.get(id).and_then(|payment| self.earlier(payment));
        let earlier = earlier.filter(|_| action == DemoAction::PayTwice);
        let mut reports = Vec::new();
        for id in [Some(id.to_owned()), earlier].into_iter().flatten() {
            if let Some(payment) = self.by_id.get_mut(&id) {
                let reported = payment.press(action);
                reports.extend(reported.into_iter().map(|report| (payment.clone(), report)));
            }
        }
        reports
    }

    pub fn get_mut(&mut self, id: &str) -> Option<&mut DemoPayment> {
        self.by_id.get_mut(id)
    }

    pub fn of_attempt(&self, attempt: AttemptKey) -> Option<&DemoPayment> {
        self.by_id.get(self.ids.get(&attempt)?)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::domain::{BuyerId, OrderKey, RequestId, SkuNo};

    pub fn start(request: u64) -> PaymentStart {
        let (buyer, request) = (BuyerId::new(42).unwrap(), RequestId::new(request).unwrap());
        let order = OrderKey { sku: SkuNo(7), buyer, request };
        let price = Money { amount: 100, currency: "CNY".parse().unwrap() };
        PaymentStart { attempt: AttemptKey { order, no: 1 }, price, expires_at_ms: Some(1_000) }
    }

    fn payment() -> DemoPayment {
        let mut payments = DemoPayments::default();
        let id = payments.start(start(1)).payment_id;
        payments.get(&id).unwrap().clone()
    }

    fn pressed(actions: &[DemoAction]) -> (DemoPayment, Vec<PaymentReport>) {
        let mut payment = payment();
        let mut reports = Vec::new();
        for action in actions {
            assert!(payment.allows(*action, 0), "{action:?}");
            reports.extend(payment.press(*action));
        }
        (payment, reports)
    }

    fn succeeded(amount: i64) -> PaymentReport {
        PaymentReport::Succeeded(Money { amount, ..start(1).price })
    }

    #[test]
    fn out_of_order_reports_the_failure_after_the_money() {
        let (_, reports) = pressed(&[DemoAction::OutOfOrder]);
        assert_eq!(reports, [succeeded(100), PaymentReport::Closed]);
    }

    #[test]
    fn only_late_money_arrives_after_the_end() {
        let (failed, _) = pressed(&[DemoAction::Fail]);
        let mut stopped = payment();
        assert_eq!(stopped.stop(0), StopAnswer::Stopped);
        assert_eq!(
            (payment().report(999), payment().report(1_000)),
            (None, Some(PaymentReport::Closed))
        );
        for (payment, now_ms, status) in [
            (&failed, 0, "failed"),
            (&stopped, 0, "stopped by the shop"),
            (&payment(), 1_000, "expired"),
        ] {
            assert_eq!(payment.status(now_ms), status);
            for action in DemoAction::ALL {
                let allowed = payment.allows(action, now_ms);
                assert_eq!(allowed, action == DemoAction::PayLate, "{status} {action:?}");
            }
        }
    }

    #[test]
    fn no_more_than_was_received_is_paid_back() {
        let (mut paid, _) = pressed(&[DemoAction::Pay]);
        assert!(matches!(paid.refund(101), RefundAnswer::Refused(_)));
        assert_eq!(paid.refund(100), RefundAnswer::Done);
        assert!(matches!(payment().refund(1), RefundAnswer::Refused(_)), "nothing was received");
    }

    #[test]
    fn a_repeated_start_is_the_same_payment_and_the_oldest_is_forgotten() {
        let mut payments = DemoPayments::default();
        let first = payments.start(start(1));
        assert_eq!(payments.start(start(1)), first);
        for request in 2..=PAYMENTS_MAX as u64 {
            payments.start(start(request));
        }
        assert!(payments.get(&first.payment_id).is_some());
        payments.start(start(PAYMENTS_MAX as u64 + 1));
        assert!(payments.get(&first.payment_id).is_none());
        assert!(payments.of_attempt(start(1).attempt).is_none());
        assert!(payments.of_attempt(start(2).attempt).is_some());
        assert_ne!(payments.start(start(1)), first);
        assert_eq!(payments.by_id.len(), PAYMENTS_MAX);
    }
}
