//! The database-specific part of the ledger for MySQL and MariaDB.

use std::sync::Arc;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::result::Error as Diesel;
use diesel::sql_types::BigInt;
use diesel_migrations::EmbeddedMigrations;

use super::client::MysqlConnection;
use super::session::{SessionAccess, statement_limit};
use super::statements;
use crate::db::error::{cannot_open, is_rolled_back_commit};
use crate::db::rows::{FailureRow, NewOrder, OrderRow};
use crate::db::schema::{failed_requests, orders};
use crate::db::sql::{Database, IN_LIST_MAX, Queries, QuotaClaim, RowVisitor, WRITER};
use crate::db::{Error, migrate};
use crate::domain::{Failure, Order, SkuNo};

/// Reads one number.
pub(super) fn number(conn: &mut MysqlConnection, query: &str) -> QueryResult<i64> {
    sql::<BigInt>(query).get_result(conn)
}

/// Rejects a read-only server, in the transaction that reads from it: a proxy that sends reads to a
/// replica would return outdated rows.
fn reject_replica(conn: &mut MysqlConnection) -> Result<(), Error> {
    let sql = "SELECT CAST(@@global.read_only OR @@global.innodb_read_only AS SIGNED)";
    if number(conn, sql)? == 0 {
        return Ok(());
    }
    let reason = "the server that answers reads is read-only: point ledger.url at the primary, \
                  without a proxy that sends reads elsewhere";
    Err(Error::NoConnection { reason: reason.to_owned() })
}

/// Limit of each statement of a migration.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

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

impl Database for MysqlConnection {
    const MIGRATIONS: EmbeddedMigrations = migrate::MYSQL;
    const AFTER_FAILED_MIGRATION: &'static str =
        "tables created by the failed migration stay, and the next attempt continues from there";
    const BEGIN: &'static str = "BEGIN";
    const INDEXED_REQUESTS: &'static str = "TRUE";
    const UNINDEXED_REQUESTS: Option<&'static str> = None;
    // Takes the exclusive lock at once: two processes that first read the row with a shared lock
    // would deadlock.
    const INSERT_TOKEN: &'static str =
        "INSERT INTO tokens (name, token) VALUES (?, 0) ON DUPLICATE KEY UPDATE token = token";
    const TABLES_NAMED: &'static str = "SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = DATABASE() AND table_name = ";
    const REPEATED_REQUESTS: &'static str = "SELECT request_id, COUNT(*) AS num_orders \
         FROM orders FORCE INDEX (PRIMARY) GROUP BY request_id HAVING COUNT(*) > 1 LIMIT ";

    fn limit_job(&mut self) {
        let limit = self.session().job_limit;
        self.limit_total(limit);
    }

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

    fn snapshot<T>(&mut self, job: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.batch_execute(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
             START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        )?;
        if self.session().access == SessionAccess::Write {
            reject_replica(self)?;
        }
        let result = job(self)?;
        self.batch_execute("COMMIT")?;
        Ok(result)
    }

    fn failed_commit(&mut self, error: Diesel) -> Error {
        if is_rolled_back_commit(&error) { error.into() } else { Error::not_confirmed(error) }
    }

    fn with_migration_lock<T>(
        &mut self,
        job: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // GET_LOCK locks are global to the server: the name contains the database.
        const NAME: &str = "LEFT(CONCAT('floodgate migrates ', DATABASE()), 64)";
        let wait_s = (self.session().audit_timeout_ms / 1000).max(1);
        // Practically unlimited: a large table takes long, and the operator can abort.
        self.limit_each(MIGRATION_TIMEOUT);
        self.batch_execute(&statement_limit(0))?;
        let lock = format!("SELECT GET_LOCK({NAME}, {wait_s})");
        if number(self, &lock)? != 1 {
            return cannot_open(format!(
                "another process has been migrating this ledger for {wait_s} s: wait for it, or \
                 find out what blocks it (SHOW PROCESSLIST)"
            ));
        }
        let result = job(self)?;
        // After an error the end of the connection releases the lock.
        let release = format!("SELECT RELEASE_LOCK({NAME})");
        number(self, &release)?;
        let usual = statement_limit(self.session().statement_timeout_ms);
        self.batch_execute(&usual)?;
        Ok(result)
    }

    fn writer_token(&mut self) -> QueryResult<i64> {
        // A shared lock: a change of the token waits for all transactions that read it.
        number(
            self,
            &format!("SELECT token FROM tokens WHERE name = '{WRITER}' LOCK IN SHARE MODE"),
        )
    }

    fn insert_orders(&mut self, orders: &[NewOrder]) -> QueryResult<()> {
        self.batch_execute(&statements::insert_orders(orders))
    }

    fn any_failed(&mut self, requests: &[i64]) -> QueryResult<bool> {
        for chunk in requests.chunks(IN_LIST_MAX) {
            if !statements::failed_among(chunk).load::<i64>(self)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn ordered_among(&mut self, failures: &[Failure]) -> QueryResult<Vec<i64>> {
        let requests = failures.iter().map(|failure| failure.request.to_db());
        statements::ordered_among(requests).load(self)
    }

    fn take_quotas(&mut self, claims: &[QuotaClaim]) -> QueryResult<bool> {
        if claims.is_empty() {
            return Ok(true);
        }
        self.batch_execute(&statements::open_quotas(claims))?;
        for (units, buyers) in statements::by_units(claims) {
            for chunk in buyers.chunks(IN_LIST_MAX) {
                let taken = statements::take_quotas(units, chunk).execute(self)?;
                if taken != chunk.len() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn take_stocks(&mut self, units: &[(i32, i32)]) -> QueryResult<bool> {
        if let [(sku, units)] = units {
            return self.take_stock(*sku, *units).map(|taken| taken == 1);
        }
        for chunk in units.chunks(IN_LIST_MAX) {
            if statements::take_stocks(chunk).execute(self)? != chunk.len() {
                return Ok(false);
            }
        }
        Ok(true)
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
