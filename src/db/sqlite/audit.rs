//! What an audit asks the ledger, in memory that does not grow with the number of orders.

use diesel::dsl::sum;
use diesel::prelude::*;
use diesel::sql_types::{BigInt, Integer};

use super::scan::scan_orders;
use crate::db::rows::{SaleRow, SkuRow, bare_refusal, units};
use crate::db::schema::{failed_requests, orders, sales, skus};
use crate::db::{Anomalies, AuditRow, Error, Tally, Visit};
use crate::domain::book::gives_back;
use crate::domain::invariants::{FailureFacts, SkuFacts};
use crate::domain::{Epoch, Sku, SkuNo};

const DOING: &str = "auditing";

fn sku_and_sale(
    conn: &mut SqliteConnection,
    sku: SkuNo,
) -> Result<Option<(SkuRow, SaleRow)>, Error> {
    skus::table
        .inner_join(sales::table.on(sales::sale_no.eq(skus::sale_no)))
        .filter(skus::sku_no.eq(sku.0))
        .select((SkuRow::as_select(), SaleRow::as_select()))
        .first(conn)
        .optional()
        .map_err(Error::refused(DOING))
}

/// The size of a SKU's part of the ledger.
pub(super) fn tally(conn: &mut SqliteConnection, sku: SkuNo) -> Result<Tally, Error> {
    let Some((row, sale)) = sku_and_sale(conn, sku)? else { return Ok(Tally::default()) };
    let num_orders: i64 = orders::table
        .filter(orders::sku_no.eq(sku.0))
        .count()
        .get_result(conn)
        .map_err(Error::refused(DOING))?;
    let num_failures: i64 = failed_requests::table
        .filter(failed_requests::sku_no.eq(sku.0))
        .count()
        .get_result(conn)
        .map_err(Error::refused(DOING))?;
    Ok(Tally {
        num_orders: num_orders.unsigned_abs(),
        num_failures: num_failures.unsigned_abs(),
        available: units(format!("sku {sku}"), "available", row.available)?,
        epoch: (sale.epoch > 0).then_some(Epoch(sale.epoch)),
    })
}

/// Visits the facts of a SKU and then its orders, in one read transaction.
pub(super) fn scan(
    conn: &mut SqliteConnection,
    sku: SkuNo,
    mut visit: Visit<AuditRow>,
) -> Result<(), Error> {
    let scanned = conn.transaction::<_, diesel::result::Error, _>(|conn| {
        Ok(facts(conn, sku).and_then(|facts| {
            let Some((of_sku, of_failures)) = facts else { return Ok(()) };
            if !visit(AuditRow::Sku(of_sku, of_failures)) {
                return Ok(());
            }
            scan_orders(conn, sku, Box::new(move |order| visit(AuditRow::Order(order))))
        }))
    });
    scanned.map_err(Error::refused(DOING))?
}

fn facts(
    conn: &mut SqliteConnection,
    sku: SkuNo,
) -> Result<Option<(SkuFacts, FailureFacts)>, Error> {
    let Some((row, sale)) = sku_and_sale(conn, sku)? else { return Ok(None) };
    let available = i64::from(row.available);
    let Sku { initial, policy, .. } = row.try_into()?;
    let by_reason: Vec<(String, Option<i64>)> = failed_requests::table
        .filter(failed_requests::sku_no.eq(sku.0))
        .group_by(failed_requests::reason)
        .select((failed_requests::reason, sum(failed_requests::quantity)))
        .load(conn)
        .map_err(Error::refused(DOING))?;
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

/// Most anomalies of one kind that are read: an audit lists fewer.
const ANOMALIES_MAX: i32 = 1000;

#[derive(QueryableByName)]
struct Repeated {
    #[diesel(sql_type = BigInt)]
    request_id: i64,
    #[diesel(sql_type = BigInt)]
    num_orders: i64,
}

#[derive(QueryableByName)]
struct Quota {
    #[diesel(sql_type = BigInt)]
    buyer_id: i64,
    #[diesel(sql_type = BigInt)]
    owned: i64,
    #[diesel(sql_type = BigInt)]
    live: i64,
}

/// Sorts instead of reading the index on requests: that index would be the first to be wrong.
const REPEATED: &str = "SELECT request_id, COUNT(*) AS num_orders FROM orders NOT INDEXED \
     WHERE sku_no = ? GROUP BY request_id HAVING COUNT(*) > 1 LIMIT ?";

/// Both tables are read along their primary keys. States 0 and 1 are the live ones.
const WRONG_QUOTAS: &str = "SELECT buyer_id, owned, live FROM ( \
       SELECT q.buyer_id AS buyer_id, q.owned AS owned, COALESCE((SELECT SUM(o.quantity) \
         FROM orders o WHERE o.sku_no = q.sku_no AND o.buyer_id = q.buyer_id \
         AND o.state IN (0, 1)), 0) AS live FROM quotas q WHERE q.sku_no = ?1 \
     ) WHERE owned <> live \
     UNION ALL \
     SELECT o.buyer_id, 0, SUM(o.quantity) FROM orders o \
       WHERE o.sku_no = ?1 AND o.state IN (0, 1) \
       AND (SELECT policy_limit FROM skus WHERE sku_no = ?1) IS NOT NULL \
       AND NOT EXISTS (SELECT 1 FROM quotas q WHERE q.sku_no = ?1 AND q.buyer_id = o.buyer_id) \
       GROUP BY o.buyer_id \
     LIMIT ?2";

/// What only a look across all orders of a SKU finds.
pub(super) fn anomalies(conn: &mut SqliteConnection, sku: SkuNo) -> Result<Anomalies, Error> {
    let repeated: Vec<Repeated> = diesel::sql_query(REPEATED)
        .bind::<Integer, _>(sku.0)
        .bind::<Integer, _>(ANOMALIES_MAX)
        .load(conn)
        .map_err(Error::refused(DOING))?;
    let orders_and_failures: Vec<i64> = failed_requests::table
        .filter(failed_requests::sku_no.eq(sku.0))
        .filter(diesel::dsl::exists(
            orders::table.filter(orders::request_id.eq(failed_requests::request_id)),
        ))
        .select(failed_requests::request_id)
        .limit(i64::from(ANOMALIES_MAX))
        .load(conn)
        .map_err(Error::refused(DOING))?;
    let quotas: Vec<Quota> = diesel::sql_query(WRONG_QUOTAS)
        .bind::<Integer, _>(sku.0)
        .bind::<Integer, _>(ANOMALIES_MAX)
        .load(conn)
        .map_err(Error::refused(DOING))?;
    Ok(Anomalies {
        duplicate_requests: repeated
            .into_iter()
            .map(|row| (row.request_id, row.num_orders))
            .collect(),
        orders_and_failures,
        wrong_quotas: quotas.into_iter().map(|row| (row.buyer_id, row.owned, row.live)).collect(),
    })
}
