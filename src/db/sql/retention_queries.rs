//! The queries about the archive and the purge of sales; see `queries`.

use diesel::dsl::{sql, update};
use diesel::prelude::*;
use diesel::sql_query;
use diesel::sql_types::{BigInt, Integer, Text};

use super::Database;
use super::queries::queries;
use super::statements::{SkuAndBuyer, list, of_requests};
use crate::db::schema::{sales, skus};
use crate::domain::{Retention, RetentionState};

/// Buyer, slot and request of an order.
pub type OrderId = (i64, i64, i64);

queries! {
/// The queries about the archive and the purge of sales.
trait RetentionQueries {
    fn set_retention(&mut self, sale: i32, retention: &Retention) -> QueryResult<()> {
        let row = (
            sales::retention.eq(retention.state.to_db()),
            sales::archive_digest.eq(retention.digest.map(|digest| digest.to_string())),
            sales::retention_at_ms.eq(retention.since_ms),
        );
        update(sales::table.find(sale)).set(row).execute(self).map(drop)
    }

    /// Leaves no unit of a sale to be ordered.
    fn take_all_units(&mut self, sale: i32) -> QueryResult<()> {
        let rows = skus::table.filter(skus::sale_no.eq(sale));
        update(rows).set(skus::available.eq(0)).execute(self).map(drop)
    }

    /// Those of these SKUs whose sale is in this state or a later one.
    fn skus_from(&mut self, state: RetentionState, among: &[i32]) -> QueryResult<Vec<i32>> {
        skus::table
            .inner_join(sales::table.on(sales::sale_no.eq(skus::sale_no)))
            .filter(skus::sku_no.eq_any(among))
            .filter(sales::retention.ge(state.to_db()))
            .select(skus::sku_no)
            .load(self)
    }

    /// Whether the sale of the SKU is being or was purged: rows may be missing.
    fn is_purged(&mut self, sku: i32) -> QueryResult<bool> {
        Ok(!self.skus_from(RetentionState::Purging, &[sku])?.is_empty())
    }

    /// One text of each row of a query.
    fn texts(&mut self, query: &str) -> QueryResult<Vec<String>> {
        sql::<Text>(query).load(self)
    }

    /// The orders of a SKU after a buyer and slot, by their key.
    fn order_ids(&mut self, sku: i32, after: (i64, i64), limit: u32) -> QueryResult<Vec<OrderId>> {
        let (buyer, slot) = after;
        let text = format!(
            "SELECT buyer_id, slot, request_id FROM orders {} WHERE sku_no = {sku} \
             AND buyer_id >= {buyer} AND (buyer_id > {buyer} OR slot > {slot}) \
             ORDER BY buyer_id, slot LIMIT {limit}",
            Self::BY_PRIMARY_KEY
        );
        sql::<(BigInt, BigInt, BigInt)>(&text).load(self)
    }

    /// The recorded failures of a SKU after a request.
    fn failure_ids(&mut self, sku: i32, after: i64, limit: u32) -> QueryResult<Vec<i64>> {
        let text = format!(
            "SELECT request_id FROM failed_requests WHERE sku_no = {sku} \
             AND request_id > {after} ORDER BY request_id LIMIT {limit}"
        );
        sql::<BigInt>(&text).load(self)
    }

    /// Deletes the rows of orders or failures in a table that has their requests.
    fn delete_by_request(&mut self, table: &str, requests: &[i64]) -> QueryResult<()> {
        let requests = list(requests.iter().copied());
        let text = format!("DELETE FROM {table} WHERE request_id IN ({requests})");
        sql_query(text).execute(self).map(drop)
    }

    /// Deletes the rows of orders in a table whose key begins with SKU and buyer.
    fn delete_by_buyer(
        &mut self, table: &str, buyers: &[SkuAndBuyer], requests: &[i64]
    ) -> QueryResult<()> {
        let rows = of_requests(buyers, requests.iter().copied());
        sql_query(format!("DELETE FROM {table} WHERE {rows}")).execute(self).map(drop)
    }

    /// Deletes rows of a SKU in the order of a column; returns the values of the column.
    fn delete_some(
        &mut self, table: &str, column: &str, sku: i32, limit: u32
    ) -> QueryResult<Vec<i64>> {
        let first = sql::<BigInt>(&format!(
            "SELECT {column} FROM {table} WHERE sku_no = {sku} ORDER BY {column} LIMIT {limit}"
        ));
        let values: Vec<i64> = first.load(self)?;
        if values.is_empty() {
            return Ok(values);
        }
        let some = list(values.iter().copied());
        let text = format!("DELETE FROM {table} WHERE sku_no = ? AND {column} IN ({some})");
        sql_query(text).bind::<Integer, _>(sku).execute(self).map(|_| values)
    }
}
}
