//! [`Queries`] in diesel's words.
//!
//! Compiled once per database, because diesel's types depend on it; what is decided on the rows is
//! generic and written once, in the files beside this one.

use diesel::dsl::{exists, insert_into, insert_or_ignore_into, sum, update};
use diesel::prelude::*;
use diesel::sql_types::{BigInt, Integer, Text};
use diesel_migrations::{EmbeddedMigrations, MigrationHarness};

use super::queries::{OfSku, Queries};
use super::statements::{TakeStock, of_buyers};
use crate::db::OrderCursor;
use crate::db::journey_rows::JourneyRow;
use crate::db::mysql::MysqlConnection;
use crate::db::rows::{FailureRow, NewSku, OrderRow, SaleRow, SkuRow};
use crate::db::schema::{failed_requests, orders, sales, secrets, skus};
use crate::domain::{Phase, SaleDraft};

#[derive(QueryableByName)]
struct Version {
    #[diesel(sql_type = Text)]
    version: String,
}

#[derive(QueryableByName)]
struct Repeated {
    #[diesel(sql_type = BigInt)]
    request_id: i64,
    #[diesel(sql_type = BigInt)]
    num_orders: i64,
}

#[derive(QueryableByName)]
struct First {
    #[diesel(sql_type = Integer)]
    sku_no: i32,
    #[diesel(sql_type = BigInt)]
    buyer_id: i64,
    #[diesel(sql_type = BigInt)]
    request_id: i64,
}

#[derive(QueryableByName)]
struct OwnedUnits {
    #[diesel(sql_type = Integer)]
    sku_no: i32,
    #[diesel(sql_type = BigInt)]
    buyer_id: i64,
    #[diesel(sql_type = Integer)]
    owned: i32,
}

#[derive(QueryableByName)]
struct Quota {
    #[diesel(sql_type = BigInt)]
    buyer_id: i64,
    #[diesel(sql_type = BigInt)]
    owned: i64,
    #[diesel(sql_type = BigInt)]
    live: i64,
}

/// Both tables are read along their primary keys. States 0 and 1 are the live ones.
const WRONG_QUOTAS: &str = "SELECT buyer_id, owned, live FROM ( \
       SELECT q.buyer_id AS buyer_id, q.owned AS owned, COALESCE((SELECT SUM(o.quantity) \
         FROM orders o WHERE o.sku_no = q.sku_no AND o.buyer_id = q.buyer_id \
         AND o.state IN (0, 1)), 0) AS live FROM quotas q WHERE q.sku_no = ? \
     ) AS each_quota WHERE owned <> live \
     UNION ALL \
     SELECT o.buyer_id, 0, SUM(o.quantity) FROM orders o \
       WHERE o.sku_no = ? AND o.state IN (0, 1) \
       AND (SELECT policy_limit FROM skus WHERE sku_no = ?) IS NOT NULL \
       AND NOT EXISTS (SELECT 1 FROM quotas q WHERE q.sku_no = ? AND q.buyer_id = o.buyer_id) \
       GROUP BY o.buyer_id \
     LIMIT ?";

macro_rules! queries {
    ($connection:ty) => {
        impl Queries for $connection {
            fn applied_versions(&mut self) -> QueryResult<Vec<String>> {
                let sql = "SELECT version FROM __diesel_schema_migrations ORDER BY version";
                let rows: Vec<Version> = diesel::sql_query(sql).load(self)?;
                Ok(rows.into_iter().map(|row| row.version).collect())
            }

            fn run_migrations(&mut self, migrations: EmbeddedMigrations) -> Result<(), String> {
                match self.run_pending_migrations(migrations) {
                    Ok(_) => Ok(()),
                    Err(error) => Err(error.to_string()),
                }
            }

            fn ping(&mut self) -> QueryResult<()> {
                sales::table.select(sales::sale_no).first::<i32>(self).optional().map(drop)
            }

            fn orders_by_request(&mut self, requests: &[i64]) -> QueryResult<Vec<OrderRow>> {
                orders::table
                    .filter(orders::request_id.eq_any(requests))
                    .select(OrderRow::as_select())
                    .load(self)
            }

            fn failures_by_request(&mut self, requests: &[i64]) -> QueryResult<Vec<FailureRow>> {
                failed_requests::table
                    .filter(failed_requests::request_id.eq_any(requests))
                    .select(FailureRow::as_select())
                    .load(self)
            }

            fn first_orders(&mut self, buyers: &[OfSku]) -> QueryResult<Vec<(i32, i64, i64)>> {
                let sql = format!(
                    "SELECT sku_no, buyer_id, request_id FROM orders WHERE slot = 0 AND ({})",
                    of_buyers(buyers)
                );
                let rows: Vec<First> = diesel::sql_query(sql).load(self)?;
                Ok(rows.into_iter().map(|row| (row.sku_no, row.buyer_id, row.request_id)).collect())
            }

            fn owned_units(&mut self, buyers: &[OfSku]) -> QueryResult<Vec<(i32, i64, i32)>> {
                let sql = format!(
                    "SELECT sku_no, buyer_id, owned FROM quotas WHERE {}",
                    of_buyers(buyers)
                );
                let rows: Vec<OwnedUnits> = diesel::sql_query(sql).load(self)?;
                Ok(rows.into_iter().map(|row| (row.sku_no, row.buyer_id, row.owned)).collect())
            }

            fn units_left(&mut self, skus: &[i32]) -> QueryResult<Vec<(i32, i32)>> {
                skus::table
                    .filter(skus::sku_no.eq_any(skus))
                    .select((skus::sku_no, skus::available))
                    .load(self)
            }

            fn order_row(&mut self, request: i64) -> QueryResult<Option<OrderRow>> {
                orders::table
                    .filter(orders::request_id.eq(request))
                    .select(OrderRow::as_select())
                    .first(self)
                    .optional()
            }

            fn journey_row(&mut self, request: i64) -> QueryResult<Option<JourneyRow>> {
                orders::table
                    .filter(orders::request_id.eq(request))
                    .select(JourneyRow::as_select())
                    .first(self)
                    .optional()
            }

            fn failure_row(&mut self, request: i64) -> QueryResult<Option<FailureRow>> {
                let row = failed_requests::table.find(request);
                row.select(FailureRow::as_select()).first(self).optional()
            }

            fn order_page(
                &mut self,
                buyer: i64,
                cursor: Option<OrderCursor>,
                limit: u32,
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
                    page = page
                        .filter(orders::placed_at_ms.lt(placed_at_ms).or(same_instant.and(before)));
                }
                page.load(self)
            }

            fn insert_failures(&mut self, failures: &[FailureRow]) -> QueryResult<()> {
                insert_or_ignore_into(failed_requests::table)
                    .values(failures)
                    .execute(self)
                    .map(drop)
            }

            fn take_stock(&mut self, sku: i32, units: i32) -> QueryResult<usize> {
                TakeStock { sku_no: sku, units }.execute(self)
            }

            fn insert_sale(&mut self, draft: &SaleDraft, now_ms: i64) -> QueryResult<()> {
                let row = (
                    sales::sale_id.eq(draft.id.as_str()),
                    sales::title.eq(&draft.title),
                    sales::starts_at_ms.eq(draft.starts_at_ms),
                    sales::ends_at_ms.eq(draft.ends_at_ms),
                    sales::phase.eq(Phase::Draft.to_db()),
                    sales::epoch.eq(0),
                    sales::opened_at_ms.eq(0),
                    sales::created_at_ms.eq(now_ms),
                );
                insert_into(sales::table).values(row).execute(self).map(drop)
            }

            fn insert_sku(&mut self, sku: &NewSku<'_>) -> QueryResult<()> {
                insert_into(skus::table).values(sku).execute(self).map(drop)
            }

            fn hold_sale(&mut self, id: &str) -> QueryResult<()> {
                let sale = sales::table.filter(sales::sale_id.eq(id));
                update(sale).set(sales::phase.eq(sales::phase)).execute(self).map(drop)
            }

            fn set_phase(&mut self, sale: &SaleRow, phase: i16) -> QueryResult<()> {
                let row = (
                    sales::phase.eq(phase),
                    sales::epoch.eq(sale.epoch),
                    sales::opened_at_ms.eq(sale.opened_at_ms),
                );
                update(sales::table.find(sale.sale_no)).set(row).execute(self).map(drop)
            }

            fn sale_row(&mut self, id: &str) -> QueryResult<Option<SaleRow>> {
                sales::table
                    .filter(sales::sale_id.eq(id))
                    .select(SaleRow::as_select())
                    .first(self)
                    .optional()
            }

            fn sale_rows(&mut self) -> QueryResult<Vec<SaleRow>> {
                sales::table.order(sales::sale_no).select(SaleRow::as_select()).load(self)
            }

            fn sku_rows(&mut self) -> QueryResult<Vec<SkuRow>> {
                skus::table.order(skus::sku_no).select(SkuRow::as_select()).load(self)
            }

            fn sku_rows_of(&mut self, sale: i32) -> QueryResult<Vec<SkuRow>> {
                skus::table
                    .filter(skus::sale_no.eq(sale))
                    .order(skus::sku_no)
                    .select(SkuRow::as_select())
                    .load(self)
            }

            fn available(&mut self, sku: i32) -> QueryResult<Option<i32>> {
                skus::table.find(sku).select(skus::available).first(self).optional()
            }

            fn sku_and_sale(&mut self, sku: i32) -> QueryResult<Option<(SkuRow, SaleRow)>> {
                skus::table
                    .inner_join(sales::table.on(sales::sale_no.eq(skus::sale_no)))
                    .filter(skus::sku_no.eq(sku))
                    .select((SkuRow::as_select(), SaleRow::as_select()))
                    .first(self)
                    .optional()
            }

            fn num_orders(&mut self, sku: i32) -> QueryResult<i64> {
                orders::table.filter(orders::sku_no.eq(sku)).count().get_result(self)
            }

            fn num_failures(&mut self, sku: i32) -> QueryResult<i64> {
                let failures = failed_requests::table.filter(failed_requests::sku_no.eq(sku));
                failures.count().get_result(self)
            }

            fn failed_units(&mut self, sku: i32) -> QueryResult<Vec<(String, Option<i64>)>> {
                failed_requests::table
                    .filter(failed_requests::sku_no.eq(sku))
                    .group_by(failed_requests::reason)
                    .select((failed_requests::reason, sum(failed_requests::quantity)))
                    .load(self)
            }

            fn repeated_requests(
                &mut self,
                sql: &'static str,
                sku: i32,
                limit: i32,
            ) -> QueryResult<Vec<(i64, i64)>> {
                let query = diesel::sql_query(sql).bind::<Integer, _>(sku);
                let rows: Vec<Repeated> = query.bind::<Integer, _>(limit).load(self)?;
                Ok(rows.into_iter().map(|row| (row.request_id, row.num_orders)).collect())
            }

            fn ordered_and_failed(&mut self, sku: i32, limit: i32) -> QueryResult<Vec<i64>> {
                let same = orders::table.filter(orders::request_id.eq(failed_requests::request_id));
                failed_requests::table
                    .filter(failed_requests::sku_no.eq(sku))
                    .filter(exists(same))
                    .select(failed_requests::request_id)
                    .limit(i64::from(limit))
                    .load(self)
            }

            fn wrong_quotas(&mut self, sku: i32, limit: i32) -> QueryResult<Vec<(i64, i64, i64)>> {
                let query = diesel::sql_query(WRONG_QUOTAS)
                    .bind::<Integer, _>(sku)
                    .bind::<Integer, _>(sku)
                    .bind::<Integer, _>(sku)
                    .bind::<Integer, _>(sku)
                    .bind::<Integer, _>(limit);
                let rows: Vec<Quota> = query.load(self)?;
                Ok(rows.into_iter().map(|row| (row.buyer_id, row.owned, row.live)).collect())
            }

            fn secret_value(&mut self, name: &str) -> QueryResult<Option<Vec<u8>>> {
                secrets::table.find(name).select(secrets::value).first(self).optional()
            }

            fn insert_secret(&mut self, name: &str, value: &[u8]) -> QueryResult<()> {
                let row = (secrets::name.eq(name), secrets::value.eq(value));
                insert_into(secrets::table).values(row).execute(self).map(drop)
            }
        }
    };
}

queries!(SqliteConnection);
queries!(MysqlConnection);
