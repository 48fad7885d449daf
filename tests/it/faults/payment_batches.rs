//! Batches of payments, reports and orders of which some cannot be decided: they hide no others,
//! and no order ends unasked.

use std::time::Duration;

use floodgate::actors::payment_timer::PaymentTimer;
use floodgate::actors::periodic::Task;
use floodgate::domain::OrderState::{Paid, Paying, TimedOut};
use floodgate::domain::PaymentState::{Applied, Refunded, Started};
use floodgate::domain::{
    AttemptKey, OrderKey, OrderState, PaymentEvent, PaymentOutcome, PaymentRecorded, PaymentReport,
    PaymentState, StartedPayment,
};
use floodgate::payment::demo::DemoAction;
use tokio::time::timeout;

use super::payment_doubts::{ASK_AGAIN, two_more};
use super::payment_timer::{Timed, WINDOW, deps};
use crate::support::offers::{intent, run};
use crate::support::wait::DEADLINE;

/// A shop with two open payments, of which a pass asks about one. The second is due 1 ms later.
struct TwoPayments {
    timed: Timed,
    /// The second order.
    key: OrderKey,
    /// Its payment.
    payment: StartedPayment,
    /// Time from the placement until a pass asks about the first payment, in milliseconds.
    asked_after: u64,
    /// Of a payment that cannot be stopped, in milliseconds.
    extension: u64,
}

impl TwoPayments {
    async fn open() -> Self {
        let (mut timed, _) = Timed::paying().await;
        timed.clock.advance(Duration::from_millis(1));
        let key = two_more(&timed).await.remove(0);
        let payment = timed.shop.service().pay(key).await.unwrap().started;
        let settings = &mut timed.shop.settings;
        (settings.batch, settings.calls_max) = (1, 2);
        let asked_after = WINDOW - u64::from(settings.paying_window_s) * 500;
        let extension = u64::from(settings.extension_max_s) * 1_000;
        timed.deps = deps(&timed.shop, timed.clock.clone());
        Self { timed, key, payment, asked_after, extension }
    }

    /// The provider of the first payment is no longer configured, and is never asked.
    fn lose_first_provider(&self) {
        self.timed.shop.damage("UPDATE payments SET provider = 'other' WHERE buyer_id = 1");
    }

    /// The states of the second order and its payment.
    async fn second(&self) -> (OrderState, PaymentState) {
        let ledger = &self.timed.shop.ledger;
        let order = ledger.order(self.key).await.unwrap().unwrap();
        let payments = ledger.payments_of(vec![self.key]).await.unwrap();
        (order.state, payments[0].state)
    }
}

#[test]
fn an_order_past_its_last_extension_ends_only_after_its_provider_was_asked() {
    run(async {
        let two = TwoPayments::open().await;
        let timed = &two.timed;
        timed.press(&two.payment, DemoAction::Pay);
        timed.shop.loses_answers(true);
        // From then on the first payment waits, and a pass reads both orders.
        timed.pass_after(two.asked_after - 1).await;
        timed.pass_after(WINDOW - two.asked_after + two.extension + 1).await;
        assert_eq!(timed.shop.state().await, TimedOut, "the provider was asked to stop it");
        assert_eq!(two.second().await, (Paying, Started));
        timed.shop.loses_answers(false);
        timed.pass_after(1).await;
        assert_eq!(two.second().await, (Paid, Applied));
    });
}

#[test]
fn a_payment_that_waits_for_its_next_question_hides_no_other() {
    run(async {
        let two = TwoPayments::open().await;
        two.lose_first_provider();
        two.timed.press(&two.payment, DemoAction::Pay);
        two.timed.pass_after(two.asked_after).await;
        assert_eq!(two.second().await, (Paying, Started), "a pass asks about one");
        two.timed.pass_after(1).await;
        assert_eq!(two.second().await, (Paid, Applied));
    });
}

#[test]
fn a_payment_in_doubt_of_a_provider_that_is_away_hides_no_other() {
    run(async {
        let two = TwoPayments::open().await;
        let timed = &two.timed;
        two.lose_first_provider();
        timed.shop.loses_answers(true);
        // The first pass asks about the first payment in doubt, the second pass ends the second
        // order.
        timed.pass_after(WINDOW + two.extension).await;
        timed.pass_after(1).await;
        assert_eq!((timed.shop.state().await, two.second().await), (TimedOut, (TimedOut, Started)));
        timed.shop.loses_answers(false);
        timed.press(&two.payment, DemoAction::PayLate);
        timed.pass_after(ASK_AGAIN).await;
        assert_eq!(two.second().await, (TimedOut, Refunded));
    });
}

#[test]
fn a_report_that_the_ledger_refuses_delays_no_other() {
    run(async {
        let timed = Timed::open(900).await;
        let second = two_more(&timed).await.remove(0);
        let ledger = &timed.shop.ledger;
        timed.shop.loses_answers(true);
        for (number, key) in [timed.shop.key().await, second].into_iter().enumerate() {
            timed.shop.service().pay(key).await.unwrap_err();
            let payment_id = format!("payment-{number}");
            let price = ledger.payments_of(vec![key]).await.unwrap()[0].price;
            let event = PaymentEvent {
                provider: "demo".to_owned(),
                event_id: format!("report-{number}"),
                payment_id: payment_id.clone(),
                attempt: None,
                report: PaymentReport::Succeeded(price),
            };
            let recorded = timed.shop.service().record(event).await.unwrap();
            assert_eq!(recorded, PaymentRecorded::Recorded(PaymentOutcome::Unmatched, None));
            // From then on the payment is known.
            let started = StartedPayment { payment_id, url: "https://pay".to_owned() };
            ledger.payment_started(AttemptKey { order: key, no: 1 }, started).await.unwrap();
        }
        timed.shop.damage("UPDATE payments SET currency = '?' WHERE buyer_id = 1");
        timed.pass().await;
        let paid = ledger.order(second).await.unwrap().unwrap();
        assert_eq!((timed.shop.state().await, paid.state), (Paying, Paid));
    });
}

#[test]
fn a_run_ends_although_more_orders_than_it_reads_again_cannot_be_ended() {
    run(async {
        let mut timed = Timed::open(900).await;
        timed.shop.damage("UPDATE skus SET initial_stock = 20, available = available + 10");
        let sku = timed.shop.ledger.sales().await.unwrap()[0].skus[0].clone();
        let batch = (2..=12).map(|number| intent(&sku, number, number, 1)).collect();
        assert!(timed.shop.ledger.place(batch).await.unwrap().is_some());
        timed.shop.damage("UPDATE orders SET sku_no = 999");
        timed.shop.settings.batch = 1;
        timed.deps = deps(&timed.shop, timed.clock.clone());
        timed.clock.advance(Duration::from_millis(WINDOW));
        let timer = PaymentTimer(timed.deps.clone());
        timeout(DEADLINE, timer.run(&())).await.expect("the end of the run").unwrap();
        assert_eq!(timed.deps.metrics.orders_timed_out.get(), 0);
    });
}
