//! What the ledger holds that bears on a batch.

use std::collections::BTreeSet;

use super::Database;
use super::queries::{IN_LIST_MAX, OfSku};
use crate::db::Error;
use crate::db::rows::units;
use crate::domain::{BuyerId, Examination, Failure, Order, OrderIntent, RequestId, SkuNo};

const DOING: &str = "examining a batch";

/// Reads everything as of one instant.
pub(in crate::db) fn examine<D: Database>(
    conn: &mut D,
    batch: &[OrderIntent],
) -> Result<Examination, Error> {
    conn.snapshot(DOING, |conn| {
        let mut seen = Examination::default();
        read_requests(conn, batch, &mut seen)?;
        let of = |intent: &OrderIntent| (intent.sku.0, intent.buyer.to_db());
        let slots = batch.iter().filter(|intent| intent.slot == 0).map(of);
        read_firsts(conn, &sorted(slots), &mut seen)?;
        let quotas = batch.iter().filter(|intent| intent.quota.is_some()).map(of);
        read_owned(conn, &sorted(quotas), &mut seen)?;
        read_available(conn, &sorted(batch.iter().map(|intent| intent.sku.0)), &mut seen)?;
        Ok(seen)
    })
}

fn read_requests<D: Database>(
    conn: &mut D,
    batch: &[OrderIntent],
    seen: &mut Examination,
) -> Result<(), Error> {
    for chunk in batch.chunks(IN_LIST_MAX) {
        let ids: Vec<i64> = chunk.iter().map(|intent| intent.request.to_db()).collect();
        for row in conn.orders_by_request(&ids).map_err(Error::refused(DOING))? {
            let order = Order::try_from(row)?;
            seen.orders.insert(order.request, order);
        }
        for row in conn.failures_by_request(&ids).map_err(Error::refused(DOING))? {
            let failure = Failure::try_from(row)?;
            seen.failures.insert(failure.request, failure.reason);
        }
    }
    Ok(())
}

/// Each once, in order.
fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    items.collect::<BTreeSet<T>>().into_iter().collect()
}

fn read_firsts<D: Database>(
    conn: &mut D,
    buyers: &[OfSku],
    seen: &mut Examination,
) -> Result<(), Error> {
    for chunk in buyers.chunks(IN_LIST_MAX) {
        for (sku, buyer, request) in conn.first_orders(chunk).map_err(Error::refused(DOING))? {
            let (Some(buyer), Some(request)) =
                (BuyerId::from_db(buyer), RequestId::from_db(request))
            else {
                let what = format!("order {request} of sku {sku}: buyer_id is {buyer}");
                return Err(Error::Unreadable { what });
            };
            seen.firsts.insert((SkuNo(sku), buyer), request);
        }
    }
    Ok(())
}

fn read_owned<D: Database>(
    conn: &mut D,
    buyers: &[OfSku],
    seen: &mut Examination,
) -> Result<(), Error> {
    for chunk in buyers.chunks(IN_LIST_MAX) {
        for (sku, buyer, owned) in conn.owned_units(chunk).map_err(Error::refused(DOING))? {
            let name = format!("quota of sku {sku} buyer {buyer}");
            let Some(buyer) = BuyerId::from_db(buyer) else {
                return Err(Error::Unreadable { what: name });
            };
            seen.owned.insert((SkuNo(sku), buyer), units(name, "owned", owned)?);
        }
    }
    Ok(())
}

fn read_available<D: Database>(
    conn: &mut D,
    skus: &[i32],
    seen: &mut Examination,
) -> Result<(), Error> {
    for chunk in skus.chunks(IN_LIST_MAX) {
        for (number, available) in conn.units_left(chunk).map_err(Error::refused(DOING))? {
            let left = units(format!("sku {number}"), "available", available)?;
            seen.available.insert(SkuNo(number), left);
        }
    }
    Ok(())
}
