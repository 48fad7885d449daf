//! What the ledger holds that bears on a batch.

use std::collections::{BTreeMap, BTreeSet};

use diesel::prelude::*;

use super::place::IN_LIST_MAX;
use crate::db::Error;
use crate::db::rows::{FailureRow, OrderRow, units};
use crate::db::schema::{failed_requests, orders, quotas, skus};
use crate::domain::{BuyerId, Examination, Failure, Order, OrderIntent, RequestId, SkuNo};

const DOING: &str = "examining a batch";

/// Reads everything as of one instant.
pub(super) fn examine(
    conn: &mut SqliteConnection,
    batch: &[OrderIntent],
) -> Result<Examination, Error> {
    // Two steps of errors: the transaction's own, and those of the rows inside it.
    let seen = conn.transaction::<_, diesel::result::Error, _>(|conn| Ok(read(conn, batch)));
    seen.map_err(Error::refused(DOING))?
}

fn read(conn: &mut SqliteConnection, batch: &[OrderIntent]) -> Result<Examination, Error> {
    let mut seen = Examination::default();
    read_requests(conn, batch, &mut seen)?;
    let mut slots: BTreeMap<SkuNo, BTreeSet<BuyerId>> = BTreeMap::new();
    let mut quotas: BTreeMap<SkuNo, BTreeSet<BuyerId>> = BTreeMap::new();
    for intent in batch {
        if intent.slot == 0 {
            slots.entry(intent.sku).or_default().insert(intent.buyer);
        }
        if intent.quota.is_some() {
            quotas.entry(intent.sku).or_default().insert(intent.buyer);
        }
    }
    for (sku, buyers) in slots {
        read_firsts(conn, sku, &buyers, &mut seen)?;
    }
    for (sku, buyers) in quotas {
        read_owned(conn, sku, &buyers, &mut seen)?;
    }
    let numbers: BTreeSet<i32> = batch.iter().map(|intent| intent.sku.0).collect();
    read_available(conn, &numbers.into_iter().collect::<Vec<_>>(), &mut seen)?;
    Ok(seen)
}

fn read_requests(
    conn: &mut SqliteConnection,
    batch: &[OrderIntent],
    seen: &mut Examination,
) -> Result<(), Error> {
    for chunk in batch.chunks(IN_LIST_MAX) {
        let ids: Vec<i64> = chunk.iter().map(|intent| intent.request.to_db()).collect();
        let found = orders::table
            .filter(orders::request_id.eq_any(&ids))
            .select(OrderRow::as_select())
            .load(conn)
            .map_err(Error::refused(DOING))?;
        for row in found {
            let order = Order::try_from(row)?;
            seen.orders.insert(order.request, order);
        }
        let failed = failed_requests::table
            .filter(failed_requests::request_id.eq_any(&ids))
            .select(FailureRow::as_select())
            .load(conn)
            .map_err(Error::refused(DOING))?;
        for row in failed {
            let failure = Failure::try_from(row)?;
            seen.failures.insert(failure.request, failure.reason);
        }
    }
    Ok(())
}

fn read_firsts(
    conn: &mut SqliteConnection,
    sku: SkuNo,
    buyers: &BTreeSet<BuyerId>,
    seen: &mut Examination,
) -> Result<(), Error> {
    let ids: Vec<i64> = buyers.iter().map(|buyer| buyer.to_db()).collect();
    for chunk in ids.chunks(IN_LIST_MAX) {
        let found: Vec<(i64, i64)> = orders::table
            .filter(orders::sku_no.eq(sku.0))
            .filter(orders::buyer_id.eq_any(chunk))
            .filter(orders::slot.eq(0))
            .select((orders::buyer_id, orders::request_id))
            .load(conn)
            .map_err(Error::refused(DOING))?;
        for (buyer, request) in found {
            let (Some(buyer), Some(request)) =
                (BuyerId::from_db(buyer), RequestId::from_db(request))
            else {
                let what = format!("order {request} of sku {sku}: buyer_id is {buyer}");
                return Err(Error::Unreadable { what });
            };
            seen.firsts.insert((sku, buyer), request);
        }
    }
    Ok(())
}

fn read_owned(
    conn: &mut SqliteConnection,
    sku: SkuNo,
    buyers: &BTreeSet<BuyerId>,
    seen: &mut Examination,
) -> Result<(), Error> {
    let ids: Vec<i64> = buyers.iter().map(|buyer| buyer.to_db()).collect();
    for chunk in ids.chunks(IN_LIST_MAX) {
        let found: Vec<(i64, i32)> = quotas::table
            .filter(quotas::sku_no.eq(sku.0))
            .filter(quotas::buyer_id.eq_any(chunk))
            .select((quotas::buyer_id, quotas::owned))
            .load(conn)
            .map_err(Error::refused(DOING))?;
        for (buyer, owned) in found {
            let name = format!("quota of sku {sku} buyer {buyer}");
            let Some(buyer) = BuyerId::from_db(buyer) else {
                return Err(Error::Unreadable { what: name });
            };
            seen.owned.insert((sku, buyer), units(name, "owned", owned)?);
        }
    }
    Ok(())
}

fn read_available(
    conn: &mut SqliteConnection,
    numbers: &[i32],
    seen: &mut Examination,
) -> Result<(), Error> {
    for chunk in numbers.chunks(IN_LIST_MAX) {
        let found: Vec<(i32, i32)> = skus::table
            .filter(skus::sku_no.eq_any(chunk))
            .select((skus::sku_no, skus::available))
            .load(conn)
            .map_err(Error::refused(DOING))?;
        for (number, available) in found {
            let left = units(format!("sku {number}"), "available", available)?;
            seen.available.insert(SkuNo(number), left);
        }
    }
    Ok(())
}
