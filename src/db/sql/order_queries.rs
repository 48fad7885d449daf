//! The queries about orders and recorded failures; see `queries`.

use diesel::dsl::{insert_or_ignore_into, sql};
use diesel::prelude::*;
use diesel::sql_types::Bool;

use super::Database;
use super::queries::queries;
use super::statements::{SkuAndBuyer, of_buyers};
use crate::db::OrderCursor;
use crate::db::failure_rows::FailureRow;
use crate::db::rows::{OrderRow, OrderTimelineRow};
use crate::db::schema::{failed_requests, orders, quotas, skus};

queries! {
/// The queries about orders and recorded failures.
trait OrderQueries {
    /// The orders of these requests, of those that the index of request ids contains.
    fn orders_by_request(&mut self, requests: &[i64]) -> QueryResult<Vec<OrderRow>> {
        orders::table
            .filter(orders::request_id.eq_any(requests))
            .filter(sql::<Bool>(Self::INDEXED_REQUESTS))
            .select(OrderRow::as_select())
            .load(self)
    }

    /// The recorded failures of these requests.
    fn failures_by_request(&mut self, requests: &[i64]) -> QueryResult<Vec<FailureRow>> {
        let rows = failed_requests::table.filter(failed_requests::request_id.eq_any(requests));
        rows.select(FailureRow::as_select()).load(self)
    }

    /// The orders of these buyers in slot 0.
    fn first_orders(&mut self, buyers: &[SkuAndBuyer]) -> QueryResult<Vec<OrderRow>> {
        let of_buyers = format!("slot = 0 AND ({})", of_buyers(buyers));
        orders::table.filter(sql::<Bool>(&of_buyers)).select(OrderRow::as_select()).load(self)
    }

    /// SKU, buyer and units of the quota rows of these buyers.
    fn owned_units(&mut self, buyers: &[SkuAndBuyer]) -> QueryResult<Vec<(i32, i64, i32)>> {
        quotas::table
            .filter(sql::<Bool>(&of_buyers(buyers)))
            .select((quotas::sku_no, quotas::buyer_id, quotas::owned))
            .load(self)
    }

    /// The available units of these SKUs, by SKU.
    fn units_left(&mut self, skus: &[i32]) -> QueryResult<Vec<(i32, i32)>> {
        let rows = skus::table.filter(skus::sku_no.eq_any(skus));
        rows.select((skus::sku_no, skus::available)).load(self)
    }

    /// One order with its timeline, if it matches `condition`, which is SQL.
    fn timeline_row(
        &mut self, request: i64, condition: &'static str
    ) -> QueryResult<Option<OrderTimelineRow>> {
        let row = orders::table.filter(orders::request_id.eq(request));
        let row = row.filter(sql::<Bool>(condition));
        row.select(OrderTimelineRow::as_select()).first(self).optional()
    }

    /// A page of a buyer's orders, newest first. Searches the buyer in each SKU along the primary
    /// key: an index by buyer would cost every order a second write, for a rarely read page.
    fn order_page(
        &mut self, buyer: i64, cursor: Option<OrderCursor>, limit: u32
    ) -> QueryResult<Vec<OrderRow>> {
        let mut page = orders::table
            .filter(orders::sku_no.eq_any(skus::table.select(skus::sku_no)))
            .filter(orders::buyer_id.eq(buyer))
            .order((orders::placed_at_ms.desc(), orders::request_id.desc()))
            .limit(i64::from(limit))
            .select(OrderRow::as_select())
            .into_boxed();
        if let Some(OrderCursor { placed_at_ms, request }) = cursor {
            let same_instant = orders::placed_at_ms.eq(placed_at_ms);
            let before = orders::request_id.lt(request.to_db());
            page = page.filter(orders::placed_at_ms.lt(placed_at_ms).or(same_instant.and(before)));
        }
        page.load(self)
    }

    /// Records failures; an existing record of a request stays.
    fn insert_failures(&mut self, failures: &[FailureRow]) -> QueryResult<()> {
        insert_or_ignore_into(failed_requests::table).values(failures).execute(self).map(drop)
    }
}
}
