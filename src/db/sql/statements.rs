//! Statements that diesel has no words for, or would prepare anew each time.

use std::fmt::Write;

use diesel::backend::Backend;
use diesel::prelude::*;
use diesel::query_builder::{AstPass, QueryFragment, QueryId};
use diesel::serialize::ToSql;
use diesel::sql_types::{HasSqlType, Integer};

use super::OfSku;

/// Numbers with commas between them.
pub(in crate::db) fn list(numbers: impl IntoIterator<Item = i64>) -> String {
    let mut text = String::new();
    for number in numbers {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string does not fail.
        let _written = write!(text, "{comma}{number}");
    }
    text
}

/// The condition that a row is about one of these buyers, of which there is at least one: for each
/// SKU a range of the primary key. Sorted, so that rows are met in the order of their key.
pub(in crate::db) fn of_buyers(buyers: &[OfSku]) -> String {
    let mut text = String::new();
    for of_sku in buyers.chunk_by(|(one, _), (next, _)| one == next) {
        let Some((sku, _)) = of_sku.first() else { continue };
        let or = if text.is_empty() { "" } else { " OR " };
        let ids = list(of_sku.iter().map(|(_, buyer)| *buyer));
        let _written = write!(text, "{or}(sku_no = {sku} AND buyer_id IN ({ids}))");
    }
    text
}

/// Takes units from a SKU, where so many are left; else it changes no row.
///
/// Written out because diesel prepares every UPDATE anew: it cannot know that the text is always
/// the same. Here it is, and the type says so with its [`QueryId`].
#[derive(Debug, QueryId)]
pub(super) struct TakeStock {
    pub(super) sku_no: i32,
    pub(super) units: i32,
}

impl<C> RunQueryDsl<C> for TakeStock {}

impl<DB> QueryFragment<DB> for TakeStock
where
    DB: Backend + HasSqlType<Integer>,
    i32: ToSql<Integer, DB>,
{
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, DB>) -> QueryResult<()> {
        out.push_sql("UPDATE skus SET available = available - ");
        out.push_bind_param::<Integer, _>(&self.units)?;
        out.push_sql(" WHERE sku_no = ");
        out.push_bind_param::<Integer, _>(&self.sku_no)?;
        out.push_sql(" AND available >= ");
        out.push_bind_param::<Integer, _>(&self.units)?;
        Ok(())
    }
}
