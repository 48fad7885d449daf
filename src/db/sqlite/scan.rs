//! Scans of a SKU in `SQLite`.

use diesel::connection::DefaultLoadingMode;
use diesel::prelude::*;

use crate::db::Error;
use crate::db::failure_rows::FailureRow;
use crate::db::rows::OrderRow;
use crate::db::schema::{failed_requests, orders};
use crate::db::sql::{RowVisitor, ScannedDatabase};
use crate::domain::{Failure, Order, SkuNo};

/// Visits the rows of a scan, which is one statement and therefore reads one snapshot. While it
/// runs, the log cannot be checkpointed beyond that snapshot and grows with every write.
fn visit_each<R, T: TryFrom<R, Error = Error>>(
    rows: impl Iterator<Item = QueryResult<R>>,
    visit: RowVisitor<'_, T>,
) -> Result<(), Error> {
    for row in rows {
        if !visit(row?.try_into()?) {
            break;
        }
    }
    Ok(())
}

impl ScannedDatabase for SqliteConnection {
    const REPEATED_REQUESTS: &'static str = "SELECT request_id, COUNT(*) AS num_orders \
         FROM orders NOT INDEXED GROUP BY request_id HAVING COUNT(*) > 1 LIMIT ";

    fn each_order(&mut self, sku: SkuNo, visit: RowVisitor<'_, Order>) -> Result<(), Error> {
        let rows = orders::table
            .filter(orders::sku_no.eq(sku.0))
            .order((orders::buyer_id, orders::slot))
            .select(OrderRow::as_select())
            .load_iter::<OrderRow, DefaultLoadingMode>(self)?;
        visit_each(rows, visit)
    }

    fn each_failure(&mut self, sku: SkuNo, visit: RowVisitor<'_, Failure>) -> Result<(), Error> {
        let rows = failed_requests::table
            .filter(failed_requests::sku_no.eq(sku.0))
            .order(failed_requests::request_id)
            .select(FailureRow::as_select())
            .load_iter::<FailureRow, DefaultLoadingMode>(self)?;
        visit_each(rows, visit)
    }
}
