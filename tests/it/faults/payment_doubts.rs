//! Payments that no deadline brings up again, rows that cannot be changed, and clocks that stepped
//! for good.

use std::sync::Arc;
use std::time::Duration;

use floodgate::db::Ledger;
use floodgate::domain::OrderState::{Cancelled, Paid, Paying, PendingPayment, TimedOut};
use floodgate::domain::PaymentState::{Applied, Closed, RefundDue, Refunded, Started};
use floodgate::domain::{
    AttemptKey, OrderIntent, OrderKey, PaymentEvent, PaymentOutcome, PaymentRecorded,
    PaymentReport, RetakeEnd,
};
use floodgate::payment::demo::{DemoAction, DemoPress};
use floodgate::payment::{FindAnswer, PaymentProvider};
use floodgate::runtime::clock::Clock;

use super::payment_timer::{HOUR, Timed, WINDOW, deps};
use crate::support::offers::{assert_ledger_holds, buyer, intent, order_events, request, run};

const CALM: u64 = 300_000;
/// The wait until a provider that did not answer is asked about payments in doubt.
pub(super) const ASK_AGAIN: u64 = 60_000;

#[test]
fn money_of_a_payment_in_doubt_is_paid_back_although_its_webhook_is_lost() {
    run(async {
        let (timed, payment) = Timed::paying().await;
        timed.shop.loses_answers(true);
        timed.pass_after(WINDOW).await;
        timed.press(&payment, DemoAction::PayLate);
        let extension = u64::from(timed.shop.settings.extension_max_s) * 1_000;
        timed.pass_after(extension).await;
        timed.assert_order(TimedOut, Started, 10).await;
        // The provider is away for longer than a round.
        timed.pass_after(HOUR).await;
        timed.assert_order(TimedOut, Started, 10).await;
        timed.shop.loses_answers(false);
        timed.pass_after(ASK_AGAIN - 1).await;
        timed.assert_order(TimedOut, Started, 10).await;
        timed.pass_after(1).await;
        timed.assert_order(TimedOut, Refunded, 10).await;
    });
}

#[test]
fn an_attempt_that_another_one_overtook_is_stopped() {
    run(async {
        let (timed, first) = Timed::paying().await;
        timed.press(&first, DemoAction::Fail);
        let key = timed.shop.key().await;
        let closed = PaymentEvent {
            provider: "demo".to_owned(),
            event_id: "closed".to_owned(),
            payment_id: first.payment_id.clone(),
            attempt: None,
            report: PaymentReport::Closed,
        };
        timed.shop.service().record(closed).await.unwrap();
        let second = timed.shop.service().pay(key).await.unwrap().started;
        timed.press(&first, DemoAction::PayLate);
        assert_eq!(timed.receive(&first).await, PaymentOutcome::Applied);
        assert_eq!(timed.shop.payment_states().await, [Applied, Started]);
        timed.pass().await;
        assert_eq!(timed.shop.payment_states().await, [Applied, Closed]);
        let press = timed.shop.provider.inner.press(&second.payment_id, DemoAction::Pay);
        assert_eq!(press, DemoPress::NotPossible);
        assert_ledger_holds(&*timed.shop.ledger).await;
    });
}

#[test]
fn a_lost_webhook_of_an_order_without_a_near_deadline_is_found_within_the_hour() {
    for window_s in [0, 86_400] {
        run(async {
            let timed = Timed::open(window_s).await;
            let payment = timed.shop.service().pay(timed.shop.key().await).await.unwrap().started;
            timed.pass().await;
            timed.assert_order(Paying, Started, 9).await;
            timed.press(&payment, DemoAction::Pay);
            timed.pass_after(HOUR - 1).await;
            timed.assert_order(Paying, Started, 9).await;
            timed.pass_after(1).await;
            timed.assert_order(Paid, Applied, 9).await;
        });
    }
}

#[test]
fn a_webhook_before_the_answer_to_the_start_pays_the_order() {
    run(async {
        let timed = Timed::open(900).await;
        let key = timed.shop.key().await;
        timed.shop.loses_answers(true);
        timed.shop.service().pay(key).await.unwrap_err();
        timed.shop.loses_answers(false);
        let attempt = AttemptKey { order: key, no: 1 };
        let found = timed.shop.provider.find(attempt).await;
        let FindAnswer::Found { started, .. } = found else {
            panic!("{found:?}");
        };
        timed.press(&started, DemoAction::Pay);
        assert_eq!(timed.receive(&started).await, PaymentOutcome::Unmatched);
        timed.pass_after(10_000).await;
        timed.assert_order(Paying, Started, 9).await;
        // The buyer's repeat learns the payment.
        timed.shop.service().pay(key).await.unwrap();
        timed.pass_after(10_000).await;
        timed.assert_order(Paid, Applied, 9).await;
        assert_eq!(timed.shop.ledger.unmatched_events(false, None, 9).await.unwrap(), []);
    });
}

/// Orders of two further buyers, who ask now.
pub(super) async fn two_more(timed: &Timed) -> Vec<OrderKey> {
    let sku = timed.shop.ledger.sales().await.unwrap()[0].skus[0].clone();
    let placed_at_ms = timed.clock.wall_ms();
    let asked = |number| OrderIntent { placed_at_ms, ..intent(&sku, number, number, 1) };
    let batch: Vec<_> = (2..=3).map(asked).collect();
    assert!(timed.shop.ledger.place(batch).await.unwrap().is_some());
    let key = |number| OrderKey { sku: sku.no, buyer: buyer(number), request: request(number) };
    vec![key(2), key(3)]
}

#[test]
fn orders_that_cannot_be_ended_hide_no_others() {
    run(async {
        let mut timed = Timed::open(900).await;
        two_more(&timed).await;
        timed.shop.damage(
            "UPDATE orders SET sku_no = 999, due_ms = due_ms - 10 WHERE buyer_id IN (2, 3)",
        );
        timed.shop.settings.batch = 2;
        timed.deps = deps(&timed.shop, timed.clock.clone());
        timed.pass_after(WINDOW).await;
        assert_eq!(timed.deps.metrics.orders_timed_out.get(), 1);
        assert_eq!(timed.shop.state().await, TimedOut);
    });
}

#[test]
fn an_unreadable_row_delays_no_other_order() {
    run(async {
        let timed = Timed::open(900).await;
        two_more(&timed).await;
        timed.shop.damage("UPDATE orders SET version = 100000 WHERE buyer_id = 2");
        timed.pass_after(WINDOW).await;
        assert_eq!(timed.deps.metrics.orders_timed_out.get(), 2);
        assert_eq!(timed.shop.state().await, TimedOut);
    });
}

#[test]
fn payments_and_orders_that_cannot_be_read_hide_no_payment_in_doubt() {
    run(async {
        let timed = Timed::open(0).await;
        for key in two_more(&timed).await.into_iter().chain([timed.shop.key().await]) {
            timed.shop.service().pay(key).await.unwrap();
        }
        timed.shop.damage(
            "UPDATE orders SET due_ms = NULL; \
             UPDATE payments SET currency = 'x' WHERE buyer_id = 1; \
             UPDATE orders SET version = 100000 WHERE buyer_id = 2",
        );
        let in_doubt = timed.shop.ledger.payments_in_doubt(i64::MAX, None, 1).await.unwrap();
        let buyers = in_doubt.iter().map(|(order, _)| order.buyer);
        assert_eq!(buyers.collect::<Vec<_>>(), [buyer(3)]);
        let listed = timed.shop.ledger.payments_in(Started, None, 2).await.unwrap();
        let buyers = listed.iter().map(|listed| listed.payment.key.order.buyer);
        assert_eq!(buyers.collect::<Vec<_>>(), [buyer(2), buyer(3)]);
    });
}

#[test]
fn a_refund_whose_order_is_missing_delays_no_other() {
    run(async {
        let (mut timed, first) = Timed::paying().await;
        let key = two_more(&timed).await.remove(0);
        let second = timed.shop.service().pay(key).await.unwrap().started;
        // One call at once.
        timed.shop.settings.calls_max = 2;
        timed.shop.settings.batch = 1;
        timed.deps = deps(&timed.shop, timed.clock.clone());
        timed.pass_after(WINDOW).await;
        for (number, payment) in [first, second].into_iter().enumerate() {
            timed.press(&payment, DemoAction::PayLate);
            let money = timed.shop.ledger.payments_of(vec![key]).await.unwrap()[0].price;
            let event = PaymentEvent {
                provider: "demo".to_owned(),
                event_id: format!("late{number}"),
                payment_id: payment.payment_id,
                attempt: None,
                report: PaymentReport::Succeeded(money),
            };
            let recorded = timed.shop.service().record(event).await.unwrap();
            assert!(matches!(recorded, PaymentRecorded::Recorded(PaymentOutcome::Late, _)));
            let refused = RetakeEnd::Refused("sold-out".into());
            let order = if number == 0 { timed.shop.key().await } else { key };
            timed.shop.ledger.end_retake(AttemptKey { order, no: 1 }, refused).await.unwrap();
        }
        timed.shop.damage("DELETE FROM orders WHERE buyer_id = 1");
        timed.pass_after(1).await;
        let payments = timed.shop.ledger.payments_of(vec![timed.shop.key().await, key]).await;
        let states: Vec<_> = payments.unwrap().iter().map(|payment| payment.state).collect();
        assert_eq!(states, [RefundDue, Refunded]);
    });
}

#[test]
fn a_feed_whose_orders_are_missing_goes_on() {
    run(async {
        let timed = Timed::open(900).await;
        let keys = two_more(&timed).await;
        let ledger = &timed.shop.ledger;
        for key in &keys {
            ledger.cancel(*key).await.unwrap();
        }
        while ledger.number_events(9).await.unwrap() > 0 {}
        timed.shop.damage("DELETE FROM orders WHERE buyer_id <= 2");
        let events = order_events(&**ledger, 0, 1).await;
        let found: Vec<_> = events.iter().map(|event| (event.order.buyer, event.feed_no)).collect();
        assert_eq!(found, [(buyer(3), 3)], "a page of missing orders is not the end");
        let last = order_events(&**ledger, 3, 1).await;
        assert_eq!((last[0].order.state, last[0].feed_no), (Cancelled, 5));
        assert_eq!(ledger.events_after(5, 1).await.unwrap(), []);
        timed.shop.damage("DELETE FROM orders WHERE buyer_id = 3");
        assert_eq!(ledger.events_after(0, 2).await.unwrap(), []);
        let page = ledger.changes_after(0, 9).await.unwrap();
        assert_eq!((page.events, page.read_to), (vec![], 5), "a cursor passes them");
    });
}

#[test]
fn a_clock_that_stepped_for_good_ends_orders_again_and_none_before_its_time() {
    run(async {
        let timed = Timed::open(900).await;
        timed.clock.advance(Duration::from_millis(WINDOW - CALM - 10));
        timed.pass().await;
        // A wrong step, or the end of a suspension.
        let stepped_ms = timed.clock.wall_ms() + 3_600_000;
        timed.clock.set_wall_ms(stepped_ms);
        timed.pass().await;
        assert_eq!(timed.deps.metrics.clock_not_trusted.get(), 1);
        timed.clock.advance(Duration::from_millis(1));
        let after = two_more(&timed).await;
        timed.pass_after(CALM - 1).await;
        assert_eq!(timed.deps.metrics.clock_not_trusted.get(), 0);
        timed.pass_after(9).await;
        assert_eq!(timed.shop.state().await, PendingPayment, "its window has not passed");
        timed.pass_after(1).await;
        assert_eq!(timed.shop.state().await, TimedOut);
        // Those placed after the step have the same window.
        let states = async || {
            let ledger: &Arc<dyn Ledger> = &timed.shop.ledger;
            let mut states = Vec::new();
            for key in &after {
                states.push(ledger.orders_of(key.buyer, None, 1).await.unwrap()[0].state);
            }
            states
        };
        timed.pass_after(WINDOW - CALM - 10).await;
        assert_eq!(states().await, [PendingPayment; 2]);
        timed.pass_after(1).await;
        assert_eq!(states().await, [TimedOut; 2]);
        assert_ledger_holds(&*timed.shop.ledger).await;
    });
}
