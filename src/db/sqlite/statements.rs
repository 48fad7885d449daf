//! Statements of the hot path.
//!
//! Written out because diesel prepares every UPDATE anew: it cannot know that the text is always
//! the same. Here it is, and each type says so with its [`QueryId`], so that the statement is
//! prepared once per connection.

use diesel::prelude::*;
use diesel::query_builder::{AstPass, QueryFragment, QueryId};
use diesel::sql_types::{BigInt, Binary, Integer, Nullable, SmallInt};
use diesel::sqlite::Sqlite;

use crate::db::rows::NewOrder;

/// Inserts several orders at once.
///
/// `OR FAIL` leaves the rows before the one that conflicts, which only a transaction that is rolled
/// back can afford; in return the database keeps no journal to undo the statement by itself.
pub(super) struct InsertOrders<'a, const ROWS: usize>(pub(super) &'a [NewOrder; ROWS]);

impl<const ROWS: usize> QueryId for InsertOrders<'_, ROWS> {
    type QueryId = InsertOrders<'static, ROWS>;
    const HAS_STATIC_QUERY_ID: bool = true;
}

impl<const ROWS: usize> RunQueryDsl<SqliteConnection> for InsertOrders<'_, ROWS> {}

impl<const ROWS: usize> QueryFragment<Sqlite> for InsertOrders<'_, ROWS> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
        out.push_sql(
            "INSERT OR FAIL INTO orders (sku_no, buyer_id, slot, request_id, epoch, quantity, \
             amount, state, placed_at_ms, pay_by_ms, trace_id, published_at_ms, recorded_at_ms) \
             VALUES ",
        );
        let mut before = "(";
        for row in self.0 {
            out.push_sql(before);
            out.push_bind_param::<Integer, _>(&row.sku_no)?;
            for number in [&row.buyer_id, &row.slot, &row.request_id, &row.epoch] {
                out.push_sql(", ");
                out.push_bind_param::<BigInt, _>(number)?;
            }
            out.push_sql(", ");
            out.push_bind_param::<Integer, _>(&row.quantity)?;
            out.push_sql(", ");
            out.push_bind_param::<BigInt, _>(&row.amount)?;
            out.push_sql(", ");
            out.push_bind_param::<SmallInt, _>(&row.state)?;
            for instant in [&row.placed_at_ms, &row.pay_by_ms] {
                out.push_sql(", ");
                out.push_bind_param::<BigInt, _>(instant)?;
            }
            out.push_sql(", ");
            out.push_bind_param::<Binary, _>(&row.trace_id)?;
            out.push_sql(", ");
            out.push_bind_param::<Nullable<BigInt>, _>(&row.published_at_ms)?;
            out.push_sql(", ");
            out.push_bind_param::<BigInt, _>(&row.recorded_at_ms)?;
            before = "), (";
        }
        out.push_sql(")");
        Ok(())
    }
}

/// Gives a buyer a quota row with nothing on it, unless there is one.
#[derive(QueryId)]
pub(super) struct OpenQuota {
    pub(super) sku_no: i32,
    pub(super) buyer_id: i64,
    pub(super) quota: i32,
}

impl RunQueryDsl<SqliteConnection> for OpenQuota {}

impl QueryFragment<Sqlite> for OpenQuota {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
        out.push_sql("INSERT OR IGNORE INTO quotas (sku_no, buyer_id, owned, quota) VALUES (");
        out.push_bind_param::<Integer, _>(&self.sku_no)?;
        out.push_sql(", ");
        out.push_bind_param::<BigInt, _>(&self.buyer_id)?;
        out.push_sql(", 0, ");
        out.push_bind_param::<Integer, _>(&self.quota)?;
        out.push_sql(")");
        Ok(())
    }
}

/// Adds units to a buyer's quota row, where they fit; else it changes no row.
#[derive(QueryId)]
pub(super) struct TakeQuota {
    pub(super) sku_no: i32,
    pub(super) buyer_id: i64,
    pub(super) units: i32,
}

impl RunQueryDsl<SqliteConnection> for TakeQuota {}

impl QueryFragment<Sqlite> for TakeQuota {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
        out.push_sql("UPDATE quotas SET owned = owned + ");
        out.push_bind_param::<Integer, _>(&self.units)?;
        out.push_sql(" WHERE sku_no = ");
        out.push_bind_param::<Integer, _>(&self.sku_no)?;
        out.push_sql(" AND buyer_id = ");
        out.push_bind_param::<BigInt, _>(&self.buyer_id)?;
        out.push_sql(" AND owned + ");
        out.push_bind_param::<Integer, _>(&self.units)?;
        out.push_sql(" <= quota");
        Ok(())
    }
}
