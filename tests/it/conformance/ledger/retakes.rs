//! Purchases with the late money of timed-out orders.

use floodgate::domain::OrderState::{Paid, PendingPayment, Refunded, TimedOut};
use floodgate::domain::{
    Order, OrderKey, Payment, PaymentEvent, PaymentOutcome, PaymentRecorded, PaymentReport,
    PaymentState, Refusal, RequestId, RetakeEnd, RetakeOutcome, SkuDraft,
};
use floodgate::runtime::clock::Clock;

use super::Backend;
use super::life::{EXTENSION_MS, Shop, WINDOW_MS, paid, report, sale};
use super::money::back;
use crate::support::offers::{ANY, ONE, intent, order_events, request, sku_draft};

impl Shop {
    /// An order that timed out, and its payment, which was made after that.
    async fn late(&self, request_no: u64, quantity: u32) -> (Order, Payment) {
        let key = self.place(request_no, request_no, quantity).await;
        let (_, payment) = self.open_payment(key).await;
        self.pass(WINDOW_MS + EXTENSION_MS);
        let ended = self.end_due(&[key]).await.remove(0);
        let event = format!("late{request_no}");
        let (outcome, order, after) = self.reported(&payment, &event, paid(&payment)).await;
        assert_eq!((outcome, after.state), (PaymentOutcome::Late, PaymentState::Retaking));
        assert_eq!(order, ended, "an ended order stays as it is");
        (order, after)
    }

    async fn end(&self, payment: &Payment, end: RetakeEnd) -> RetakeOutcome {
        let ended = self.ledger.end_retake(payment.key, end.clone()).await.unwrap();
        let again = self.ledger.end_retake(payment.key, end).await.unwrap();
        assert_eq!(again, RetakeOutcome::Known, "once");
        ended
    }

    async fn payments(&self, key: OrderKey) -> Vec<Payment> {
        self.ledger.payments_of(vec![key]).await.unwrap()
    }

    /// Number and kind of the order's events, and whether they say that it is unfulfilled.
    async fn unfulfilled(&self, wanted: RequestId) -> Vec<(u16, Option<String>)> {
        while self.ledger.number_events(99).await.unwrap() > 0 {}
        let events = order_events(&*self.ledger, 0, 99).await;
        let said = events.into_iter().filter(|it| it.order.request == wanted && it.is_unfulfilled);
        said.map(|event| (event.order.version, event.reason)).collect()
    }
}

fn placed(key: OrderKey) -> RetakeEnd {
    RetakeEnd::Placed(key.request)
}

fn refused() -> RetakeEnd {
    RetakeEnd::Refused("sold-out".to_owned())
}

pub async fn late_money_pays_the_order_that_it_bought_again(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    let (ended, late) = shop.late(1, 2).await;
    let due = shop.ledger.due_retakes(9).await.unwrap();
    assert_eq!((due.len(), due[0].key, due[0].order), (1, late.key, ended));
    assert_eq!(due[0].received_ms, shop.clock.wall_ms());
    assert_eq!(shop.refunds().await, [], "nothing is paid back meanwhile");

    let successor = shop.place(2, 1, 2).await;
    let RetakeOutcome::Applied(order) = shop.end(&late, placed(successor)).await else {
        panic!("not applied")
    };
    assert_eq!((order.key(), order.state, order.version), (successor, Paid, 1));
    assert_eq!(shop.order(successor).await, order);
    assert_eq!(shop.order(ended.key()).await, ended);
    let left = shop.payments(ended.key()).await;
    let left = left.iter().map(|payment| (payment.key.no, payment.state, &payment.started));
    assert_eq!(left.collect::<Vec<_>>(), [(1, PaymentState::Closed, &None)]);
    let moved = shop.payments(successor).await.remove(0);
    assert_eq!((moved.state, moved.key.no), (PaymentState::Applied, 1));
    assert_eq!((&moved.started, moved.received), (&late.started, late.received));
    assert_eq!((shop.refunds().await, shop.left().await), (vec![], 8));
    assert_eq!(shop.ledger.due_retakes(9).await.unwrap(), []);
    shop.holds().await;

    // A report that still names the old attempt finds the payment by its id.
    let refund = report(&late, "back", back(&late, 500));
    let recorded = shop.ledger.record_payment(refund).await.unwrap();
    let PaymentRecorded::Recorded(PaymentOutcome::Refunded, Some(found)) = recorded else {
        panic!("{recorded:?}")
    };
    assert_eq!((found.0.key(), found.0.state), (successor, Refunded));
    assert_eq!(shop.left().await, 10);
    assert_eq!(shop.unfulfilled(ended.request).await, []);
    shop.holds().await;
}

pub async fn charges_of_an_order_are_recorded_after_its_first_payment_has_moved(
    backend: &dyn Backend,
) {
    let shop = Shop::open(backend, ONE).await;
    let key = shop.place(1, 1, 1).await;
    let (_, first) = shop.open_payment(key).await;
    shop.reported(&first, "closed", PaymentReport::Closed).await;
    let (_, second) = shop.open_payment(key).await;
    shop.pass(WINDOW_MS + EXTENSION_MS);
    assert_eq!(shop.end_due(&[key]).await.len(), 1);
    shop.reported(&first, "late", paid(&first)).await;
    let successor = shop.place(2, 1, 1).await;
    let moved = shop.end(&first, placed(successor)).await;
    assert!(matches!(moved, RetakeOutcome::Applied(_)), "{moved:?}");

    // The attempt that stayed is charged twice, the one whose payment moved once more.
    for (attempt, id) in [(&second, "one"), (&second, "other"), (&first, "again")] {
        let charge = report(attempt, id, paid(attempt));
        let charge = PaymentEvent { payment_id: id.to_owned(), ..charge };
        let recorded = shop.ledger.record_payment(charge).await.unwrap();
        assert_eq!(recorded.outcome(), PaymentOutcome::Late, "{id}");
    }
    let stayed = shop.payments(key).await;
    assert_eq!(stayed.iter().map(|payment| payment.key.no).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(shop.end(&first, placed(successor)).await, RetakeOutcome::Owed, "it is paid");
    assert_eq!(shop.refunds().await, [(1, 250)]);
    assert_eq!(shop.order(successor).await.state, Paid);
    shop.holds().await;
}

pub async fn late_money_that_buys_nothing_is_due_back(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    // Refused; placed with another amount; placed and paid meanwhile; placed and never found.
    let (ended, late) = shop.late(1, 1).await;
    assert_eq!(shop.end(&late, refused()).await, RetakeOutcome::Owed);
    assert_eq!(shop.order(ended.key()).await, Order { version: ended.version + 1, ..ended });
    let version = ended.version + 1;
    assert_eq!(shop.unfulfilled(ended.request).await, [(version, Some("sold-out".to_owned()))]);

    let (_, late) = shop.late(2, 1).await;
    let larger = shop.place(12, 2, 2).await;
    assert_eq!(shop.end(&late, placed(larger)).await, RetakeOutcome::Owed);
    assert_eq!(shop.order(larger).await.state, PendingPayment);

    let (_, late) = shop.late(3, 1).await;
    let paid_before = shop.place(13, 3, 1).await;
    let (_, payment) = shop.open_payment(paid_before).await;
    shop.reported(&payment, "e", paid(&payment)).await;
    assert_eq!(shop.end(&late, placed(paid_before)).await, RetakeOutcome::Owed);

    let (ended, late) = shop.late(4, 1).await;
    let nowhere = OrderKey { request: request(14), ..ended.key() };
    assert_eq!(shop.end(&late, placed(nowhere)).await, RetakeOutcome::Owed);

    // Partly paid back before the purchase is placed.
    let (_, late) = shop.late(5, 1).await;
    shop.reported(&late, "partly", back(&late, 100)).await;
    let successor = shop.place(15, 5, 1).await;
    assert_eq!(shop.end(&late, placed(successor)).await, RetakeOutcome::Owed);

    // Paid back in full before: nothing is owed.
    let (_, late) = shop.late(6, 1).await;
    let (outcome, order, after) = shop.reported(&late, "all", back(&late, 250)).await;
    assert_eq!((outcome, order.state), (PaymentOutcome::Refunded, TimedOut));
    assert_eq!(after.state, PaymentState::Refunded);
    assert_eq!(shop.ledger.end_retake(late.key, refused()).await.unwrap(), RetakeOutcome::Known);
    assert_eq!(shop.refunds().await, [(1, 250), (2, 250), (3, 250), (4, 250), (5, 150)]);
    assert_eq!(shop.ledger.due_retakes(9).await.unwrap(), []);
    shop.holds().await;
}

pub async fn the_bar_of_a_lapse_does_not_apply_to_its_late_money(backend: &dyn Backend) {
    let draft = SkuDraft { bar_lapsed: true, ..sku_draft("sku", ONE, 10) };
    let shop = Shop::with(backend, draft).await;
    let (ended, late) = shop.late(1, 1).await;
    assert_eq!(shop.refusal(2, 1).await, Some(Refusal::Barred));
    // The bar of another order of the buyer stays.
    let other = OrderKey { request: request(9), ..ended.key() };
    shop.ledger.exempt_retake(other, request(2)).await.unwrap();
    assert_eq!(shop.refusal(2, 1).await, Some(Refusal::Barred));
    for _ in 0..2 {
        shop.ledger.exempt_retake(ended.key(), request(2)).await.unwrap();
    }
    assert_eq!(shop.refusal(3, 1).await, Some(Refusal::Barred), "another request of the buyer");
    let both = [2, 3].map(|number| intent(&shop.sku, number, 1, 1));
    assert_eq!(shop.ledger.place(both.to_vec()).await.unwrap(), None, "nor in the same batch");
    let successor = shop.place(2, 1, 1).await;
    let paid = shop.end(&late, placed(successor)).await;
    assert!(matches!(paid, RetakeOutcome::Applied(_)), "{paid:?}");
    assert_eq!(shop.refusal(4, 1).await, Some(Refusal::Barred));
    shop.holds().await;
}

pub async fn late_money_buys_again_for_each_order_that_lapsed(backend: &dyn Backend) {
    let mut shop = Shop::open(backend, ANY).await;
    let drafts = ["one", "two"].map(|id| SkuDraft { bar_lapsed: true, ..sku_draft(id, ANY, 10) });
    let skus = sale(&*shop.ledger, "barring", drafts.to_vec()).await;
    // One buyer: two orders in one SKU, and one in another.
    let (mut lapsed, mut keys) = (Vec::new(), Vec::new());
    for (request_no, sku) in [(1, &skus[0]), (2, &skus[0]), (3, &skus[1])] {
        shop.sku = sku.clone();
        let key = shop.place(request_no, 7, 1).await;
        lapsed.push((10 + request_no, sku, shop.open_payment(key).await.1));
        keys.push(key);
    }
    shop.pass(WINDOW_MS + EXTENSION_MS);
    assert_eq!(shop.end_due(&keys).await.len(), 3);
    // The purchases run at once: each is exempt before one is placed.
    for (successor_no, _, late) in &lapsed {
        let event = format!("late{successor_no}");
        assert_eq!(shop.reported(late, &event, paid(late)).await.0, PaymentOutcome::Late);
        shop.ledger.exempt_retake(late.key.order, request(*successor_no)).await.unwrap();
    }
    for (successor_no, sku, late) in lapsed {
        shop.sku = sku.clone();
        assert_eq!(shop.refusal(10 + successor_no, 7).await, Some(Refusal::Barred));
        let successor = shop.place(successor_no, 7, 1).await;
        let paid = shop.end(&late, placed(successor)).await;
        assert!(matches!(paid, RetakeOutcome::Applied(_)), "{paid:?}");
    }
    shop.holds().await;
}

pub async fn of_two_reports_during_a_move_none_is_lost(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    for number in 1..=8 {
        let (_, late) = shop.late(number, 1).await;
        let successor = shop.place(100 + number, number, 1).await;
        let repeat = report(&late, &format!("repeat{number}"), paid(&late));
        let refund = report(&late, &format!("back{number}"), back(&late, 250));
        let (moved, said, refunded) = tokio::join!(
            shop.ledger.end_retake(late.key, placed(successor)),
            shop.ledger.record_payment(repeat),
            shop.ledger.record_payment(refund),
        );
        let is_known = |it: &PaymentRecorded| matches!(it, PaymentRecorded::Recorded(_, Some(_)));
        assert!(is_known(&said.unwrap()) && is_known(&refunded.unwrap()), "{moved:?}");
        // The refund was heard before the move, or after it.
        let expected = match moved.unwrap() {
            RetakeOutcome::Applied(_) => Refunded,
            RetakeOutcome::Known => PendingPayment,
            RetakeOutcome::Owed => panic!("owed"),
        };
        assert_eq!(shop.order(successor).await.state, expected);
        shop.ledger.cancel(successor).await.unwrap();
    }
    assert_eq!((shop.refunds().await, shop.left().await), (vec![], 10));
    shop.holds().await;
}
