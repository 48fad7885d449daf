//! Statements of the hot path; see [`crate::db::sql::statements`].

use diesel::prelude::*;
use diesel::query_builder::{AstPass, QueryFragment, QueryId};
use diesel::sql_types::{BigInt, Binary, Integer, Nullable};
use diesel::sqlite::Sqlite;

use crate::db::rows::{NEW_ORDER_COLUMNS, NewOrder};
use crate::db::sql::statements::statement;

/// Inserts several orders.
///
/// `OR FAIL` keeps the rows before a conflicting one, so that the transaction must be rolled back;
/// in return the database does not keep a statement journal.
pub(super) struct InsertOrders<'a, const ROWS: usize>(pub(super) &'a [NewOrder; ROWS]);

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
        for NewOrder { numbers, trace_id, published_at_ms, recorded_at_ms } in self.0 {
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
            before = "), (";
        }
        out.push_sql(")");
        Ok(())
    }
}

statement! {
    /// Inserts a quota row with 0 units for a buyer without one.
    OpenQuota { sku_no: i32, buyer_id: i64, quota: i32 }
    "INSERT OR IGNORE INTO quotas (sku_no, buyer_id, owned, quota) VALUES (" sku_no: Integer
    ", " buyer_id: BigInt ", 0, " quota: Integer ")"
}

statement! {
    /// Adds units to a buyer's quota row if the quota allows it; otherwise changes no row.
    TakeQuota { sku_no: i32, buyer_id: i64, units: i32 }
    "UPDATE quotas SET owned = owned + " units: Integer
    " WHERE sku_no = " sku_no: Integer " AND buyer_id = " buyer_id: BigInt
    " AND owned + " units: Integer " <= quota"
}
