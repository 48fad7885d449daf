//! A buyer's orders, out of the ledger.

use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::views::{OrderView, OrdersView, fresh};
use crate::db::OrderCursor;
use crate::domain::{Order, RequestId};
use crate::http::middleware::problem::Problem;
use crate::http::page;
use crate::http::state::HttpState;

const LIMIT_DEFAULT: u32 = 20;
const LIMIT_MAX: u32 = 100;

/// Which part of the list.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct OrdersQuery {
    /// Most orders in the answer, 1 to 100; 20 when left out.
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// My orders, newest first.
#[utoipa::path(
    get, path = "/v1/orders", tag = "buyers", params(OrdersQuery),
    responses((status = 200, description = "newest first", body = OrdersView)),
)]
pub async fn mine(
    request: HttpRequest,
    part: web::Query<OrdersQuery>,
    state: web::Data<HttpState>,
) -> Result<HttpResponse, Problem> {
    let deps = &state.deps;
    let buyer = state.buyer_auth.buyer(request.headers(), deps.clock.wall_ms())?;
    let limit = page::limit(part.limit, LIMIT_DEFAULT, LIMIT_MAX)?;
    let cursor = page::cursor(part.cursor.as_deref(), read_cursor)?;
    let mut found = deps.ledger.orders_of(buyer, cursor, limit + 1).await?;
    let next_cursor = page::cut(&mut found, limit, show_cursor);
    let orders = found.iter().filter_map(|order| view_of(&state, order)).collect();
    Ok(fresh(OrdersView { orders, next_cursor }))
}

/// `None` for an order of a sale that this process has not heard of yet.
fn view_of(state: &HttpState, order: &Order) -> Option<OrderView> {
    let (listed, sku) = state.deps.catalog.of_sku(order.sku)?;
    let id = state.tokens.show(order.request, &listed.sale.id, sku.no, order.buyer);
    Some(OrderView::recorded(&id, &listed, &sku, order))
}

fn show_cursor(last: &Order) -> String {
    let mut bytes = [0; 16];
    let deps =
        last.placed_at_ms.to_be_bytes().into_iter().chain(last.request.to_db().to_be_bytes());
    bytes.iter_mut().zip(deps).for_each(|(to, from)| *to = from);
    URL_SAFE_NO_PAD.encode(bytes)
}

fn read_cursor(text: &str) -> Option<OrderCursor> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (placed_at, request) = bytes.split_at_checked(8)?;
    Some(OrderCursor {
        placed_at_ms: i64::from_be_bytes(placed_at.try_into().ok()?),
        request: RequestId::from_db(i64::from_be_bytes(request.try_into().ok()?))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_cursor_is_refused() {
        for text in ["", "x", "AAAA", "AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAE", "é"] {
            assert_eq!(read_cursor(text), None, "{text:?}");
        }
    }
}
