//! Rows in bulk.
//!
//! A scan is one statement, so it sees one instant however long it takes; while it runs, the log
//! cannot be folded back past that instant and grows with what is written meanwhile.

use diesel::connection::DefaultLoadingMode;
use diesel::prelude::*;

use crate::db::Error;
use crate::db::rows::{FailureRow, OrderRow};
use crate::db::schema::{failed_requests, orders};
use crate::db::sql::Each;
use crate::domain::{Failure, Order, SkuNo};

/// Visits the orders of a SKU by buyer and slot.
pub(super) fn each_order(
    conn: &mut SqliteConnection,
    sku: SkuNo,
    visit: Each<'_, Order>,
) -> Result<(), Error> {
    const DOING: &str = "scanning orders";
    let rows = orders::table
        .filter(orders::sku_no.eq(sku.0))
        .order((orders::buyer_id, orders::slot))
        .select(OrderRow::as_select())
        .load_iter::<OrderRow, DefaultLoadingMode>(conn)
        .map_err(Error::refused(DOING))?;
    for row in rows {
        if !visit(row.map_err(Error::refused(DOING))?.try_into()?) {
            break;
        }
    }
    Ok(())
}

/// Visits the failures of a SKU by request.
pub(super) fn each_failure(
    conn: &mut SqliteConnection,
    sku: SkuNo,
    visit: Each<'_, Failure>,
) -> Result<(), Error> {
    const DOING: &str = "scanning failures";
    let rows = failed_requests::table
        .filter(failed_requests::sku_no.eq(sku.0))
        .order(failed_requests::request_id)
        .select(FailureRow::as_select())
        .load_iter::<FailureRow, DefaultLoadingMode>(conn)
        .map_err(Error::refused(DOING))?;
    for row in rows {
        if !visit(row.map_err(Error::refused(DOING))?.try_into()?) {
            break;
        }
    }
    Ok(())
}
