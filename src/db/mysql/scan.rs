//! Rows in bulk, page by page along a key: neither side holds more than a page in memory, and each
//! page is a statement with a limit of its own. Pages of one snapshot see one instant; while it
//! lasts, the server keeps old versions of what is changed meanwhile.

use diesel::prelude::*;

use super::client::MysqlConnection;
use crate::db::Error;
use crate::db::rows::{FailureRow, OrderRow};
use crate::db::schema::{failed_requests, orders};
use crate::db::sql::Each;
use crate::domain::{Failure, Order, SkuNo};

/// Rows of a page.
const PAGE: i64 = 2_000;

/// Visits the orders of a SKU by buyer and slot.
pub(super) fn each_order(
    conn: &mut MysqlConnection,
    sku: SkuNo,
    visit: Each<'_, Order>,
) -> Result<(), Error> {
    let mut after = (i64::MIN, i64::MIN);
    loop {
        let (buyer, slot) = after;
        let rows: Vec<OrderRow> = orders::table
            .filter(orders::sku_no.eq(sku.0))
            .filter(
                orders::buyer_id
                    .gt(buyer)
                    .or(orders::buyer_id.eq(buyer).and(orders::slot.gt(slot))),
            )
            .order((orders::buyer_id, orders::slot))
            .limit(PAGE)
            .select(OrderRow::as_select())
            .load(conn)
            .map_err(Error::refused("scanning orders"))?;
        let Some(last) = rows.last() else { return Ok(()) };
        after = last.place();
        for row in rows {
            if !visit(row.try_into()?) {
                return Ok(());
            }
        }
    }
}

/// Visits the failures of a SKU by request.
pub(super) fn each_failure(
    conn: &mut MysqlConnection,
    sku: SkuNo,
    visit: Each<'_, Failure>,
) -> Result<(), Error> {
    let mut after = i64::MIN;
    loop {
        let rows: Vec<FailureRow> = failed_requests::table
            .filter(failed_requests::sku_no.eq(sku.0))
            .filter(failed_requests::request_id.gt(after))
            .order(failed_requests::request_id)
            .limit(PAGE)
            .select(FailureRow::as_select())
            .load(conn)
            .map_err(Error::refused("scanning failures"))?;
        let Some(last) = rows.last() else { return Ok(()) };
        after = last.place();
        for row in rows {
            if !visit(row.try_into()?) {
                return Ok(());
            }
        }
    }
}
