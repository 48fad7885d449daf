//! The blind write of a batch.

use std::collections::BTreeMap;

use super::transaction::inserted;
use super::{Database, TransactionEnd, WriterFence, write};
use crate::db::rows::{NewOrder, narrow};
use crate::db::{BlindInsert, Error};
use crate::domain::{BuyerId, OrderIntent, SkuNo};

/// Units that a batch takes from a buyer's quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaClaim {
    pub sku_no: i32,
    pub buyer_id: i64,
    /// The units of all orders of the buyer in the batch.
    pub units: i32,
    /// The buyer's limit of units.
    pub quota: i32,
}

/// Writes all intents as orders or none, with the time `now_ms`.
pub(super) fn place<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    mut batch: Vec<OrderIntent>,
    now_ms: i64,
) -> Result<BlindInsert, Error> {
    if batch.is_empty() {
        return Ok(BlindInsert::All);
    }
    // In the order of the primary key: neighbouring rows share pages, and concurrent writers do not
    // deadlock.
    batch.sort_unstable_by_key(|intent| (intent.sku, intent.buyer, intent.slot));
    let orders = batch.iter().map(|intent| NewOrder::of(intent, now_ms));
    let orders = orders.collect::<Result<Vec<_>, _>>()?;
    let requests: Vec<i64> = orders.iter().map(|order| order.request_id).collect();
    let (Some(claims), Some(sums)) = (claims(&batch)?, sums(&batch)) else {
        // A sum that exceeds its column also exceeds the stock or the quota.
        return Ok(BlindInsert::Conflict);
    };
    write(conn, fence, |conn| {
        // Writes orders and then reads failures, whereas `record_failures` writes failures and then
        // reads orders, so that one of two concurrent transactions reads the other's row. The stock
        // is last: its row is the one that every writer waits for.
        let is_clean = inserted(conn.insert_orders(&orders))?
            && !conn.any_failed(&requests)?
            && conn.take_quotas(&claims)?
            && conn.take_stocks(&sums)?;
        Ok(if is_clean {
            TransactionEnd::Commit(BlindInsert::All)
        } else {
            TransactionEnd::RollBack(BlindInsert::Conflict)
        })
    })
}

/// One claim for each buyer of a SKU with a quota; `None`: a sum exceeds its column.
fn claims(batch: &[OrderIntent]) -> Result<Option<Vec<QuotaClaim>>, Error> {
    let mut by_buyer: BTreeMap<(SkuNo, BuyerId), QuotaClaim> = BTreeMap::new();
    for intent in batch {
        let Some(quota) = intent.quota else { continue };
        let (units, quota) = (narrow("quantity", intent.quantity)?, narrow("quota", quota)?);
        let (sku_no, buyer_id) = (intent.sku.0, intent.buyer.to_db());
        let claim = by_buyer.entry((intent.sku, intent.buyer)).or_insert(QuotaClaim {
            sku_no,
            buyer_id,
            units: 0,
            quota,
        });
        let Some(sum) = claim.units.checked_add(units) else { return Ok(None) };
        claim.units = sum;
    }
    Ok(Some(by_buyer.into_values().collect()))
}

/// The units of each SKU; `None`: a sum exceeds its column.
fn sums(batch: &[OrderIntent]) -> Option<Vec<(i32, i32)>> {
    let mut sums: BTreeMap<i32, i32> = BTreeMap::new();
    for intent in batch {
        let sum = sums.entry(intent.sku.0).or_default();
        *sum = sum.checked_add(i32::try_from(intent.quantity).ok()?)?;
    }
    Some(sums.into_iter().collect())
}
