//! The database-specific part of the ledger for SQLite.

use std::collections::BTreeSet;

use diesel::connection::{DefaultLoadingMode, SimpleConnection};
use diesel::prelude::*;
use diesel::result::Error as Diesel;
use diesel_migrations::EmbeddedMigrations;

use super::connection::checkpoint;
use super::statements::{InsertOrders, OpenQuota, TakeQuota};
use crate::db::rows::{FailureRow, NewOrder, OrderRow};
use crate::db::schema::{failed_requests, orders, tokens};
use crate::db::sql::{Database, IN_LIST_MAX, Queries, QuotaClaim, RowVisitor, SkuAndBuyer, WRITER};
use crate::db::{Error, migrate};
use crate::domain::{Failure, Order, SkuNo};

/// Orders per multi-row INSERT; a remainder is inserted row by row.
const ROWS_PER_INSERT: usize = 16;

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

impl Database for SqliteConnection {
    const MIGRATIONS: EmbeddedMigrations = migrate::SQLITE;
    const AFTER_FAILED_MIGRATION: &'static str = "nothing of the failed migration was kept";
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    const INDEXED_REQUESTS: &'static str = "slot <> 0";
    const UNINDEXED_REQUESTS: Option<&'static str> = Some("slot = 0");
    const INSERT_TOKEN: &'static str = "INSERT OR IGNORE INTO tokens (name, token) VALUES (?, 0)";
    const TABLES_NAMED: &'static str =
        "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = ";
    const REPEATED_REQUESTS: &'static str = "SELECT request_id, COUNT(*) AS num_orders \
         FROM orders NOT INDEXED GROUP BY request_id HAVING COUNT(*) > 1 LIMIT ";

    fn snapshot<T>(&mut self, job: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        // Two levels of errors: those of the transaction, and inside those of the job.
        self.transaction::<_, Diesel, _>(|conn| Ok(job(conn)))?
    }

    fn failed_commit(&mut self, error: Diesel) -> Error {
        match self.batch_execute("ROLLBACK") {
            Ok(()) => error.into(),
            // The transaction has ended; its commit record may be on the disk.
            Err(_) => Error::not_confirmed(error),
        }
    }

    fn writer_token(&mut self) -> QueryResult<i64> {
        tokens::table.find(WRITER).select(tokens::token).first(self)
    }

    fn insert_orders(&mut self, orders: &[NewOrder]) -> QueryResult<()> {
        // Two numbers of rows only, so that each statement is prepared once per connection.
        let (full, remainder) = orders.as_chunks::<ROWS_PER_INSERT>();
        for rows in full {
            InsertOrders(rows).execute(self)?;
        }
        for row in remainder.as_chunks::<1>().0 {
            InsertOrders(row).execute(self)?;
        }
        Ok(())
    }

    fn any_failed(&mut self, requests: &[i64]) -> QueryResult<bool> {
        let any = failed_requests::table.select(failed_requests::request_id);
        if !diesel::select(diesel::dsl::exists(any)).get_result::<bool>(self)? {
            return Ok(false);
        }
        for chunk in requests.chunks(IN_LIST_MAX) {
            let found = failed_requests::table
                .filter(failed_requests::request_id.eq_any(chunk))
                .select(failed_requests::request_id)
                .first::<i64>(self)
                .optional()?;
            if found.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn ordered_among(&mut self, failures: &[Failure]) -> QueryResult<Vec<i64>> {
        let ids = failures.iter().map(|failure| failure.request.to_db());
        let ids: BTreeSet<i64> = ids.collect();
        let requests: Vec<i64> = ids.iter().copied().collect();
        let buyers = failures.iter().map(|failure| (failure.sku.0, failure.buyer.to_db()));
        let buyers: BTreeSet<SkuAndBuyer> = buyers.collect();
        let mut rows = self.orders_by_request(&requests)?;
        if !buyers.is_empty() {
            rows.extend(self.first_orders(&Vec::from_iter(buyers))?);
        }
        let ordered = rows.iter().map(|row| row.request_id);
        Ok(ordered.filter(|request| ids.contains(request)).collect())
    }

    fn take_quotas(&mut self, claims: &[QuotaClaim]) -> QueryResult<bool> {
        for claim in claims {
            let QuotaClaim { sku_no, buyer_id, units, quota } = *claim;
            OpenQuota { sku_no, buyer_id, quota }.execute(self)?;
            if (TakeQuota { sku_no, buyer_id, units }).execute(self)? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

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

    fn before_close(&mut self) {
        if let Err(error) = checkpoint(self) {
            tracing::warn!(%error, "ledger file: checkpoint failed, the next start repeats it");
        }
    }
}
