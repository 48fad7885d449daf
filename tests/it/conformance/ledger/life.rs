//! Deadlines, cancellations, limits and bars.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use floodgate::db::Ledger;
use floodgate::domain::OrderState::{Cancelled, Paid, Paying, PendingPayment, TimedOut};
use floodgate::domain::{
    CancelOutcome, OpenPayment, Order, OrderKey, OrderState, Payment, PaymentEvent, PaymentReport,
    PaymentTerms, Phase, Policy, Refusal, Sku, SkuDraft, SlotReturns,
};
use floodgate::runtime::clock::ManualClock;

use super::{Backend, NOW_MS};
use crate::support::offers::{
    ANY, ONE, assert_ledger_holds, intent, orders, quota, request, sale_draft, sku_draft,
};

pub const WINDOW_MS: i64 = 900_000;
pub const EXTENSION_MS: i64 = 100_000;

/// A ledger with a clock that a case moves, and a sale with one SKU of ten units.
pub struct Shop {
    pub ledger: Arc<dyn Ledger>,
    pub clock: Arc<ManualClock>,
    pub sku: Sku,
}

impl Shop {
    pub async fn open(backend: &dyn Backend, policy: Policy) -> Self {
        Self::with(backend, SkuDraft { bar_lapsed: false, ..sku_draft("sku", policy, 10) }).await
    }

    pub async fn with(backend: &dyn Backend, draft: SkuDraft) -> Self {
        let clock = Arc::new(ManualClock::new(NOW_MS));
        let ledger = backend.open_with(Arc::clone(&clock)).await;
        let sku = sale(&*ledger, "sale", vec![draft]).await.remove(0);
        Self { ledger, clock, sku }
    }

    pub fn pass(&self, ms: i64) {
        self.clock.advance(Duration::from_millis(ms.unsigned_abs()));
    }

    /// Places an order of the buyer.
    pub async fn place(&self, request_no: u64, buyer_no: u64, quantity: u32) -> OrderKey {
        let intent = intent(&self.sku, request_no, buyer_no, quantity);
        assert!(self.ledger.place(vec![intent]).await.unwrap().is_some());
        OrderKey { sku: self.sku.no, buyer: intent.buyer, request: intent.request }
    }

    /// The ledger's reason to refuse a purchase.
    pub async fn refusal(&self, request_no: u64, buyer_no: u64) -> Option<Refusal> {
        let intent = intent(&self.sku, request_no, buyer_no, 1);
        if self.ledger.place(vec![intent]).await.unwrap().is_some() {
            return None;
        }
        match self.ledger.examine(vec![intent]).await.unwrap().outcome_of(&intent) {
            Some(floodgate::domain::PlaceOutcome::Refused(refusal)) => Some(refusal),
            other => panic!("{other:?}"),
        }
    }

    pub async fn order(&self, key: OrderKey) -> Order {
        let all = orders(&*self.ledger, key.sku).await;
        all.into_iter().find(|order| order.key() == key).unwrap()
    }

    pub async fn left(&self) -> u32 {
        self.ledger.available(self.sku.no).await.unwrap()
    }

    pub async fn open_payment(&self, key: OrderKey) -> (Order, Payment) {
        let terms = PaymentTerms {
            provider: "demo".to_owned(),
            paying_window_ms: 60_000,
            extension_max_ms: EXTENSION_MS,
        };
        match self.ledger.open_payment(key, terms).await.unwrap() {
            OpenPayment::Open(order, payment) => (order, payment),
            other => panic!("{other:?}"),
        }
    }

    pub async fn end_due(&self, keys: &[OrderKey]) -> Vec<Order> {
        self.ledger.end_due(keys.to_vec(), EXTENSION_MS).await.unwrap()
    }

    async fn cancel(&self, key: OrderKey) -> CancelOutcome {
        self.ledger.cancel(key).await.unwrap()
    }

    /// Asserts that an audit of the ledger finds no violation.
    pub async fn holds(&self) {
        assert_ledger_holds(&*self.ledger).await;
    }
}

pub async fn sale(ledger: &dyn Ledger, id: &str, skus: Vec<SkuDraft>) -> Vec<Sku> {
    let sale = ledger.create_sale(sale_draft(id, skus), 1).await.unwrap().unwrap();
    ledger.set_sale_phase(sale.id, sale.epoch, Phase::Open, 1, None).await.unwrap();
    sale.skus.into_iter().map(Arc::unwrap_or_clone).collect()
}

/// A report of an attempt whose payment id is `pay-<request>-<attempt>`.
pub fn report(payment: &Payment, event_id: &str, report: PaymentReport) -> PaymentEvent {
    let key = payment.key;
    PaymentEvent {
        provider: "demo".to_owned(),
        event_id: event_id.to_owned(),
        payment_id: format!("pay-{}-{}", key.order.request, key.no),
        attempt: Some(key),
        report,
    }
}

pub async fn a_deadline_begins_at_the_commit(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    let key = shop.place(1, 1, 2).await;
    let order = shop.order(key).await;
    assert_ne!(order.placed_at_ms, NOW_MS);
    assert_eq!((order.pay_by_ms, order.due_ms), (Some(NOW_MS + WINDOW_MS), order.pay_by_ms));
    assert_eq!((order.version, order.counts_for_limit), (0, true));
    for (until_ms, expected) in [(NOW_MS + WINDOW_MS - 1, 0), (NOW_MS + WINDOW_MS, 1)] {
        let due = shop.ledger.due_orders(PendingPayment, until_ms, 9).await.unwrap();
        assert_eq!(due.len(), expected);
        assert!(due.iter().all(|due| due.order == order && due.open.is_none()));
    }
}

pub async fn an_unpaid_order_times_out_once(backend: &dyn Backend) {
    let mut shop = Shop::open(backend, ONE).await;
    for (policy, id) in [(ONE, "one"), (ANY, "any"), (quota(5), "quota")] {
        shop.clock.set_wall_ms(NOW_MS);
        let draft = SkuDraft { bar_lapsed: false, ..sku_draft("sku", policy, 10) };
        shop.sku = sale(&*shop.ledger, id, vec![draft]).await.remove(0);
        let key = shop.place(u64::try_from(shop.sku.no.0).unwrap(), 1, 2).await;
        assert_eq!(shop.left().await, 8);
        shop.pass(WINDOW_MS - 1);
        assert_eq!(shop.end_due(&[key]).await, [], "{id}: not due yet");
        shop.pass(1);
        let ended = shop.end_due(&[key]).await;
        let order = shop.order(key).await;
        assert_eq!(ended, [order], "{id}");
        assert_eq!((order.state, order.version, order.due_ms), (TimedOut, 1, None));
        assert_eq!((order.counts_for_limit, order.slot), (false, key.request.to_db()));
        assert_eq!(shop.left().await, 10, "{id}");
        assert_eq!(shop.end_due(&[key]).await, [], "{id}: ended already");
        assert_eq!(shop.left().await, 10, "{id}");
        assert_eq!(shop.ledger.due_orders(PendingPayment, i64::MAX, 9).await.unwrap(), []);
    }
    shop.holds().await;
}

pub async fn an_order_without_a_deadline_stays(backend: &dyn Backend) {
    let draft = SkuDraft { payment_window_s: 0, ..sku_draft("sku", ONE, 10) };
    let shop = Shop::with(backend, draft).await;
    let key = shop.place(1, 1, 1).await;
    let order = shop.order(key).await;
    assert_eq!((order.pay_by_ms, order.due_ms), (None, None));
    let (paying, _) = shop.open_payment(key).await;
    assert_eq!((paying.state, paying.due_ms), (Paying, None));
    shop.pass(1_000_000_000_000);
    assert_eq!(shop.ledger.due_orders(PendingPayment, i64::MAX, 9).await.unwrap(), []);
    assert_eq!(shop.end_due(&[key]).await, []);
    assert_eq!(shop.left().await, 9);
}

pub async fn a_paying_order_ends_after_the_limit_of_extensions(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    let key = shop.place(1, 1, 1).await;
    shop.pass(WINDOW_MS - 1);
    let (paying, payment) = shop.open_payment(key).await;
    let due_ms = NOW_MS + WINDOW_MS - 1 + 60_000;
    assert_eq!((paying.state, paying.version, paying.due_ms), (Paying, 1, Some(due_ms)));
    assert_eq!(shop.order(key).await, paying);
    shop.pass(60_000);
    let due = shop.ledger.due_orders(Paying, due_ms, 9).await.unwrap().remove(0);
    assert_eq!((due.order, due.open), (paying, Some(payment)));
    assert_eq!(shop.end_due(&[key]).await, [], "the provider was not asked to stop");
    shop.clock.set_wall_ms(NOW_MS + WINDOW_MS + EXTENSION_MS - 1);
    assert_eq!(shop.end_due(&[key]).await, []);
    shop.pass(1);
    assert_eq!(shop.end_due(&[key]).await.remove(0).state, TimedOut);
    assert_eq!(shop.left().await, 10);
    shop.holds().await;
}

pub async fn an_unpaid_order_is_cancelled_once(backend: &dyn Backend) {
    let shop = Shop::open(backend, quota(3)).await;
    let key = shop.place(1, 1, 3).await;
    let CancelOutcome::Cancelled(order) = shop.cancel(key).await else { panic!("not cancelled") };
    assert_eq!((order.state, order.version, shop.left().await), (Cancelled, 1, 10));
    assert_eq!(shop.cancel(key).await, CancelOutcome::Cancelled(order));
    assert_eq!(shop.left().await, 10);
    let unknown = OrderKey { request: request(99), ..key };
    assert_eq!(shop.cancel(unknown).await, CancelOutcome::UnknownOrder);
    shop.place(2, 1, 3).await;
    shop.holds().await;
}

pub async fn a_paying_order_is_not_cancelled_before_its_attempt_closed(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    let key = shop.place(1, 1, 1).await;
    let (paying, payment) = shop.open_payment(key).await;
    assert_eq!(shop.cancel(key).await, CancelOutcome::Paying(paying, payment.clone()));
    let stopped = report(&payment, "stop", PaymentReport::Closed);
    shop.ledger.record_payment(stopped).await.unwrap();
    assert_eq!(shop.order(key).await.state, PendingPayment);
    let CancelOutcome::Cancelled(order) = shop.cancel(key).await else { panic!("not cancelled") };
    assert_eq!((order.state, order.version, shop.left().await), (Cancelled, 3, 10));
    shop.holds().await;
}

pub async fn a_limit_that_returned_lets_the_buyer_order_again(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    let first = shop.place(1, 1, 1).await;
    assert_eq!(shop.refusal(2, 1).await, Some(Refusal::AlreadyPurchased { first: first.request }));
    shop.cancel(first).await;
    // The ended request stays an order, and is not placed again.
    let again = intent(&shop.sku, 1, 1, 1);
    assert!(shop.ledger.place(vec![again]).await.unwrap().is_none());
    let seen = shop.ledger.examine(vec![again]).await.unwrap().orders[&first.request];
    assert_eq!((seen.state, seen.slot), (Cancelled, first.request.to_db()));
    let second = shop.place(2, 1, 1).await;
    assert_eq!(shop.order(second).await.slot, 0);
    assert_eq!((orders(&*shop.ledger, shop.sku.no).await.len(), shop.left().await), (2, 9));
    shop.holds().await;
}

pub async fn a_limit_that_does_not_return_keeps_counting(backend: &dyn Backend) {
    let returns = SlotReturns::of(&[TimedOut]).unwrap();
    for policy in [ONE, quota(1)] {
        let clock = Arc::new(ManualClock::new(NOW_MS));
        let ledger = backend.open_with(Arc::clone(&clock)).await;
        let draft =
            SkuDraft { bar_lapsed: false, slot_returns: returns, ..sku_draft("sku", policy, 10) };
        let sku = sale(&*ledger, policy.kind(), vec![draft]).await.remove(0);
        let shop = Shop { ledger, clock, sku };
        let base = 10 * u64::try_from(shop.sku.no.0).unwrap();
        let key = shop.place(base, 1, 1).await;
        shop.cancel(key).await;
        assert_eq!(shop.left().await, 10, "the units return in any case");
        let order = shop.order(key).await;
        assert_eq!((order.counts_for_limit, order.slot), (true, shop.sku.policy.slot(key.request)));
        let expected = match policy {
            Policy::Quota { .. } => Refusal::QuotaExceeded { owned: 1, limit: 1 },
            _ => Refusal::AlreadyPurchased { first: key.request },
        };
        assert_eq!(shop.refusal(base + 1, 1).await, Some(expected));
        shop.holds().await;
        shop.ledger.close().await;
    }
}

pub async fn a_limit_returns_only_so_often(backend: &dyn Backend) {
    let draft = SkuDraft { ends_max: 2, bar_lapsed: false, ..sku_draft("sku", ONE, 10) };
    let shop = Shop::with(backend, draft).await;
    for request_no in 1..=3 {
        let key = shop.place(request_no, 1, 1).await;
        shop.cancel(key).await;
        assert_eq!(shop.order(key).await.counts_for_limit, request_no == 3);
    }
    let first = request(3);
    assert_eq!(shop.refusal(4, 1).await, Some(Refusal::AlreadyPurchased { first }));
    shop.place(5, 2, 1).await;
    assert_eq!(shop.left().await, 9);
    shop.holds().await;
}

pub async fn a_lapsed_buyer_is_barred_from_the_whole_sale(backend: &dyn Backend) {
    let mut shop = Shop::with(backend, sku_draft("other", ANY, 10)).await;
    let drafts = ["one", "two"].map(|id| SkuDraft { bar_lapsed: true, ..sku_draft(id, ANY, 10) });
    let skus = sale(&*shop.ledger, "barring", drafts.to_vec()).await;
    let elsewhere = std::mem::replace(&mut shop.sku, skus[0].clone());
    let lapsed = shop.place(1, 1, 1).await;
    let cancelled = shop.place(2, 2, 1).await;
    shop.cancel(cancelled).await;
    shop.pass(WINDOW_MS);
    assert_eq!(shop.end_due(&[lapsed]).await.len(), 1);
    assert!(!shop.order(lapsed).await.counts_for_limit, "the bar alone stops the buyer");
    for sku in &skus {
        shop.sku = sku.clone();
        assert_eq!(shop.refusal(3, 1).await, Some(Refusal::Barred), "{}", sku.id);
        assert_eq!(shop.ledger.barred(sku.no, NOW_MS + WINDOW_MS).await.unwrap(), [lapsed.buyer]);
        assert_eq!(shop.ledger.barred(sku.no, NOW_MS + WINDOW_MS + 1).await.unwrap(), []);
    }
    assert_eq!(shop.ledger.barred(elsewhere.no, 0).await.unwrap(), []);
    shop.place(4, 2, 1).await;
    shop.sku = elsewhere;
    shop.place(5, 1, 1).await;
    shop.holds().await;
}

pub async fn many_orders_end_at_once(backend: &dyn Backend) {
    const NUM: u32 = 1_300;
    let draft = SkuDraft { bar_lapsed: false, ..sku_draft("sku", quota(4), NUM) };
    let shop = Shop::with(backend, draft).await;
    let numbers = 1..=u64::from(NUM);
    // Two orders for each buyer.
    let batch: Vec<_> = numbers.map(|n| intent(&shop.sku, n, n.div_ceil(2), 1)).collect();
    for chunk in batch.chunks(500) {
        assert!(shop.ledger.place(chunk.to_vec()).await.unwrap().is_some());
    }
    assert_eq!(shop.left().await, 0);
    shop.pass(WINDOW_MS);
    let due = shop.ledger.due_orders(PendingPayment, NOW_MS + WINDOW_MS, NUM).await.unwrap();
    let keys: Vec<OrderKey> = due.iter().map(|due| due.order.key()).collect();
    assert_eq!(keys.len(), batch.len());
    // Two processes end the same orders.
    let (one, other) = tokio::join!(shop.end_due(&keys), shop.end_due(&keys));
    let ended: BTreeSet<_> = one.iter().chain(&other).map(Order::key).collect();
    assert_eq!((one.len() + other.len(), ended.len()), (batch.len(), batch.len()));
    assert_eq!(shop.left().await, NUM);
    shop.holds().await;
}

pub async fn of_payment_and_time_out_one_wins(backend: &dyn Backend) {
    let shop = Shop::open(backend, ANY).await;
    for round in 1..=20 {
        let key = shop.place(round, round, 1).await;
        let (_, payment) = shop.open_payment(key).await;
        shop.pass(WINDOW_MS + EXTENSION_MS);
        let paid = report(&payment, &format!("paid-{round}"), paid(&payment));
        let before = shop.left().await;
        let keys = [key];
        let (recorded, ended) = tokio::join!(shop.ledger.record_payment(paid), shop.end_due(&keys));
        recorded.unwrap();
        let order = shop.order(key).await;
        let expected = if ended.is_empty() { (Paid, before) } else { (TimedOut, before + 1) };
        assert_eq!((order.state, shop.left().await), expected, "round {round}");
        let late = shop.ledger.due_retakes(99).await.unwrap();
        let is_late = late.iter().any(|late| late.key == payment.key);
        assert_eq!(is_late, order.state == TimedOut, "round {round}");
        if order.state == Paid {
            refund(&shop, &payment, &format!("back-{round}")).await;
        }
    }
    assert_eq!(shop.left().await, 10);
    shop.holds().await;
}

pub async fn of_payment_and_cancellation_one_wins(backend: &dyn Backend) {
    let shop = Shop::open(backend, ONE).await;
    for round in 1..=20 {
        let key = shop.place(round, round, 1).await;
        let (_, payment) = shop.open_payment(key).await;
        shop.ledger
            .record_payment(report(&payment, &format!("closed-{round}"), PaymentReport::Closed))
            .await
            .unwrap();
        let late = report(&payment, &format!("paid-{round}"), paid(&payment));
        let (recorded, cancelled) =
            tokio::join!(shop.ledger.record_payment(late), shop.cancel(key));
        recorded.unwrap();
        let expected = match cancelled {
            CancelOutcome::Cancelled(_) => Cancelled,
            CancelOutcome::Decided(_) => Paid,
            other => panic!("{other:?}"),
        };
        assert_eq!(shop.order(key).await.state, expected, "round {round}");
        if expected == Paid {
            refund(&shop, &payment, &format!("back-{round}")).await;
        }
    }
    assert_eq!(shop.left().await, 10);
    shop.holds().await;
}

/// The price was received.
pub fn paid(payment: &Payment) -> PaymentReport {
    PaymentReport::Succeeded(payment.price)
}

/// Records a full refund of a paid order.
async fn refund(shop: &Shop, payment: &Payment, event_id: &str) {
    let refunded = PaymentReport::Refunded { received: payment.price, total: payment.price.amount };
    shop.ledger.record_payment(report(payment, event_id, refunded)).await.unwrap();
    assert_eq!(shop.order(payment.key.order).await.state, OrderState::Refunded);
}
