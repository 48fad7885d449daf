//! The queries of audits; see `queries`.

use diesel::dsl::{exists, sql, sum};
use diesel::prelude::*;
use diesel::sql_types::{BigInt, Bool};

use super::Database;
use super::queries::queries;
use crate::db::failure_rows::FailureRow;
use crate::db::rows::OrderRow;
use crate::db::schema::{failed_requests, orders};

/// Rows per page of a scan.
const PAGE: i64 = 2_000;

queries! {
/// The queries of audits.
trait AuditQueries {
    /// The orders of a SKU after this buyer and slot, in this order.
    fn order_page_after(&mut self, sku: i32, after: (i64, i64)) -> QueryResult<Vec<OrderRow>> {
        let (buyer, slot) = after;
        let next_slot = orders::buyer_id.eq(buyer).and(orders::slot.gt(slot));
        orders::table
            .filter(orders::sku_no.eq(sku))
            // SQLite begins to read at this buyer; with the next condition alone, at the first one.
            .filter(orders::buyer_id.ge(buyer))
            .filter(orders::buyer_id.gt(buyer).or(next_slot))
            .order((orders::buyer_id, orders::slot))
            .limit(PAGE)
            .select(OrderRow::as_select())
            .load(self)
    }

    /// The recorded failures of a SKU after this request, in the order of their requests.
    fn failure_page_after(&mut self, sku: i32, request: i64) -> QueryResult<Vec<FailureRow>> {
        failed_requests::table
            .filter(failed_requests::sku_no.eq(sku))
            .filter(failed_requests::request_id.gt(request))
            .order(failed_requests::request_id)
            .limit(PAGE)
            .select(FailureRow::as_select())
            .load(self)
    }

    fn num_orders(&mut self, sku: i32) -> QueryResult<i64> {
        orders::table.filter(orders::sku_no.eq(sku)).count().get_result(self)
    }

    fn num_failures(&mut self, sku: i32) -> QueryResult<i64> {
        failed_requests::table.filter(failed_requests::sku_no.eq(sku)).count().get_result(self)
    }

    /// The units of the failures of a SKU, by reason.
    fn failed_units(&mut self, sku: i32) -> QueryResult<Vec<(String, Option<i64>)>> {
        failed_requests::table
            .filter(failed_requests::sku_no.eq(sku))
            .group_by(failed_requests::reason)
            .select((failed_requests::reason, sum(failed_requests::quantity)))
            .load(self)
    }

    /// Request ids with several orders, each with the number of its orders.
    fn repeated_requests(&mut self, limit: i32) -> QueryResult<Vec<(i64, i64)>> {
        let query = format!(
            "SELECT request_id, COUNT(*) AS num_orders FROM orders {} \
             GROUP BY request_id HAVING COUNT(*) > 1 LIMIT {limit}",
            Self::WITHOUT_REQUEST_INDEX
        );
        sql::<(BigInt, BigInt)>(&query).load(self)
    }

    /// The failures of a SKU whose request also has an order.
    fn ordered_and_failed(&mut self, sku: i32, limit: i32) -> QueryResult<Vec<i64>> {
        let of_request =
            || orders::table.filter(orders::request_id.eq(failed_requests::request_id));
        let indexed = of_request().filter(sql::<Bool>(Self::INDEXED_REQUESTS));
        let in_slot_0 = of_request()
            .filter(orders::sku_no.eq(failed_requests::sku_no))
            .filter(orders::buyer_id.eq(failed_requests::buyer_id))
            .filter(orders::slot.eq(0));
        failed_requests::table
            .filter(failed_requests::sku_no.eq(sku))
            .filter(exists(indexed).or(exists(in_slot_0)))
            .select(failed_requests::request_id)
            .limit(i64::from(limit))
            .load(self)
    }

    /// The first SKU after this one that has orders, with or without a row in `skus`.
    fn sku_with_orders(&mut self, after: i32) -> QueryResult<Option<i32>> {
        let later = orders::table.filter(orders::sku_no.gt(after));
        later.order(orders::sku_no).select(orders::sku_no).first(self).optional()
    }

    /// The first SKU after this one that has failures.
    fn sku_with_failures(&mut self, after: i32) -> QueryResult<Option<i32>> {
        let later = failed_requests::table.filter(failed_requests::sku_no.gt(after));
        let first = later.order(failed_requests::sku_no);
        first.select(failed_requests::sku_no).first(self).optional()
    }

    /// Quota rows that differ from the orders that count: buyer, units in the row, units of the
    /// orders. Reads both tables along their primary keys.
    fn wrong_quotas(&mut self, sku: i32, limit: i32) -> QueryResult<Vec<(i64, i64, i64)>> {
        let query = format!(
            "SELECT buyer_id, owned, counted FROM ( \
               SELECT q.buyer_id AS buyer_id, q.owned AS owned, COALESCE((SELECT SUM(o.quantity) \
                 FROM orders o WHERE o.sku_no = q.sku_no AND o.buyer_id = q.buyer_id \
                 AND o.counts_for_limit = 1), 0) AS counted FROM quotas q WHERE q.sku_no = {sku} \
             ) AS each_quota WHERE owned <> counted \
             UNION ALL \
             SELECT o.buyer_id, 0, SUM(o.quantity) FROM orders o \
               WHERE o.sku_no = {sku} AND o.counts_for_limit = 1 \
               AND (SELECT policy_limit FROM skus WHERE sku_no = {sku}) IS NOT NULL \
               AND NOT EXISTS \
                 (SELECT 1 FROM quotas q WHERE q.sku_no = {sku} AND q.buyer_id = o.buyer_id) \
               GROUP BY o.buyer_id \
             LIMIT {limit}"
        );
        sql::<(BigInt, BigInt, BigInt)>(&query).load(self)
    }

    /// The requests of orders that contradict their payments. Reads both tables along their primary
    /// keys. Order state 1 is paid, 2 timed out; the states of payments are numbered as in
    /// [`crate::domain::PaymentState`].
    fn wrong_money(&mut self, sku: i32, limit: i32) -> QueryResult<Vec<i64>> {
        let of_order = "p.sku_no = o.sku_no AND p.buyer_id = o.buyer_id \
                        AND p.request_id = o.request_id";
        let query = format!(
            "SELECT o.request_id FROM orders o WHERE o.sku_no = {sku} AND o.state = 1 AND \
               (SELECT COUNT(*) FROM payments p WHERE {of_order} AND p.state = 2) <> 1 \
             UNION ALL \
             SELECT p.request_id FROM payments p WHERE p.sku_no = {sku} AND NOT CASE p.state \
               WHEN 0 THEN p.received IS NULL WHEN 1 THEN p.received IS NULL \
               WHEN 2 THEN COALESCE(p.received, -1) = p.price \
                 AND COALESCE(p.received_currency, '') = p.currency AND EXISTS \
                   (SELECT 1 FROM orders o WHERE {of_order} AND o.state = 1) \
               WHEN 5 THEN p.refunded_total = COALESCE(p.received, -1) \
               WHEN 6 THEN p.refunded_total < COALESCE(p.received, -1) AND EXISTS \
                 (SELECT 1 FROM orders o WHERE {of_order} AND o.state = 2) \
               ELSE p.refunded_total < COALESCE(p.received, -1) END \
             LIMIT {limit}"
        );
        sql::<BigInt>(&query).load(self)
    }
}
}
