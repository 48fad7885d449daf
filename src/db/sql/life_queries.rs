//! The queries about the life of orders: changes, events, bars and cursors.

use diesel::dsl::{insert_into, insert_or_ignore_into, min, sql, update};
use diesel::prelude::*;
use diesel::sql_query;
use diesel::sql_types::{BigInt, Bool, Integer, Text};

use super::Database;
use super::queries::queries;
use super::statements::{SkuAndBuyer, case, in_lists, list, of_buyers, of_orders};
use crate::db::failure_rows::FailureRow;
use crate::db::life_rows::{BarRow, OrderEventRow};
use crate::db::rows::{ORDER_COLUMNS, OrderColumns, OrderRow};
use crate::db::sale_rows::SkuRow;
use crate::db::schema::{bars, cursors, order_events, orders, sales, skus};
use crate::domain::OrderKey;

queries! {
/// The queries about the life of orders.
trait LifeQueries {
    /// The orders with these keys, locked until the transaction ends, in the order of the primary
    /// key: concurrent writers do not deadlock.
    fn lock_orders(&mut self, keys: &[OrderKey]) -> QueryResult<Vec<OrderRow>> {
        let text = format!(
            "SELECT {ORDER_COLUMNS} FROM orders {} WHERE {} ORDER BY sku_no, buyer_id, slot {}",
            Self::BY_PRIMARY_KEY, of_orders(keys), Self::FOR_UPDATE
        );
        sql::<OrderColumns>(&text).load(self)
    }

    /// The orders with these keys.
    fn orders_by_key(&mut self, keys: &[OrderKey]) -> QueryResult<Vec<OrderRow>> {
        in_lists(keys, |keys| {
            let rows = orders::table.filter(sql::<Bool>(&of_orders(keys)));
            rows.select(OrderRow::as_select()).load(self)
        })
    }

    /// Sets columns of locked orders of one version, and increments the version. Returns the number
    /// of changed orders.
    fn update_orders(
        &mut self, keys: &[OrderKey], version: u16, columns: &str
    ) -> QueryResult<usize> {
        sql_query(format!(
            "UPDATE orders {} SET version = version + 1, {columns} \
             WHERE {} AND version = {version}",
            Self::BY_PRIMARY_KEY, of_orders(keys)
        )).execute(self)
    }

    /// SKU, buyer and number of the ended orders of these buyers.
    fn num_ended(&mut self, buyers: &[SkuAndBuyer]) -> QueryResult<Vec<(i32, i64, i64)>> {
        let text = format!(
            "SELECT sku_no, buyer_id, COUNT(*) FROM orders {} \
             WHERE ({}) AND state IN (2, 3, 4) GROUP BY sku_no, buyer_id",
            Self::BY_PRIMARY_KEY, of_buyers(buyers)
        );
        sql::<(Integer, BigInt, BigInt)>(&text).load(self)
    }

    /// The orders in this state that are due at this time, oldest first.
    fn due_orders(
        &mut self, state: i16, until_ms: i64, limit: u32
    ) -> QueryResult<Vec<OrderRow>> {
        orders::table
            .filter(orders::due_ms.le(until_ms))
            .filter(orders::state.eq(state))
            .order(orders::due_ms)
            .limit(i64::from(limit))
            .select(OrderRow::as_select())
            .load(self)
    }

    /// These SKUs, each with the currency of its sale.
    fn skus_with_currency(&mut self, skus: &[i32]) -> QueryResult<Vec<(SkuRow, String)>> {
        let of_sale = sales::table.on(sales::sale_no.eq(skus::sale_no));
        let rows = skus::table.inner_join(of_sale).filter(skus::sku_no.eq_any(skus));
        rows.select((SkuRow::as_select(), sales::currency)).load(self)
    }

    fn insert_events(&mut self, rows: &[OrderEventRow]) -> QueryResult<()> {
        insert_into(order_events::table).values(rows).execute(self).map(drop)
    }

    /// Writes the event of each of these recorded failures that has none, if its SKU has a sale.
    fn insert_refusals(&mut self, failures: &[FailureRow]) -> QueryResult<()> {
        sql_query(format!(
            "INSERT INTO order_events (request_id, version, sku_no, buyer_id, kind, at_ms, actor, \
             reason, limit_back, num_orders) SELECT request_id, 0, sku_no, buyer_id, 0, \
             recorded_at_ms, '', reason, 0, 1 FROM failed_requests f JOIN skus USING (sku_no) \
             WHERE request_id IN ({}) AND NOT EXISTS (SELECT 1 FROM order_events e \
             WHERE e.request_id = f.request_id AND e.version = 0)",
            list(failures.iter().map(|failure| failure.request_id))
        )).execute(self).map(drop)
    }

    /// Request, version and number of orders of events without a feed number; each order's
    /// versions ascend.
    fn unnumbered_events(&mut self, limit: u32) -> QueryResult<Vec<(i64, i32, i32)>> {
        order_events::table
            .filter(order_events::feed_no.is_null())
            .order((order_events::version, order_events::request_id))
            .limit(i64::from(limit))
            .select((order_events::request_id, order_events::version, order_events::num_orders))
            .load(self)
    }

    /// Sets the feed numbers of the events of one version, by request.
    fn set_feed_numbers(
        &mut self, version: i32, numbers: &[(i64, i64)]
    ) -> QueryResult<usize> {
        let each = case("request_id", numbers.iter().copied());
        sql_query(format!(
            "UPDATE order_events {} SET feed_no = {each} \
             WHERE request_id IN ({}) AND version = {version}",
            Self::BY_PRIMARY_KEY, list(numbers.iter().map(|(request, _)| *request))
        )).execute(self)
    }

    /// The rows with the next `limit` events after a feed number. A placement is one row of many
    /// events: as numbers have no gaps, the first row at or beyond the last of them is enough.
    fn events_after(&mut self, feed_no: i64, limit: u32) -> QueryResult<Vec<OrderEventRow>> {
        let wanted = feed_no.saturating_add(i64::from(limit));
        let last: Option<i64> = order_events::table
            .filter(order_events::feed_no.ge(wanted))
            .select(min(order_events::feed_no))
            .first(self)?;
        order_events::table
            .filter(order_events::feed_no.gt(feed_no))
            .filter(order_events::feed_no.le(last.unwrap_or(i64::MAX)))
            .order(order_events::feed_no)
            .limit(i64::from(limit))
            .select(OrderEventRow::as_select())
            .load(self)
    }

    /// The rows of changes after a feed number, up to `until`. Version 0 is no change.
    fn changes_after(
        &mut self, feed_no: i64, until: i64, limit: u32
    ) -> QueryResult<Vec<OrderEventRow>> {
        order_events::table
            .filter(order_events::feed_no.gt(feed_no))
            .filter(order_events::feed_no.le(until))
            .filter(order_events::version.gt(0))
            .order(order_events::feed_no)
            .limit(i64::from(limit))
            .select(OrderEventRow::as_select())
            .load(self)
    }

    fn cursor(&mut self, name: &str) -> QueryResult<Option<i64>> {
        cursors::table.find(name).select(cursors::feed_no).first(self).optional()
    }

    /// Moves a cursor forward, not back.
    fn move_cursor(&mut self, name: &str, feed_no: i64) -> QueryResult<()> {
        let raised = sql_query(Self::RAISE_CURSOR).bind::<Text, _>(name);
        raised.bind::<BigInt, _>(feed_no).execute(self).map(drop)
    }

    /// The SKUs that are in the same sale as one of these, each with that one.
    fn skus_of_same_sales(&mut self, skus: &[i32]) -> QueryResult<Vec<(i32, i32)>> {
        let text = format!(
            "SELECT one.sku_no, other.sku_no FROM skus one JOIN skus other \
             ON other.sale_no = one.sale_no WHERE one.sku_no IN ({})",
            list(skus.iter().map(|sku| i64::from(*sku)))
        );
        sql::<(Integer, Integer)>(&text).load(self)
    }

    /// Bars buyers; an existing bar stays.
    fn insert_bars(&mut self, rows: &[BarRow]) -> QueryResult<()> {
        insert_or_ignore_into(bars::table).values(rows).execute(self).map(drop)
    }

    /// SKU and buyer of the bars of these buyers, and the request that each exempts.
    fn barred(&mut self, buyers: &[SkuAndBuyer]) -> QueryResult<Vec<(i32, i64, Option<i64>)>> {
        let rows = bars::table.filter(sql::<Bool>(&of_buyers(buyers)));
        rows.select((bars::sku_no, bars::buyer_id, bars::exempt_id)).load(self)
    }

    /// The buyers barred from a SKU at or after a time.
    fn barred_since(&mut self, sku: i32, since_ms: i64) -> QueryResult<Vec<i64>> {
        let rows = bars::table.filter(bars::sku_no.eq(sku)).filter(bars::at_ms.ge(since_ms));
        rows.select(bars::buyer_id).load(self)
    }

    /// Enters the request that the bar of an order exempts, if the order brought one.
    fn exempt(&mut self, order: (i32, i64, i64), request: i64) -> QueryResult<()> {
        let bar = bars::table.find(order);
        update(bar).set(bars::exempt_id.eq(request)).execute(self).map(drop)
    }
}
}
