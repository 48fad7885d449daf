//! The repairs of audits: recounts, and the record of every repair.

use async_trait::async_trait;

use super::{Database, SqlLedger, TransactionEnd};
use crate::db::repairs::RepairRow;
use crate::db::rows::narrow;
use crate::db::{Error, RepairStore};
use crate::domain::{AuditVerdict, BuyerId, Repair, RepairAction, RepairOutcome, SkuNo};

#[async_trait]
impl<D: Database> RepairStore for SqlLedger<D> {
    async fn recount(
        &self,
        sku: SkuNo,
        buyer: Option<BuyerId>,
        now_ms: i64,
    ) -> Result<Repair, Error> {
        self.write_at("recounting", move |conn, _| {
            let is_purged = conn.is_purged(sku.0)?;
            let (what, counts) = match buyer {
                _ if is_purged => ("recount".to_owned(), None),
                Some(buyer) => (format!("buyer {buyer}: quota"), recount_quota(conn, sku, buyer)?),
                None => ("units left".to_owned(), recount_available(conn, sku)?),
            };
            let (outcome, result) = if let Some((before, after)) = counts {
                (RepairOutcome::Compensated, format!("{before}, now {after}"))
            } else {
                let why = if is_purged { "purged sale" } else { "there is no such count" };
                (RepairOutcome::FailedFinal, format!("{why}, nothing was changed"))
            };
            let repair = Repair {
                sku,
                request: None,
                verdict: AuditVerdict::Drift,
                action: RepairAction::Recount,
                outcome,
                detail: format!("sku {sku}: {what}: {result}"),
                at_ms: now_ms,
            };
            record(conn, &repair)?;
            Ok(TransactionEnd::Commit(repair))
        })
        .await
    }

    async fn record_repairs(&self, repairs: Vec<Repair>) -> Result<(), Error> {
        if repairs.is_empty() {
            return Ok(());
        }
        self.write_at("recording repairs", move |conn, _| {
            let recorded = repairs.iter().try_for_each(|repair| record(conn, repair));
            recorded.map(TransactionEnd::Commit)
        })
        .await
    }

    async fn repairs(&self, before: Option<i32>, limit: u32) -> Result<Vec<(i32, Repair)>, Error> {
        self.read("reading repairs", move |conn| {
            let rows = conn.repair_rows(before.unwrap_or(i32::MAX), i64::from(limit))?;
            rows.into_iter().map(|row| Ok((row.repair_no, row.try_into()?))).collect()
        })
        .await
    }
}

/// Writes the row of a repair, unless the sale is purged or the failure is recorded already.
fn record<D: Database>(conn: &mut D, repair: &Repair) -> Result<(), Error> {
    let row = RepairRow::from(repair);
    let is_failure = repair.outcome == RepairOutcome::FailedFinal;
    if !(conn.is_purged(repair.sku.0)? || (is_failure && conn.is_repair_recorded(&row)?)) {
        conn.insert_repair(&row)?;
    }
    Ok(())
}

/// Sets the units left of a SKU to those that its live orders leave; before and after. Every writer
/// of orders needs the row that is locked first, so that no order commits meanwhile.
fn recount_available<D: Database>(conn: &mut D, sku: SkuNo) -> Result<Option<(i64, i64)>, Error> {
    conn.lock_sku(sku.0)?;
    let Some((row, _)) = conn.sku_and_sale(sku.0)? else { return Ok(None) };
    let live = conn.with_audit_limit(|conn| conn.live_units(sku.0))?;
    let left = (i64::from(row.initial_stock) - live).max(0);
    conn.set_available(sku.0, i32::try_from(left).unwrap_or(0))?;
    Ok(Some((row.available.into(), left)))
}

/// Sets the quota row of a buyer to the units of the orders that count; before and after. They may
/// exceed the present limit: a lowered one takes no order away. `None`: the SKU has no limit.
fn recount_quota<D: Database>(
    conn: &mut D,
    sku: SkuNo,
    buyer: BuyerId,
) -> Result<Option<(i64, i64)>, Error> {
    let Some((row, _)) = conn.sku_and_sale(sku.0)? else { return Ok(None) };
    let Some(limit) = row.policy_limit else { return Ok(None) };
    let before = conn.lock_quota(sku.0, buyer.to_db())?;
    let counted = conn.counted_units(sku.0, buyer.to_db())?;
    let owned: i32 = narrow("units of a quota", counted)?;
    let quota = limit.max(owned);
    match before {
        Some(_) => conn.set_owned(sku.0, buyer.to_db(), owned, quota)?,
        None => conn.insert_owned(sku.0, buyer.to_db(), owned, quota)?,
    }
    Ok(Some((i64::from(before.unwrap_or(0)), counted)))
}
