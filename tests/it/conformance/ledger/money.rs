//! Payments and refunds.

use floodgate::domain::OrderState::{Cancelled, Paid, Paying, PendingPayment, Refunded};
use floodgate::domain::{
    AttemptKey, Money, OpenPayment, Order, Payment, PaymentOutcome, PaymentRecorded, PaymentReport,
    PaymentState, PaymentTerms, RefundResult, RetakeEnd, RetakeOutcome, StartedPayment,
};

use super::life::{EXTENSION_MS, Shop, WINDOW_MS, paid, report};
use super::{Backend, NOW_MS};
use crate::support::offers::{ANY, ONE};

impl Shop {
    /// Records a report, which is new, and returns its effect.
    pub async fn reported(
        &self,
        payment: &Payment,
        event_id: &str,
        said: PaymentReport,
    ) -> (PaymentOutcome, Order, Payment) {
        let event = report(payment, event_id, said);
        match self.ledger.record_payment(event.clone()).await.unwrap() {
            PaymentRecorded::Recorded(outcome, Some(found)) => {
                let (order, payment) = *found;
                assert_eq!(self.order(payment.key.order).await, order);
                let again = self.ledger.record_payment(event).await.unwrap();
                assert_eq!(again, PaymentRecorded::Known);
                assert_eq!(self.order(payment.key.order).await, order);
                (outcome, order, payment)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The refunds that are due, each by its request with its amount.
    pub async fn refunds(&self) -> Vec<(u64, i64)> {
        let due = self.ledger.due_refunds(i64::MAX, 99).await.unwrap();
        let mut due: Vec<_> =
            due.iter().map(|it| (it.key.order.request.get(), it.money.amount)).collect();
        due.sort_unstable();
        due
    }
}

pub fn back(payment: &Payment, total: i64) -> PaymentReport {
    PaymentReport::Refunded { received: payment.price, total }
}

pub async fn an_attempt_is_opened_once(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    let key = shop.place(1, 1, 2).await;
    let ((one, first), (other, second)) =
        tokio::join!(shop.open_payment(key), shop.open_payment(key));
    assert_eq!((one, &first), (other, &second));
    assert_eq!((one.state, one.version), (Paying, 1));
    assert_eq!((first.key.no, first.price.amount, &first.started), (1, 500, &None));
    assert_eq!(first.price.currency.to_string(), "CNY");

    let answer = StartedPayment { payment_id: "pay-1-1".into(), url: "https://pay/1".into() };
    for _ in 0..2 {
        shop.ledger.payment_started(first.key, answer.clone()).await.unwrap();
    }
    assert_eq!(shop.open_payment(key).await.1.started, Some(answer.clone()));
    let other = StartedPayment { payment_id: "pay-2".into(), ..answer };
    shop.ledger.payment_started(first.key, other).await.unwrap_err();

    let late = shop.place(2, 2, 1).await;
    shop.pass(WINDOW_MS);
    let terms = PaymentTerms {
        provider: "demo".into(),
        paying_window_ms: 1,
        extension_max_ms: EXTENSION_MS,
    };
    let refused = shop.ledger.open_payment(late, terms).await.unwrap();
    assert_eq!(refused, OpenPayment::NotPayable(shop.order(late).await));
    shop.holds().await;
}

pub async fn an_order_is_paid_once(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    let key = shop.place(1, 1, 2).await;
    let (_, payment) = shop.open_payment(key).await;
    // The report comes before the answer to the start was stored.
    let (outcome, order, after) = shop.reported(&payment, "e1", paid(&payment)).await;
    assert_eq!((outcome, order.state, order.version), (PaymentOutcome::Applied, Paid, 2));
    assert_eq!((order.due_ms, after.state), (None, PaymentState::Applied));
    let (outcome, repeated, _) = shop.reported(&payment, "e2", paid(&payment)).await;
    assert_eq!((outcome, repeated), (PaymentOutcome::Unchanged, order));
    let other = PaymentReport::Succeeded(Money { amount: 501, ..payment.price });
    let (outcome, other, _) = shop.reported(&payment, "other", other).await;
    assert_eq!((outcome, other), (PaymentOutcome::Mismatch, order), "an alarm, and no change");
    let (outcome, closed, _) = shop.reported(&payment, "e3", PaymentReport::Closed).await;
    assert_eq!((outcome, closed), (PaymentOutcome::Unchanged, order));
    shop.pass(WINDOW_MS + EXTENSION_MS);
    assert_eq!(shop.end_due(&[key]).await, []);
    assert_eq!((shop.left().await, shop.refunds().await), (8, vec![]));
    shop.holds().await;
}

pub async fn a_closed_attempt_lets_the_buyer_try_again(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    let key = shop.place(1, 1, 1).await;
    shop.pass(WINDOW_MS - 10);
    let (extended, first) = shop.open_payment(key).await;
    assert!(extended.due_ms > extended.pay_by_ms);
    let (outcome, order, _) = shop.reported(&first, "e1", PaymentReport::Closed).await;
    assert_eq!((outcome, order.state), (PaymentOutcome::Closed, PendingPayment));
    assert_eq!(order.due_ms, Some(NOW_MS + WINDOW_MS));
    let (paying, second) = shop.open_payment(key).await;
    assert_eq!((second.key.no, paying.due_ms), (2, paying.pay_by_ms), "extended only once");
    // The closed attempt succeeds after all; the open one is a duplicate.
    let (outcome, order, _) = shop.reported(&first, "e2", paid(&first)).await;
    assert_eq!((outcome, order.state), (PaymentOutcome::Applied, Paid));
    let (outcome, after, _) = shop.reported(&second, "e3", paid(&second)).await;
    assert_eq!((outcome, after), (PaymentOutcome::Duplicate, order));
    assert_eq!(shop.refunds().await, [(1, 250)]);
    shop.holds().await;
}

pub async fn money_that_is_not_applied_is_due_back(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    for (request_no, amount, currency) in [(1, 249, "CNY"), (2, 251, "CNY"), (3, 250, "EUR")] {
        let key = shop.place(request_no, request_no, 1).await;
        let (paying, payment) = shop.open_payment(key).await;
        let other = PaymentReport::Succeeded(Money { amount, currency: currency.parse().unwrap() });
        let event_id = format!("e{request_no}");
        let (outcome, order, after) = shop.reported(&payment, &event_id, other).await;
        assert_eq!(outcome, PaymentOutcome::Mismatch);
        assert_eq!((order.state, order.version), (PendingPayment, paying.version + 1));
        assert_eq!(order.due_ms, order.pay_by_ms, "the buyer may pay again until the deadline");
        assert_eq!(after.state, PaymentState::RefundDue);
    }
    let key = shop.place(4, 4, 1).await;
    let (_, payment) = shop.open_payment(key).await;
    shop.reported(&payment, "stopped", PaymentReport::Closed).await;
    shop.ledger.cancel(key).await.unwrap();
    let ended = shop.order(key).await;
    let (outcome, order, after) = shop.reported(&payment, "e4", paid(&payment)).await;
    assert_eq!((outcome, order.state), (PaymentOutcome::Late, Cancelled));
    // One more event, and nothing else.
    assert_eq!(order, Order { version: ended.version + 1, ..ended });
    assert_eq!(after.state, PaymentState::RefundDue);
    assert_eq!(shop.refunds().await, [(1, 249), (2, 251), (3, 250), (4, 250)]);
    shop.holds().await;
}

pub async fn a_refund_is_tried_until_it_is_decided(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    let mut late = Vec::new();
    for request_no in 1..=3 {
        let key = shop.place(request_no, request_no, 1).await;
        late.push(shop.open_payment(key).await.1);
    }
    shop.pass(WINDOW_MS + EXTENSION_MS);
    let keys: Vec<_> = late.iter().map(|payment| payment.key.order).collect();
    assert_eq!(shop.end_due(&keys).await.len(), 3);
    for (at, payment) in late.iter().enumerate() {
        shop.reported(payment, &format!("e{at}"), paid(payment)).await;
        let refused = RetakeEnd::Refused("sold-out".into());
        let ended = shop.ledger.end_retake(payment.key, refused).await.unwrap();
        assert_eq!(ended, RetakeOutcome::Owed);
    }
    let partly = shop.reported(&late[0], "partly", back(&late[0], 100)).await;
    assert_eq!(partly.0, PaymentOutcome::PartlyRefunded);
    assert_eq!(shop.refunds().await, [(1, 150), (2, 250), (3, 250)]);
    let now_ms = NOW_MS + WINDOW_MS + EXTENSION_MS;
    assert_eq!(shop.ledger.due_refunds(now_ms - 1, 9).await.unwrap(), []);

    let said =
        async |at: usize, result| shop.ledger.refund_result(late[at].key, result).await.unwrap();
    assert!(said(0, RefundResult::Again { next_ms: now_ms + 5_000 }).await);
    assert_eq!(shop.ledger.due_refunds(now_ms, 9).await.unwrap().len(), 2);
    let again = shop.ledger.due_refunds(now_ms + 5_000, 9).await.unwrap().remove(2);
    assert_eq!((again.key, again.attempts), (late[0].key, 1));
    // Another process tried it at the same time.
    assert!(!said(0, RefundResult::Again { next_ms: now_ms + 9_000 }).await);
    let again = shop.ledger.due_refunds(now_ms + 5_000, 9).await.unwrap().remove(2);
    assert_eq!((again.key, again.attempts), (late[0].key, 1));
    assert_eq!(again.payment_id, "pay-1-1");
    for is_first in [true, false] {
        assert_eq!(said(0, RefundResult::Done).await, is_first);
    }
    assert!(said(1, RefundResult::Failed { reason: "card closed".into() }).await);
    assert!(said(1, RefundResult::Again { next_ms: now_ms }).await);
    assert_eq!(shop.refunds().await, [(3, 250)]);
    // The provider refunds two of them after all.
    for (at, payment) in late.iter().enumerate().skip(1) {
        let said = shop.reported(payment, &format!("back{at}"), back(payment, 250)).await;
        assert_eq!((said.0, said.2.state), (PaymentOutcome::Refunded, PaymentState::Refunded));
    }
    assert_eq!(shop.refunds().await, []);
    shop.holds().await;
}

pub async fn a_refund_ends_a_paid_order(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    let key = shop.place(1, 1, 2).await;
    let (_, payment) = shop.open_payment(key).await;
    let (_, paid_order, _) = shop.reported(&payment, "e1", paid(&payment)).await;
    let (outcome, order, _) = shop.reported(&payment, "e2", back(&payment, 100)).await;
    assert_eq!((outcome, order), (PaymentOutcome::PartlyRefunded, paid_order));
    let (outcome, order, _) = shop.reported(&payment, "e3", back(&payment, 40)).await;
    assert_eq!((outcome, order), (PaymentOutcome::Unchanged, paid_order), "totals only grow");
    let (outcome, order, _) = shop.reported(&payment, "e4", back(&payment, 500)).await;
    assert_eq!((outcome, order.state), (PaymentOutcome::Refunded, Refunded));
    assert!(order.counts_for_limit, "by default a refund does not return the limit");

    // Heard before the success that it implies, and of more than was received.
    let key = shop.place(2, 2, 1).await;
    let (_, payment) = shop.open_payment(key).await;
    let (outcome, order, after) = shop.reported(&payment, "e5", back(&payment, 251)).await;
    assert_eq!((outcome, order.state), (PaymentOutcome::Refunded, Refunded));
    assert_eq!(after.refunded_total, 250, "no more than was received");
    let (outcome, after, _) = shop.reported(&payment, "e6", paid(&payment)).await;
    assert_eq!((outcome, after), (PaymentOutcome::Unchanged, order));
    assert_eq!((shop.left().await, shop.refunds().await), (10, vec![]));
    shop.holds().await;
}

pub async fn a_report_of_no_attempt_is_stored(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    let key = shop.place(1, 1, 1).await;
    let (paying, payment) = shop.open_payment(key).await;
    let answer = StartedPayment { payment_id: "pay-1-1".into(), url: String::new() };
    shop.ledger.payment_started(payment.key, answer).await.unwrap();
    let known = report(&payment, "e1", paid(&payment));
    let mut strange = [known.clone(), known.clone(), known.clone()];
    strange[0].payment_id = "pay-9-9".into();
    strange[0].attempt = Some(AttemptKey { no: 2, ..payment.key });
    strange[1].provider = "other".into();
    strange[2].payment_id = "pay-8-8".into();
    strange[2].attempt = None;
    for (at, mut event) in strange.into_iter().enumerate() {
        event.event_id = format!("strange{at}");
        let recorded = shop.ledger.record_payment(event.clone()).await.unwrap();
        assert_eq!(recorded, PaymentRecorded::Recorded(PaymentOutcome::Unmatched, None));
        assert_eq!(shop.ledger.record_payment(event).await.unwrap(), PaymentRecorded::Known);
    }
    assert_eq!(shop.order(key).await, paying);
    // Found by its payment id alone.
    let mut by_id = known;
    by_id.attempt = None;
    shop.ledger.record_payment(by_id).await.unwrap();
    assert_eq!(shop.order(key).await.state, Paid);
    assert_ne!(shop.order(key).await.state, Cancelled);
    shop.holds().await;
}
