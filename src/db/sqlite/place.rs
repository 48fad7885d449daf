//! The blind write of a batch.

use std::collections::BTreeMap;

use diesel::prelude::*;
use diesel::result::{DatabaseErrorKind, Error as Diesel};

use super::connection::{End, write};
use super::statements::{InsertOrders, OpenQuota, TakeQuota, TakeStock};
use super::tokens::Fence;
use crate::db::rows::{NewOrder, narrow};
use crate::db::schema::failed_requests;
use crate::db::{Error, Placing};
use crate::domain::{OrderIntent, SkuNo};

const DOING: &str = "placing orders";

/// Orders in one INSERT, where there are so many.
const WIDE: usize = 16;

/// Most values in one `IN` list.
pub(super) const IN_LIST_MAX: usize = 500;

/// Writes all intents or none.
pub(super) fn place(
    conn: &mut SqliteConnection,
    fence: Fence,
    mut batch: Vec<OrderIntent>,
) -> Result<Placing, Error> {
    if batch.is_empty() {
        return Ok(Placing::All);
    }
    // In the order of the primary key: neighbours share pages.
    batch.sort_unstable_by_key(|intent| (intent.sku, intent.buyer, intent.slot));
    write(conn, fence, DOING, |conn| {
        // The stock comes last: on other databases its row is the one that everybody waits for.
        let all = none_failed_before(conn, &batch)?
            && insert_orders(conn, &batch)?
            && take_quotas(conn, &batch)?
            && take_stock(conn, &batch)?;
        Ok(if all { End::Commit(Placing::All) } else { End::RollBack(Placing::Conflict) })
    })
}

/// A request that was recorded as failed never becomes an order.
fn none_failed_before(conn: &mut SqliteConnection, batch: &[OrderIntent]) -> Result<bool, Error> {
    let any = diesel::select(diesel::dsl::exists(
        failed_requests::table.select(failed_requests::request_id),
    ));
    if !any.get_result::<bool>(conn).map_err(Error::refused(DOING))? {
        return Ok(true);
    }
    for chunk in batch.chunks(IN_LIST_MAX) {
        let known = failed_requests::table
            .filter(failed_requests::request_id.eq_any(chunk.iter().map(|i| i.request.to_db())))
            .select(failed_requests::request_id)
            .first::<i64>(conn)
            .optional()
            .map_err(Error::refused(DOING))?;
        if known.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn insert_orders(conn: &mut SqliteConnection, batch: &[OrderIntent]) -> Result<bool, Error> {
    let rows = batch.iter().map(NewOrder::try_from).collect::<Result<Vec<_>, _>>()?;
    // Two widths, so that each is prepared once and then found again.
    let (wide, narrow) = rows.as_chunks::<WIDE>();
    let inserted = wide
        .iter()
        .try_for_each(|rows| InsertOrders(rows).execute(conn).map(drop))
        .and_then(|()| {
            let mut rows = narrow.as_chunks::<1>().0.iter();
            rows.try_for_each(|row| InsertOrders(row).execute(conn).map(drop))
        });
    match inserted {
        Ok(()) => Ok(true),
        Err(Diesel::DatabaseError(DatabaseErrorKind::UniqueViolation, _)) => Ok(false),
        Err(source) => Err(Error::Refused { doing: DOING, source }),
    }
}

fn take_quotas(conn: &mut SqliteConnection, batch: &[OrderIntent]) -> Result<bool, Error> {
    for intent in batch {
        let Some(quota) = intent.quota else { continue };
        let (sku_no, buyer_id) = (intent.sku.0, intent.buyer.to_db());
        OpenQuota { sku_no, buyer_id, quota: narrow("quota", quota)? }
            .execute(conn)
            .map_err(Error::refused(DOING))?;
        let taken = TakeQuota { sku_no, buyer_id, units: narrow("quantity", intent.quantity)? }
            .execute(conn)
            .map_err(Error::refused(DOING))?;
        if taken == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn take_stock(conn: &mut SqliteConnection, batch: &[OrderIntent]) -> Result<bool, Error> {
    let mut sums: BTreeMap<SkuNo, i64> = BTreeMap::new();
    for intent in batch {
        *sums.entry(intent.sku).or_default() += i64::from(intent.quantity);
    }
    for (sku, sum) in sums {
        // More than the column holds is more than there ever was.
        let Ok(sum) = i32::try_from(sum) else { return Ok(false) };
        let taken =
            TakeStock { sku_no: sku.0, units: sum }.execute(conn).map_err(Error::refused(DOING))?;
        if taken == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}
