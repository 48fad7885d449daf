//! The reads of an audit. Their memory does not grow with the number of orders.

use std::collections::BTreeSet;

use super::Database;
use crate::db::rows::{refusal_without_details, units};
use crate::db::{Anomalies, AuditRow, CrossSkuAnomalies, Error, LedgerSize, UnknownSku, Visitor};
use crate::domain::book::gives_back;
use crate::domain::invariants::{FailureFacts, SkuFacts};
use crate::domain::{Epoch, Sku, SkuNo};

/// The maximum number of anomalies of one kind that are read; an audit lists fewer.
const ANOMALIES_MAX: i32 = 1000;

/// The number of rows of a SKU.
pub(in crate::db) fn ledger_size<D: Database>(
    conn: &mut D,
    sku: SkuNo,
) -> Result<LedgerSize, Error> {
    let Some((row, sale)) = conn.sku_and_sale(sku.0)? else {
        return Ok(LedgerSize::default());
    };
    let num_orders = conn.with_audit_limit(|conn| conn.num_orders(sku.0))?;
    let num_failures = conn.with_audit_limit(|conn| conn.num_failures(sku.0))?;
    Ok(LedgerSize {
        num_orders: num_orders.unsigned_abs(),
        num_failures: num_failures.unsigned_abs(),
        available: units(|| format!("sku {sku}"), "available", row.available)?,
        epoch: (sale.epoch > 0).then_some(Epoch(sale.epoch)),
    })
}

/// Visits the facts of a SKU and then its orders, in one snapshot.
pub(super) fn scan<D: Database>(
    conn: &mut D,
    sku: SkuNo,
    mut visit: Visitor<AuditRow>,
) -> Result<(), Error> {
    conn.snapshot(|conn| {
        let Some((of_sku, of_failures)) = facts(conn, sku)? else { return Ok(()) };
        if !visit(AuditRow::Sku(of_sku, of_failures)) {
            return Ok(());
        }
        conn.each_order(sku, &mut |order| visit(AuditRow::Order(order)))
    })
}

fn facts<D: Database>(conn: &mut D, sku: SkuNo) -> Result<Option<(SkuFacts, FailureFacts)>, Error> {
    let Some((row, sale)) = conn.sku_and_sale(sku.0)? else { return Ok(None) };
    let available = i64::from(row.available);
    let Sku { initial, policy, .. } = row.try_into()?;
    let by_reason = conn.with_audit_limit(|conn| conn.failed_units(sku.0))?;
    let given_back_units = by_reason
        .iter()
        // Every refusal with details gives units back.
        .filter(|(reason, _)| {
            refusal_without_details(reason).is_none_or(|refusal| gives_back(&refusal))
        })
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

/// The inconsistencies within one SKU.
pub(in crate::db) fn anomalies<D: Database>(conn: &mut D, sku: SkuNo) -> Result<Anomalies, Error> {
    Ok(Anomalies {
        orders_and_failures: conn
            .with_audit_limit(|conn| conn.ordered_and_failed(sku.0, ANOMALIES_MAX))?,
        wrong_quotas: conn.with_audit_limit(|conn| conn.wrong_quotas(sku.0, ANOMALIES_MAX))?,
    })
}

/// The inconsistencies over all SKUs.
pub(in crate::db) fn anomalies_across_skus<D: Database>(
    conn: &mut D,
) -> Result<CrossSkuAnomalies, Error> {
    let duplicate_requests = conn.with_audit_limit(|conn| conn.repeated_requests(ANOMALIES_MAX))?;
    let mut used = BTreeSet::new();
    let mut after = i32::MIN;
    while let Some(sku) = conn.sku_with_orders(after)? {
        used.insert(sku);
        after = sku;
    }
    after = i32::MIN;
    while let Some(sku) = conn.sku_with_failures(after)? {
        used.insert(sku);
        after = sku;
    }
    // Read last, because the row of a SKU is written before its first order.
    let sold: BTreeSet<i32> = conn.sku_rows()?.into_iter().map(|row| row.sku_no).collect();
    let mut unknown_skus = Vec::new();
    for sku in used.difference(&sold).take(usize::try_from(ANOMALIES_MAX).unwrap_or(0)) {
        let num_orders = conn.with_audit_limit(|conn| conn.num_orders(*sku))?;
        let num_failures = conn.with_audit_limit(|conn| conn.num_failures(*sku))?;
        unknown_skus.push(UnknownSku {
            sku: SkuNo(*sku),
            num_orders: num_orders.unsigned_abs(),
            num_failures: num_failures.unsigned_abs(),
        });
    }
    Ok(CrossSkuAnomalies { duplicate_requests, unknown_skus })
}
