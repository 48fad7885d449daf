//! Sales and their phases.

use std::collections::HashMap;

use diesel::prelude::*;
use diesel::result::{DatabaseErrorKind, Error as Diesel};

use super::connection::{End, write};
use super::tokens::Fence;
use crate::db::Error;
use crate::db::rows::{NewSku, SaleRow, SkuRow, units};
use crate::db::schema::{sales, skus};
use crate::domain::{Phase, Sale, SaleDraft, SaleId, SkuNo};

const READING: &str = "reading sales";

/// Creates a sale in phase draft; `None`: the name is taken.
pub(super) fn create_sale(
    conn: &mut SqliteConnection,
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
        match diesel::insert_into(sales::table).values(row).execute(conn) {
            Ok(_) => {}
            Err(Diesel::DatabaseError(DatabaseErrorKind::UniqueViolation, _)) => {
                return Ok(End::RollBack(None));
            }
            Err(source) => return Err(Error::Refused { doing: DOING, source }),
        }
        let Some(sale) = find(conn, &draft.id)? else { return Ok(End::RollBack(None)) };
        for sku in &draft.skus {
            diesel::insert_into(skus::table)
                .values(NewSku::of(sale.sale_no, sku)?)
                .execute(conn)
                .map_err(Error::refused(DOING))?;
        }
        load(conn, sale).map(|sale| End::Commit(Some(sale)))
    })
}

/// Moves a sale to another phase; `None`: unknown, or not allowed.
pub(super) fn turn_sale(
    conn: &mut SqliteConnection,
    fence: Fence,
    id: &SaleId,
    next: Phase,
    now_ms: i64,
) -> Result<Option<Sale>, Error> {
    const DOING: &str = "turning a sale";
    write(conn, fence, DOING, |conn| {
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
        diesel::update(sales::table.find(sale.sale_no))
            .set((
                sales::phase.eq(next.to_db()),
                sales::epoch.eq(sale.epoch),
                sales::opened_at_ms.eq(sale.opened_at_ms),
            ))
            .execute(conn)
            .map_err(Error::refused(DOING))?;
        let Some(sale) = find(conn, id)? else { return Ok(End::RollBack(None)) };
        load(conn, sale).map(|sale| End::Commit(Some(sale)))
    })
}

fn find(conn: &mut SqliteConnection, id: &SaleId) -> Result<Option<SaleRow>, Error> {
    sales::table
        .filter(sales::sale_id.eq(id.as_str()))
        .select(SaleRow::as_select())
        .first(conn)
        .optional()
        .map_err(Error::refused(READING))
}

fn load(conn: &mut SqliteConnection, sale: SaleRow) -> Result<Sale, Error> {
    let rows = skus::table
        .filter(skus::sale_no.eq(sale.sale_no))
        .order(skus::sku_no)
        .select(SkuRow::as_select())
        .load(conn)
        .map_err(Error::refused(READING))?;
    sale.with_skus(rows)
}

/// Every sale, oldest first.
pub(super) fn sales(conn: &mut SqliteConnection) -> Result<Vec<Sale>, Error> {
    let (found, on_offer) = conn
        .transaction(|conn| {
            let found =
                sales::table.order(sales::sale_no).select(SaleRow::as_select()).load(conn)?;
            let on_offer =
                skus::table.order(skus::sku_no).select(SkuRow::as_select()).load(conn)?;
            Ok((found, on_offer))
        })
        .map_err(Error::refused(READING))?;
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
pub(super) fn available(conn: &mut SqliteConnection, sku: SkuNo) -> Result<u32, Error> {
    let left: Option<i32> = skus::table
        .find(sku.0)
        .select(skus::available)
        .first(conn)
        .optional()
        .map_err(Error::refused(READING))?;
    units(format!("sku {sku}"), "available", left.unwrap_or(0))
}

/// One read and nothing else.
pub(super) fn ping(conn: &mut SqliteConnection) -> Result<(), Error> {
    sales::table
        .select(sales::sale_no)
        .first::<i32>(conn)
        .optional()
        .map(drop)
        .map_err(Error::refused(READING))
}
