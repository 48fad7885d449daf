//! Statements that diesel cannot express, or would prepare anew each time.

use std::collections::BTreeSet;
use std::fmt::Write;

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

/// The sorted buyers of orders and their requests, for a condition on the primary key.
pub(in crate::db) fn condition(
    keys: impl Iterator<Item = OrderKey>,
) -> (Vec<SkuAndBuyer>, Vec<i64>) {
    let keys: BTreeSet<OrderKey> = keys.collect();
    let buyers: BTreeSet<SkuAndBuyer> =
        keys.iter().map(|key| (key.sku.0, key.buyer.to_db())).collect();
    (Vec::from_iter(buyers), keys.iter().map(|key| key.request.to_db()).collect())
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
