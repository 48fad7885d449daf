//! Changes orders after their placement. Each change: lock the orders by their key, decide with
//! [`lifecycle`], write with the version compared, one event per order, and last the sums of quotas
//! and stock, whose rows every writer waits for.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::order_writer::QuotaClaim;
use super::statements::{IN_LIST_MAX, SkuAndBuyer, buyer_of, sorted};
use super::{Database, TransactionEnd, WriterFence, convert_rows, in_transaction, readable_rows};
use crate::db::life_rows::{BarRow, Cause, OrderEventRow};
use crate::db::rows::{narrow, readable};
use crate::db::sale_rows::{SkuHistories, SkuRow, currency};
use crate::db::{Error, ErrorClass};
use crate::domain::{
    Actor, CancelOutcome, Currency, Order, OrderChange, OrderKey, OrderState, OrderTrigger,
    RetentionState, Sku, lifecycle,
};

/// The orders with these keys, at most [`IN_LIST_MAX`], locked until the transaction ends; without
/// those of sealed sales, which do not change any more.
pub(super) fn lock<D: Database>(conn: &mut D, keys: &[OrderKey]) -> Result<Vec<Order>, Error> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut orders: Vec<Order> = convert_rows(conn.lock_orders(keys)?)?;
    let sealed = conn.skus_from(RetentionState::Sealed, &skus(&orders))?;
    orders.retain(|order| !sealed.contains(&order.sku.0));
    Ok(orders)
}

/// The SKUs of these orders.
fn skus(orders: &[Order]) -> Vec<i32> {
    sorted(orders.iter().map(|order| order.sku.0))
}

/// The orders with these keys that can be read.
pub(super) fn readable_orders<D: Database>(
    conn: &mut D,
    keys: &[OrderKey],
) -> Result<HashMap<OrderKey, Order>, Error> {
    let orders = readable_rows(conn.orders_by_key(keys)?, Order::try_from);
    Ok(orders.into_iter().map(|order| (order.key(), order)).collect())
}

/// The SKUs of these orders, each with the currency of its sale.
pub(super) fn skus_of<D: Database>(
    conn: &mut D,
    orders: &[Order],
) -> Result<BTreeMap<i32, (Sku, Currency)>, Error> {
    let rows = conn.skus_with_currency(&skus(orders))?;
    let sku_of = |(row, code): (SkuRow, String)| -> Result<_, Error> {
        let sku = row.with_history(&SkuHistories::default())?;
        let currency = currency(&code, || format!("sale of sku {}", sku.no))?;
        Ok((sku.no.0, (sku, currency)))
    };
    rows.into_iter().map(sku_of).collect()
}

/// Changes those of these locked orders that the trigger changes.
pub(super) fn change<D: Database>(
    conn: &mut D,
    orders: &[Order],
    trigger: OrderTrigger,
    cause: Cause<'_>,
) -> Result<Vec<OrderChange>, Error> {
    if orders.is_empty() {
        return Ok(Vec::new());
    }
    let skus = skus_of(conn, orders)?;
    let buyers = sorted(orders.iter().map(|order| buyer_of(&order.key())));
    let ended = conn.num_ended(&buyers)?;
    let mut num_ended: BTreeMap<SkuAndBuyer, u32> = ended
        .into_iter()
        .map(|(sku, buyer, number)| ((sku, buyer), u32::try_from(number).unwrap_or(u32::MAX)))
        .collect();
    let mut changes = Vec::new();
    for order in orders {
        // A SKU without a row was never on offer: an audit reports its orders.
        let Some((sku, _)) = skus.get(&order.sku.0) else { continue };
        let ended = num_ended.entry(buyer_of(&order.key())).or_default();
        let Some(change) = lifecycle::change(order, trigger, sku, *ended, cause.at_ms) else {
            continue;
        };
        *ended += u32::from(change.ends());
        changes.push(change);
    }
    write(conn, &changes, cause, &skus)?;
    Ok(changes)
}

fn write<D: Database>(
    conn: &mut D,
    changes: &[OrderChange],
    cause: Cause<'_>,
    skus: &BTreeMap<i32, (Sku, Currency)>,
) -> Result<(), Error> {
    if changes.is_empty() {
        return Ok(());
    }
    update_orders(conn, changes)?;
    let events = changes.iter().map(|change| OrderEventRow::of(change, cause));
    conn.insert_events(&events.collect::<Result<Vec<_>, _>>()?)?;
    bar_buyers(conn, changes, cause.at_ms)?;
    let mut claims: BTreeMap<SkuAndBuyer, QuotaClaim> = BTreeMap::new();
    let mut units: BTreeMap<i32, i32> = BTreeMap::new();
    for change in changes {
        let (sku_no, buyer_id) = (change.after.sku.0, change.after.buyer.to_db());
        let back: i32 = narrow("quantity", change.units_back())?;
        if back > 0 {
            *units.entry(sku_no).or_default() -= back;
        }
        let quota = skus.get(&sku_no).and_then(|(sku, _)| sku.policy.quota());
        if let Some(limit) = quota.filter(|_| change.returns_limit()) {
            let claim = QuotaClaim { sku_no, buyer_id, units: 0, quota: narrow("limit", limit)? };
            claims.entry((sku_no, buyer_id)).or_insert(claim).units -= back;
        }
    }
    // Negative units return what a placement took.
    let claims: Vec<_> = claims.into_values().collect();
    let units: Vec<_> = units.into_iter().collect();
    let is_returned = conn.take_quotas(&claims)? && conn.take_stocks(&units)?;
    let what = || "units to be returned".to_owned();
    readable(is_returned.then_some(()), what, "stock or quota", "missing")
}

/// One statement for all orders with the same values: in practice two for a batch of time-outs.
fn update_orders<D: Database>(conn: &mut D, changes: &[OrderChange]) -> Result<(), Error> {
    let mut groups: BTreeMap<(u16, String), Vec<OrderKey>> = BTreeMap::new();
    for change in changes {
        let OrderChange { before, after, .. } = change;
        let due_ms = after.due_ms.map_or_else(|| "NULL".to_owned(), |due_ms| due_ms.to_string());
        let mut columns = format!("state = {}, due_ms = {due_ms}", after.state.to_db());
        if change.returns_limit() {
            columns.push_str(", counts_for_limit = 0, slot = request_id");
        }
        groups.entry((before.version, columns)).or_default().push(before.key());
    }
    for ((version, columns), keys) in groups {
        let keys = sorted(keys);
        let changed = conn.update_orders(&keys, version, &columns)?;
        let is_complete = (changed == keys.len()).then_some(());
        let what = || format!("{} locked orders of version {version}", keys.len());
        readable(is_complete, what, "changed", changed)?;
    }
    Ok(())
}

fn bar_buyers<D: Database>(conn: &mut D, changes: &[OrderChange], at_ms: i64) -> Result<(), Error> {
    let barring = changes.iter().filter(|change| change.bars_buyer).map(|change| change.after);
    let barring: Vec<Order> = barring.collect();
    if barring.is_empty() {
        return Ok(());
    }
    let of_sales = conn.skus_of_same_sales(&skus(&barring))?;
    let mut rows = BTreeSet::new();
    for order in barring {
        let (buyer_id, request_id) = (order.buyer.to_db(), order.request.to_db());
        for (_, sku_no) in of_sales.iter().filter(|(one, _)| *one == order.sku.0) {
            let exempt_id = None;
            rows.insert(BarRow { sku_no: *sku_no, buyer_id, request_id, at_ms, exempt_id });
        }
    }
    for chunk in Vec::from_iter(rows).chunks(IN_LIST_MAX) {
        conn.insert_bars(chunk)?;
    }
    Ok(())
}

/// Ends the orders that are due at `now_ms`. A batch with an order that cannot be ended is halved,
/// so that the order delays no other.
pub(super) fn end_due<D: Database>(
    conn: &mut D,
    fence: WriterFence,
    keys: &[OrderKey],
    extension_max_ms: i64,
    now_ms: i64,
) -> Result<Vec<Order>, Error> {
    let cause = Cause { at_ms: now_ms, actor: Actor::Timer, reason: None, payment_id: None };
    let ended = in_transaction(conn, fence, |conn| {
        let orders = lock(conn, keys)?;
        let changes = change(conn, &orders, OrderTrigger::Due { extension_max_ms }, cause)?;
        let after: Vec<Order> = changes.iter().map(|change| change.after).collect();
        Ok(if after.is_empty() {
            TransactionEnd::RollBack(after)
        } else {
            TransactionEnd::Commit(after)
        })
    });
    match (ended, keys) {
        (Err(error), [key]) if error.class() == ErrorClass::Bug => {
            let request = key.request;
            tracing::error!(%request, error = &error as &dyn std::error::Error, "order not ended");
            Ok(Vec::new())
        }
        (Err(error), _) if error.class() == ErrorClass::Bug => {
            let (first, second) = keys.split_at(keys.len() / 2);
            let mut ended = end_due(conn, fence, first, extension_max_ms, now_ms)?;
            ended.extend(end_due(conn, fence, second, extension_max_ms, now_ms)?);
            Ok(ended)
        }
        (ended, _) => ended,
    }
}

/// Cancels an unpaid order.
pub(super) fn cancel<D: Database>(
    conn: &mut D,
    key: OrderKey,
    cause: Cause<'_>,
) -> Result<TransactionEnd<CancelOutcome>, Error> {
    let Some(order) = lock(conn, &[key])?.pop() else {
        return Ok(TransactionEnd::RollBack(CancelOutcome::UnknownOrder));
    };
    Ok(match order.state {
        OrderState::Cancelled => TransactionEnd::RollBack(CancelOutcome::Cancelled(order)),
        OrderState::Paying => match super::payments::open_attempt(conn, &order)? {
            Some(open) => TransactionEnd::RollBack(CancelOutcome::Paying(order, open)),
            None => TransactionEnd::RollBack(CancelOutcome::Decided(order)),
        },
        _ => match change(conn, &[order], OrderTrigger::Cancelled, cause)?.pop() {
            Some(change) => TransactionEnd::Commit(CancelOutcome::Cancelled(change.after)),
            None => TransactionEnd::RollBack(CancelOutcome::Decided(order)),
        },
    })
}
