//! Rows of the life of orders, and their conversion to and from the domain.

use diesel::prelude::*;

use super::Error;
use super::rows::{readable, unstorable};
use super::schema::{bars, order_events, payment_events, payments};
use crate::domain::{
    Actor, AttemptKey, BuyerId, Currency, Money, Order, OrderChange, OrderEvent, OrderKey,
    OrderState, Payment, PaymentEvent, PaymentOutcome, PaymentReport, PaymentState, RequestId,
    SkuNo, StartedPayment,
};

/// The key of an order from its columns.
pub(super) fn order_key(sku: i32, buyer: i64, request: i64) -> Result<OrderKey, Error> {
    let name = || format!("order {request} of sku {sku}");
    Ok(OrderKey {
        sku: SkuNo(sku),
        buyer: readable(BuyerId::from_db(buyer), name, "buyer_id", buyer)?,
        request: readable(RequestId::from_db(request), name, "request_id", request)?,
    })
}

/// A text that fits into a column of `max` characters.
fn short(name: &str, text: &str, max: usize) -> Result<String, Error> {
    if text.chars().count() <= max {
        return Ok(text.to_owned());
    }
    unstorable(name, format_args!("of more than {max} characters"))
}

/// A row of `order_events`.
#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = order_events, treat_none_as_default_value = false)]
pub struct OrderEventRow {
    request_id: i64,
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
    feed_no: Option<i64>,
}

/// What an event says besides the change.
#[derive(Debug, Clone, Copy)]
pub struct Cause<'a> {
    pub at_ms: i64,
    pub actor: &'a Actor,
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
            actor: short("actor", &cause.actor.to_string(), 80)?,
            reason: cause.reason.map(|reason| short("reason", reason, 255)).transpose()?,
            payment_id: cause.payment_id.map(str::to_owned),
            limit_back: i16::from(change.returns_limit()),
            num_orders: 1,
            placed: None,
            feed_no: None,
        })
    }

    /// The event of the orders that one transaction placed: SKU, buyer and request of each.
    pub(super) fn placed(orders: &[(i32, i64, i64)], at_ms: i64) -> Option<Self> {
        let (sku_no, buyer_id, request_id) = *orders.first()?;
        Some(Self {
            request_id,
            version: 0,
            sku_no,
            buyer_id,
            kind: OrderState::PendingPayment.to_db(),
            at_ms,
            due_ms: None,
            actor: Actor::Buyer.to_string(),
            reason: None,
            payment_id: None,
            limit_back: 0,
            num_orders: i32::try_from(orders.len()).ok()?,
            placed: Some(placed_bytes(orders)),
            feed_no: None,
        })
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
        let (orders, rest) = placed.as_chunks::<PLACED_BYTES>();
        let num_orders = i64::from(self.num_orders);
        let is_whole = rest.is_empty() && i64::try_from(orders.len()) == Ok(num_orders);
        readable(is_whole.then_some(()), || self.name(), "placed", placed.len())?;
        let numbered = (last - num_orders + 1..).zip(orders);
        numbered.map(|(feed_no, order)| Ok((feed_no, placed_key(order)?))).collect()
    }

    /// The event of an order, which may have changed since.
    pub(super) fn event(&self, feed_no: i64, now: Order) -> Result<OrderEvent, Error> {
        let name = || self.name();
        let version = readable(u16::try_from(self.version).ok(), name, "version", self.version)?;
        let actor = readable(self.actor.parse().ok(), name, "actor", &self.actor)?;
        let state = readable(OrderState::from_db(self.kind), name, "kind", self.kind)?;
        let due_ms = if version == 0 { now.pay_by_ms } else { self.due_ms };
        // An order changes no more after the event that returns its limit.
        let counts_for_limit = self.limit_back == 0;
        let order = Order { state, version, due_ms, counts_for_limit, ..now };
        let (reason, payment_id) = (self.reason.clone(), self.payment_id.clone());
        Ok(OrderEvent { feed_no, order, at_ms: self.at_ms, actor, reason, payment_id })
    }
}

/// SKU, buyer and request of each order.
pub(super) fn placed_bytes(orders: &[(i32, i64, i64)]) -> Vec<u8> {
    let mut placed = Vec::with_capacity(PLACED_BYTES * orders.len());
    for (sku, buyer, request) in orders {
        placed.extend(sku.to_be_bytes());
        placed.extend(buyer.to_be_bytes());
        placed.extend(request.to_be_bytes());
    }
    placed
}

fn placed_key(bytes: &[u8; PLACED_BYTES]) -> Result<OrderKey, Error> {
    let [s0, s1, s2, s3, rest @ ..] = bytes;
    let (ids, _) = rest.as_chunks::<8>();
    let number = |at: usize| ids.get(at).map_or(0, |bytes| i64::from_be_bytes(*bytes));
    order_key(i32::from_be_bytes([*s0, *s1, *s2, *s3]), number(0), number(1))
}

/// A row of `payments`.
#[derive(Debug, Clone, Queryable, Selectable, Insertable, AsChangeset)]
#[diesel(table_name = payments, treat_none_as_default_value = false, treat_none_as_null = true)]
#[diesel(primary_key(sku_no, buyer_id, request_id, attempt_no))]
pub struct PaymentRow {
    sku_no: i32,
    buyer_id: i64,
    request_id: i64,
    attempt_no: i32,
    provider: String,
    payment_id: Option<String>,
    url: Option<String>,
    price: i64,
    currency: String,
    state: i16,
    received: Option<i64>,
    received_currency: Option<String>,
    refunded_total: i64,
    pub(super) refund_attempts: i32,
    pub(super) refund_due_ms: Option<i64>,
    pub(super) reason: Option<String>,
}

impl PaymentRow {
    /// The row of a new attempt.
    pub(super) fn new(payment: &Payment, now_ms: i64) -> Result<Self, Error> {
        let OrderKey { sku, buyer, request } = payment.key.order;
        let mut row = Self {
            sku_no: sku.0,
            buyer_id: buyer.to_db(),
            request_id: request.to_db(),
            attempt_no: i32::from(payment.key.no),
            provider: short("provider", &payment.provider, 32)?,
            payment_id: None,
            url: None,
            price: payment.price.amount,
            currency: payment.price.currency.to_string(),
            state: 0,
            received: None,
            received_currency: None,
            refunded_total: 0,
            refund_attempts: 0,
            refund_due_ms: None,
            reason: None,
        };
        row.set(payment, now_ms)?;
        Ok(row)
    }

    /// Sets what is known of the payment at `now_ms`.
    pub(super) fn set(&mut self, payment: &Payment, now_ms: i64) -> Result<(), Error> {
        if let Some(StartedPayment { payment_id, url }) = &payment.started {
            self.payment_id = Some(short("payment_id", payment_id, 255)?);
            self.url = (!url.is_empty()).then(|| url.clone());
        }
        self.received = payment.received.map(|money| money.amount);
        self.received_currency = payment.received.map(|money| money.currency.to_string());
        self.refunded_total = payment.refunded_total;
        let is_due = payment.state == PaymentState::RefundDue;
        self.refund_due_ms = is_due.then(|| self.refund_due_ms.unwrap_or(now_ms));
        self.state = payment.state.to_db();
        Ok(())
    }

    pub(super) fn id(&self) -> (i32, i64, i64, i32) {
        (self.sku_no, self.buyer_id, self.request_id, self.attempt_no)
    }
}

impl TryFrom<&PaymentRow> for Payment {
    type Error = Error;

    fn try_from(row: &PaymentRow) -> Result<Self, Error> {
        let name = || format!("payment {} of order {}", row.attempt_no, row.request_id);
        let currency = |column: &'static str, text: &str| -> Result<Currency, Error> {
            readable(text.parse().ok(), name, column, text)
        };
        let received = match (row.received, &row.received_currency) {
            (Some(amount), Some(code)) => {
                Some(Money { amount, currency: currency("received_currency", code)? })
            }
            (None, None) => None,
            (one, _) => readable(None, name, "received", format_args!("{one:?}"))?,
        };
        let no = u16::try_from(row.attempt_no).ok();
        Ok(Self {
            key: AttemptKey {
                order: order_key(row.sku_no, row.buyer_id, row.request_id)?,
                no: readable(no, name, "attempt_no", row.attempt_no)?,
            },
            provider: row.provider.clone(),
            started: row.payment_id.clone().map(|payment_id| StartedPayment {
                payment_id,
                url: row.url.clone().unwrap_or_default(),
            }),
            price: Money { amount: row.price, currency: currency("currency", &row.currency)? },
            state: readable(PaymentState::from_db(row.state), name, "state", row.state)?,
            received,
            refunded_total: row.refunded_total,
        })
    }
}

/// A row of `payment_events`.
#[derive(Debug, Clone, Insertable)]
#[diesel(table_name = payment_events, treat_none_as_default_value = false)]
pub struct PaymentEventRow {
    provider: String,
    event_id: String,
    payment_id: String,
    request_id: Option<i64>,
    outcome: i16,
    received: Option<i64>,
    currency: Option<String>,
    refunded_total: i64,
    at_ms: i64,
}

impl PaymentEventRow {
    pub(super) fn of(
        event: &PaymentEvent,
        order: Option<OrderKey>,
        outcome: PaymentOutcome,
        at_ms: i64,
    ) -> Result<Self, Error> {
        let (received, refunded_total) = match &event.report {
            PaymentReport::Closed => (None, 0),
            PaymentReport::Succeeded(money) => (Some(money), 0),
            PaymentReport::Refunded { received, total } => (Some(received), *total),
        };
        Ok(Self {
            provider: short("provider", &event.provider, 32)?,
            event_id: short("event_id", &event.event_id, 255)?,
            payment_id: short("payment_id", &event.payment_id, 255)?,
            request_id: order.map(|order| order.request.to_db()),
            outcome: outcome.to_db(),
            received: received.map(|money| money.amount),
            currency: received.map(|money| money.currency.to_string()),
            refunded_total,
            at_ms,
        })
    }
}

/// A row of `bars`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Insertable)]
#[diesel(table_name = bars, treat_none_as_default_value = false)]
pub struct BarRow {
    pub(super) sku_no: i32,
    pub(super) buyer_id: i64,
    pub(super) request_id: i64,
    pub(super) at_ms: i64,
}
