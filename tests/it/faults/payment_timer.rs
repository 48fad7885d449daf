//! Unpaid orders at their deadline, payments at that moment, lost answers, and wrong clocks.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use floodgate::actors::payment_timer::inquirer::Asked;
use floodgate::actors::payment_timer::{PaymentInquirer, PaymentTimer, RefundWorker, TimerDeps};
use floodgate::actors::periodic::Task;
use floodgate::domain::{
    AttemptKey, OrderState, PaymentEvent, PaymentOutcome, PaymentRecorded, PaymentReport,
    PaymentState, StartedPayment,
};
use floodgate::observe::metrics::Metrics;
use floodgate::payment::demo::{DemoAction, DemoPress};
use floodgate::payment::{FindAnswer, PaymentProvider, Refund};
use floodgate::runtime::clock::ManualClock;
use floodgate::services::trusted_time::TrustedTime;

use super::payments::Shop;
use super::retakes::SoldOut;
use crate::support::harness::START_MS;
use crate::support::offers::{assert_ledger_holds, buyer, intent, run};

/// Of the order, in milliseconds.
pub(super) const WINDOW: u64 = 900_000;
/// The wait between two questions, in milliseconds.
const ASK_AGAIN: u64 = 10_000;
const DAY: u64 = 86_400_000;
pub(super) const HOUR: u64 = 3_600_000;

/// A shop with one unpaid order, and the tasks of a process that maintains.
pub(super) struct Timed {
    pub shop: Shop,
    pub clock: Arc<ManualClock>,
    pub deps: Arc<TimerDeps>,
    asked: Asked,
}

impl Timed {
    pub async fn open(window_s: i32) -> Self {
        let clock = Arc::new(ManualClock::new(START_MS));
        let shop = Shop::open_with(clock.clone(), window_s).await;
        let deps = deps(&shop, clock.clone());
        Self { shop, clock, deps, asked: Asked::default() }
    }

    /// An order whose payment is open.
    pub async fn paying() -> (Self, StartedPayment) {
        let timed = Self::open(900).await;
        let key = timed.shop.key().await;
        let started = timed.shop.service().pay(key).await.unwrap().started;
        (timed, started)
    }

    /// One pass of each task, in the order in which they depend on each other. Nothing is for sale
    /// to late money.
    pub async fn pass(&self) {
        PaymentInquirer(self.deps.clone()).run(&self.asked).await.unwrap();
        PaymentTimer(self.deps.clone()).run(&()).await.unwrap();
        SoldOut::retaker(self).run(&Cell::default()).await.unwrap();
        RefundWorker(self.deps.clone()).run(&()).await.unwrap();
    }

    pub async fn pass_after(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
        self.pass().await;
    }

    pub fn press(&self, payment: &StartedPayment, action: DemoAction) {
        let press = self.shop.provider.inner.press(&payment.payment_id, action);
        assert_eq!(press, DemoPress::Done);
    }

    pub async fn left(&self) -> u32 {
        self.shop.ledger.available(self.shop.key().await.sku).await.unwrap()
    }

    pub async fn assert_order(&self, state: OrderState, payment: PaymentState, left: u32) {
        assert_eq!(self.shop.state().await, state);
        assert_eq!(self.shop.payment_states().await, [payment]);
        assert_eq!(self.left().await, left);
        assert_ledger_holds(&*self.shop.ledger).await;
    }

    /// What the provider reports of the payment.
    async fn report(&self) -> Option<PaymentReport> {
        let order = self.shop.key().await;
        let found = self.shop.provider.inner.find(AttemptKey { order, no: 1 }).await;
        let FindAnswer::Found { report, .. } = found else { panic!("{found:?}") };
        report
    }

    /// The webhook of money that arrived.
    pub async fn receive(&self, payment: &StartedPayment) -> PaymentOutcome {
        let report = self.report().await.unwrap();
        assert!(matches!(report, PaymentReport::Succeeded(_)), "{report:?}");
        let event = PaymentEvent {
            provider: "demo".to_owned(),
            event_id: "evt".to_owned(),
            payment_id: payment.payment_id.clone(),
            attempt: None,
            report,
        };
        match self.shop.service().record(event).await.unwrap() {
            PaymentRecorded::Recorded(outcome, _) => outcome,
            PaymentRecorded::Known => panic!("recorded before"),
        }
    }
}

pub(super) fn deps(shop: &Shop, clock: Arc<ManualClock>) -> Arc<TimerDeps> {
    let metrics = Arc::new(Metrics::default());
    let ledger = shop.ledger.clone();
    let skew_max_ms = shop.settings.clock_skew_max_ms;
    let time = TrustedTime::new(clock.clone(), ledger.clone(), metrics.clone(), skew_max_ms);
    let (orders, settings) = (shop.service(), shop.settings.clone());
    Arc::new(TimerDeps { orders, ledger, settings, time, clock, metrics })
}

#[test]
fn an_unpaid_order_ends_at_its_deadline_and_another_buyer_gets_its_unit() {
    run(async {
        let timed = Timed::open(900).await;
        timed.pass_after(WINDOW - 1).await;
        assert_eq!((timed.shop.state().await, timed.left().await), (OrderState::PendingPayment, 9));
        assert_eq!(timed.shop.num_signals.load(Ordering::SeqCst), 0);
        timed.pass_after(1).await;
        assert_eq!((timed.shop.state().await, timed.left().await), (OrderState::TimedOut, 10));
        assert_eq!(timed.shop.num_signals.load(Ordering::SeqCst), 1, "the buckets learn it");
        timed.pass_after(WINDOW).await;
        assert_eq!(timed.left().await, 10, "once");
        assert_eq!(timed.deps.metrics.orders_timed_out.get(), 1);
        let sku = timed.shop.ledger.sales().await.unwrap()[0].skus[0].clone();
        let batch = (2..=11).map(|buyer| intent(&sku, buyer, buyer, 1)).collect();
        assert!(timed.shop.ledger.place(batch).await.unwrap().is_some());
        assert_eq!(timed.left().await, 0);
        assert_ledger_holds(&*timed.shop.ledger).await;
    });
}

#[test]
fn more_due_orders_than_a_batch_end_in_one_pass() {
    run(async {
        let mut timed = Timed::open(900).await;
        let sku = timed.shop.ledger.sales().await.unwrap()[0].skus[0].clone();
        let batch = (2..=7).map(|buyer| intent(&sku, buyer, buyer, 1)).collect();
        assert!(timed.shop.ledger.place(batch).await.unwrap().is_some());
        timed.shop.settings.batch = 3;
        timed.deps = deps(&timed.shop, timed.clock.clone());
        timed.pass_after(WINDOW).await;
        assert_eq!((timed.left().await, timed.deps.metrics.orders_timed_out.get()), (10, 7));
        assert_ledger_holds(&*timed.shop.ledger).await;
    });
}

#[test]
fn an_order_without_a_deadline_never_ends() {
    run(async {
        let timed = Timed::open(0).await;
        timed.pass_after(400 * DAY).await;
        assert_eq!((timed.shop.state().await, timed.left().await), (OrderState::PendingPayment, 9));
        timed.shop.service().pay(timed.shop.key().await).await.unwrap();
        timed.pass_after(400 * DAY).await;
        timed.assert_order(OrderState::Paying, PaymentState::Started, 9).await;
    });
}

#[test]
fn a_payment_is_stopped_before_its_order_ends() {
    run(async {
        let (timed, payment) = Timed::paying().await;
        timed.pass_after(WINDOW - 1).await;
        timed.assert_order(OrderState::Paying, PaymentState::Started, 9).await;
        timed.pass_after(1).await;
        timed.assert_order(OrderState::TimedOut, PaymentState::Closed, 10).await;
        let press = timed.shop.provider.inner.press(&payment.payment_id, DemoAction::Pay);
        assert_eq!(press, DemoPress::NotPossible);
    });
}

#[test]
fn a_payment_whose_webhook_was_lost_is_found_after_half_of_its_window() {
    run(async {
        let (timed, payment) = Timed::paying().await;
        timed.press(&payment, DemoAction::Pay);
        let half = u64::from(timed.shop.settings.paying_window_s) * 500;
        timed.pass_after(WINDOW - half - 1).await;
        assert_eq!(timed.shop.state().await, OrderState::Paying);
        timed.shop.loses_answers(true);
        timed.pass_after(1).await;
        assert_eq!(timed.shop.state().await, OrderState::Paying);
        timed.shop.loses_answers(false);
        timed.pass_after(ASK_AGAIN).await;
        timed.assert_order(OrderState::Paid, PaymentState::Applied, 9).await;
    });
}

#[test]
fn money_before_the_stop_pays_the_order_although_answers_are_lost() {
    run(async {
        let (timed, payment) = Timed::paying().await;
        timed.shop.loses_answers(true);
        timed.clock.advance(Duration::from_millis(WINDOW - 1));
        timed.press(&payment, DemoAction::Pay);
        timed.pass_after(1).await;
        timed.assert_order(OrderState::Paying, PaymentState::Started, 9).await;
        assert_eq!(timed.deps.metrics.payments_in_doubt.get(), 1);
        timed.shop.loses_answers(false);
        timed.pass_after(1).await;
        assert_eq!(timed.shop.state().await, OrderState::Paying, "asked again after a wait only");
        timed.pass_after(ASK_AGAIN).await;
        timed.assert_order(OrderState::Paid, PaymentState::Applied, 9).await;
        assert_eq!(timed.deps.metrics.payments_in_doubt.get(), 0);
    });
}

#[test]
fn an_order_in_doubt_ends_after_the_last_extension_and_its_late_money_is_paid_back_once() {
    run(async {
        let (timed, payment) = Timed::paying().await;
        timed.shop.loses_answers(true);
        timed.pass_after(WINDOW).await;
        let extension = u64::from(timed.shop.settings.extension_max_s) * 1_000;
        timed.pass_after(extension - 1).await;
        timed.assert_order(OrderState::Paying, PaymentState::Started, 9).await;
        timed.pass_after(1).await;
        timed.assert_order(OrderState::TimedOut, PaymentState::Started, 10).await;
        assert_eq!(timed.deps.metrics.payments_in_doubt.get(), 0);

        timed.press(&payment, DemoAction::PayLate);
        assert_eq!(timed.receive(&payment).await, PaymentOutcome::Late);
        timed.pass().await;
        timed.assert_order(OrderState::TimedOut, PaymentState::RefundDue, 10).await;
        timed.shop.loses_answers(false);
        timed.pass_after(4_000).await;
        timed.assert_order(OrderState::TimedOut, PaymentState::RefundDue, 10).await;
        timed.pass_after(1_000).await;
        timed.assert_order(OrderState::TimedOut, PaymentState::Refunded, 10).await;
        let report = timed.report().await;
        assert!(matches!(report, Some(PaymentReport::Refunded { total: 250, .. })), "{report:?}");
        assert_eq!(timed.deps.metrics.refunds_done.get(), 1);
    });
}

#[test]
fn money_between_a_stop_and_its_lost_answer_pays_the_order() {
    run(async {
        let (timed, payment) = Timed::paying().await;
        timed.shop.loses_answers(true);
        timed.pass_after(WINDOW).await;
        assert_eq!(timed.report().await, Some(PaymentReport::Closed), "stopped");
        timed.clock.advance(Duration::from_millis(1));
        timed.press(&payment, DemoAction::PayLate);
        assert_eq!(timed.receive(&payment).await, PaymentOutcome::Applied);
        timed.shop.loses_answers(false);
        timed.pass_after(ASK_AGAIN).await;
        timed.assert_order(OrderState::Paid, PaymentState::Applied, 9).await;
    });
}

/// Crash point `refund_made_not_stored`.
#[test]
fn a_refund_made_before_a_crash_is_made_once() {
    run(async {
        let (timed, payment) = Timed::paying().await;
        timed.pass_after(WINDOW).await;
        timed.press(&payment, DemoAction::PayLate);
        assert_eq!(timed.receive(&payment).await, PaymentOutcome::Late);
        SoldOut::retaker(&timed).run(&Cell::default()).await.unwrap();
        let due = timed.shop.ledger.due_refunds(START_MS * 2, 9).await.unwrap().remove(0);
        let refund_id = format!("refund-{}", due.key);
        let refund = Refund { refund_id, payment_id: due.payment_id, amount: due.money.amount };
        timed.shop.provider.refund(refund).await;
        // Here the process crashed: the ledger does not know of it.
        timed.assert_order(OrderState::TimedOut, PaymentState::RefundDue, 10).await;
        // Two processes at once count and report it once.
        let workers = [(); 2].map(|()| RefundWorker(timed.deps.clone()));
        let (first, second) = tokio::join!(workers[0].run(&()), workers[1].run(&()));
        first.and(second).unwrap();
        assert_eq!(timed.deps.metrics.refunds_done.get(), 1);
        timed.assert_order(OrderState::TimedOut, PaymentState::Refunded, 10).await;
        let report = timed.report().await;
        assert!(matches!(report, Some(PaymentReport::Refunded { total: 250, .. })), "{report:?}");
    });
}

#[test]
fn a_refund_is_asked_only_of_the_provider_that_received_the_money() {
    run(async {
        let (timed, payment) = Timed::paying().await;
        timed.pass_after(WINDOW).await;
        timed.press(&payment, DemoAction::PayLate);
        assert_eq!(timed.receive(&payment).await, PaymentOutcome::Late);
        timed.shop.damage("UPDATE payments SET provider = 'former'");
        timed.pass().await;
        timed.assert_order(OrderState::TimedOut, PaymentState::RefundDue, 10).await;
        assert!(matches!(timed.report().await, Some(PaymentReport::Succeeded(_))));
        // The operator configures that provider again.
        timed.shop.damage("UPDATE payments SET provider = 'demo'");
        timed.pass_after(HOUR).await;
        timed.assert_order(OrderState::TimedOut, PaymentState::Refunded, 10).await;
    });
}

#[test]
fn a_refund_that_is_never_confirmed_is_given_up() {
    run(async {
        let (mut timed, payment) = Timed::paying().await;
        timed.shop.settings.refund_attempts_max = 3;
        timed.deps = deps(&timed.shop, timed.clock.clone());
        timed.pass_after(WINDOW).await;
        timed.press(&payment, DemoAction::PayLate);
        assert_eq!(timed.receive(&payment).await, PaymentOutcome::Late);
        timed.shop.loses_answers(true);
        for _ in 0..2 {
            timed.pass_after(HOUR).await;
            timed.assert_order(OrderState::TimedOut, PaymentState::RefundDue, 10).await;
        }
        timed.pass_after(HOUR).await;
        timed.assert_order(OrderState::TimedOut, PaymentState::RefundFailed, 10).await;
        timed.pass_after(HOUR).await;
        assert_eq!(timed.deps.metrics.refunds_failed.get(), 1);
    });
}

#[test]
fn a_clock_that_stepped_ends_nothing_until_it_is_back() {
    run(async {
        let (timed, _) = Timed::paying().await;
        timed.clock.set_wall_ms(START_MS + 3_600_000);
        for _ in 0..2 {
            timed.pass_after(1).await;
            timed.assert_order(OrderState::Paying, PaymentState::Started, 9).await;
            assert_eq!(timed.deps.metrics.clock_not_trusted.get(), 1);
        }
        timed.clock.set_wall_ms(START_MS + 2);
        timed.pass_after(WINDOW - 3).await;
        timed.assert_order(OrderState::Paying, PaymentState::Started, 9).await;
        assert_eq!(timed.deps.metrics.clock_not_trusted.get(), 0);
        timed.pass_after(1).await;
        timed.assert_order(OrderState::TimedOut, PaymentState::Closed, 10).await;
    });
}

#[test]
fn a_clock_that_differs_from_the_ledgers_ends_nothing() {
    run(async {
        let timed = Timed::open(900).await;
        // Another process, whose clock was wrong when it started.
        let wrong = Arc::new(ManualClock::new(START_MS + 3_600_000));
        let elsewhere = deps(&timed.shop, wrong);
        PaymentTimer(elsewhere.clone()).run(&()).await.unwrap();
        assert_eq!(elsewhere.metrics.clock_not_trusted.get(), 1);
        assert_eq!(timed.shop.state().await, OrderState::PendingPayment);
        timed.pass_after(WINDOW).await;
        assert_eq!(timed.shop.state().await, OrderState::TimedOut);
        assert_eq!(timed.shop.ledger.orders_of(buyer(1), None, 9).await.unwrap().len(), 1);
    });
}
