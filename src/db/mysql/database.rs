//! The database-specific part of the ledger for MySQL and MariaDB.

use std::sync::Arc;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::result::Error as Diesel;
use diesel::sql_types::{BigInt, Text};
use diesel_migrations::EmbeddedMigrations;

use super::client::MysqlConnection;
use super::session::{SessionAccess, statement_limit};
use super::statements;
use crate::db::error::is_rolled_back_commit;
use crate::db::rows::{FailureRow, NewOrder, OrderRow};
use crate::db::schema::{failed_requests, orders, tokens};
use crate::db::sql::{
    Database, IN_LIST_MAX, Queries, QuotaClaim, RowVisitor, TimeoutClass, WRITER,
};
use crate::db::{Error, migrate};
use crate::domain::{Failure, Order, SkuNo};

#[derive(QueryableByName)]
struct NumberRow {
    #[diesel(sql_type = BigInt)]
    cell: i64,
}

/// Reads one number; `sql` names its column `cell`.
pub(super) fn number(conn: &mut MysqlConnection, sql: &str) -> QueryResult<i64> {
    diesel::sql_query(sql).get_result::<NumberRow>(conn).map(|row| row.cell)
}

/// Rejects a read-only server, in the transaction that reads from it: a proxy that sends reads to a
/// replica would return outdated rows.
fn reject_replica(conn: &mut MysqlConnection) -> Result<(), Error> {
    let sql = "SELECT CAST(@@global.read_only OR @@global.innodb_read_only AS SIGNED) AS cell";
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
    const REPEATED_REQUESTS: &'static str = "SELECT request_id, COUNT(*) AS num_orders \
         FROM orders FORCE INDEX (PRIMARY) GROUP BY request_id HAVING COUNT(*) > 1 LIMIT ?";

    fn run_limited<T>(
        &mut self,
        timeout_class: TimeoutClass,
        job: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let limit = self.session().job_limit;
        match timeout_class {
            TimeoutClass::Caller => self.limit_total(limit),
            TimeoutClass::Scan => self.limit_each(limit),
        }
        let result = job(self);
        // A new connection takes a millisecond or two and has no open transaction.
        if result.is_err() {
            self.mark_broken();
        }
        result
    }

    fn with_audit_limit<T>(
        &mut self,
        statement: impl FnOnce(&mut Self) -> QueryResult<T>,
    ) -> QueryResult<T> {
        let session = Arc::clone(self.session());
        self.limit_each(session.audit_timeout);
        self.batch_execute(&session.audit_limit)?;
        let answer = statement(self)?;
        self.batch_execute(&session.usual_limit)?;
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
        let wait_s = self.session().audit_timeout.as_secs().max(1);
        // Practically unlimited: a large table takes long, and the operator can abort.
        self.limit_each(MIGRATION_TIMEOUT);
        self.batch_execute(&statement_limit(0))?;
        let lock = format!("SELECT GET_LOCK({NAME}, {wait_s}) AS cell");
        if number(self, &lock)? != 1 {
            let reason = format!(
                "another process has been migrating this ledger for {wait_s} s: wait for it, or \
                 find out what blocks it (SHOW PROCESSLIST)"
            );
            return Err(Error::CannotOpen { reason });
        }
        let result = job(self)?;
        // After an error the end of the connection releases the lock.
        let release = format!("SELECT RELEASE_LOCK({NAME}) AS cell");
        number(self, &release)?;
        let usual = self.session().usual_limit.clone();
        self.batch_execute(&usual)?;
        Ok(result)
    }

    fn has_table(&mut self, name: &str) -> QueryResult<bool> {
        let sql = format!(
            "SELECT COUNT(*) AS cell FROM information_schema.tables \
             WHERE table_schema = DATABASE() AND table_name = '{name}'"
        );
        number(self, &sql).map(|tables| tables > 0)
    }

    fn writer_token(&mut self) -> QueryResult<i64> {
        // A shared lock: a change of the token waits for all transactions that read it.
        let sql =
            format!("SELECT token AS cell FROM tokens WHERE name = '{WRITER}' LOCK IN SHARE MODE");
        number(self, &sql)
    }

    fn raise_token(&mut self, name: &str, next: &'static str) -> QueryResult<i64> {
        // Takes the exclusive lock at once: two processes that first read the row with a shared
        // lock would deadlock.
        diesel::sql_query(
            "INSERT INTO tokens (name, token) VALUES (?, 0) \
             ON DUPLICATE KEY UPDATE token = token",
        )
        .bind::<Text, _>(name)
        .execute(self)?;
        diesel::sql_query(format!("UPDATE tokens SET token = {next} WHERE name = ?"))
            .bind::<Text, _>(name)
            .execute(self)?;
        tokens::table.find(name).select(tokens::token).first(self)
    }

    fn insert_orders(&mut self, orders: &[NewOrder]) -> QueryResult<()> {
        self.batch_execute(&statements::insert_orders(orders))
    }

    fn any_failed(&mut self, requests: &[i64]) -> QueryResult<bool> {
        for chunk in requests.chunks(IN_LIST_MAX) {
            if !statements::failed_among(chunk).load::<statements::RequestRow>(self)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn ordered_among(&mut self, failures: &[Failure]) -> QueryResult<Vec<i64>> {
        let requests = failures.iter().map(|failure| failure.request.to_db());
        let rows = statements::ordered_among(requests).load::<statements::RequestRow>(self)?;
        Ok(rows.into_iter().map(|row| row.request_id).collect())
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
        by_page((i64::MIN, i64::MIN), OrderRow::scan_key, visit, |(buyer, slot)| {
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
        by_page(i64::MIN, FailureRow::scan_key, visit, |request| {
            failed_requests::table
                .filter(failed_requests::sku_no.eq(sku.0))
                .filter(failed_requests::request_id.gt(request))
                .order(failed_requests::request_id)
                .limit(PAGE)
                .select(FailureRow::as_select())
                .load(self)
        })
    }
}
