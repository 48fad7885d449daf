//! Sales and their phases.

use std::collections::HashMap;

use super::transaction::inserted;
use super::{Database, TransactionEnd, WriterFence, write};
use crate::db::Error;
use crate::db::rows::{NewSku, SaleRow, SkuRow, units};
use crate::domain::{Epoch, Phase, Sale, SaleDraft, SaleId, SkuNo};

/// Creates a sale in phase draft; `None`: the sale id exists.
pub(super) fn create_sale<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    draft: &SaleDraft,
    now_ms: i64,
) -> Result<Option<Sale>, Error> {
    let errors = draft.faults();
    if !errors.is_empty() {
        return Err(Error::Unstorable {
            what: format!("sale {}: {}", draft.id, errors.join("; ")),
        });
    }
    write(conn, fence, |conn| {
        if !inserted(conn.insert_sale(draft, now_ms))? {
            return Ok(TransactionEnd::RollBack(None));
        }
        let sale = conn.sale_row(draft.id.as_str())?;
        let Some(sale) = sale else { return Ok(TransactionEnd::RollBack(None)) };
        for sku in &draft.skus {
            conn.insert_sku(&NewSku::of(sale.sale_no, sku)?)?;
        }
        load(conn, sale).map(|sale| TransactionEnd::Commit(Some(sale)))
    })
}

/// Sets the phase of a sale with this epoch; `None`: unknown sale, another epoch, or not allowed.
pub(super) fn set_phase<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    (id, epoch): (&SaleId, Epoch),
    next: Phase,
    now_ms: i64,
) -> Result<Option<Sale>, Error> {
    let id = id.as_str();
    write(conn, fence, |conn| {
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
    })
}

fn load<D: Database>(conn: &mut D, sale: SaleRow) -> Result<Sale, Error> {
    let rows = conn.sku_rows_of(sale.sale_no)?;
    sale.with_skus(rows)
}

/// Every sale, oldest first.
pub(super) fn sales<D: Database>(conn: &mut D) -> Result<Vec<Sale>, Error> {
    let (sales, skus) = conn.snapshot(|conn| Ok((conn.sale_rows()?, conn.sku_rows()?)))?;
    let mut by_sale: HashMap<i32, Vec<SkuRow>> = HashMap::new();
    for sku in skus {
        by_sale.entry(sku.sale_no).or_default().push(sku);
    }
    sales
        .into_iter()
        .map(|sale| {
            let rows = by_sale.remove(&sale.sale_no).unwrap_or_default();
            sale.with_skus(rows)
        })
        .collect()
}

/// The available units of a SKU.
pub(super) fn available<D: Database>(conn: &mut D, sku: SkuNo) -> Result<u32, Error> {
    let available = conn.available(sku.0)?.unwrap_or(0);
    units(|| format!("sku {sku}"), "available", available)
}
