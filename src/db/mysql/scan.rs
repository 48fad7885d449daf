//! Scans of a SKU in MySQL and MariaDB.

use std::sync::Arc;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;

use super::client::MysqlConnection;
use super::session::statement_limit;
use crate::db::Error;
use crate::db::failure_rows::FailureRow;
use crate::db::rows::OrderRow;
use crate::db::schema::{failed_requests, orders};
use crate::db::sql::{RowVisitor, ScannedDatabase};
use crate::domain::{Failure, Order, SkuNo};

/// Rows per page of a scan.
const PAGE: i64 = 2_000;

/// Visits rows page by page along a key: client and server hold at most one page in memory, and
/// each page is one statement with its own limit. All pages read the snapshot of the transaction;
/// until it ends, the server keeps the old versions of changed rows.
fn by_page<R, T: TryFrom<R, Error = Error>, K>(
    mut after: K,
    key: impl Fn(&R) -> K,
    visit: RowVisitor<'_, T>,
    mut load: impl FnMut(K) -> QueryResult<Vec<R>>,
) -> Result<(), Error> {
    loop {
        let rows = load(after)?;
        let Some(last) = rows.last() else { return Ok(()) };
        after = key(last);
        for row in rows {
            if !visit(row.try_into()?) {
                return Ok(());
            }
        }
    }
}

impl ScannedDatabase for MysqlConnection {
    const REPEATED_REQUESTS: &'static str = "SELECT request_id, COUNT(*) AS num_orders \
         FROM orders FORCE INDEX (PRIMARY) GROUP BY request_id HAVING COUNT(*) > 1 LIMIT ";

    fn limit_statements(&mut self) {
        let limit = self.session().job_limit;
        self.limit_each(limit);
    }

    fn with_audit_limit<T>(
        &mut self,
        statement: impl FnOnce(&mut Self) -> QueryResult<T>,
    ) -> QueryResult<T> {
        let session = Arc::clone(self.session());
        self.limit_each(Duration::from_millis(session.audit_timeout_ms.max(1)));
        self.batch_execute(&statement_limit(session.audit_timeout_ms))?;
        let answer = statement(self)?;
        self.batch_execute(&statement_limit(session.statement_timeout_ms))?;
        self.limit_each(session.job_limit);
        Ok(answer)
    }

    fn each_order(&mut self, sku: SkuNo, visit: RowVisitor<'_, Order>) -> Result<(), Error> {
        let key = |row: &OrderRow| (row.buyer_id, row.slot);
        by_page((i64::MIN, i64::MIN), key, visit, |(buyer, slot)| {
            let next_slot = orders::buyer_id.eq(buyer).and(orders::slot.gt(slot));
            orders::table
                .filter(orders::sku_no.eq(sku.0))
                .filter(orders::buyer_id.gt(buyer).or(next_slot))
                .order((orders::buyer_id, orders::slot))
                .limit(PAGE)
                .select(OrderRow::as_select())
                .load(self)
        })
    }

    fn each_failure(&mut self, sku: SkuNo, visit: RowVisitor<'_, Failure>) -> Result<(), Error> {
        by_page(
            i64::MIN,
            |row: &FailureRow| row.request_id,
            visit,
            |request| {
                failed_requests::table
                    .filter(failed_requests::sku_no.eq(sku.0))
                    .filter(failed_requests::request_id.gt(request))
                    .order(failed_requests::request_id)
                    .limit(PAGE)
                    .select(FailureRow::as_select())
                    .load(self)
            },
        )
    }
}
