//! What an audit asks the ledger, in memory that does not grow with the number of orders.

use super::Database;
use crate::db::rows::{bare_refusal, units};
use crate::db::{Anomalies, AuditRow, Error, Tally, Visit};
use crate::domain::book::gives_back;
use crate::domain::invariants::{FailureFacts, SkuFacts};
use crate::domain::{Epoch, Sku, SkuNo};

const DOING: &str = "auditing";

/// Most anomalies of one kind that are read: an audit lists fewer.
const ANOMALIES_MAX: i32 = 1000;

/// The size of a SKU's part of the ledger.
pub(in crate::db) fn tally<D: Database>(conn: &mut D, sku: SkuNo) -> Result<Tally, Error> {
    let refused = Error::refused(DOING);
    let Some((row, sale)) = conn.sku_and_sale(sku.0).map_err(&refused)? else {
        return Ok(Tally::default());
    };
    let num_orders = conn.patiently(|conn| conn.num_orders(sku.0)).map_err(&refused)?;
    let num_failures = conn.patiently(|conn| conn.num_failures(sku.0)).map_err(&refused)?;
    Ok(Tally {
        num_orders: num_orders.unsigned_abs(),
        num_failures: num_failures.unsigned_abs(),
        available: units(format!("sku {sku}"), "available", row.available)?,
        epoch: (sale.epoch > 0).then_some(Epoch(sale.epoch)),
    })
}

/// Visits the facts of a SKU and then its orders, as of one instant.
pub(super) fn scan<D: Database>(
    conn: &mut D,
    sku: SkuNo,
    mut visit: Visit<AuditRow>,
) -> Result<(), Error> {
    conn.snapshot(DOING, |conn| {
        let Some((of_sku, of_failures)) = facts(conn, sku)? else { return Ok(()) };
        if !visit(AuditRow::Sku(of_sku, of_failures)) {
            return Ok(());
        }
        conn.each_order(sku, &mut |order| visit(AuditRow::Order(order)))
    })
}

fn facts<D: Database>(conn: &mut D, sku: SkuNo) -> Result<Option<(SkuFacts, FailureFacts)>, Error> {
    let refused = Error::refused(DOING);
    let Some((row, sale)) = conn.sku_and_sale(sku.0).map_err(&refused)? else { return Ok(None) };
    let available = i64::from(row.available);
    let Sku { initial, policy, .. } = row.try_into()?;
    let by_reason = conn.patiently(|conn| conn.failed_units(sku.0)).map_err(&refused)?;
    let given_back_units = by_reason
        .iter()
        // A refusal with details gives back; only the bare ones differ.
        .filter(|(reason, _)| bare_refusal(reason).is_none_or(|refusal| gives_back(&refusal)))
        .map(|(_, units)| units.unwrap_or(0).unsigned_abs())
        .sum();
    let facts = SkuFacts {
        sku,
        initial,
        available,
        policy,
        epoch: Epoch(sale.epoch),
        opened_at_ms: sale.opened_at_ms,
    };
    Ok(Some((facts, FailureFacts { given_back_units })))
}

/// What only a look across all orders of a SKU finds.
pub(in crate::db) fn anomalies<D: Database>(conn: &mut D, sku: SkuNo) -> Result<Anomalies, Error> {
    let refused = Error::refused(DOING);
    let repeated =
        |conn: &mut D| conn.repeated_requests(D::REPEATED_REQUESTS, sku.0, ANOMALIES_MAX);
    let both = |conn: &mut D| conn.ordered_and_failed(sku.0, ANOMALIES_MAX);
    let wrong_quotas = |conn: &mut D| conn.wrong_quotas(sku.0, ANOMALIES_MAX);
    Ok(Anomalies {
        duplicate_requests: conn.patiently(repeated).map_err(&refused)?,
        orders_and_failures: conn.patiently(both).map_err(&refused)?,
        wrong_quotas: conn.patiently(wrong_quotas).map_err(&refused)?,
    })
}
