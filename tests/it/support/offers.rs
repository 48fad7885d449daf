//! Sales and intents for tests that call a ledger directly.

use std::future::Future;
use std::sync::Arc;

use floodgate::db::{AuditRow, FeedEvent, Ledger};
use floodgate::domain::{
    BucketNo, BuyerId, Currency, Epoch, Failure, InvariantId, Order, OrderEvent, OrderIntent,
    Phase, Policy, RequestId, Sale, SaleDraft, Sku, SkuDraft, SkuHistory, SkuNo, SlotReturns,
    TraceId, Verdict,
};
use floodgate::services::audit::{AuditBasis, audit};
use tokio::sync::mpsc;

pub const ONE: Policy = Policy::OnePerBuyer { max_quantity: 10 };
pub const ANY: Policy = Policy::Unlimited { max_quantity: 10 };

pub fn quota(limit: u32) -> Policy {
    Policy::Quota { limit, max_quantity: limit }
}

/// Runs a test with timers, without actors.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test)
}

pub fn request(number: u64) -> RequestId {
    RequestId::new(number).unwrap()
}

pub fn buyer(number: u64) -> BuyerId {
    BuyerId::new(number).unwrap()
}

/// A verdict without the intent of a queued request, which depends on the outbox.
pub fn without_intent(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Queued { .. } => Verdict::Queued { intent: None },
        other => other,
    }
}

/// A SKU with two buckets.
pub fn sku(no: i32, policy: Policy, initial: u32) -> Sku {
    Sku {
        no: SkuNo(no),
        id: "sku".parse().unwrap(),
        title: "SKU".to_owned(),
        price: 250,
        initial,
        policy,
        buckets: 2,
        payment_window_s: 900,
        bar_lapsed: false,
        slot_returns: SlotReturns::default(),
        ends_max: 3,
        queue_timeout_s: 0,
        history: SkuHistory::default(),
    }
}

pub fn sku_draft(id: &str, policy: Policy, initial: u32) -> SkuDraft {
    SkuDraft {
        no: (),
        id: id.parse().unwrap(),
        title: format!("SKU {id}"),
        price: 250,
        initial,
        policy,
        buckets: 4,
        payment_window_s: 900,
        bar_lapsed: true,
        slot_returns: SlotReturns::default(),
        ends_max: 3,
        queue_timeout_s: 0,
        history: SkuHistory::default(),
    }
}

pub fn sale_draft(id: &str, skus: Vec<SkuDraft>) -> SaleDraft {
    SaleDraft {
        id: id.parse().unwrap(),
        title: format!("Sale {id} 秒杀"),
        starts_at_ms: 1_000,
        ends_at_ms: 4_000_000_000_000,
        currency: Currency::default(),
        ticket_required: false,
        skus,
    }
}

/// Creates a sale with one SKU.
pub async fn offer(ledger: &dyn Ledger, id: &str, policy: Policy, initial: u32) -> Sku {
    let draft = sale_draft(id, vec![sku_draft("sku", policy, initial)]);
    let sale: Sale = ledger.create_sale(draft, 1).await.unwrap().expect("a new name");
    Arc::unwrap_or_clone(sale.skus.into_iter().next().unwrap())
}

/// Creates and opens a sale with one SKU.
pub async fn open_offer(ledger: &dyn Ledger, id: &str, policy: Policy, initial: u32) -> Sku {
    let sku = offer(ledger, id, policy, initial).await;
    ledger.set_sale_phase(id.parse().unwrap(), Epoch(0), Phase::Open, 1, None).await.unwrap();
    sku
}

/// Asserts that the audit of the ledger, its money included, finds no violation.
pub async fn assert_ledger_holds(ledger: &dyn Ledger) {
    let report = audit(None, ledger, None, 1).await.unwrap();
    assert!(report.holds, "{:#?}", report.violations);
    let is_money = |basis: &AuditBasis| basis.invariant == InvariantId::MoneyAccounted;
    assert!(report.judged.iter().any(is_money), "{:#?}", report.judged);
}

pub fn intent(sku: &Sku, request_no: u64, buyer_no: u64, quantity: u32) -> OrderIntent {
    let request = request(request_no);
    OrderIntent {
        request,
        sku: sku.no,
        bucket: BucketNo(0),
        epoch: Epoch(1),
        buyer: buyer(buyer_no),
        quantity,
        slot: sku.policy.slot(request),
        quota: sku.policy.quota(),
        amount: sku.price * i64::from(quantity),
        placed_at_ms: 1_000 + i64::try_from(request_no % 1_000).unwrap(),
        payment_window_s: sku.payment_window_s,
        trace: TraceId(u128::from(request_no) << 64 | 7),
        published_at_ms: None,
    }
}

/// Every order of a SKU, in the order of the scan.
pub async fn orders(ledger: &dyn Ledger, sku: SkuNo) -> Vec<Order> {
    let (send, mut rows) = mpsc::unbounded_channel();
    ledger.scan_orders(sku, Box::new(move |order| send.send(order).is_ok())).await.unwrap();
    std::iter::from_fn(|| rows.try_recv().ok()).collect()
}

/// Every recorded failure of a SKU, in the order of the scan.
pub async fn failures(ledger: &dyn Ledger, sku: SkuNo) -> Vec<Failure> {
    let (send, mut rows) = mpsc::unbounded_channel();
    ledger.scan_failures(sku, Box::new(move |failure| send.send(failure).is_ok())).await.unwrap();
    std::iter::from_fn(|| rows.try_recv().ok()).collect()
}

/// The events of orders after a feed number, of the first `limit` events of all kinds.
pub async fn order_events(ledger: &dyn Ledger, feed_no: i64, limit: u32) -> Vec<OrderEvent> {
    let events = ledger.events_after(feed_no, limit).await.unwrap();
    events.into_iter().filter_map(FeedEvent::into_order).collect()
}

/// Every audit row of a SKU.
pub async fn evidence(ledger: &dyn Ledger, sku: SkuNo) -> Vec<AuditRow> {
    let (send, mut rows) = mpsc::unbounded_channel();
    ledger.scan_audit(sku, Box::new(move |row| send.send(row).is_ok())).await.unwrap();
    std::iter::from_fn(|| rows.try_recv().ok()).collect()
}

/// The order of an intent, recorded when it was placed.
pub fn order_of(intent: &OrderIntent) -> Order {
    intent.order(intent.placed_at_ms)
}
