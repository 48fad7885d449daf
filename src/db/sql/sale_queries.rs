//! The queries about sales and their SKUs; see `queries`.

use diesel::dsl::{insert_into, update};
use diesel::prelude::*;

use super::queries::queries;
use crate::db::sale_rows::{PhaseRow, SaleRow, SkuRow, StockChangeRow, TermsRow};
use crate::db::schema::{sale_phases, sales, skus, stock_changes, terms};
use crate::domain::{Phase, Sale, SaleDraft};

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
            sales::ticket_required.eq(i16::from(draft.ticket_required)),
        );
        insert_into(sales::table).values(row).execute(self).map(drop)
    }

    fn insert_sku(&mut self, sku: &SkuRow) -> QueryResult<()> {
        insert_into(skus::table).values(sku).execute(self).map(drop)
    }

    /// Locks the row of a sale until the transaction ends, and returns it.
    fn lock_sale(&mut self, id: &str) -> QueryResult<Option<SaleRow>> {
        let sale = sales::table.filter(sales::sale_id.eq(id));
        update(sale).set(sales::phase.eq(sales::phase)).execute(self)?;
        self.sale_row(id)
    }

    /// Writes the phase of a sale, with its epoch and the time of its opening.
    fn set_phase(&mut self, sale: &SaleRow, phase: i16) -> QueryResult<()> {
        let row = (
            sales::phase.eq(phase),
            sales::epoch.eq(sale.epoch),
            sales::opened_at_ms.eq(sale.opened_at_ms),
            sales::closed_at_ms.eq(sale.closed_at_ms),
        );
        update(sales::table.find(sale.sale_no)).set(row).execute(self).map(drop)
    }

    /// Writes the columns of a sale that may change while it runs.
    fn change_sale(&mut self, sale: &Sale) -> QueryResult<()> {
        let row = (
            sales::title.eq(&sale.title),
            sales::ends_at_ms.eq(sale.ends_at_ms),
            sales::epoch.eq(sale.epoch.0),
        );
        update(sales::table.find(sale.no)).set(row).execute(self).map(drop)
    }

    /// Writes the title and the terms of a SKU.
    fn change_sku(&mut self, sku: i32, title: &str, terms: &TermsRow) -> QueryResult<()> {
        let row = (
            skus::title.eq(title),
            skus::price.eq(terms.price),
            skus::policy_limit.eq(terms.policy_limit),
            skus::max_quantity.eq(terms.max_quantity),
            skus::payment_window_s.eq(terms.payment_window_s),
        );
        update(skus::table.find(sku)).set(row).execute(self).map(drop)
    }

    fn insert_terms(&mut self, row: &TermsRow) -> QueryResult<()> {
        insert_into(terms::table).values(row).execute(self).map(drop)
    }

    /// The terms of every SKU whose terms have changed, in the order of their epochs.
    fn terms_rows(&mut self) -> QueryResult<Vec<TermsRow>> {
        let rows = terms::table.order((terms::sku_no, terms::epoch));
        rows.select(TermsRow::as_select()).load(self)
    }

    /// The terms of a SKU, in the order of their epochs; empty: they never changed.
    fn terms_rows_of(&mut self, sku: i32) -> QueryResult<Vec<TermsRow>> {
        let rows = terms::table.filter(terms::sku_no.eq(sku)).order(terms::epoch);
        rows.select(TermsRow::as_select()).load(self)
    }

    /// Locks the row of a SKU until the transaction ends.
    fn lock_sku(&mut self, sku: i32) -> QueryResult<()> {
        let row = skus::table.find(sku);
        update(row).set(skus::available.eq(skus::available)).execute(self).map(drop)
    }

    /// Locks the rows of a SKU and its sale until the transaction ends, and returns them. The sale
    /// is first, as in a change of its terms.
    fn lock_sku_and_sale(&mut self, sku: i32) -> QueryResult<Option<(SkuRow, SaleRow)>> {
        let Some((_, sale)) = self.sku_and_sale(sku)? else { return Ok(None) };
        let sale = sales::table.find(sale.sale_no);
        update(sale).set(sales::phase.eq(sales::phase)).execute(self)?;
        self.lock_sku(sku)?;
        self.sku_and_sale(sku)
    }

    /// Adds units to the stock of a SKU; negative units are taken out.
    fn add_stock(&mut self, change: &StockChangeRow) -> QueryResult<()> {
        let row = (
            skus::initial_stock.eq(skus::initial_stock + change.units),
            skus::available.eq(skus::available + change.units),
        );
        update(skus::table.find(change.sku_no)).set(row).execute(self).map(drop)
    }

    fn insert_stock_change(&mut self, row: &StockChangeRow) -> QueryResult<()> {
        insert_into(stock_changes::table).values(row).execute(self).map(drop)
    }

    fn stock_change(&mut self, sku: i32, id: &str) -> QueryResult<Option<StockChangeRow>> {
        let row = stock_changes::table.find((sku, id));
        row.select(StockChangeRow::as_select()).first(self).optional()
    }

    /// The changes of every stock, in their order.
    fn all_stock_changes(&mut self) -> QueryResult<Vec<StockChangeRow>> {
        let rows = stock_changes::table.order((stock_changes::sku_no, stock_changes::change_no));
        rows.select(StockChangeRow::as_select()).load(self)
    }

    /// The changes of a SKU's stock after a number, in their order.
    fn stock_changes_after(&mut self, sku: i32, no: i32) -> QueryResult<Vec<StockChangeRow>> {
        let rows = stock_changes::table.filter(stock_changes::sku_no.eq(sku));
        let rows = rows.filter(stock_changes::change_no.gt(no)).order(stock_changes::change_no);
        rows.select(StockChangeRow::as_select()).load(self)
    }

    /// Records a change of phase or epoch, in the transaction that makes it.
    fn insert_phase(
        &mut self, sale: i32, epoch: i64, phase: i16, now_ms: i64
    ) -> QueryResult<()> {
        let row = (
            sale_phases::sale_no.eq(sale),
            sale_phases::epoch.eq(epoch),
            sale_phases::phase.eq(phase),
            sale_phases::changed_at_ms.eq(now_ms),
        );
        insert_into(sale_phases::table).values(row).execute(self).map(drop)
    }

    /// Records when a change of phase had reached every bucket, once.
    fn set_phase_applied(
        &mut self,
        sale: i32,
        epoch: i64,
        phase: i16,
        now_ms: i64
    ) -> QueryResult<()> {
        let row = sale_phases::table.find((sale, epoch, phase));
        let row = row.filter(sale_phases::applied_at_ms.is_null());
        update(row).set(sale_phases::applied_at_ms.eq(now_ms)).execute(self).map(drop)
    }

    /// The changes of a sale's phase.
    fn phase_rows(&mut self, sale: i32) -> QueryResult<Vec<PhaseRow>> {
        let rows = sale_phases::table.filter(sale_phases::sale_no.eq(sale));
        rows.select(PhaseRow::as_select()).load(self)
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
