//! The portable queries, written with diesel.
//!
//! Each is declared once and compiled for each database, because diesel's types depend on the
//! database. The decisions on the rows are generic, in the other files of this folder.

use diesel::dsl::{exists, insert_into, insert_or_ignore_into, sql, sum, update};
use diesel::prelude::*;
use diesel::sql_query;
use diesel::sql_types::{BigInt, Bool, Integer, Text};
use diesel_migrations::{EmbeddedMigrations, MigrationHarness};

use super::Database;
use super::statements::{TakeStock, of_buyers};
use crate::db::OrderCursor;
use crate::db::mysql::MysqlConnection;
use crate::db::rows::{FailureRow, OrderRow, OrderTimelineRow, SaleRow, SkuRow};
use crate::db::schema::{failed_requests, orders, quotas, sales, secrets, skus, tokens};
use crate::domain::{Phase, SaleDraft};

/// The maximum number of values in one `IN` list.
pub const IN_LIST_MAX: usize = 500;

pub type SkuAndBuyer = (i32, i64);

/// Declares a trait of queries and implements it for the connection of every database.
macro_rules! queries {
    ($(#[$doc:meta])* trait $name:ident { $($query:tt)+ }) => {
        $(#[$doc])*
        pub trait $name {
            $crate::db::sql::queries::queries!(@declare $($query)+);
        }
        $crate::db::sql::queries::queries!(@implement $name SqliteConnection { $($query)+ });
        $crate::db::sql::queries::queries!(@implement $name MysqlConnection { $($query)+ });
    };
    (@declare $($(#[$doc:meta])* fn $query:ident(
        &mut $conn:ident $(, $arg:ident: $kind:ty)*
    ) -> $answer:ty $body:block)+) => {
        $($(#[$doc])* fn $query(&mut $conn $(, $arg: $kind)*) -> $answer;)+
    };
    (@implement $name:ident $connection:ident { $($(#[$doc:meta])* fn $query:ident(
        &mut $conn:ident $(, $arg:ident: $kind:ty)*
    ) -> $answer:ty $body:block)+ }) => {
        impl $name for $connection {
            $(fn $query(&mut $conn $(, $arg: $kind)*) -> $answer $body)+
        }
    };
}
pub(super) use queries;

queries! {
/// The queries about sales, orders and failures.
trait Queries {
    /// The versions of the applied migrations, oldest first.
    fn applied_versions(&mut self) -> QueryResult<Vec<String>> {
        sql::<Text>("SELECT version FROM __diesel_schema_migrations ORDER BY version").load(self)
    }

    /// Applies the missing migrations; the error is diesel's text.
    fn run_migrations(&mut self, migrations: EmbeddedMigrations) -> Result<(), String> {
        self.run_pending_migrations(migrations).map(drop).map_err(|error| error.to_string())
    }

    /// Reads at most one row.
    fn ping(&mut self) -> QueryResult<()> {
        sales::table.select(sales::sale_no).first::<i32>(self).optional().map(drop)
    }

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

    /// Takes units from a SKU if so many are available; returns 1, else 0.
    fn take_stock(&mut self, sku: i32, units: i32) -> QueryResult<usize> {
        TakeStock { sku_no: sku, units }.execute(self)
    }

    /// Writes a sale without its SKUs.
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

    fn insert_sku(&mut self, sku: &SkuRow) -> QueryResult<()> {
        insert_into(skus::table).values(sku).execute(self).map(drop)
    }

    /// Locks the row of a sale until the transaction ends.
    fn lock_sale(&mut self, id: &str) -> QueryResult<()> {
        let sale = sales::table.filter(sales::sale_id.eq(id));
        update(sale).set(sales::phase.eq(sales::phase)).execute(self).map(drop)
    }

    /// Writes the phase of a sale, with its epoch and the time of its opening.
    fn set_phase(&mut self, sale: &SaleRow, phase: i16) -> QueryResult<()> {
        let row = (
            sales::phase.eq(phase),
            sales::epoch.eq(sale.epoch),
            sales::opened_at_ms.eq(sale.opened_at_ms),
        );
        update(sales::table.find(sale.sale_no)).set(row).execute(self).map(drop)
    }

    fn sale_row(&mut self, id: &str) -> QueryResult<Option<SaleRow>> {
        let row = sales::table.filter(sales::sale_id.eq(id));
        row.select(SaleRow::as_select()).first(self).optional()
    }

    /// Every sale, oldest first.
    fn sale_rows(&mut self) -> QueryResult<Vec<SaleRow>> {
        sales::table.order(sales::sale_no).select(SaleRow::as_select()).load(self)
    }

    /// The SKUs of every sale, oldest first.
    fn sku_rows(&mut self) -> QueryResult<Vec<SkuRow>> {
        skus::table.order(skus::sku_no).select(SkuRow::as_select()).load(self)
    }

    /// The SKUs of a sale, oldest first.
    fn sku_rows_of(&mut self, sale: i32) -> QueryResult<Vec<SkuRow>> {
        let rows = skus::table.filter(skus::sale_no.eq(sale));
        rows.order(skus::sku_no).select(SkuRow::as_select()).load(self)
    }

    /// The available units of a SKU.
    fn available(&mut self, sku: i32) -> QueryResult<Option<i32>> {
        skus::table.find(sku).select(skus::available).first(self).optional()
    }

    fn sku_and_sale(&mut self, sku: i32) -> QueryResult<Option<(SkuRow, SaleRow)>> {
        let of_sale = sales::table.on(sales::sale_no.eq(skus::sale_no));
        let row = skus::table.inner_join(of_sale).filter(skus::sku_no.eq(sku));
        row.select((SkuRow::as_select(), SaleRow::as_select())).first(self).optional()
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
        sql::<(BigInt, BigInt)>(Self::REPEATED_REQUESTS).bind::<Integer, _>(limit).load(self)
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

    /// Quota rows that differ from the live orders: buyer, units in the row, units of the orders.
    /// Reads both tables along their primary keys. States 0 and 1 are live.
    fn wrong_quotas(&mut self, sku: i32, limit: i32) -> QueryResult<Vec<(i64, i64, i64)>> {
        let query = format!(
            "SELECT buyer_id, owned, live FROM ( \
               SELECT q.buyer_id AS buyer_id, q.owned AS owned, COALESCE((SELECT SUM(o.quantity) \
                 FROM orders o WHERE o.sku_no = q.sku_no AND o.buyer_id = q.buyer_id \
                 AND o.state IN (0, 1)), 0) AS live FROM quotas q WHERE q.sku_no = {sku} \
             ) AS each_quota WHERE owned <> live \
             UNION ALL \
             SELECT o.buyer_id, 0, SUM(o.quantity) FROM orders o \
               WHERE o.sku_no = {sku} AND o.state IN (0, 1) \
               AND (SELECT policy_limit FROM skus WHERE sku_no = {sku}) IS NOT NULL \
               AND NOT EXISTS \
                 (SELECT 1 FROM quotas q WHERE q.sku_no = {sku} AND q.buyer_id = o.buyer_id) \
               GROUP BY o.buyer_id \
             LIMIT {limit}"
        );
        sql::<(BigInt, BigInt, BigInt)>(&query).load(self)
    }

    /// Sets a token to `next`, an SQL expression of its present value (0 for a new token), and
    /// returns it; part of a transaction.
    fn raise_token(&mut self, name: &str, next: &'static str) -> QueryResult<i64> {
        sql_query(Self::INSERT_TOKEN).bind::<Text, _>(name).execute(self)?;
        let token = sql_query(format!("UPDATE tokens SET token = {next} WHERE name = ?"));
        token.bind::<Text, _>(name).execute(self)?;
        tokens::table.find(name).select(tokens::token).first(self)
    }

    fn has_table(&mut self, name: &str) -> QueryResult<bool> {
        let named = sql::<BigInt>(Self::TABLES_NAMED).bind::<Text, _>(name);
        named.get_result::<i64>(self).map(|tables| tables > 0)
    }

    fn secret_value(&mut self, name: &str) -> QueryResult<Option<Vec<u8>>> {
        secrets::table.find(name).select(secrets::value).first(self).optional()
    }

    fn insert_secret(&mut self, name: &str, value: &[u8]) -> QueryResult<()> {
        let row = (secrets::name.eq(name), secrets::value.eq(value));
        insert_into(secrets::table).values(row).execute(self).map(drop)
    }
}
}
