//! The queries that every database understands.

use diesel::QueryResult;
use diesel::connection::SimpleConnection;
use diesel_migrations::EmbeddedMigrations;

use crate::db::OrderCursor;
use crate::db::journey_rows::JourneyRow;
use crate::db::rows::{FailureRow, NewSku, OrderRow, SaleRow, SkuRow};
use crate::domain::SaleDraft;

/// Most values in one `IN` list.
pub const IN_LIST_MAX: usize = 500;

/// A SKU and one of its buyers.
pub type OfSku = (i32, i64);

/// What every database understands.
pub trait Queries: SimpleConnection {
    /// The versions of the migrations that were applied, oldest first.
    fn applied_versions(&mut self) -> QueryResult<Vec<String>>;

    /// Applies the migrations that are missing.
    ///
    /// # Errors
    /// What went wrong, in words.
    fn run_migrations(&mut self, migrations: EmbeddedMigrations) -> Result<(), String>;

    /// Reads one row of any kind.
    fn ping(&mut self) -> QueryResult<()>;

    /// Orders with one of these requests.
    fn orders_by_request(&mut self, requests: &[i64]) -> QueryResult<Vec<OrderRow>>;

    /// Failures with one of these requests.
    fn failures_by_request(&mut self, requests: &[i64]) -> QueryResult<Vec<FailureRow>>;

    /// SKU, buyer and request of these buyers' orders in slot 0.
    fn first_orders(&mut self, buyers: &[OfSku]) -> QueryResult<Vec<(i32, i64, i64)>>;

    /// SKU, buyer and units of these buyers' quota rows.
    fn owned_units(&mut self, buyers: &[OfSku]) -> QueryResult<Vec<(i32, i64, i32)>>;

    /// The units left of these SKUs, by SKU.
    fn units_left(&mut self, skus: &[i32]) -> QueryResult<Vec<(i32, i32)>>;

    /// One order.
    fn order_row(&mut self, request: i64) -> QueryResult<Option<OrderRow>>;

    /// One order with its way.
    fn journey_row(&mut self, request: i64) -> QueryResult<Option<JourneyRow>>;

    /// One failure.
    fn failure_row(&mut self, request: i64) -> QueryResult<Option<FailureRow>>;

    /// A page of a buyer's orders, newest first. The buyer is sought in each SKU along the primary
    /// key: an index by buyer would cost every order a second write for a page that few ask for.
    fn order_page(
        &mut self,
        buyer: i64,
        cursor: Option<OrderCursor>,
        limit: u32,
    ) -> QueryResult<Vec<OrderRow>>;

    /// Records failures; a request that has a record keeps it.
    fn insert_failures(&mut self, failures: &[FailureRow]) -> QueryResult<()>;

    /// Takes units from a SKU, where so many are left: 1, or 0.
    fn take_stock(&mut self, sku: i32, units: i32) -> QueryResult<usize>;

    /// Writes a sale without its SKUs.
    fn insert_sale(&mut self, draft: &SaleDraft, now_ms: i64) -> QueryResult<()>;

    /// Writes a SKU.
    fn insert_sku(&mut self, sku: &NewSku<'_>) -> QueryResult<()>;

    /// Keeps everybody else from changing a sale until the transaction ends.
    fn hold_sale(&mut self, id: &str) -> QueryResult<()>;

    /// Writes a sale's phase, with its epoch and opening.
    fn set_phase(&mut self, sale: &SaleRow, phase: i16) -> QueryResult<()>;

    /// One sale.
    fn sale_row(&mut self, id: &str) -> QueryResult<Option<SaleRow>>;

    /// Every sale, oldest first.
    fn sale_rows(&mut self) -> QueryResult<Vec<SaleRow>>;

    /// The SKUs of every sale, oldest first.
    fn sku_rows(&mut self) -> QueryResult<Vec<SkuRow>>;

    /// The SKUs of a sale, oldest first.
    fn sku_rows_of(&mut self, sale: i32) -> QueryResult<Vec<SkuRow>>;

    /// The units left of a SKU.
    fn available(&mut self, sku: i32) -> QueryResult<Option<i32>>;

    /// A SKU with its sale.
    fn sku_and_sale(&mut self, sku: i32) -> QueryResult<Option<(SkuRow, SaleRow)>>;

    /// How many orders a SKU has.
    fn num_orders(&mut self, sku: i32) -> QueryResult<i64>;

    /// How many failures a SKU has.
    fn num_failures(&mut self, sku: i32) -> QueryResult<i64>;

    /// The units of a SKU's failures, by reason.
    fn failed_units(&mut self, sku: i32) -> QueryResult<Vec<(String, Option<i64>)>>;

    /// Request ids with several orders of a SKU, by `sql`, with their number.
    fn repeated_requests(
        &mut self,
        sql: &'static str,
        sku: i32,
        limit: i32,
    ) -> QueryResult<Vec<(i64, i64)>>;

    /// Failures of a SKU whose request is an order.
    fn ordered_and_failed(&mut self, sku: i32, limit: i32) -> QueryResult<Vec<i64>>;

    /// Quota rows that differ from the live orders: buyer, units by the row, units by the orders.
    fn wrong_quotas(&mut self, sku: i32, limit: i32) -> QueryResult<Vec<(i64, i64, i64)>>;

    /// A secret.
    fn secret_value(&mut self, name: &str) -> QueryResult<Option<Vec<u8>>>;

    /// Writes a secret.
    fn insert_secret(&mut self, name: &str, value: &[u8]) -> QueryResult<()>;
}
