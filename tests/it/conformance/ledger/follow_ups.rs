//! Payments that wait for a provider, for their attempt, or for an operator.

use floodgate::db::EventCursor;
use floodgate::domain::OrderState::{Paid, Paying, PendingPayment, TimedOut};
use floodgate::domain::{
    AttemptKey, ByOperator, Payment, PaymentEvent, PaymentOutcome, PaymentRecorded, PaymentReport,
    PaymentState, RefundResult, RetakeEnd, SkuDraft, StartedPayment,
};

use super::life::{EXTENSION_MS, Shop, WINDOW_MS, paid, report};
use super::{Backend, NOW_MS};
use crate::support::offers::{ANY, ONE, sku_draft};

/// A report of a second payment under the same attempt.
fn beside(payment: &Payment, event_id: &str, said: PaymentReport) -> PaymentEvent {
    PaymentEvent { payment_id: "second".to_owned(), ..report(payment, event_id, said) }
}

async fn outcome(shop: &Shop, event: PaymentEvent) -> PaymentOutcome {
    match shop.ledger.record_payment(event).await.unwrap() {
        PaymentRecorded::Recorded(outcome, _) => outcome,
        PaymentRecorded::Known => panic!("recorded before"),
    }
}

/// Number and state of the payments of the order.
async fn payments(shop: &Shop, of: &Payment) -> Vec<(u16, PaymentState)> {
    let all = shop.ledger.payments_of(vec![of.key.order]).await.unwrap();
    all.iter().map(|payment| (payment.key.no, payment.state)).collect()
}

async fn started(shop: &Shop, payment: &Payment) {
    let payment_id = format!("pay-{}-{}", payment.key.order.request, payment.key.no);
    let answer = StartedPayment { payment_id, url: "https://pay".to_owned() };
    shop.ledger.payment_started(payment.key, answer).await.unwrap();
}

pub async fn a_second_charge_of_one_attempt_is_paid_back(backend: &dyn Backend) {
    use PaymentState::{Applied, Closed, RefundDue, Refunded};
    let shop = Shop::open(backend, ONE).await;
    let key = shop.place(1, 1, 2).await;
    let (_, payment) = shop.open_payment(key).await;
    started(&shop, &payment).await;
    let nothing = beside(&payment, "nothing", PaymentReport::Closed);
    assert_eq!(outcome(&shop, nothing).await, PaymentOutcome::Unchanged);
    assert_eq!(shop.order(key).await.state, Paying, "the first payment is still open");
    assert_eq!(
        outcome(&shop, report(&payment, "e1", paid(&payment))).await,
        PaymentOutcome::Applied
    );
    let twice = outcome(&shop, beside(&payment, "e2", paid(&payment))).await;
    assert_eq!(twice, PaymentOutcome::Duplicate);
    assert_eq!(payments(&shop, &payment).await, [(1, Applied), (2, RefundDue)]);
    assert_eq!(shop.refunds().await, [(1, 500)]);
    let again = outcome(&shop, beside(&payment, "e3", paid(&payment))).await;
    assert_eq!(again, PaymentOutcome::Unchanged, "it is known by now");
    let second = AttemptKey { no: 2, ..payment.key };
    shop.ledger.refund_result(second, RefundResult::Done).await.unwrap();
    assert_eq!(payments(&shop, &payment).await, [(1, Applied), (2, Refunded)]);
    assert_eq!(shop.order(key).await.state, Paid);

    // The second payment is the one that was paid.
    let key = shop.place(2, 2, 1).await;
    let (_, payment) = shop.open_payment(key).await;
    started(&shop, &payment).await;
    let mut event = beside(&payment, "e4", paid(&payment));
    event.payment_id = "third".to_owned();
    assert_eq!(outcome(&shop, event).await, PaymentOutcome::Applied);
    assert_eq!(shop.order(key).await.state, Paid);
    let closed = report(&payment, "e5", PaymentReport::Closed);
    assert_eq!(outcome(&shop, closed).await, PaymentOutcome::Closed);
    assert_eq!(payments(&shop, &payment).await, [(1, Closed), (2, Applied)]);
    shop.holds().await;
}

pub async fn a_paying_order_keeps_its_attempt_beside_other_money(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    let key = shop.place(1, 1, 2).await;
    let (_, payment) = shop.open_payment(key).await;
    started(&shop, &payment).await;
    let mut little = payment.price;
    little.amount = 1;
    let event = beside(&payment, "e1", PaymentReport::Succeeded(little));
    assert_eq!(outcome(&shop, event).await, PaymentOutcome::Mismatch);
    let (order, open) = shop.open_payment(key).await;
    assert_eq!((order.state, open.key.no), (Paying, 1), "the same attempt is open");
    let closed = report(&payment, "e2", PaymentReport::Closed);
    assert_eq!(outcome(&shop, closed).await, PaymentOutcome::Closed);
    assert_eq!(shop.order(key).await.state, PendingPayment);
    assert_eq!(shop.open_payment(key).await.1.key.no, 3);
    assert_eq!(shop.refunds().await, [(1, 1)]);
    shop.holds().await;
}

pub async fn a_report_before_its_payment_is_matched_later(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    let key = shop.place(1, 1, 2).await;
    let (_, payment) = shop.open_payment(key).await;
    let unnamed = PaymentEvent { attempt: None, ..report(&payment, "e1", paid(&payment)) };
    let stranger = PaymentEvent {
        payment_id: "pay-9-9".to_owned(),
        attempt: Some(AttemptKey { no: 7, ..payment.key }),
        ..report(&payment, "e2", paid(&payment))
    };
    for event in [&unnamed, &stranger] {
        assert_eq!(outcome(&shop, event.clone()).await, PaymentOutcome::Unmatched);
        shop.pass(1);
    }
    let ledger = &shop.ledger;
    let waiting = ledger.unmatched_events(false, None, 9).await.unwrap();
    assert_eq!(waiting.iter().map(|it| &it.event).collect::<Vec<_>>(), [&unnamed, &stranger]);
    assert_eq!((waiting[0].at_ms, waiting[1].at_ms), (NOW_MS, NOW_MS + 1));
    let after = Some(EventCursor { at_ms: NOW_MS, event_id: "e1".to_owned() });
    assert_eq!(ledger.unmatched_events(false, after, 9).await.unwrap(), waiting[1..]);
    assert_eq!(ledger.matchable_events(0, 9).await.unwrap(), []);

    let again = |event_id: &str| ledger.match_event("demo".to_owned(), event_id.to_owned());
    let unmatched = PaymentRecorded::Recorded(PaymentOutcome::Unmatched, None);
    assert_eq!(again("e1").await.unwrap(), Some(unmatched));
    assert_eq!(again("e3").await.unwrap(), None);
    started(&shop, &payment).await;
    assert_eq!(ledger.matchable_events(NOW_MS + 1, 9).await.unwrap(), [], "too old");
    assert_eq!(ledger.matchable_events(NOW_MS, 9).await.unwrap(), waiting[..1]);
    let (one, other) = tokio::join!(again("e1"), again("e1"));
    let mut outcomes = [one, other].map(|recorded| recorded.unwrap().unwrap().outcome());
    outcomes.sort_unstable();
    assert_eq!(outcomes, [PaymentOutcome::Applied, PaymentOutcome::Unchanged], "once");
    assert_eq!(shop.order(key).await.state, Paid);
    assert_eq!(ledger.matchable_events(0, 9).await.unwrap(), []);
    assert_eq!(ledger.unmatched_events(false, None, 9).await.unwrap(), waiting[1..]);
    shop.holds().await;
}

pub async fn a_resolved_report_waits_no_longer_and_is_not_matched(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    let key = shop.place(1, 1, 2).await;
    let (_, payment) = shop.open_payment(key).await;
    let event = PaymentEvent { attempt: None, ..report(&payment, "e1", paid(&payment)) };
    assert_eq!(outcome(&shop, event).await, PaymentOutcome::Unmatched);
    let ledger = &shop.ledger;
    let waiting = ledger.unmatched_events(false, None, 9).await.unwrap();
    assert_eq!(ledger.num_unmatched_events().await.unwrap(), (1, 0));
    let by = |name: &str| ByOperator { name: name.to_owned(), reason: Some("refunded".to_owned()) };
    let resolve = |event: &str, by| ledger.resolve_event("demo".to_owned(), event.to_owned(), by);
    assert_eq!(resolve("e2", by("anna")).await.unwrap(), None);
    let (one, other) = tokio::join!(resolve("e1", by("anna")), resolve("e1", by("anna")));
    let mut outcomes = [one.unwrap(), other.unwrap()];
    outcomes.sort_unstable();
    assert_eq!(outcomes, [Some(false), Some(true)], "once");
    assert_eq!(ledger.unmatched_events(false, None, 9).await.unwrap(), []);
    assert_eq!(ledger.unmatched_events(true, None, 9).await.unwrap(), waiting);
    assert_eq!(ledger.num_unmatched_events().await.unwrap(), (0, 1));
    let verbs = ledger.verbs(None, None, 9).await.unwrap();
    assert_eq!(verbs.len(), 1);
    let (no, verb) = verbs[0].clone();
    assert_eq!((verb.subject.as_str(), verb.verb.as_str()), ("payment:event:demo:e1", "resolve"));
    assert_eq!((verb.by, verb.at_ms), (by("anna"), NOW_MS));
    assert_eq!(ledger.verbs(None, Some(no), 9).await.unwrap(), []);
    assert_eq!(ledger.verbs(Some("sale:sale".to_owned()), None, 9).await.unwrap(), []);

    // Its payment is known by now; the report stays as the operator left it.
    started(&shop, &payment).await;
    assert_eq!(ledger.matchable_events(0, 9).await.unwrap(), []);
    let again = ledger.match_event("demo".to_owned(), "e1".to_owned()).await.unwrap();
    assert_eq!(again, Some(PaymentRecorded::Known));
    assert_eq!(shop.order(key).await.state, Paying);
    let applied = report(&payment, "e3", paid(&payment));
    assert_eq!(outcome(&shop, applied).await, PaymentOutcome::Applied);
    assert_eq!(resolve("e3", by("anna")).await.unwrap(), None, "it has had its effect");
    shop.holds().await;
}

pub async fn payments_in_doubt_are_those_that_no_deadline_ends(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    let mut opened = Vec::new();
    for number in 1..=5 {
        let key = shop.place(number, number, 1).await;
        opened.push(shop.open_payment(key).await.1);
    }
    let in_doubt = async |after, limit| -> Vec<(AttemptKey, _)> {
        let page = shop.ledger.payments_in_doubt(i64::MAX, after, limit).await.unwrap();
        page.iter().map(|(order, payment)| (payment.key, order.state)).collect()
    };
    assert_eq!(in_doubt(None, 9).await, [], "their orders wait for them");
    let due_ms = shop.order(opened[0].key.order).await.due_ms.unwrap();
    for (due_by_ms, num) in [(due_ms, 0), (due_ms - 1, 5)] {
        let page = shop.ledger.payments_in_doubt(due_by_ms, None, 9).await.unwrap();
        assert_eq!(page.len(), num, "the deadline is later");
    }
    // The second attempt stays open although the first one pays the order after all.
    let closed = report(&opened[0], "e1", PaymentReport::Closed);
    assert_eq!(outcome(&shop, closed).await, PaymentOutcome::Closed);
    let second = shop.open_payment(opened[0].key.order).await.1;
    let late = report(&opened[0], "e2", paid(&opened[0]));
    assert_eq!(outcome(&shop, late).await, PaymentOutcome::Applied);
    assert_eq!(in_doubt(None, 9).await, [(second.key, Paid)]);
    shop.pass(WINDOW_MS + EXTENSION_MS);
    let ended: Vec<_> = opened[1..4].iter().map(|payment| payment.key.order).collect();
    assert_eq!(shop.end_due(&ended).await.len(), 3);
    let mut expected = vec![(second.key, Paid)];
    expected.extend(opened[1..4].iter().map(|payment| (payment.key, TimedOut)));
    assert_eq!(in_doubt(None, 9).await, expected);
    let mut pages = Vec::new();
    loop {
        let page = in_doubt(pages.last().map(|(key, _)| *key), 3).await;
        if page.is_empty() {
            break;
        }
        pages.extend(page);
    }
    assert_eq!(pages, expected);
}

pub async fn an_order_without_a_deadline_leaves_its_payment_in_doubt(backend: &dyn Backend) {
    let draft = SkuDraft { payment_window_s: 0, ..sku_draft("sku", ONE, 10) };
    let shop = Shop::with(backend, draft).await;
    let key = shop.place(1, 1, 1).await;
    let (paying, payment) = shop.open_payment(key).await;
    let in_doubt = shop.ledger.payments_in_doubt(i64::MAX, None, 9).await.unwrap();
    assert_eq!(in_doubt, [(paying, payment)]);
}

pub async fn a_refund_that_was_given_up_is_tried_again_on_demand(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    let mut late = Vec::new();
    for number in 1..=3 {
        let key = shop.place(number, number, 1).await;
        late.push(shop.open_payment(key).await.1);
    }
    shop.pass(WINDOW_MS + EXTENSION_MS);
    let keys: Vec<_> = late.iter().map(|payment| payment.key.order).collect();
    assert_eq!(shop.end_due(&keys).await.len(), 3);
    for payment in &late {
        let event_id = payment.key.to_string();
        shop.reported(payment, &event_id, paid(payment)).await;
        let refused = RetakeEnd::Refused("sold-out".into());
        shop.ledger.end_retake(payment.key, refused).await.unwrap();
        let failed = RefundResult::Failed { reason: "card closed".into() };
        shop.ledger.refund_result(payment.key, failed).await.unwrap();
    }
    let failed = async |after| {
        let state = PaymentState::RefundFailed;
        let page = shop.ledger.payments_in(state, after, 2).await.unwrap();
        page.into_iter().map(|listed| listed.payment.key).collect::<Vec<_>>()
    };
    assert_eq!(failed(None).await, [late[0].key, late[1].key]);
    assert_eq!(failed(Some(late[1].key)).await, [late[2].key]);
    let all = shop.ledger.payments_in(PaymentState::RefundFailed, None, 1).await.unwrap();
    let listed = &all[0];
    assert_eq!((listed.refund_attempts, listed.refund_due_ms), (1, None));
    assert_eq!(
        (listed.reason.as_deref(), listed.order_state),
        (Some("card closed"), Some(TimedOut))
    );

    assert_eq!(shop.refunds().await, []);
    assert!(shop.ledger.refund_again(late[1].key).await.unwrap());
    assert_eq!(failed(None).await, [late[0].key, late[2].key]);
    let now_ms = NOW_MS + WINDOW_MS + EXTENSION_MS;
    let due = shop.ledger.due_refunds(now_ms, 9).await.unwrap().remove(0);
    assert_eq!((due.key, due.attempts, due.money.amount), (late[1].key, 0, 250));
    let waits = RefundResult::Again { next_ms: now_ms + 5_000 };
    shop.ledger.refund_result(due.key, waits).await.unwrap();
    assert_eq!(shop.ledger.due_refunds(now_ms, 9).await.unwrap(), []);
    assert!(shop.ledger.refund_again(due.key).await.unwrap(), "now, not in 5 s");
    assert_eq!(shop.ledger.due_refunds(now_ms, 9).await.unwrap().len(), 1);
    shop.ledger.refund_result(due.key, RefundResult::Done).await.unwrap();
    assert!(!shop.ledger.refund_again(due.key).await.unwrap(), "refunded");
    let unknown = AttemptKey { no: 9, ..due.key };
    assert!(!shop.ledger.refund_again(unknown).await.unwrap());
    shop.holds().await;
}
