//! Statements that diesel cannot express, or would prepare anew each time.

use std::collections::BTreeSet;
use std::fmt::Write;

use diesel::QueryResult;
use diesel::sql_types::Integer;

use crate::domain::OrderKey;

/// The maximum number of values in one `IN` list.
pub(in crate::db) const IN_LIST_MAX: usize = 500;

pub type SkuAndBuyer = (i32, i64);

/// Comma-separated numbers.
pub(in crate::db) fn list(numbers: impl IntoIterator<Item = i64>) -> String {
    let mut text = String::new();
    for number in numbers {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string does not fail.
        let _written = write!(text, "{comma}{number}");
    }
    text
}

/// The rows that a query finds for all items, with at most [`IN_LIST_MAX`] of them each time.
pub(in crate::db) fn in_lists<T, R>(
    items: &[T],
    mut query: impl FnMut(&[T]) -> QueryResult<Vec<R>>,
) -> QueryResult<Vec<R>> {
    let mut rows = Vec::new();
    for chunk in items.chunks(IN_LIST_MAX) {
        rows.extend(query(chunk)?);
    }
    Ok(rows)
}

/// Sorted and without duplicates.
pub(in crate::db) fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    Vec::from_iter(BTreeSet::from_iter(items))
}

/// The columns of an order's buyer.
pub(in crate::db) fn buyer_of(order: &OrderKey) -> SkuAndBuyer {
    (order.sku.0, order.buyer.to_db())
}

/// The SQL condition that a row belongs to one of these orders, on the primary key.
pub(in crate::db) fn of_orders(orders: &[OrderKey]) -> String {
    let buyers = sorted(orders.iter().map(buyer_of));
    of_requests(&buyers, orders.iter().map(|order| order.request.to_db()))
}

/// The SQL condition that a row belongs to one of these sorted buyers and to one of these requests.
pub(in crate::db) fn of_requests(
    buyers: &[SkuAndBuyer],
    requests: impl IntoIterator<Item = i64>,
) -> String {
    format!("({}) AND request_id IN ({})", of_buyers(buyers), list(requests))
}

/// The SQL condition that a row is after a key, in the order of these columns; an empty key: all
/// rows.
pub(in crate::db) fn after(columns: &[&str], key: &[i64]) -> String {
    let (Some(first), Some(least)) = (columns.first(), key.first()) else {
        return "TRUE".to_owned();
    };
    // By its first column, SQLite finds the range; by an OR it reads all rows before.
    let mut condition = format!("{first} >= {least} AND (FALSE");
    let mut same = String::new();
    for (name, number) in columns.iter().zip(key) {
        let _written = write!(condition, " OR ({same}{name} > {number})");
        let _written = write!(same, "{name} = {number} AND ");
    }
    condition + ")"
}

/// The number of each row by a column, in SQL.
pub(in crate::db) fn case(column: &str, numbers: impl IntoIterator<Item = (i64, i64)>) -> String {
    let mut each = format!("CASE {column}");
    for (value, number) in numbers {
        let _written = write!(each, " WHEN {value} THEN {number}");
    }
    each + " END"
}

/// The SQL condition that a row belongs to one of these buyers, with one `IN` list of the primary
/// key per SKU. `buyers` must be sorted, so that rows are visited in key order, and not empty.
pub(in crate::db) fn of_buyers(buyers: &[SkuAndBuyer]) -> String {
    let mut text = String::new();
    for of_sku in buyers.chunk_by(|(one, _), (next, _)| one == next) {
        let Some((sku, _)) = of_sku.first() else { continue };
        let or = if text.is_empty() { "" } else { " OR " };
        let ids = list(of_sku.iter().map(|(_, buyer)| *buyer));
        let _written = write!(text, "{or}(sku_no = {sku} AND buyer_id IN ({ids}))");
    }
    text
}

/// Declares a statement with a constant text, made of literals and the numbers between them.
///
/// Diesel prepares every UPDATE and every text of our own anew, because it cannot detect that the
/// text is constant. This type has a static [`QueryId`], so that it is prepared once per
/// connection. `-> BigInt` declares a query with one column of this type.
macro_rules! statement {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ident),* } -> $result:ident
        $($sql:tt)+) => {
        statement! { $(#[$doc])* $name { $($field: $kind),* } $($sql)+ }

        impl diesel::query_builder::Query for $name {
            type SqlType = $result;
        }
    };
    ($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ident),* }
        $($sql:literal $($number:ident: $column:ident)?)+) => {
        $(#[$doc])*
        #[derive(Debug, diesel::query_builder::QueryId)]
        pub(in crate::db) struct $name {
            $(pub(in crate::db) $field: $kind,)*
        }

        impl<C> diesel::query_dsl::RunQueryDsl<C> for $name {}

        impl<DB> diesel::query_builder::QueryFragment<DB> for $name
        where
            DB: diesel::backend::Backend
                + diesel::sql_types::HasSqlType<diesel::sql_types::Integer>
                + diesel::sql_types::HasSqlType<diesel::sql_types::BigInt>,
            i32: diesel::serialize::ToSql<diesel::sql_types::Integer, DB>,
            i64: diesel::serialize::ToSql<diesel::sql_types::BigInt, DB>,
        {
            fn walk_ast<'b>(
                &'b self,
                mut out: diesel::query_builder::AstPass<'_, 'b, DB>,
            ) -> diesel::QueryResult<()> {
                $(
                    out.push_sql($sql);
                    $(out.push_bind_param::<$column, _>(&self.$number)?;)?
                )+
                Ok(())
            }
        }
    };
}
pub(in crate::db) use statement;

statement! {
    /// Takes units from a SKU if so many are available; otherwise changes no row.
    TakeStock { sku_no: i32, units: i32 }
    "UPDATE skus SET available = available - " units: Integer
    " WHERE sku_no = " sku_no: Integer " AND available >= " units: Integer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_orders_by_its_first_column() {
        let after = |key: &[i64]| after(&["buyer_id", "slot"], key);
        assert_eq!(after(&[]), "TRUE");
        let expected = "buyer_id >= 7 AND (FALSE OR (buyer_id > 7) OR (buyer_id = 7 AND slot > 0))";
        assert_eq!(after(&[7, 0]), expected);
    }
}
