//! Sales and their phases.

use std::collections::HashMap;

use diesel::result::{DatabaseErrorKind, Error as Diesel};

use super::{Database, End, Fence, write};
use crate::db::Error;
use crate::db::rows::{NewSku, SaleRow, SkuRow, units};
use crate::domain::{Phase, Sale, SaleDraft, SaleId, SkuNo};

const READING: &str = "reading sales";

/// Creates a sale in phase draft; `None`: the name is taken.
pub(super) fn create_sale<D: Database>(
    conn: &mut D,
    fence: Fence,
    draft: &SaleDraft,
    now_ms: i64,
) -> Result<Option<Sale>, Error> {
    const DOING: &str = "creating a sale";
    let faults = draft.faults();
    if !faults.is_empty() {
        return Err(Error::Unstorable {
            what: format!("sale {}: {}", draft.id, faults.join("; ")),
        });
    }
    write(conn, fence, DOING, |conn| {
        match conn.insert_sale(draft, now_ms) {
            Ok(()) => {}
            Err(Diesel::DatabaseError(DatabaseErrorKind::UniqueViolation, _)) => {
                return Ok(End::RollBack(None));
            }
            Err(source) => return Err(Error::Refused { doing: DOING, source }),
        }
        let Some(sale) = find(conn, &draft.id)? else { return Ok(End::RollBack(None)) };
        for sku in &draft.skus {
            let row = NewSku::of(sale.sale_no, sku)?;
            conn.insert_sku(&row).map_err(Error::refused(DOING))?;
        }
        load(conn, sale).map(|sale| End::Commit(Some(sale)))
    })
}

/// Moves a sale to another phase; `None`: unknown, or not allowed.
pub(super) fn turn_sale<D: Database>(
    conn: &mut D,
    fence: Fence,
    id: &SaleId,
    next: Phase,
    now_ms: i64,
) -> Result<Option<Sale>, Error> {
    const DOING: &str = "turning a sale";
    write(conn, fence, DOING, |conn| {
        // Whoever turns the same sale waits here, or two openings would get the same number.
        conn.hold_sale(id.as_str()).map_err(Error::refused(DOING))?;
        let Some(mut sale) = find(conn, id)? else { return Ok(End::RollBack(None)) };
        let phase = sale.phase()?;
        if !phase.may_become(next) {
            return Ok(End::RollBack(None));
        }
        if phase == next {
            return load(conn, sale).map(|sale| End::RollBack(Some(sale)));
        }
        if next == Phase::Open {
            sale.epoch += 1;
            sale.opened_at_ms = now_ms;
        }
        conn.set_phase(&sale, next.to_db()).map_err(Error::refused(DOING))?;
        let Some(sale) = find(conn, id)? else { return Ok(End::RollBack(None)) };
        load(conn, sale).map(|sale| End::Commit(Some(sale)))
    })
}

fn find<D: Database>(conn: &mut D, id: &SaleId) -> Result<Option<SaleRow>, Error> {
    conn.sale_row(id.as_str()).map_err(Error::refused(READING))
}

fn load<D: Database>(conn: &mut D, sale: SaleRow) -> Result<Sale, Error> {
    let rows = conn.sku_rows_of(sale.sale_no).map_err(Error::refused(READING))?;
    sale.with_skus(rows)
}

/// Every sale, oldest first.
pub(super) fn sales<D: Database>(conn: &mut D) -> Result<Vec<Sale>, Error> {
    let (found, on_offer) = conn.snapshot(READING, |conn| {
        let found = conn.sale_rows().map_err(Error::refused(READING))?;
        Ok((found, conn.sku_rows().map_err(Error::refused(READING))?))
    })?;
    let mut by_sale: HashMap<i32, Vec<SkuRow>> = HashMap::new();
    for sku in on_offer {
        by_sale.entry(sku.sale_no).or_default().push(sku);
    }
    found
        .into_iter()
        .map(|sale| {
            let rows = by_sale.remove(&sale.sale_no).unwrap_or_default();
            sale.with_skus(rows)
        })
        .collect()
}

/// The units a SKU has left.
pub(super) fn available<D: Database>(conn: &mut D, sku: SkuNo) -> Result<u32, Error> {
    let left = conn.available(sku.0).map_err(Error::refused("reading the stock"))?;
    units(format!("sku {sku}"), "available", left.unwrap_or(0))
}
