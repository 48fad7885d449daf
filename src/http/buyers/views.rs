//! JSON shapes of the HTTP interface. Ids are strings, times are RFC 3339 in UTC, money is in the
//! currency's smallest unit.

use std::sync::Arc;

use actix_web::HttpResponse;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::Object;

use crate::domain::named::schema_of;
use crate::domain::{
    Order, OrderState, Payment, PaymentOutcome, PaymentState, Phase, Policy, RecordState,
    RequestRecord, Sale, Sku,
};
use crate::http::buyers::mine::BuyerSku;
use crate::http::middleware::problem::{NO_STORE, Problem, ProblemCode};
use crate::http::state::HttpState;
pub use crate::runtime::clock::rfc3339;

/// 200 with this JSON, not cacheable.
pub fn no_store_json(view: impl Serialize) -> HttpResponse {
    HttpResponse::Ok().insert_header(NO_STORE).json(view)
}

/// The requested page size, from 1 to `max`, or `default`.
pub fn page_limit(requested: Option<u32>, default: u32, max: u32) -> Result<u32, Problem> {
    let limit = requested.unwrap_or(default);
    let invalid = || Problem::invalid(format!("limit must be from 1 to {max}"));
    (1..=max).contains(&limit).then_some(limit).ok_or_else(invalid)
}

/// The cursor of the request, if it has one.
pub fn page_cursor<T>(
    sent: Option<&str>,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Problem> {
    let invalid = || Problem::invalid("cursor must be a next_cursor of this list");
    sent.map(|text| read(text).ok_or_else(invalid)).transpose()
}

/// Truncates `rows` to a page and returns the cursor of the next page. The caller reads `limit + 1`
/// rows, so that an extra row proves a next page.
pub fn page_cut<T>(
    rows: &mut Vec<T>,
    limit: u32,
    encode: impl FnOnce(&T) -> String,
) -> Option<String> {
    let has_more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    rows.last().filter(|_| has_more).map(encode)
}

/// Units left of a SKU: all of them in a draft and before the window. Its buckets may not be loaded
/// then, and would not know a change of the stock.
pub fn stock_left(state: &HttpState, sale: &Sale, sku: &Sku) -> u32 {
    let is_early = sale.phase == Phase::Draft || state.deps.clock.wall_ms() < sale.starts_at_ms;
    if is_early { sku.initial } else { state.deps.stock.left(sku.no) }
}

/// The state of a request, for its buyer.
pub fn request_state(state: RecordState) -> &'static str {
    match state {
        RecordState::Queued { .. } => "queued",
        RecordState::Ordered { .. } => "success",
        RecordState::Failed(_) => "failed",
    }
}

/// The states of a request, for its buyer.
pub fn request_states() -> Object {
    schema_of(["queued", "success", "failed", "unknown"])
}

/// The problem codes.
pub fn problem_codes() -> Object {
    schema_of(ProblemCode::ALL.iter().map(|code| code.as_str()))
}

fn event_outcomes() -> Object {
    schema_of(PaymentOutcome::ALL.map(PaymentOutcome::name).into_iter().chain(["known", "ignored"]))
}

/// A SKU of a sale.
#[derive(Debug, Serialize, ToSchema)]
pub struct SkuView {
    /// Unique within the sale.
    pub sku_id: String,
    pub title: String,
    /// Price of one unit.
    pub price: i64,
    pub policy: Policy,
    /// Units ordered and left together: those of the creation, and of every change of the stock.
    pub initial_stock: u32,
    /// Units left; at most one second old.
    pub stock_left: u32,
}

impl SkuView {
    /// Uses the units left that the caller has read.
    pub fn new(sku: &Sku, stock_left: u32) -> Self {
        Self {
            sku_id: sku.id.to_string(),
            title: sku.title.clone(),
            price: sku.price,
            policy: sku.policy,
            initial_stock: sku.initial,
            stock_left,
        }
    }
}

/// Public view of a sale.
#[derive(Debug, Serialize, ToSchema)]
pub struct SaleView {
    pub sale_id: String,
    pub title: String,
    /// Set by the operator: `draft`, `open`, `paused` or `closed`. An open sale sells inside its
    /// window only.
    pub phase: Phase,
    /// First instant of the window.
    pub starts_at: String,
    /// First instant after the window.
    pub ends_at: String,
    /// Of all prices, ISO 4217.
    pub currency: String,
    /// Whether `POST /v1/buy` requires a ticket's path instead of the sale's id.
    pub ticket_required: bool,
    pub skus: Vec<SkuView>,
    /// Milliseconds until a page that shows the sale asks again, by phase and load.
    pub poll_after_ms: u32,
}

impl SaleView {
    /// Uses the units left at the time of the call, and lets `poll_after_ms` choose the interval by
    /// whether units are left.
    pub fn new(sale: &Sale, state: &HttpState, poll_after_ms: impl FnOnce(bool) -> u32) -> Self {
        let view = |sku: &Arc<Sku>| SkuView::new(sku, stock_left(state, sale, sku));
        let skus: Vec<SkuView> = sale.skus.iter().map(view).collect();
        Self {
            sale_id: sale.id.to_string(),
            title: sale.title.clone(),
            phase: sale.phase,
            starts_at: rfc3339(sale.starts_at_ms),
            ends_at: rfc3339(sale.ends_at_ms),
            currency: sale.currency.to_string(),
            ticket_required: sale.ticket_required,
            poll_after_ms: poll_after_ms(skus.iter().any(|sku| sku.stock_left > 0)),
            skus,
        }
    }
}

/// A sale with the server's time. Schema only: `sales.rs` assembles the body.
#[derive(Debug, Serialize, ToSchema)]
pub struct SalePage {
    server_time: String,
    #[serde(flatten)]
    sale: SaleView,
}

/// All sales. Schema only: `sales.rs` assembles the body.
#[derive(Debug, Serialize, ToSchema)]
pub struct SalesPage {
    server_time: String,
    /// Oldest first.
    sales: Vec<SaleView>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// An order of a buyer.
#[derive(Debug, Serialize, ToSchema)]
pub struct OrderView {
    /// The request that this order belongs to.
    pub request_id: String,
    pub sale_id: String,
    pub sku_id: String,
    pub buyer_id: String,
    pub quantity: u32,
    /// Price times quantity.
    pub amount: i64,
    /// Of `amount`, ISO 4217. Lists of sales have a sale only for a day after its end.
    pub currency: String,
    pub sale_title: String,
    pub sku_title: String,
    pub state: OrderState,
    /// When the request arrived.
    pub placed_at: String,
    /// Payment deadline, rounded down to the second; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pay_by: Option<String>,
    /// Unused id with which the buyer buys the SKU again; only if the order has ended and no longer
    /// counts for the limit of `one_per_buyer`, in `GET /v1/orders` and after a cancellation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub again: Option<String>,
    /// The request id of the order that bought a timed-out one again, by its late money or by
    /// `again`, once it was paid. Only in `GET /v1/orders`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
    /// The payment that paid the order, else that whose money is due back, else the last one with
    /// money, else the last one. Only in `GET /v1/orders` and after a cancellation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payment: Option<PaymentView>,
    /// `true` for an order that ended although money was received, until the money is paid back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paid_unfulfilled: bool,
}

impl OrderView {
    /// Adds the attempts of the order, oldest first.
    pub fn set_payments(&mut self, order: &Order, payments: &[Payment]) {
        let in_state = |states: &[PaymentState]| {
            payments.iter().find(|payment| states.contains(&payment.state))
        };
        let applied = in_state(&[PaymentState::Applied]);
        let owed = in_state(&[PaymentState::RefundDue, PaymentState::RefundFailed]);
        let received = payments.iter().rfind(|payment| payment.received.is_some());
        let shown = applied.or(owed).or(received).or(payments.last());
        self.payment = shown.map(|payment| PaymentView {
            payment_id: payment.started.as_ref().map(|started| started.payment_id.clone()),
            state: payment.state,
            refunded_total: payment.refunded_total,
        });
        self.paid_unfulfilled = !order.state.is_live() && owed.is_some();
    }
}

/// A payment of an order.
#[derive(Debug, Serialize, ToSchema)]
pub struct PaymentView {
    /// The provider's id; absent until the provider has answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payment_id: Option<String>,
    pub state: PaymentState,
    /// Of the received money.
    pub refunded_total: i64,
}

/// An open payment.
#[derive(Debug, Serialize, ToSchema)]
pub struct PaymentStartView {
    /// The provider's id.
    pub payment_id: String,
    /// The provider's page, where the buyer pays.
    pub url: String,
    /// When the order ends unless it is paid; absent without a deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// A committed webhook.
#[derive(Debug, Serialize, ToSchema)]
pub struct PaymentEventView {
    /// Its effect; `known`: it was committed before; `ignored`: its type has no meaning here.
    #[schema(schema_with = event_outcomes)]
    pub outcome: &'static str,
}

/// A page of the buyer's orders, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct OrdersView {
    /// At most `limit` orders.
    pub orders: Vec<OrderView>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Status of a request.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct RequestView {
    pub request_id: String,
    /// `queued`, `success` or `failed`; in the answer to a purchase also `unknown`.
    #[schema(schema_with = request_states)]
    pub state: &'static str,
    /// Code of the refusal; only if `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = problem_codes)]
    pub reason: Option<&'static str>,
    /// With this request id the buyer buys again; only for `one_per_buyer`, if the request was
    /// cancelled, timed out or discarded, or its order has ended and the buyer may buy now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub again: Option<String>,
    /// Only if `success`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<OrderView>,
    /// What the buyer has of the SKU; only if `success`, under the policy `quota`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaView>,
    /// Milliseconds until the next poll; 0: the state is final.
    pub poll_after_ms: u32,
}

/// A buyer's units under a quota.
#[derive(Debug, Serialize, ToSchema)]
pub struct QuotaView {
    /// Units of the buyer's requests and orders that count for the limit.
    pub owned: u32,
    pub limit: u32,
}

impl RequestView {
    /// A request without a final state: `queued` or `unknown`.
    pub fn pending(request_id: String, state: &'static str) -> Self {
        Self { request_id, state, poll_after_ms: POLL_AFTER_MS, ..Self::default() }
    }

    /// A request with this record.
    pub fn new(request_id: String, own: &BuyerSku, record: &RequestRecord) -> Self {
        let shown = request_state(record.state);
        let (reason, order) = match record.state {
            RecordState::Queued { .. } => return Self::pending(request_id, shown),
            RecordState::Failed(refusal) => (Some(refusal.code()), None),
            RecordState::Ordered { state, amount, pay_by, .. } => {
                let BuyerSku { sale, sku, buyer } = own;
                let order = OrderView {
                    request_id: request_id.clone(),
                    sale_id: sale.id.to_string(),
                    sku_id: sku.id.to_string(),
                    buyer_id: buyer.to_string(),
                    quantity: record.quantity,
                    amount,
                    currency: sale.currency.to_string(),
                    sale_title: sale.title.clone(),
                    sku_title: sku.title.clone(),
                    state,
                    placed_at: rfc3339(record.placed_at_ms),
                    pay_by: pay_by.ms().map(rfc3339),
                    again: None,
                    replaced_by: None,
                    payment: None,
                    paid_unfulfilled: false,
                };
                (None, Some(order))
            }
        };
        Self { request_id, state: shown, reason, order, ..Self::default() }
    }
}

/// Poll interval for a request without a final state, milliseconds.
pub const POLL_AFTER_MS: u32 = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_utc() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(1_795_000_000_123), "2026-11-18T11:06:40.123Z");
        assert_eq!(rfc3339(i64::MAX), "1970-01-01T00:00:00.000Z");
    }
}
