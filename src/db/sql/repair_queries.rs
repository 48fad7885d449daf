//! The queries of repairs; see `queries`.

use diesel::dsl::{insert_into, sum, update};
use diesel::prelude::*;

use super::queries::queries;
use crate::db::repairs::RepairRow;
use crate::db::schema::{orders, quotas, repairs, skus};
use crate::domain::OrderState;

/// The states in which an order has its units, as numbers of the column.
fn live_states() -> Vec<i16> {
    let live = OrderState::ALL.into_iter().filter(|state| state.is_live());
    live.map(OrderState::to_db).collect()
}

queries! {
/// The queries of repairs.
trait RepairQueries {
    /// The units of the live orders of a SKU.
    fn live_units(&mut self, sku: i32) -> QueryResult<i64> {
        let live = orders::table.filter(orders::sku_no.eq(sku));
        let live = live.filter(orders::state.eq_any(live_states()));
        let units: Option<i64> = live.select(sum(orders::quantity)).get_result(self)?;
        Ok(units.unwrap_or(0))
    }

    fn set_available(&mut self, sku: i32, available: i32) -> QueryResult<()> {
        update(skus::table.find(sku)).set(skus::available.eq(available)).execute(self).map(drop)
    }

    /// Locks the quota row of a buyer until the transaction ends, and returns its units.
    fn lock_quota(&mut self, sku: i32, buyer: i64) -> QueryResult<Option<i32>> {
        let row = quotas::table.find((sku, buyer));
        update(row).set(quotas::owned.eq(quotas::owned)).execute(self)?;
        row.select(quotas::owned).first(self).optional()
    }

    /// The units of a buyer's orders that count for the limit.
    fn counted_units(&mut self, sku: i32, buyer: i64) -> QueryResult<i64> {
        let counted = orders::table.filter(orders::sku_no.eq(sku));
        let counted = counted.filter(orders::buyer_id.eq(buyer));
        let counted = counted.filter(orders::counts_for_limit.eq(1));
        let units: Option<i64> = counted.select(sum(orders::quantity)).get_result(self)?;
        Ok(units.unwrap_or(0))
    }

    fn set_owned(&mut self, sku: i32, buyer: i64, owned: i32, quota: i32) -> QueryResult<()> {
        let row = quotas::table.find((sku, buyer));
        let counts = (quotas::owned.eq(owned), quotas::quota.eq(quota));
        update(row).set(counts).execute(self).map(drop)
    }

    fn insert_owned(&mut self, sku: i32, buyer: i64, owned: i32, quota: i32) -> QueryResult<()> {
        let row = (
            quotas::sku_no.eq(sku),
            quotas::buyer_id.eq(buyer),
            quotas::owned.eq(owned),
            quotas::quota.eq(quota),
        );
        insert_into(quotas::table).values(row).execute(self).map(drop)
    }

    /// Whether the same repair is recorded.
    fn is_repair_recorded(&mut self, row: &RepairRow) -> QueryResult<bool> {
        let of_sku = repairs::table.filter(repairs::sku_no.eq(row.sku_no));
        let found = of_sku
            .filter(repairs::verdict.eq(row.verdict))
            .filter(repairs::action.eq(&row.action))
            .filter(repairs::outcome.eq(row.outcome))
            .filter(repairs::detail.eq(&row.detail))
            .select(repairs::repair_no)
            .first::<i32>(self)
            .optional()?;
        Ok(found.is_some())
    }

    fn insert_repair(&mut self, row: &RepairRow) -> QueryResult<()> {
        insert_into(repairs::table).values(row).execute(self).map(drop)
    }

    /// Repairs before this number, newest first.
    fn repair_rows(&mut self, before: i32, limit: i64) -> QueryResult<Vec<RepairRow>> {
        let rows = repairs::table.filter(repairs::repair_no.lt(before));
        rows.order(repairs::repair_no.desc()).limit(limit).select(RepairRow::as_select()).load(self)
    }
}
}
