//! Reads the rows that are relevant to a batch.

use std::collections::BTreeSet;

use super::Database;
use super::queries::IN_LIST_MAX;
use crate::db::Error;
use crate::db::rows::{readable, units};
use crate::domain::{BuyerId, Examination, Failure, Order, OrderIntent, SkuNo};

/// All reads see one snapshot.
pub(in crate::db) fn examine<D: Database>(
    conn: &mut D,
    batch: &[OrderIntent],
) -> Result<Examination, Error> {
    let of_buyer = |intent: &OrderIntent| (intent.sku.0, intent.buyer.to_db());
    let slots = sorted(batch.iter().filter(|intent| intent.slot == 0).map(of_buyer));
    let quotas = sorted(batch.iter().filter(|intent| intent.quota.is_some()).map(of_buyer));
    let skus = sorted(batch.iter().map(|intent| intent.sku.0));
    conn.snapshot(|conn| {
        let mut examination = Examination::default();
        for chunk in batch.chunks(IN_LIST_MAX) {
            let ids: Vec<i64> = chunk.iter().map(|intent| intent.request.to_db()).collect();
            for row in conn.orders_by_request(&ids)? {
                let order = Order::try_from(row)?;
                examination.orders.insert(order.request, order);
            }
            for row in conn.failures_by_request(&ids)? {
                let failure = Failure::try_from(row)?;
                examination.failures.insert(failure.request, failure.reason);
            }
        }
        for chunk in slots.chunks(IN_LIST_MAX) {
            for row in conn.first_orders(chunk)? {
                let order = Order::try_from(row)?;
                examination.first_requests.insert((order.sku, order.buyer), order.request);
                // `orders_by_request` may omit slot 0.
                examination.orders.insert(order.request, order);
            }
        }
        for chunk in quotas.chunks(IN_LIST_MAX) {
            for (sku, buyer, owned) in conn.owned_units(chunk)? {
                let name = || format!("quota of sku {sku} buyer {buyer}");
                let id = readable(BuyerId::from_db(buyer), name, "buyer_id", buyer)?;
                examination.owned.insert((SkuNo(sku), id), units(name, "owned", owned)?);
            }
        }
        for chunk in skus.chunks(IN_LIST_MAX) {
            for (sku, available) in conn.units_left(chunk)? {
                let available = units(|| format!("sku {sku}"), "available", available)?;
                examination.available.insert(SkuNo(sku), available);
            }
        }
        Ok(examination)
    })
}

/// Sorted and without duplicates.
fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    items.collect::<BTreeSet<T>>().into_iter().collect()
}
