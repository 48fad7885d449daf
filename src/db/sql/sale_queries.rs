//! The queries about sales and their SKUs; see `queries`.

use diesel::dsl::{insert_into, update};
use diesel::prelude::*;

use super::queries::queries;
use crate::db::mysql::MysqlConnection;
use crate::db::sale_rows::{SaleRow, SkuRow};
use crate::db::schema::{sales, skus};
use crate::domain::{Phase, SaleDraft};

queries! {
/// The queries about sales and their SKUs.
trait SaleQueries {
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
            sales::currency.eq(draft.currency.to_string()),
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
}
}
