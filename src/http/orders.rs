//! A buyer's orders, out of the ledger.

use actix_web::http::header::{CACHE_CONTROL, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::problem::Problem;
use super::state::State;
use super::views::{OrderView, OrdersView};
use crate::db::OrderCursor;
use crate::domain::{Order, RequestId};

const LIMIT_DEFAULT: u32 = 20;
const LIMIT_MAX: u32 = 100;

/// Which part of the list.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Most orders in the answer, 1 to 100; 20 when left out.
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// My orders, newest first.
///
/// # Errors
/// `unauthenticated`, `invalid-request`, `busy`.
#[utoipa::path(
    get, path = "/v1/orders", tag = "buyers", params(Part),
    responses((status = 200, description = "newest first", body = OrdersView)),
)]
pub async fn mine(
    request: HttpRequest,
    part: web::Query<Part>,
    state: web::Data<State>,
) -> Result<HttpResponse, Problem> {
    let parts = &state.parts;
    let buyer = state.buyer_auth.buyer(request.headers(), parts.clock.wall_ms())?;
    let limit = part.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Problem::invalid(format!("limit must be from 1 to {LIMIT_MAX}")));
    }
    let cursor = part.cursor.as_deref().map(|text| {
        read_cursor(text)
            .ok_or_else(|| Problem::invalid("cursor must be a next_cursor of this list"))
    });
    // One more than asked for tells whether there is a next page.
    let mut found = parts.ledger.orders_of(buyer, cursor.transpose()?, limit + 1).await?;
    let has_more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next_cursor = found.last().filter(|_| has_more).map(show_cursor);
    let orders = found.iter().filter_map(|order| view_of(&state, order)).collect();
    let no_store = (CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(HttpResponse::Ok().insert_header(no_store).json(OrdersView { orders, next_cursor }))
}

/// `None` for an order of a sale that this process has not heard of yet.
fn view_of(state: &State, order: &Order) -> Option<OrderView> {
    let (listed, sku) = state.parts.catalog.of_sku(order.sku)?;
    let id = state.tokens.show(order.request, &listed.sale.id, sku.no, order.buyer);
    Some(OrderView::recorded(id, &listed, &sku, order))
}

fn show_cursor(last: &Order) -> String {
    let mut bytes = [0; 16];
    let parts =
        last.placed_at_ms.to_be_bytes().into_iter().chain(last.request.to_db().to_be_bytes());
    bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
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
    use crate::domain::{BuyerId, Epoch, OrderState, SkuNo};

    #[test]
    fn a_cursor_survives_the_way_out_and_back() {
        let order = Order {
            request: RequestId::new(9_007_199_254_740_993).unwrap(),
            sku: SkuNo(1),
            epoch: Epoch(1),
            buyer: BuyerId::new(1).unwrap(),
            quantity: 1,
            slot: 0,
            amount: 1,
            state: OrderState::Paid,
            placed_at_ms: 1_800_000_000_001,
            pay_by_ms: 0,
        };
        let cursor = read_cursor(&show_cursor(&order)).unwrap();
        assert_eq!((cursor.placed_at_ms, cursor.request), (order.placed_at_ms, order.request));
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        for text in ["", "x", "AAAA", "AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAE", "é"] {
            assert_eq!(read_cursor(text), None, "{text:?}");
        }
    }
}
