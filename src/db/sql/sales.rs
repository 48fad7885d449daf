//! Sales and their phases.

use std::collections::HashMap;

use async_trait::async_trait;

use super::transaction::inserted;
use super::{Database, SqlLedger, TransactionEnd, in_transaction};
use crate::db::rows::units;
use crate::db::sale_rows::{SaleRow, SkuRow};
use crate::db::{Error, SaleStore};
use crate::domain::{Epoch, Phase, Sale, SaleDraft, SaleId, SkuNo};

#[async_trait]
impl<D: Database> SaleStore for SqlLedger<D> {
    async fn create_sale(&self, draft: SaleDraft, now_ms: i64) -> Result<Option<Sale>, Error> {
        let errors = draft.faults();
        if !errors.is_empty() {
            let what = format!("sale {}: {}", draft.id, errors.join("; "));
            return Err(Error::Unstorable { what });
        }
        self.write("creating a sale", move |conn, fence| {
            in_transaction(conn, fence, |conn| {
                if !inserted(conn.insert_sale(&draft, now_ms))? {
                    return Ok(TransactionEnd::RollBack(None));
                }
                let sale = conn.sale_row(draft.id.as_str())?;
                let Some(sale) = sale else { return Ok(TransactionEnd::RollBack(None)) };
                for sku in draft.skus {
                    conn.insert_sku(&SkuRow::new(sale.sale_no, sku)?)?;
                }
                load(conn, sale).map(|sale| TransactionEnd::Commit(Some(sale)))
            })
        })
        .await
    }

    async fn set_sale_phase(
        &self,
        sale: SaleId,
        epoch: Epoch,
        next: Phase,
        now_ms: i64,
    ) -> Result<Option<Sale>, Error> {
        self.write("setting a sale's phase", move |conn, fence| {
            let id = sale.as_str();
            in_transaction(conn, fence, |conn| set_phase(conn, id, epoch, next, now_ms))
        })
        .await
    }

    async fn pause_above(
        &self,
        sale: SaleId,
        epoch: Epoch,
        above: Epoch,
    ) -> Result<Option<Sale>, Error> {
        self.write("raising a sale's epoch", move |conn, fence| {
            let id = sale.as_str();
            in_transaction(conn, fence, |conn| pause_above(conn, id, epoch, above))
        })
        .await
    }

    async fn sales(&self) -> Result<Vec<Sale>, Error> {
        self.read("reading sales", |conn| {
            let (sales, skus) = conn.snapshot(|conn| Ok((conn.sale_rows()?, conn.sku_rows()?)))?;
            let mut by_sale: HashMap<i32, Vec<SkuRow>> = HashMap::new();
            for sku in skus {
                by_sale.entry(sku.sale_no).or_default().push(sku);
            }
            let with_skus = |sale: SaleRow| {
                let rows = by_sale.remove(&sale.sale_no).unwrap_or_default();
                sale.with_skus(rows)
            };
            sales.into_iter().map(with_skus).collect()
        })
        .await
    }

    async fn available(&self, sku: SkuNo) -> Result<u32, Error> {
        self.read("reading the stock", move |conn| {
            let available = conn.available(sku.0)?.unwrap_or(0);
            units(|| format!("sku {sku}"), "available", available)
        })
        .await
    }
}

/// `None`: unknown sale, another epoch, or not allowed.
fn set_phase<D: Database>(
    conn: &mut D,
    id: &str,
    epoch: Epoch,
    next: Phase,
    now_ms: i64,
) -> Result<TransactionEnd<Option<Sale>>, Error> {
    // Serializes phase changes of the sale: two openings must not get the same epoch.
    conn.lock_sale(id)?;
    let Some(mut sale) = conn.sale_row(id)? else { return Ok(TransactionEnd::RollBack(None)) };
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
    conn.set_phase(&sale, next.to_db())?;
    let Some(sale) = conn.sale_row(id)? else { return Ok(TransactionEnd::RollBack(None)) };
    load(conn, sale).map(|sale| TransactionEnd::Commit(Some(sale)))
}

/// `None`: unknown sale, another epoch, or closed.
fn pause_above<D: Database>(
    conn: &mut D,
    id: &str,
    epoch: Epoch,
    above: Epoch,
) -> Result<TransactionEnd<Option<Sale>>, Error> {
    conn.lock_sale(id)?;
    let Some(mut sale) = conn.sale_row(id)? else { return Ok(TransactionEnd::RollBack(None)) };
    if sale.epoch != epoch.0 || sale.phase()? == Phase::Closed {
        return Ok(TransactionEnd::RollBack(None));
    }
    sale.epoch = sale.epoch.max(above.0.saturating_add(1));
    conn.set_phase(&sale, Phase::Paused.to_db())?;
    let Some(sale) = conn.sale_row(id)? else { return Ok(TransactionEnd::RollBack(None)) };
    load(conn, sale).map(|sale| TransactionEnd::Commit(Some(sale)))
}

fn load<D: Database>(conn: &mut D, sale: SaleRow) -> Result<Sale, Error> {
    let rows = conn.sku_rows_of(sale.sale_no)?;
    sale.with_skus(rows)
}
