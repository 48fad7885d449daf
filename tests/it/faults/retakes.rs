//! Late money that buys again: refusals, gates that do not answer, and crashes between the steps.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use floodgate::actors::payment_timer::retaker::{Purchase, Repurchase};
use floodgate::actors::payment_timer::{RefundWorker, Retaker};
use floodgate::actors::periodic::Task;
use floodgate::config::LatePayment;
use floodgate::db::Ledger;
use floodgate::domain::{
    Order, OrderIntent, OrderKey, OrderState, PaymentEvent, PaymentOutcome, PaymentRecorded,
    PaymentReport, PaymentState, RequestId, Sku,
};
use floodgate::observe::metrics::OutcomeLabel;
use floodgate::payment::demo::DemoAction;
use floodgate::runtime::clock::Clock;

use super::payment_timer::{Timed, WINDOW};
use crate::support::offers::{assert_ledger_holds, intent, request, run};

/// The number of the request that buys again.
const SUCCESSOR: u64 = 77;

/// Refuses every purchase.
pub(super) struct SoldOut;

#[async_trait]
impl Repurchase for SoldOut {
    fn successor(&self, _: &Order) -> Option<RequestId> {
        RequestId::new(SUCCESSOR)
    }

    async fn buy(&self, _: &Order, _: RequestId) -> Purchase {
        Purchase::Refused("sold-out".to_owned())
    }
}

impl SoldOut {
    pub fn retaker(timed: &Timed) -> Retaker {
        retaker(timed, Arc::new(Self), |_| ())
    }
}

/// Places the order, and answers as it is told.
struct Selling {
    ledger: Arc<dyn Ledger>,
    sku: Arc<Sku>,
    answer: Purchase,
}

#[async_trait]
impl Repurchase for Selling {
    fn successor(&self, _: &Order) -> Option<RequestId> {
        RequestId::new(SUCCESSOR)
    }

    async fn buy(&self, order: &Order, successor: RequestId) -> Purchase {
        let repeat = intent(&self.sku, successor.get(), order.buyer.get(), order.quantity);
        // `None`: placed before.
        let _placed = self.ledger.place(vec![repeat]).await.unwrap();
        self.answer.clone()
    }
}

/// Accepts nothing, or accepts and does not decide.
struct Silent(Purchase);

#[async_trait]
impl Repurchase for Silent {
    fn successor(&self, _: &Order) -> Option<RequestId> {
        RequestId::new(SUCCESSOR)
    }

    async fn buy(&self, _: &Order, _: RequestId) -> Purchase {
        self.0.clone()
    }
}

fn retaker(
    timed: &Timed,
    shop: Arc<dyn Repurchase>,
    change: impl FnOnce(&mut floodgate::config::PaymentSettings),
) -> Retaker {
    let mut settings = timed.shop.settings.clone();
    change(&mut settings);
    Retaker {
        ledger: timed.shop.ledger.clone(),
        shop,
        settings,
        changed: Arc::new(|| ()),
        clock: timed.clock.clone(),
        metrics: timed.deps.metrics.clone(),
    }
}

/// An order that timed out, and whose money arrived a moment later.
async fn late() -> Timed {
    let (timed, payment) = Timed::paying().await;
    timed.pass_after(WINDOW).await;
    timed.press(&payment, DemoAction::PayLate);
    assert_eq!(timed.receive(&payment).await, PaymentOutcome::Late);
    assert_eq!(timed.shop.payment_states().await, [PaymentState::Retaking]);
    timed
}

async fn selling(timed: &Timed, answer: Purchase) -> Arc<Selling> {
    let sku = timed.shop.ledger.sales().await.unwrap()[0].skus[0].clone();
    Arc::new(Selling { ledger: timed.shop.ledger.clone(), sku, answer })
}

async fn successor_states(timed: &Timed) -> Vec<PaymentState> {
    let key = OrderKey { request: request(SUCCESSOR), ..timed.shop.key().await };
    let payments = timed.shop.ledger.payments_of(vec![key]).await.unwrap();
    payments.into_iter().map(|payment| payment.state).collect()
}

fn counted(timed: &Timed, outcome: &'static str) -> u64 {
    timed.deps.metrics.late_payments.get_or_create(&OutcomeLabel { outcome }).get()
}

/// Crash point `retake_placed_not_paid`.
#[test]
fn a_purchase_placed_before_a_crash_is_paid_once() {
    run(async {
        let timed = late().await;
        // The process ends before it hears that the order was placed.
        let crashes = retaker(&timed, selling(&timed, Purchase::Queued).await, |_| ());
        crashes.run(&Cell::default()).await.unwrap();
        assert_eq!(timed.shop.payment_states().await, [PaymentState::Retaking]);
        assert_eq!((timed.left().await, timed.deps.metrics.retakes_waiting.get()), (9, 1));
        let shop = selling(&timed, Purchase::Placed).await;
        let (one, other) = (retaker(&timed, shop.clone(), |_| ()), retaker(&timed, shop, |_| ()));
        let states = [Cell::default(), Cell::default()];
        let (first, second) = tokio::join!(one.run(&states[0]), other.run(&states[1]));
        first.and(second).unwrap();
        one.run(&Cell::default()).await.unwrap();
        assert_eq!(timed.shop.payment_states().await, [PaymentState::Closed]);
        assert_eq!(successor_states(&timed).await, [PaymentState::Applied]);
        let orders = timed.shop.ledger.orders_of(timed.shop.key().await.buyer, None, 9).await;
        let mut states: Vec<_> = orders.unwrap().iter().map(|order| order.state).collect();
        states.sort_by_key(|state| state.name());
        assert_eq!(states, [OrderState::Paid, OrderState::TimedOut]);
        assert_eq!((timed.left().await, counted(&timed, "retaken")), (9, 1));
        assert_eq!(timed.deps.metrics.retakes_waiting.get(), 0);
        assert_ledger_holds(&*timed.shop.ledger).await;
    });
}

#[test]
fn money_that_no_gate_decides_about_is_paid_back_in_time() {
    run(async {
        let timed = late().await;
        let away = retaker(&timed, Arc::new(Silent(Purchase::NotAccepted)), |_| ());
        let within = Duration::from_secs(u64::from(timed.shop.settings.retake_within_s));
        away.run(&Cell::default()).await.unwrap();
        timed.clock.advance(within.checked_sub(Duration::from_millis(1)).unwrap());
        away.run(&Cell::default()).await.unwrap();
        RefundWorker(timed.deps.clone()).run(&()).await.unwrap();
        assert_eq!(timed.shop.payment_states().await, [PaymentState::Retaking], "not yet");
        timed.clock.advance(Duration::from_millis(1));
        away.run(&Cell::default()).await.unwrap();
        assert_eq!(timed.shop.payment_states().await, [PaymentState::RefundDue]);
        assert_eq!(counted(&timed, "refund_due"), 1);
        RefundWorker(timed.deps.clone()).run(&()).await.unwrap();
        assert_eq!(timed.shop.payment_states().await, [PaymentState::Refunded]);
        assert_ledger_holds(&*timed.shop.ledger).await;
    });
}

#[test]
fn a_purchase_that_was_accepted_is_waited_for() {
    run(async {
        let timed = late().await;
        let waits = retaker(&timed, Arc::new(Silent(Purchase::Queued)), |_| ());
        timed.clock.advance(Duration::from_secs(86_400));
        waits.run(&Cell::default()).await.unwrap();
        assert_eq!(timed.shop.payment_states().await, [PaymentState::Retaking]);
        assert_eq!(timed.deps.metrics.retakes_waiting.get(), 1);
    });
}

/// Late money of 23 buyers, of whom ten at a time have an order.
async fn many_late() -> (Timed, Vec<OrderKey>) {
    let timed = Timed::open(900).await;
    let shop = &timed.shop;
    let sku = shop.ledger.sales().await.unwrap()[0].skus[0].clone();
    let (mut keys, mut payments) = (vec![shop.key().await], Vec::new());
    for buyers in [2..=8, 9..=16, 17..=23] {
        let placed_at_ms = timed.clock.wall_ms();
        let asked = |number| OrderIntent { placed_at_ms, ..intent(&sku, number, number, 1) };
        let batch: Vec<_> = buyers.map(asked).collect();
        keys.extend(batch.iter().map(|it| OrderKey {
            sku: it.sku,
            buyer: it.buyer,
            request: it.request,
        }));
        assert!(shop.ledger.place(batch).await.unwrap().is_some());
        for key in &keys[payments.len()..] {
            payments.push(shop.service().pay(*key).await.unwrap().started);
        }
        timed.pass_after(WINDOW).await;
    }
    let money = shop.ledger.payments_of(vec![keys[0]]).await.unwrap()[0].price;
    for payment in payments {
        timed.press(&payment, DemoAction::PayLate);
        let event = PaymentEvent {
            provider: "demo".to_owned(),
            event_id: format!("late-{}", payment.payment_id),
            payment_id: payment.payment_id,
            attempt: None,
            report: PaymentReport::Succeeded(money),
        };
        let recorded = shop.service().record(event).await.unwrap();
        assert!(matches!(recorded, PaymentRecorded::Recorded(PaymentOutcome::Late, _)));
    }
    (timed, keys)
}

#[test]
fn damaged_late_money_delays_no_other() {
    run(async {
        let (timed, keys) = many_late().await;
        // The first two: one cannot be read, the other not be decided. A third has no readable
        // order.
        timed.shop.damage(
            "UPDATE payments SET received_currency = '?' WHERE buyer_id = 1; \
             UPDATE orders SET state = 0 WHERE buyer_id = 2; \
             UPDATE orders SET version = 100000 WHERE buyer_id = 3",
        );
        SoldOut::retaker(&timed).run(&Cell::default()).await.unwrap();
        let payments = timed.shop.ledger.payments_of(keys[3..].to_vec()).await.unwrap();
        let states: Vec<_> = payments.iter().map(|payment| payment.state).collect();
        assert_eq!(states, [PaymentState::RefundDue; 20]);
        assert_eq!(timed.deps.metrics.retakes_waiting.get(), 1);
    });
}

/// Accepts the purchases of the first buyers and does not decide, and refuses the others.
struct SilentForTen;

#[async_trait]
impl Repurchase for SilentForTen {
    fn successor(&self, _: &Order) -> Option<RequestId> {
        RequestId::new(SUCCESSOR)
    }

    async fn buy(&self, order: &Order, _: RequestId) -> Purchase {
        let refused = Purchase::Refused("sold-out".to_owned());
        if order.buyer.get() <= 10 { Purchase::Queued } else { refused }
    }
}

#[test]
fn late_money_whose_purchase_waits_hides_no_other() {
    run(async {
        let (timed, keys) = many_late().await;
        let retaker = retaker(&timed, Arc::new(SilentForTen), |settings| settings.batch = 2);
        let undecided = Cell::default();
        for _ in 0..12 {
            retaker.run(&undecided).await.unwrap();
        }
        let payments = timed.shop.ledger.payments_of(keys[10..].to_vec()).await.unwrap();
        let states: Vec<_> = payments.iter().map(|payment| payment.state).collect();
        assert_eq!(states, [PaymentState::RefundDue; 13]);
        assert_eq!(timed.deps.metrics.retakes_waiting.get(), 10);
    });
}

#[test]
fn late_money_is_paid_back_where_the_shop_wants_it_so() {
    run(async {
        let timed = late().await;
        let shop = selling(&timed, Purchase::Placed).await;
        let refunding = retaker(&timed, shop, |settings| {
            settings.late_payment = LatePayment::Refund;
        });
        refunding.run(&Cell::default()).await.unwrap();
        assert_eq!(timed.shop.payment_states().await, [PaymentState::RefundDue]);
        assert_eq!((timed.left().await, successor_states(&timed).await), (10, vec![]));
    });
}
