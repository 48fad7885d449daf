//! Rows of the changes of orders, and their conversion to and from the domain.

use diesel::prelude::*;

use super::Error;
use super::rows::{NewOrder, number, order_key, readable, unstorable};
use super::schema::{bars, order_events};
use crate::domain::{Actor, Order, OrderChange, OrderEvent, OrderKey, OrderState};

/// A text that fits into a column of `max` characters.
pub(super) fn short(name: &str, text: &str, max: usize) -> Result<String, Error> {
    if text.chars().count() <= max {
        return Ok(text.to_owned());
    }
    unstorable(name, format_args!("of more than {max} characters"))
}

/// A row of `order_events`.
#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = order_events, treat_none_as_default_value = false)]
pub struct OrderEventRow {
    pub(super) request_id: i64,
    version: i32,
    sku_no: i32,
    buyer_id: i64,
    kind: i16,
    at_ms: i64,
    due_ms: Option<i64>,
    actor: String,
    reason: Option<String>,
    payment_id: Option<String>,
    limit_back: i16,
    num_orders: i32,
    placed: Option<Vec<u8>>,
    pub(super) feed_no: Option<i64>,
    unfulfilled: i16,
}

/// What an event says besides the change.
#[derive(Debug, Clone, Copy)]
pub struct Cause<'a> {
    pub at_ms: i64,
    pub actor: Actor,
    pub reason: Option<&'a str>,
    pub payment_id: Option<&'a str>,
}

/// Bytes of one order in the column `placed`.
const PLACED_BYTES: usize = 20;

impl OrderEventRow {
    pub(super) fn of(change: &OrderChange, cause: Cause<'_>) -> Result<Self, Error> {
        let order = &change.after;
        Ok(Self {
            request_id: order.request.to_db(),
            version: i32::from(order.version),
            sku_no: order.sku.0,
            buyer_id: order.buyer.to_db(),
            kind: order.state.to_db(),
            at_ms: cause.at_ms,
            due_ms: order.due_ms,
            actor: cause.actor.name().to_owned(),
            reason: cause.reason.map(|reason| short("reason", reason, 255)).transpose()?,
            payment_id: cause.payment_id.map(str::to_owned),
            limit_back: i16::from(change.returns_limit()),
            num_orders: 1,
            placed: None,
            feed_no: None,
            unfulfilled: i16::from(!change.before.state.is_live()),
        })
    }

    /// The event of the orders of one SKU that one transaction placed.
    pub(super) fn placed(orders: &[NewOrder]) -> Option<Self> {
        let first = orders.first()?;
        let (sku_no, buyer_id, request_id) = first.key();
        Some(Self {
            request_id,
            version: 0,
            sku_no,
            buyer_id,
            kind: OrderState::PendingPayment.to_db(),
            at_ms: first.recorded_at_ms,
            due_ms: None,
            actor: Actor::Buyer.name().to_owned(),
            reason: None,
            payment_id: None,
            limit_back: 0,
            num_orders: i32::try_from(orders.len()).ok()?,
            placed: Some(placed_bytes(orders)),
            feed_no: None,
            unfulfilled: 0,
        })
    }

    /// Whether it is the event of a recorded failure; a placement has `placed`.
    pub(super) fn is_refusal(&self) -> bool {
        self.version == 0 && self.placed.is_none()
    }

    fn name(&self) -> String {
        format!("event {} of order {}", self.version, self.request_id)
    }

    /// The keys of the event's orders, each with its feed number.
    pub(super) fn keys(&self) -> Result<Vec<(i64, OrderKey)>, Error> {
        let last = readable(self.feed_no, || self.name(), "feed_no", "null")?;
        let Some(placed) = &self.placed else {
            return Ok(vec![(last, order_key(self.sku_no, self.buyer_id, self.request_id)?)]);
        };
        let orders = placed_keys(placed)?;
        let num_orders = i64::from(self.num_orders);
        let is_whole = i64::try_from(orders.len()) == Ok(num_orders);
        readable(is_whole.then_some(()), || self.name(), "placed", placed.len())?;
        Ok((last - num_orders + 1..).zip(orders).collect())
    }

    /// The event of an order, which may have changed since.
    pub(super) fn event(&self, feed_no: i64, now: Order) -> Result<OrderEvent, Error> {
        let name = || self.name();
        let version = number(name, "version", self.version)?;
        let actor = readable(Actor::from_name(&self.actor), name, "actor", &self.actor)?;
        let state = readable(OrderState::from_db(self.kind), name, "kind", self.kind)?;
        let due_ms = if version == 0 { now.pay_by_ms } else { self.due_ms };
        // The end decides whether the order still counts.
        let counts_for_limit = state.is_live() || now.counts_for_limit;
        let order = Order { state, version, due_ms, counts_for_limit, ..now };
        let (reason, payment_id) = (self.reason.clone(), self.payment_id.clone());
        let (at_ms, is_unfulfilled) = (self.at_ms, self.unfulfilled != 0);
        Ok(OrderEvent { feed_no, order, at_ms, actor, reason, payment_id, is_unfulfilled })
    }
}

/// SKU, buyer and request of each order.
fn placed_bytes(orders: &[NewOrder]) -> Vec<u8> {
    let mut placed = Vec::with_capacity(PLACED_BYTES * orders.len());
    for (sku, buyer, request) in orders.iter().map(NewOrder::key) {
        placed.extend(sku.to_be_bytes());
        placed.extend(buyer.to_be_bytes());
        placed.extend(request.to_be_bytes());
    }
    placed
}

/// The keys of the orders of a placement.
fn placed_keys(placed: &[u8]) -> Result<Vec<OrderKey>, Error> {
    let (orders, rest) = placed.as_chunks::<PLACED_BYTES>();
    let is_whole = rest.is_empty().then_some(());
    readable(is_whole, || "the event of a placement".to_owned(), "placed", placed.len())?;
    orders.iter().map(placed_key).collect()
}

fn placed_key(bytes: &[u8; PLACED_BYTES]) -> Result<OrderKey, Error> {
    let [s0, s1, s2, s3, rest @ ..] = bytes;
    let (ids, _) = rest.as_chunks::<8>();
    let number = |at: usize| ids.get(at).map_or(0, |bytes| i64::from_be_bytes(*bytes));
    order_key(i32::from_be_bytes([*s0, *s1, *s2, *s3]), number(0), number(1))
}

/// A row of `bars`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Insertable)]
#[diesel(table_name = bars, treat_none_as_default_value = false)]
pub struct BarRow {
    pub(super) sku_no: i32,
    pub(super) buyer_id: i64,
    pub(super) request_id: i64,
    pub(super) at_ms: i64,
    pub(super) exempt_id: Option<i64>,
}
