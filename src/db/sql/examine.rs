//! What the ledger holds that bears on a batch.

use std::collections::BTreeSet;

use super::Database;
use super::queries::IN_LIST_MAX;
use crate::db::Error;
use crate::db::rows::{readable, units};
use crate::domain::{BuyerId, Examination, Failure, Order, OrderIntent, SkuNo};

/// Reads everything as of one instant.
pub(in crate::db) fn examine<D: Database>(
    conn: &mut D,
    batch: &[OrderIntent],
) -> Result<Examination, Error> {
    let of_buyer = |intent: &OrderIntent| (intent.sku.0, intent.buyer.to_db());
    let slots = sorted(batch.iter().filter(|intent| intent.slot == 0).map(of_buyer));
    let quotas = sorted(batch.iter().filter(|intent| intent.quota.is_some()).map(of_buyer));
    let skus = sorted(batch.iter().map(|intent| intent.sku.0));
    conn.snapshot(|conn| {
        let mut seen = Examination::default();
        for chunk in batch.chunks(IN_LIST_MAX) {
            let ids: Vec<i64> = chunk.iter().map(|intent| intent.request.to_db()).collect();
            for row in conn.orders_by_request(&ids)? {
                let order = Order::try_from(row)?;
                seen.orders.insert(order.request, order);
            }
            for row in conn.failures_by_request(&ids)? {
                let failure = Failure::try_from(row)?;
                seen.failures.insert(failure.request, failure.reason);
            }
        }
        for chunk in slots.chunks(IN_LIST_MAX) {
            for row in conn.first_orders(chunk)? {
                let order = Order::try_from(row)?;
                seen.firsts.insert((order.sku, order.buyer), order.request);
                // The index of requests may leave slot 0 out.
                seen.orders.insert(order.request, order);
            }
        }
        for chunk in quotas.chunks(IN_LIST_MAX) {
            for (sku, buyer, owned) in conn.owned_units(chunk)? {
                let name = || format!("quota of sku {sku} buyer {buyer}");
                let id = readable(BuyerId::from_db(buyer), name, "buyer_id", buyer)?;
                seen.owned.insert((SkuNo(sku), id), units(name, "owned", owned)?);
            }
        }
        for chunk in skus.chunks(IN_LIST_MAX) {
            for (sku, left) in conn.units_left(chunk)? {
                let left = units(|| format!("sku {sku}"), "available", left)?;
                seen.available.insert(SkuNo(sku), left);
            }
        }
        Ok(seen)
    })
}

/// Each once, in order.
fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    items.collect::<BTreeSet<T>>().into_iter().collect()
}
