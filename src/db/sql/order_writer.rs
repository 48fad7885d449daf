//! Writes batches of orders and recorded failures, and reads what conflicts with a batch.

use std::collections::{BTreeMap, HashMap, HashSet};

use async_trait::async_trait;

use super::statements::{IN_LIST_MAX, SkuAndBuyer, buyer_of, in_lists, sorted};
use super::{
    Database, SqlLedger, TransactionEnd, WriterFence, in_transaction, inserted, retry_concurrent,
};
use crate::db::failure_rows::FailureRow;
use crate::db::rows::{NewOrder, narrow, number, readable};
use crate::db::{Error, OrderWriter};
use crate::domain::{
    BuyerId, Examination, Failure, Order, OrderIntent, OrderKey, Refusal, RequestId, SkuNo,
};

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

#[async_trait]
impl<D: Database> OrderWriter for SqlLedger<D> {
    async fn place(&self, batch: Vec<OrderIntent>) -> Result<Option<i64>, Error> {
        self.write("placing orders", move |conn, fence, clock| {
            place(conn, fence, batch, clock.wall_ms())
        })
        .await
    }

    async fn examine(&self, batch: Vec<OrderIntent>) -> Result<Examination, Error> {
        self.read("examining a batch", move |conn| examine(conn, &batch)).await
    }

    async fn record_failures(
        &self,
        failures: Vec<Failure>,
    ) -> Result<HashMap<RequestId, Refusal>, Error> {
        self.write("recording failures", move |conn, fence, _| {
            if failures.is_empty() {
                return Ok(HashMap::new());
            }
            retry_concurrent("orders of the same requests", || {
                in_transaction(conn, fence, |conn| record(conn, &failures))
            })
        })
        .await
    }
}

/// Writes all intents as orders with the time `now_ms`, which it returns; `None`: wrote none.
fn place<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    mut batch: Vec<OrderIntent>,
    now_ms: i64,
) -> Result<Option<i64>, Error> {
    if batch.is_empty() {
        return Ok(Some(now_ms));
    }
    // In the order of the primary key: neighbouring rows share pages, and concurrent writers do not
    // deadlock.
    batch.sort_unstable_by_key(|intent| (intent.sku, intent.buyer, intent.slot));
    let orders = batch.iter().map(|intent| NewOrder::of(intent, now_ms));
    let orders = orders.collect::<Result<Vec<_>, _>>()?;
    let (Some(claims), Some(sums)) = (claims(&batch)?, sums(&batch)) else {
        // A sum that exceeds its column also exceeds the stock or the quota.
        return Ok(None);
    };
    let keys = batch.iter().map(OrderIntent::key).collect::<Vec<_>>();
    let placed = in_transaction(conn, fence, |conn| {
        // Writes orders and then reads failures, whereas `record_failures` writes failures and then
        // reads orders, so that one of two concurrent transactions reads the other's row. The stock
        // is last: its row is the one that every writer waits for.
        let Some(may_be_refused) = inserted(conn.insert_orders(&orders))? else {
            return Ok(TransactionEnd::RollBack(false));
        };
        let is_clean = !(may_be_refused && any_refused(conn, &keys)?)
            && conn.take_quotas(&claims)?
            && conn.take_stocks(&sums)?;
        Ok(TransactionEnd::commit_if(is_clean))
    })?;
    Ok(placed.then_some(now_ms))
}

/// Whether any of these orders is refused. `insert_orders` has found a failure of a request, or a
/// bar in a SKU: the bar may be of another buyer, or one that does not apply.
fn any_refused<D: Database>(conn: &mut D, keys: &[OrderKey]) -> Result<bool, Error> {
    let barred = barred(conn, &sorted(keys.iter().map(buyer_of)))?;
    let is_barred = |key: &OrderKey| {
        let exempt = barred.get(&buyer_of(key));
        exempt.is_some_and(|exempt| !exempt.contains(&key.request.to_db()))
    };
    if keys.iter().any(is_barred) {
        return Ok(true);
    }
    let requests: Vec<i64> = keys.iter().map(|key| key.request.to_db()).collect();
    Ok(conn.any_failed(&requests)?)
}

/// The barred ones of these sorted buyers, each with the requests that its bars exempt: the
/// exemption of one bar is one from all of them.
fn barred<D: Database>(
    conn: &mut D,
    buyers: &[SkuAndBuyer],
) -> Result<BTreeMap<SkuAndBuyer, Vec<i64>>, Error> {
    let mut barred: BTreeMap<SkuAndBuyer, Vec<i64>> = BTreeMap::new();
    for (sku, buyer, exempt) in in_lists(buyers, |chunk| conn.barred(chunk))? {
        barred.entry((sku, buyer)).or_default().extend(exempt);
    }
    Ok(barred)
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
        // Of two epochs in a batch, the limit was larger in one of them.
        claim.quota = claim.quota.max(quota);
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

/// Writes failures and then reads orders, whereas `place` writes orders and then reads failures:
/// one of two concurrent transactions reads the other's row. Returns the failure of each request
/// that has one; `None`: a concurrent order was written.
fn record<D: Database>(
    conn: &mut D,
    failures: &[Failure],
) -> Result<TransactionEnd<Option<HashMap<RequestId, Refusal>>>, Error> {
    let mut recorded = failures.to_vec();
    let ordered: HashSet<i64> =
        in_lists(failures, |chunk| conn.ordered_among(chunk))?.into_iter().collect();
    recorded.retain(|failure| !ordered.contains(&failure.request.to_db()));
    let rows = recorded.iter().map(FailureRow::try_from).collect::<Result<Vec<_>, _>>()?;
    for chunk in rows.chunks(IN_LIST_MAX) {
        conn.insert_failures(chunk)?;
    }
    if !in_lists(&recorded, |chunk| conn.ordered_among(chunk))?.is_empty() {
        return Ok(TransactionEnd::RollBack(None));
    }
    // After that read: a placement that committed has none of these requests. One that is about to
    // write waits for this transaction, or is in a deadlock with it, which is tried again.
    for chunk in rows.chunks(IN_LIST_MAX) {
        conn.insert_refusals(chunk)?;
    }
    let requests: Vec<i64> = failures.iter().map(|failure| failure.request.to_db()).collect();
    Ok(TransactionEnd::Commit(Some(recorded_failures(conn, &requests)?)))
}

/// The recorded failures of these requests.
fn recorded_failures<D: Database>(
    conn: &mut D,
    requests: &[i64],
) -> Result<HashMap<RequestId, Refusal>, Error> {
    let rows = in_lists(requests, |chunk| conn.failures_by_request(chunk))?;
    let reason_of = |row| Failure::try_from(row).map(|failure| (failure.request, failure.reason));
    rows.into_iter().map(reason_of).collect()
}

/// All reads see one snapshot.
fn examine<D: Database>(conn: &mut D, batch: &[OrderIntent]) -> Result<Examination, Error> {
    let requests: Vec<i64> = batch.iter().map(|intent| intent.request.to_db()).collect();
    let of_buyer = |intent: &OrderIntent| buyer_of(&intent.key());
    let buyers = sorted(batch.iter().map(of_buyer));
    let slots = sorted(batch.iter().filter(|intent| intent.slot == 0).map(of_buyer));
    let quotas = sorted(batch.iter().filter(|intent| intent.quota.is_some()).map(of_buyer));
    let skus = sorted(batch.iter().map(|intent| intent.sku.0));
    conn.snapshot(|conn| {
        let mut examination = Examination::default();
        for row in in_lists(&requests, |chunk| conn.orders_by_request(chunk))? {
            let order = Order::try_from(row)?;
            examination.orders.insert(order.request, order);
        }
        examination.failures = recorded_failures(conn, &requests)?;
        for row in in_lists(&slots, |chunk| conn.first_orders(chunk))? {
            let order = Order::try_from(row)?;
            examination.first_requests.insert((order.sku, order.buyer), order.request);
            // `orders_by_request` may omit slot 0.
            examination.orders.insert(order.request, order);
        }
        for ((sku, buyer), exempt) in barred(conn, &buyers)? {
            let name = || format!("bar of sku {sku}");
            let id = readable(BuyerId::from_db(buyer), name, "buyer_id", buyer)?;
            let exempt = exempt.into_iter().filter_map(RequestId::from_db).collect();
            examination.barred.insert((SkuNo(sku), id), exempt);
        }
        for (sku, buyer, owned) in in_lists(&quotas, |chunk| conn.owned_units(chunk))? {
            let name = || format!("quota of sku {sku} buyer {buyer}");
            let id = readable(BuyerId::from_db(buyer), name, "buyer_id", buyer)?;
            examination.owned.insert((SkuNo(sku), id), number(name, "owned", owned)?);
        }
        for (sku, available) in in_lists(&skus, |chunk| conn.units_left(chunk))? {
            let available = number(|| format!("sku {sku}"), "available", available)?;
            examination.available.insert(SkuNo(sku), available);
        }
        Ok(examination)
    })
}
