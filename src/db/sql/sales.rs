//! Sales and their phases.

use std::collections::HashMap;

use async_trait::async_trait;

use super::sale_changes::{begin_load, change_sale, change_stock};
use super::verbs::record_by;
use super::{Database, SqlLedger, TransactionEnd, inserted};
use crate::db::rows::number;
use crate::db::sale_rows::{SaleRow, SkuHistories, SkuRow};
use crate::db::{Error, SaleStore};
use crate::domain::{
    ByOperator, Epoch, LoaderToken, Phase, Sale, SaleChange, SaleChanged, SaleDraft, SaleId, SkuNo,
    StockChange, StockChangeOutcome, StockChangeRequest, VerbSubject,
};

#[async_trait]
impl<D: Database> SaleStore for SqlLedger<D> {
    async fn create_sale(&self, draft: SaleDraft, now_ms: i64) -> Result<Option<Sale>, Error> {
        let errors = draft.faults();
        if !errors.is_empty() {
            let what = format!("sale {}: {}", draft.id, errors.join("; "));
            return Err(Error::Unstorable { what });
        }
        self.write_at("creating a sale", move |conn, _| {
            if inserted(conn.insert_sale(&draft, now_ms))?.is_none() {
                return Ok(TransactionEnd::RollBack(None));
            }
            let sale = conn.sale_row(draft.id.as_str())?;
            let Some(sale) = sale else { return Ok(TransactionEnd::RollBack(None)) };
            for sku in draft.skus {
                conn.insert_sku(&SkuRow::new(sale.sale_no, sku)?)?;
            }
            load(conn, sale).map(|sale| TransactionEnd::Commit(Some(sale)))
        })
        .await
    }

    async fn set_sale_phase(
        &self,
        sale: SaleId,
        epoch: Epoch,
        next: Phase,
        now_ms: i64,
        by: Option<ByOperator>,
    ) -> Result<Option<Sale>, Error> {
        self.write_at("setting a sale's phase", move |conn, _| {
            set_phase(conn, &sale, epoch, next, now_ms, by.as_ref())
        })
        .await
    }

    async fn pause_above(
        &self,
        sale: SaleId,
        epoch: Epoch,
        above: Epoch,
    ) -> Result<Option<Sale>, Error> {
        self.write_at("raising a sale's epoch", move |conn, now_ms| {
            pause_above(conn, sale.as_str(), epoch, above, now_ms)
        })
        .await
    }

    async fn phase_applied(&self, sale: &Sale, now_ms: i64) -> Result<(), Error> {
        let (no, epoch, phase) = (sale.no, sale.epoch.0, sale.phase.to_db());
        self.write_at("recording an applied phase", move |conn, _| {
            conn.set_phase_applied(no, epoch, phase, now_ms)?;
            Ok(TransactionEnd::Commit(()))
        })
        .await
    }

    async fn sales(&self) -> Result<Vec<Sale>, Error> {
        self.read("reading sales", |conn| {
            let (sales, skus, histories) = conn.snapshot(|conn| {
                let histories = SkuHistories::new(conn.terms_rows()?, conn.all_stock_changes()?);
                Ok((conn.sale_rows()?, conn.sku_rows()?, histories))
            })?;
            let mut by_sale: HashMap<i32, Vec<SkuRow>> = HashMap::new();
            for sku in skus {
                by_sale.entry(sku.sale_no).or_default().push(sku);
            }
            let with_skus = |sale: SaleRow| {
                let rows = by_sale.remove(&sale.sale_no).unwrap_or_default();
                sale.with_skus(rows, &histories)
            };
            sales.into_iter().map(with_skus).collect()
        })
        .await
    }

    async fn change_sale(
        &self,
        sale: SaleId,
        change: SaleChange,
        now_ms: i64,
    ) -> Result<SaleChanged, Error> {
        self.write_at("changing a sale", move |conn, _| change_sale(conn, &sale, &change, now_ms))
            .await
    }

    async fn begin_load(&self, sku: SkuNo) -> Result<LoaderToken, Error> {
        self.write_at("beginning a load", move |conn, _| begin_load(conn, sku)).await
    }

    async fn change_stock(&self, request: StockChangeRequest) -> Result<StockChangeOutcome, Error> {
        self.write_at("changing a stock", move |conn, _| change_stock(conn, &request)).await
    }

    async fn stock_change(&self, sku: SkuNo, id: String) -> Result<Option<StockChange>, Error> {
        self.read("reading a change of stock", move |conn| {
            Ok(conn.stock_change(sku.0, &id)?.map(StockChange::from))
        })
        .await
    }

    async fn stock_changes(&self, sku: SkuNo, after: i32) -> Result<Vec<StockChange>, Error> {
        self.read("reading changes of a stock", move |conn| {
            let rows = conn.stock_changes_after(sku.0, after)?;
            Ok(rows.into_iter().map(StockChange::from).collect())
        })
        .await
    }

    async fn available(&self, sku: SkuNo) -> Result<u32, Error> {
        self.read("reading the stock", move |conn| {
            let available = conn.available(sku.0)?.unwrap_or(0);
            number(|| format!("sku {sku}"), "available", available)
        })
        .await
    }
}

/// `None`: unknown sale, another epoch, or not allowed.
fn set_phase<D: Database>(
    conn: &mut D,
    sale: &SaleId,
    epoch: Epoch,
    next: Phase,
    now_ms: i64,
    by: Option<&ByOperator>,
) -> Result<TransactionEnd<Option<Sale>>, Error> {
    let (id, subject) = (sale.as_str(), VerbSubject::Sale(sale.clone()));
    // Serializes phase changes of the sale: two openings must not get the same epoch.
    let Some(mut sale) = conn.lock_sale(id)? else { return Ok(TransactionEnd::RollBack(None)) };
    let phase = sale.phase()?;
    if !phase.may_become(next) {
        return Ok(TransactionEnd::RollBack(None));
    }
    if phase == next {
        return load(conn, sale).map(|sale| TransactionEnd::RollBack(Some(sale)));
    }
    // The caller stopped the buckets of that epoch; those of a later epoch may be selling.
    if sale.epoch != epoch.0 {
        return Ok(TransactionEnd::RollBack(None));
    }
    if next == Phase::Open {
        sale.epoch += 1;
        sale.opened_at_ms = now_ms;
    }
    if next == Phase::Closed {
        sale.closed_at_ms = Some(now_ms);
    }
    conn.set_phase(&sale, next.to_db())?;
    conn.insert_phase(sale.sale_no, sale.epoch, next.to_db(), now_ms)?;
    record_by(conn, &subject, next.verb(), None, by, now_ms)?;
    commit_change(conn, id)
}

/// `None`: unknown sale, another epoch, or closed.
fn pause_above<D: Database>(
    conn: &mut D,
    id: &str,
    epoch: Epoch,
    above: Epoch,
    now_ms: i64,
) -> Result<TransactionEnd<Option<Sale>>, Error> {
    let Some(mut sale) = conn.lock_sale(id)? else { return Ok(TransactionEnd::RollBack(None)) };
    if sale.epoch != epoch.0 || sale.phase()? == Phase::Closed {
        return Ok(TransactionEnd::RollBack(None));
    }
    sale.epoch = sale.epoch.max(above.0.saturating_add(1));
    conn.set_phase(&sale, Phase::Paused.to_db())?;
    // A sale that is paused already keeps the row of that pause.
    inserted(conn.insert_phase(sale.sale_no, sale.epoch, Phase::Paused.to_db(), now_ms))?;
    commit_change(conn, id)
}

/// Ends the transaction of a changed sale with the sale after the change.
pub(super) fn commit_change<D: Database>(
    conn: &mut D,
    id: &str,
) -> Result<TransactionEnd<Option<Sale>>, Error> {
    let Some(sale) = conn.sale_row(id)? else { return Ok(TransactionEnd::RollBack(None)) };
    load(conn, sale).map(|sale| TransactionEnd::Commit(Some(sale)))
}

/// The sale with its SKUs, as this transaction reads them.
pub(super) fn load<D: Database>(conn: &mut D, sale: SaleRow) -> Result<Sale, Error> {
    let rows = conn.sku_rows_of(sale.sale_no)?;
    let (mut terms, mut changes) = (Vec::new(), Vec::new());
    for row in &rows {
        terms.extend(conn.terms_rows_of(row.sku_no)?);
        changes.extend(conn.stock_changes_after(row.sku_no, 0)?);
    }
    sale.with_skus(rows, &SkuHistories::new(terms, changes))
}
