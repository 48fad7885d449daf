//! What MySQL and MariaDB do in their own way.

use std::sync::Arc;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::result::Error as Diesel;
use diesel::sql_types::{BigInt, Text};
use diesel_migrations::EmbeddedMigrations;

use super::client::MysqlConnection;
use super::scan;
use super::session::statement_limit;
use super::statements;
use crate::db::error::is_rolled_back_commit;
use crate::db::rows::NewOrder;
use crate::db::schema::tokens;
use crate::db::sql::{Claim, Database, Each, IN_LIST_MAX, Patience, Queries, WRITER};
use crate::db::{Error, migrate};
use crate::domain::{Failure, Order, SkuNo};

#[derive(QueryableByName)]
struct Number {
    #[diesel(sql_type = BigInt)]
    cell: i64,
}

fn number(conn: &mut MysqlConnection, sql: &str) -> QueryResult<i64> {
    diesel::sql_query(sql).get_result::<Number>(conn).map(|row| row.cell)
}

impl Database for MysqlConnection {
    const MIGRATIONS: EmbeddedMigrations = migrate::MYSQL;
    const AFTER_FAILED_MIGRATION: &'static str =
        "tables that the failed migration made stay, and the next try goes on from there";
    const BEGIN: &'static str = "BEGIN";
    const REPEATED_REQUESTS: &'static str = "SELECT request_id, COUNT(*) AS num_orders \
         FROM orders FORCE INDEX (PRIMARY) \
         WHERE sku_no = ? GROUP BY request_id HAVING COUNT(*) > 1 LIMIT ?";

    fn attend<T>(
        &mut self,
        patience: Patience,
        job: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match patience {
            Patience::Caller => self.begin_job(),
            Patience::Scan => self.begin_scan(),
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
        self.begin_long();
        self.batch_execute(&session.audit_limit)?;
        let answer = statement(self)?;
        self.batch_execute(&session.usual_limit)?;
        self.begin_scan();
        Ok(answer)
    }

    fn snapshot<T>(
        &mut self,
        doing: &'static str,
        job: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let refused = Error::refused(doing);
        self.batch_execute(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
             START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        )
        .map_err(&refused)?;
        let done = job(self)?;
        self.batch_execute("COMMIT").map_err(&refused)?;
        Ok(done)
    }

    fn failed_commit(&mut self, doing: &'static str, said: Diesel) -> Error {
        if is_rolled_back_commit(&said) {
            Error::Refused { doing, source: said }
        } else {
            Error::NotConfirmed { doing, source: said }
        }
    }

    fn alone<T>(&mut self, job: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        const DOING: &str = "waiting for another process that migrates";
        // Locks of this kind belong to the whole server: the database is part of the name.
        const NAME: &str = "LEFT(CONCAT('floodgate migrates ', DATABASE()), 64)";
        let refused = Error::refused(DOING);
        let wait_s = self.session().audit_timeout.as_secs().max(1);
        self.begin_unlimited();
        self.batch_execute(&statement_limit(0)).map_err(&refused)?;
        let lock = format!("SELECT GET_LOCK({NAME}, {wait_s}) AS cell");
        if number(self, &lock).map_err(&refused)? != 1 {
            let reason = format!(
                "another process has been migrating this ledger for {wait_s} s: wait for it, or \
                 look what holds it up (SHOW PROCESSLIST)"
            );
            return Err(Error::CannotOpen { reason });
        }
        let done = job(self)?;
        // It ends with the connection, too.
        let release = format!("SELECT RELEASE_LOCK({NAME}) AS cell");
        number(self, &release).map_err(&refused)?;
        let usual = self.session().usual_limit.clone();
        self.batch_execute(&usual).map_err(&refused)?;
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
        // The lock is shared with the other writers of this process; taking the token waits for all
        // of them.
        let sql =
            format!("SELECT token AS cell FROM tokens WHERE name = '{WRITER}' LOCK IN SHARE MODE");
        number(self, &sql)
    }

    fn count_up(&mut self, name: &str) -> QueryResult<i64> {
        diesel::sql_query(
            "INSERT INTO tokens (name, token) VALUES (?, 1) \
             ON DUPLICATE KEY UPDATE token = token + 1",
        )
        .bind::<Text, _>(name)
        .execute(self)?;
        tokens::table.find(name).select(tokens::token).first(self)
    }

    fn insert_orders(&mut self, orders: &[NewOrder]) -> QueryResult<()> {
        self.batch_execute(&statements::insert_orders(orders))
    }

    fn any_failed(&mut self, requests: &[i64]) -> QueryResult<bool> {
        for chunk in requests.chunks(IN_LIST_MAX) {
            if !statements::failed_among(chunk).load::<statements::Request>(self)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn ordered_among(&mut self, requests: &[i64]) -> QueryResult<Vec<i64>> {
        let rows = statements::ordered_among(requests).load::<statements::Request>(self)?;
        Ok(rows.into_iter().map(|row| row.request_id).collect())
    }

    fn take_quotas(&mut self, claims: &[Claim]) -> QueryResult<bool> {
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

    fn each_order(&mut self, sku: SkuNo, visit: Each<'_, Order>) -> Result<(), Error> {
        scan::each_order(self, sku, visit)
    }

    fn each_failure(&mut self, sku: SkuNo, visit: Each<'_, Failure>) -> Result<(), Error> {
        scan::each_failure(self, sku, visit)
    }
}
