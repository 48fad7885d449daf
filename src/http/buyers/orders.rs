//! A buyer's orders, read from the ledger.

use std::collections::HashMap;

use actix_web::{HttpRequest, web};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::mine::BuyerSku;
use super::views::{
    OrderView, OrdersView, RequestView, no_store_json, page_cursor, page_cut, page_limit,
};
use crate::db::OrderCursor;
use crate::domain::{Order, OrderKey, OrderState, Payment, RequestId, RequestRecord};
use crate::http::admission::LimitedCall;
use crate::http::middleware::problem::{Handled, Problem};
use crate::http::state::{HttpDeps, HttpState, State};

const LIMIT_DEFAULT: u32 = 20;
const LIMIT_MAX: u32 = 100;

/// Page of the list.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct OrdersQuery {
    /// Most orders in the answer: 1 to 100, default 20.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// The buyer's orders, newest first.
#[utoipa::path(
    get, path = "/v1/orders", operation_id = "listOrders", tag = "buyers", params(OrdersQuery),
    responses((status = 200, description = "newest first", body = OrdersView)),
)]
pub async fn mine(request: HttpRequest, query: web::Query<OrdersQuery>, state: State) -> Handled {
    let deps = &state.deps;
    let buyer = state.admit_to_store(&request, LimitedCall::Orders).await?;
    let limit = page_limit(query.limit, LIMIT_DEFAULT, LIMIT_MAX)?;
    let cursor = page_cursor(query.cursor.as_deref(), decode_cursor)?;
    let mut rows = deps.ledger.orders_of(buyer, cursor, limit + 1).await?;
    let next_cursor = page_cut(&mut rows, limit, encode_cursor);
    let orders = views_of(&state, &rows).await?;
    Ok(no_store_json(OrdersView { orders, next_cursor }))
}

/// The orders with their payments.
pub async fn views_of(state: &HttpState, orders: &[Order]) -> Result<Vec<OrderView>, Problem> {
    let deps = &state.deps;
    let mut known = Vec::with_capacity(orders.len());
    for order in orders {
        let found = deps.sales.find(|catalog| catalog.of_sku(order.sku)).await?;
        let of_buyer = |(sale, sku)| (order, BuyerSku { sale, sku, buyer: order.buyer });
        known.extend(found.map(of_buyer));
    }
    let successors = known.iter().filter_map(|(order, own)| successor(deps, own, order));
    let keys = orders.iter().map(Order::key).chain(successors).collect();
    let mut payments: HashMap<OrderKey, Vec<Payment>> = HashMap::new();
    for payment in deps.ledger.payments_of(keys).await? {
        payments.entry(payment.key.order).or_default().push(payment);
    }
    let is_paid = |key: &OrderKey| {
        payments.get(key).is_some_and(|own| own.iter().any(|payment| payment.received.is_some()))
    };
    let mut views = Vec::with_capacity(known.len());
    for (order, own) in known {
        let record = RequestRecord::ordered(order);
        let request = RequestView::new(own.sign(deps, order.request), &own, &record);
        let Some(mut view) = request.order else { continue };
        match successor(deps, &own, order).filter(is_paid) {
            Some(paid) => view.replaced_by = Some(own.sign(deps, paid.request)),
            None => view.again = again(deps, &own, order).await,
        }
        let payments = payments.get(&order.key()).map(Vec::as_slice);
        view.set_payments(order, payments.unwrap_or_default());
        views.push(view);
    }
    Ok(views)
}

/// The order that buys a timed-out one again.
fn successor(deps: &HttpDeps, own: &BuyerSku, order: &Order) -> Option<OrderKey> {
    let request = own.next(deps, order.request);
    (order.state == OrderState::TimedOut).then_some(OrderKey { request, ..order.key() })
}

/// The id with which the buyer of an ended order buys again, unless it is used or cannot be.
async fn again(deps: &HttpDeps, own: &BuyerSku, order: &Order) -> Option<String> {
    let BuyerSku { sku, buyer, .. } = own;
    let is_barred = order.state == OrderState::TimedOut && sku.bar_lapsed
        || deps.catalog.is_barred(sku.no, *buyer);
    // Where ids are issued, a new one buys again.
    if !sku.policy.derives_request_id() || order.counts_for_limit || is_barred {
        return None;
    }
    let next = own.next(deps, order.request);
    matches!(own.record(deps, next).await, Ok(None)).then(|| own.sign(deps, next))
}

fn encode_cursor(last: &Order) -> String {
    let fields = [last.placed_at_ms.to_be_bytes(), last.request.to_db().to_be_bytes()];
    URL_SAFE_NO_PAD.encode(fields.as_flattened())
}

fn decode_cursor(text: &str) -> Option<OrderCursor> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (placed_at, request) = bytes.split_at_checked(8)?;
    Some(OrderCursor {
        placed_at_ms: i64::from_be_bytes(placed_at.try_into().ok()?),
        request: RequestId::from_db(i64::from_be_bytes(request.try_into().ok()?))?,
    })
}
