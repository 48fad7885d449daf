//! The transactions of the ledger in `SQLite`, and the statements of the hot path.

use diesel::connection::SimpleConnection;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::query_builder::{AstPass, QueryFragment, QueryId};
use diesel::result::{DatabaseErrorKind, Error as Diesel};
use diesel::sql_types::{BigInt, Binary, Integer, Nullable};
use diesel::sqlite::Sqlite;
use diesel_migrations::EmbeddedMigrations;

use super::connection::checkpoint;
use crate::db::life_rows::OrderEventRow;
use crate::db::rows::{NEW_ORDER_COLUMNS, NewOrder};
use crate::db::schema::{bars, failed_requests, order_events, tokens};
use crate::db::sql::statements::{IN_LIST_MAX, TakeStock, list, sorted, statement};
use crate::db::sql::{Database, OrderQueries, QuotaClaim, WRITER};
use crate::db::{Error, migrate};
use crate::domain::Failure;

/// Orders per multi-row INSERT; a remainder is inserted row by row.
const ROWS_PER_INSERT: usize = 16;

impl Database for SqliteConnection {
    const MIGRATIONS: EmbeddedMigrations = migrate::SQLITE;
    const AFTER_FAILED_MIGRATION: &'static str = "nothing of the failed migration was kept";
    const TABLES_NAMED: &'static str =
        "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = ";
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    const INDEXED_REQUESTS: &'static str = "slot <> 0";
    const UNINDEXED_REQUESTS: Option<&'static str> = Some("slot = 0");
    const BY_PRIMARY_KEY: &'static str = "";
    const WITHOUT_REQUEST_INDEX: &'static str = "NOT INDEXED";
    const FOR_UPDATE: &'static str = "";
    const INSERT_TOKEN: &'static str = "INSERT OR IGNORE INTO tokens (name, token) VALUES (?, 0)";
    const RAISE_CURSOR: &'static str = "INSERT INTO cursors (name, feed_no) VALUES (?, ?) \
         ON CONFLICT (name) DO UPDATE SET feed_no = MAX(feed_no, excluded.feed_no)";

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

    fn insert_orders(&mut self, orders: &[NewOrder]) -> QueryResult<bool> {
        // Two numbers of rows only, so that each statement is prepared once per connection.
        let (full, remainder) = orders.as_chunks::<ROWS_PER_INSERT>();
        for rows in full {
            InsertOrders(rows).execute(self)?;
        }
        for row in remainder.as_chunks::<1>().0 {
            InsertOrders(row).execute(self)?;
        }
        reject_ended_requests(self, orders)?;
        for placed in orders.chunk_by(NewOrder::is_of_same_sku) {
            // One row at a time: the statement is prepared once per connection, and needs no
            // savepoint.
            if let Some(event) = OrderEventRow::placed(placed) {
                diesel::insert_into(order_events::table).values(event).execute(self)?;
            }
        }
        let any_bar = bars::table.select(bars::buyer_id);
        if diesel::select(diesel::dsl::exists(any_bar)).get_result::<bool>(self)? {
            let skus = sorted(orders.iter().map(|order| order.key().0));
            let of_skus = bars::table.filter(bars::sku_no.eq_any(skus));
            if of_skus.select(bars::buyer_id).first::<i64>(self).optional()?.is_some() {
                return Ok(true);
            }
        }
        let requests: Vec<i64> = orders.iter().map(|order| order.key().2).collect();
        self.any_failed(&requests)
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
        let requests = sorted(failures.iter().map(|failure| failure.request.to_db()));
        let buyers = failures.iter().map(|failure| (failure.sku.0, failure.buyer.to_db()));
        let mut rows = self.orders_by_request(&requests)?;
        rows.extend(self.first_orders(&sorted(buyers))?);
        let ordered = rows.iter().map(|row| row.request_id);
        Ok(ordered.filter(|request| requests.binary_search(request).is_ok()).collect())
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

    fn take_stocks(&mut self, units: &[(i32, i32)]) -> QueryResult<bool> {
        for (sku_no, units) in units.iter().copied() {
            if (TakeStock { sku_no, units }).execute(self)? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn before_close(&mut self) {
        if let Err(error) = checkpoint(self) {
            tracing::warn!(%error, "ledger file: checkpoint failed, the next start repeats it");
        }
    }
}

/// The index of request ids omits slot 0: a request whose order ended and left slot 0 would become
/// an order a second time. A unique violation, as where the index is complete.
fn reject_ended_requests(conn: &mut SqliteConnection, orders: &[NewOrder]) -> QueryResult<()> {
    let outside: Vec<i64> = AnyOutsideSlot0 {}.load(conn)?;
    if outside.is_empty() {
        return Ok(());
    }
    let in_slot_0 = orders.iter().filter(|order| order.slot() == 0).map(NewOrder::key);
    let in_slot_0: Vec<i64> = in_slot_0.map(|(.., request)| request).collect();
    for chunk in in_slot_0.chunks(IN_LIST_MAX) {
        let ended = sql::<BigInt>(&format!(
            "SELECT request_id FROM orders INDEXED BY orders_by_request \
             WHERE request_id IN ({}) AND slot <> 0 LIMIT 1",
            list(chunk.iter().copied())
        ));
        if !ended.load::<i64>(conn)?.is_empty() {
            let key = Box::new("orders_by_request".to_owned());
            return Err(Diesel::DatabaseError(DatabaseErrorKind::UniqueViolation, key));
        }
    }
    Ok(())
}

/// Inserts several orders.
///
/// `OR FAIL` keeps the rows before a conflicting one, so that the transaction must be rolled back;
/// in return the database does not keep a statement journal.
struct InsertOrders<'a, const ROWS: usize>(&'a [NewOrder; ROWS]);

impl<const ROWS: usize> QueryId for InsertOrders<'_, ROWS> {
    type QueryId = InsertOrders<'static, ROWS>;
    const HAS_STATIC_QUERY_ID: bool = true;
}

impl<const ROWS: usize> RunQueryDsl<SqliteConnection> for InsertOrders<'_, ROWS> {}

impl<const ROWS: usize> QueryFragment<Sqlite> for InsertOrders<'_, ROWS> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
        out.push_sql("INSERT OR FAIL INTO orders (");
        out.push_sql(NEW_ORDER_COLUMNS);
        let mut before = ") VALUES (";
        for NewOrder { numbers, trace_id, published_at_ms, recorded_at_ms, due_ms } in self.0 {
            out.push_sql(before);
            for number in numbers {
                out.push_bind_param::<BigInt, _>(number)?;
                out.push_sql(", ");
            }
            out.push_bind_param::<Binary, _>(trace_id)?;
            out.push_sql(", ");
            out.push_bind_param::<Nullable<BigInt>, _>(published_at_ms)?;
            out.push_sql(", ");
            out.push_bind_param::<BigInt, _>(recorded_at_ms)?;
            out.push_sql(", ");
            out.push_bind_param::<Nullable<BigInt>, _>(due_ms)?;
            before = "), (";
        }
        out.push_sql(")");
        Ok(())
    }
}

statement! {
    /// An order that is not in slot 0.
    AnyOutsideSlot0 {} -> BigInt
    "SELECT request_id FROM orders INDEXED BY orders_by_request WHERE slot <> 0 LIMIT 1"
}

statement! {
    /// Inserts a quota row with 0 units for a buyer without one; otherwise writes the limit, which
    /// may have changed, into the row. Units that the buyer has already stay.
    OpenQuota { sku_no: i32, buyer_id: i64, quota: i32 }
    "INSERT INTO quotas (sku_no, buyer_id, owned, quota) VALUES (" sku_no: Integer
    ", " buyer_id: BigInt ", 0, " quota: Integer ")
    ON CONFLICT (sku_no, buyer_id) DO UPDATE SET quota = MAX(owned, excluded.quota)"
}

statement! {
    /// Adds units to a buyer's quota row if the quota allows it; otherwise changes no row.
    TakeQuota { sku_no: i32, buyer_id: i64, units: i32 }
    "UPDATE quotas SET owned = owned + " units: Integer
    " WHERE sku_no = " sku_no: Integer " AND buyer_id = " buyer_id: BigInt
    " AND owned + " units: Integer " <= quota"
}
