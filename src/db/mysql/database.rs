//! The transactions of the ledger in MySQL and MariaDB, and the statements of the hot path.
//!
//! Each of these statements is one text for any number of rows, so that a batch takes half a dozen
//! round trips. A prepared statement would have a fixed number of rows, and the server would
//! describe each of its parameters. The texts contain no values but numbers.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::result::Error as Diesel;
use diesel::sql_query;
use diesel::sql_types::BigInt;
use diesel_migrations::EmbeddedMigrations;

use super::client::MysqlConnection;
use super::health::SERVER_TIME;
use super::session::{SessionAccess, statement_limit};
use crate::db::error::{cannot_open, is_rolled_back_commit};
use crate::db::rows::{NEW_ORDER_COLUMNS, NewOrder};
use crate::db::sql::statements::{
    IN_LIST_MAX, SkuAndBuyer, TakeStock, case, list, of_buyers, sorted, statement,
};
use crate::db::sql::{Database, Queries, QuotaClaim};
use crate::db::{Error, migrate};
use crate::domain::{Actor, Failure};

/// A connection without a response for this long is tested before a job.
const VALID_FOR: Duration = Duration::from_secs(1);

/// Limit of each statement of a migration.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether a connection can run a job.
pub(super) fn is_valid(conn: &mut MysqlConnection) -> bool {
    if conn.answered_at().elapsed() < VALID_FOR {
        return true;
    }
    let allowed = conn.session().connect_timeout;
    conn.limit_total(allowed);
    conn.batch_execute("DO 1").is_ok()
}

/// Rejects a read-only server, in the transaction that reads from it: a proxy that sends reads to a
/// replica would return outdated rows.
fn reject_replica(conn: &mut MysqlConnection) -> Result<(), Error> {
    let sql = "SELECT CAST(@@global.read_only OR @@global.innodb_read_only AS SIGNED)";
    if conn.number(sql)? == 0 {
        return Ok(());
    }
    let reason = "the server that answers reads is read-only: point ledger.url at the primary, \
                  without a proxy that sends reads elsewhere";
    Err(Error::NoConnection { reason: reason.to_owned() })
}

impl Database for MysqlConnection {
    const MIGRATIONS: EmbeddedMigrations = migrate::MYSQL;
    const AFTER_FAILED_MIGRATION: &'static str =
        "tables created by the failed migration stay, and the next attempt continues from there";
    const TABLES_NAMED: &'static str = "SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = DATABASE() AND table_name = ";
    const BEGIN: &'static str = "BEGIN";
    const INDEXED_REQUESTS: &'static str = "TRUE";
    const UNINDEXED_REQUESTS: Option<&'static str> = None;
    // Takes the exclusive lock at once: two processes that first read the row with a shared lock
    // would deadlock.
    const BY_PRIMARY_KEY: &'static str = "FORCE INDEX (PRIMARY)";
    const WITHOUT_REQUEST_INDEX: &'static str = Self::BY_PRIMARY_KEY;
    const FOR_UPDATE: &'static str = "FOR UPDATE";
    const INSERT_TOKEN: &'static str =
        "INSERT INTO tokens (name, token) VALUES (?, 0) ON DUPLICATE KEY UPDATE token = token";
    // Locks an existing row exclusively at once, as `open_quotas`.
    const RAISE_CURSOR: &'static str = "INSERT INTO cursors (name, feed_no) VALUES (?, ?) \
         ON DUPLICATE KEY UPDATE feed_no = GREATEST(feed_no, VALUES(feed_no))";

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
        if self.number(&lock)? != 1 {
            return cannot_open(format!(
                "another process has been migrating this ledger for {wait_s} s: wait for it, or \
                 find out what blocks it (SHOW PROCESSLIST)"
            ));
        }
        let result = job(self)?;
        // After an error the end of the connection releases the lock.
        self.number(&format!("SELECT RELEASE_LOCK({NAME})"))?;
        let usual = statement_limit(self.session().statement_timeout_ms);
        self.batch_execute(&usual)?;
        Ok(result)
    }

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

    fn server_time_ms(&mut self) -> QueryResult<Option<i64>> {
        self.number(SERVER_TIME).map(Some)
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

    fn writer_token(&mut self) -> QueryResult<i64> {
        WriterToken {}.get_result(self)
    }

    fn insert_orders(&mut self, orders: &[NewOrder]) -> QueryResult<bool> {
        let mut text = String::with_capacity(400 + 270 * orders.len());
        // Writing to a string does not fail.
        let _written = write!(text, "INSERT INTO orders ({NEW_ORDER_COLUMNS}) VALUES ");
        let mut before = "(";
        for order in orders {
            let NewOrder { numbers, trace_id, published_at_ms, recorded_at_ms, due_ms } = order;
            let (numbers, trace) = (list(*numbers), u128::from_be_bytes(*trace_id));
            let _written = write!(text, "{before}{numbers},x'{trace:032x}',");
            let (published_at_ms, due_ms) = (or_null(*published_at_ms), or_null(*due_ms));
            let _written = write!(text, "{published_at_ms},{recorded_at_ms},{due_ms}");
            before = "),(";
        }
        text.push(')');
        // In the same round trip.
        text.push_str(
            "; INSERT INTO order_events (request_id, version, sku_no, buyer_id, kind, at_ms, \
             actor, limit_back, num_orders, placed) VALUES ",
        );
        let mut before = "(";
        for placed in orders.chunk_by(NewOrder::is_of_same_sku) {
            let Some(first) = placed.first() else { continue };
            let (sku_no, buyer_id, request_id) = first.key();
            let (at_ms, num_orders) = (first.recorded_at_ms, placed.len());
            let _written = write!(
                text,
                "{before}{request_id},0,{sku_no},{buyer_id},0,{at_ms},'{}',0,{num_orders},x'",
                Actor::Buyer.name()
            );
            for (sku, buyer, request) in placed.iter().map(NewOrder::key) {
                let _written = write!(text, "{sku:08x}{buyer:016x}{request:016x}");
            }
            text.push('\'');
            before = "),(";
        }
        text.push_str("); ");
        let skus = sorted(orders.iter().map(|order| i64::from(order.key().0)));
        let requests: Vec<i64> = orders.iter().map(|order| order.key().2).collect();
        let _written = write!(
            text,
            "SELECT EXISTS (SELECT buyer_id FROM bars WHERE sku_no IN ({})) INTO @barred; {}",
            list(skus),
            count_failed(&requests)
        );
        self.batch_execute(&text)?;
        Ok(NumRefused {}.get_result::<i64>(self)? > 0)
    }

    fn any_failed(&mut self, requests: &[i64]) -> QueryResult<bool> {
        self.batch_execute(&format!("SET @barred = 0; {}", count_failed(requests)))?;
        Ok(NumRefused {}.get_result::<i64>(self)? > 0)
    }

    /// A locking read, as in `count_failed`.
    fn ordered_among(&mut self, failures: &[Failure]) -> QueryResult<Vec<i64>> {
        let requests = failures.iter().map(|failure| failure.request.to_db());
        let ordered = sql::<BigInt>(&format!(
            "SELECT request_id FROM orders FORCE INDEX (orders_by_request) \
             WHERE request_id IN ({}) LOCK IN SHARE MODE",
            list(requests)
        ));
        ordered.load(self)
    }

    fn take_quotas(&mut self, claims: &[QuotaClaim]) -> QueryResult<bool> {
        if claims.is_empty() {
            return Ok(true);
        }
        self.batch_execute(&open_quotas(claims))?;
        // One statement for all buyers who take the same number of units: these numbers are few.
        let mut by_units: BTreeMap<i32, Vec<SkuAndBuyer>> = BTreeMap::new();
        for claim in claims {
            by_units.entry(claim.units).or_default().push((claim.sku_no, claim.buyer_id));
        }
        for (units, buyers) in by_units {
            for chunk in buyers.chunks(IN_LIST_MAX) {
                let of_buyers = of_buyers(chunk);
                let taken = sql_query(format!(
                    "UPDATE quotas SET owned = owned + {units} WHERE ({of_buyers}) \
                     AND owned + {units} <= quota"
                ));
                if taken.execute(self)? != chunk.len() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn take_stocks(&mut self, units: &[(i32, i32)]) -> QueryResult<bool> {
        if let [(sku_no, units)] = *units {
            return TakeStock { sku_no, units }.execute(self).map(|taken| taken == 1);
        }
        for chunk in units.chunks(IN_LIST_MAX) {
            let each =
                case("sku_no", chunk.iter().map(|(sku, units)| ((*sku).into(), (*units).into())));
            let skus = list(chunk.iter().map(|(sku, _)| i64::from(*sku)));
            let taken = sql_query(format!(
                "UPDATE skus SET available = available - {each} \
                 WHERE sku_no IN ({skus}) AND available >= {each}"
            ));
            if taken.execute(self)? != chunk.len() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Counts the failed ones of these requests in a variable, by a locking read of the latest
/// committed rows, so that the result stays valid; the primary key restricts the locks to these
/// requests. A query that answers with rows would be prepared anew each time, in a round trip of
/// its own.
fn count_failed(requests: &[i64]) -> String {
    let mut text = "SET @failed = 0".to_owned();
    for chunk in requests.chunks(IN_LIST_MAX) {
        let requests = list(chunk.iter().copied());
        let _written = write!(
            text,
            "; SELECT COUNT(*) + @failed INTO @failed FROM failed_requests FORCE INDEX (PRIMARY) \
             WHERE request_id IN ({requests}) LOCK IN SHARE MODE"
        );
    }
    text
}

statement! {
    /// What the statements before have found.
    NumRefused {} -> BigInt
    "SELECT CAST(@barred + @failed AS SIGNED)"
}

statement! {
    /// The writer's token, with a shared lock: a change of it waits for all transactions that read
    /// it.
    WriterToken {} -> BigInt
    "SELECT token FROM tokens WHERE name = 'writer' LOCK IN SHARE MODE"
}

/// A number in SQL.
fn or_null(number: Option<i64>) -> String {
    number.map_or_else(|| "NULL".to_owned(), |number| number.to_string())
}

/// Inserts a quota row with 0 units for each buyer without one, and locks all these rows
/// exclusively in key order. (`INSERT IGNORE` takes shared locks on existing rows: concurrent
/// writers would deadlock.)
fn open_quotas(claims: &[QuotaClaim]) -> String {
    let mut text = "INSERT INTO quotas (sku_no, buyer_id, owned, quota) VALUES ".to_owned();
    let mut before = "(";
    for QuotaClaim { sku_no, buyer_id, quota, .. } in claims {
        let _written = write!(text, "{before}{sku_no},{buyer_id},0,{quota}");
        before = "),(";
    }
    text.push_str(") ON DUPLICATE KEY UPDATE quota = GREATEST(owned, VALUES(quota))");
    text
}
