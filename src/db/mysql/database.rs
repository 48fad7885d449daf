//! What MySQL and MariaDB do in their own way.

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

/// Asks for one number; `sql` names its column `cell`.
pub(super) fn number(conn: &mut MysqlConnection, sql: &str) -> QueryResult<i64> {
    diesel::sql_query(sql).get_result::<NumberRow>(conn).map(|row| row.cell)
}

/// Refuses a server that takes no writes, in the transaction that reads from it: a proxy that sends
/// reads to a replica would answer with rows of the past.
fn refuse_replica(conn: &mut MysqlConnection) -> Result<(), Error> {
    let sql = "SELECT CAST(@@global.read_only OR @@global.innodb_read_only AS SIGNED) AS cell";
    if number(conn, sql)? == 0 {
        return Ok(());
    }
    let reason = "the server that answers reads is read-only: point ledger.url at the primary, \
                  without a proxy that sends reads elsewhere";
    Err(Error::NoConnection { reason: reason.to_owned() })
}

const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Rows of a page of a scan.
const PAGE: i64 = 2_000;

/// Visits rows in bulk, page by page along a key: neither side holds more than a page in memory,
/// and each page is a statement with a limit of its own. Pages of one snapshot see one instant;
/// while it lasts, the server keeps old versions of what is changed meanwhile.
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
        "tables that the failed migration made stay, and the next try goes on from there";
    const BEGIN: &'static str = "BEGIN";
    const INDEXED_REQUESTS: &'static str = "TRUE";
    const LEFT_OUT_REQUESTS: Option<&'static str> = None;
    const REPEATED_REQUESTS: &'static str = "SELECT request_id, COUNT(*) AS num_orders \
         FROM orders FORCE INDEX (PRIMARY) GROUP BY request_id HAVING COUNT(*) > 1 LIMIT ?";

    fn attend<T>(
        &mut self,
        patience: TimeoutClass,
        job: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let limit = self.session().job_limit;
        match patience {
            TimeoutClass::Caller => self.end_within(limit),
            TimeoutClass::Scan => self.answer_within(limit),
        }
        let done = job(self);
        // A new connection costs a millisecond or two and has no half-open transaction.
        if done.is_err() {
            self.give_up();
        }
        done
    }

    fn patiently<T>(
        &mut self,
        statement: impl FnOnce(&mut Self) -> QueryResult<T>,
    ) -> QueryResult<T> {
        let session = Arc::clone(self.session());
        self.answer_within(session.audit_timeout);
        self.batch_execute(&session.audit_limit)?;
        let answer = statement(self)?;
        self.batch_execute(&session.usual_limit)?;
        self.answer_within(session.job_limit);
        Ok(answer)
    }

    fn snapshot<T>(&mut self, job: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.batch_execute(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
             START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        )?;
        if self.session().access == SessionAccess::Write {
            refuse_replica(self)?;
        }
        let done = job(self)?;
        self.batch_execute("COMMIT")?;
        Ok(done)
    }

    fn failed_commit(&mut self, said: Diesel) -> Error {
        if is_rolled_back_commit(&said) { said.into() } else { Error::not_confirmed(said) }
    }

    fn alone<T>(&mut self, job: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        // Locks of this kind belong to the whole server: the database is part of the name.
        const NAME: &str = "LEFT(CONCAT('floodgate migrates ', DATABASE()), 64)";
        let wait_s = self.session().audit_timeout.as_secs().max(1);
        // A large table takes as long as it takes, and whoever started the migration watches.
        self.answer_within(A_DAY);
        self.batch_execute(&statement_limit(0))?;
        let lock = format!("SELECT GET_LOCK({NAME}, {wait_s}) AS cell");
        if number(self, &lock)? != 1 {
            let reason = format!(
                "another process has been migrating this ledger for {wait_s} s: wait for it, or \
                 look what holds it up (SHOW PROCESSLIST)"
            );
            return Err(Error::CannotOpen { reason });
        }
        let done = job(self)?;
        // It ends with the connection, too.
        let release = format!("SELECT RELEASE_LOCK({NAME}) AS cell");
        number(self, &release)?;
        let usual = self.session().usual_limit.clone();
        self.batch_execute(&usual)?;
        Ok(done)
    }

    fn has_table(&mut self, name: &str) -> QueryResult<bool> {
        let sql = format!(
            "SELECT COUNT(*) AS cell FROM information_schema.tables \
             WHERE table_schema = DATABASE() AND table_name = '{name}'"
        );
        number(self, &sql).map(|tables| tables > 0)
    }

    fn writer_token(&mut self) -> QueryResult<i64> {
        // The lock is shared with the other writers of this token; changing it waits for all of
        // them.
        let sql =
            format!("SELECT token AS cell FROM tokens WHERE name = '{WRITER}' LOCK IN SHARE MODE");
        number(self, &sql)
    }

    fn raise_token(&mut self, name: &str, next: &'static str) -> QueryResult<i64> {
        // The row is locked for writing at once: two processes that read it first, each with a
        // shared lock, could not go on to write.
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
        by_page((i64::MIN, i64::MIN), OrderRow::place, visit, |(buyer, slot)| {
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
        by_page(i64::MIN, FailureRow::place, visit, |request| {
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
