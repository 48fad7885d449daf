//! Rows of payments and of the reports of providers, and their conversion to and from the domain.

use diesel::prelude::*;

use super::life_rows::short;
use super::rows::{number, order_key, readable};
use super::sale_rows::currency;
use super::schema::{payment_events, payments};
use super::{Error, EventCursor};
use crate::domain::{
    AttemptKey, ListedPayment, Money, OrderKey, Payment, PaymentEvent, PaymentOutcome,
    PaymentReport, PaymentState, StartedPayment, UnmatchedEvent,
};

/// Received money from its columns.
fn money(
    amount: Option<i64>,
    code: Option<&str>,
    row: impl Fn() -> String + Copy,
) -> Result<Option<Money>, Error> {
    match (amount, code) {
        (Some(amount), Some(code)) => Ok(Some(Money { amount, currency: currency(code, row)? })),
        (None, None) => Ok(None),
        (one, _) => readable(None, row, "received", format_args!("{one:?}")),
    }
}

/// SKU, buyer, request and attempt of a payment, as its row has them.
pub type PaymentId = (i32, i64, i64, i32);

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
        let is_late = matches!(payment.state, PaymentState::RefundDue | PaymentState::Retaking);
        self.refund_due_ms = is_late.then(|| self.refund_due_ms.unwrap_or(now_ms));
        self.state = payment.state.to_db();
        Ok(())
    }

    /// Whether the provider knows the payment by this id.
    pub(super) fn has_id(&self, payment_id: &str) -> bool {
        self.payment_id.as_deref() == Some(payment_id)
    }

    /// Moves the payment of an ended order to the order's successor, as its attempt `no`.
    pub(super) fn move_to(&mut self, successor: OrderKey, no: u16) {
        (self.request_id, self.attempt_no) = (successor.request.to_db(), i32::from(no));
    }

    pub(super) fn id(&self) -> PaymentId {
        (self.sku_no, self.buyer_id, self.request_id, self.attempt_no)
    }
}

impl TryFrom<&PaymentRow> for Payment {
    type Error = Error;

    fn try_from(row: &PaymentRow) -> Result<Self, Error> {
        let name = || format!("payment {} of order {}", row.attempt_no, row.request_id);
        let received = money(row.received, row.received_currency.as_deref(), name)?;
        Ok(Self {
            key: AttemptKey {
                order: order_key(row.sku_no, row.buyer_id, row.request_id)?,
                no: number(name, "attempt_no", row.attempt_no)?,
            },
            provider: row.provider.clone(),
            started: row.payment_id.clone().map(|payment_id| StartedPayment {
                payment_id,
                url: row.url.clone().unwrap_or_default(),
            }),
            price: Money { amount: row.price, currency: currency(&row.currency, name)? },
            state: readable(PaymentState::from_db(row.state), name, "state", row.state)?,
            received,
            refunded_total: row.refunded_total,
        })
    }
}

impl TryFrom<&PaymentRow> for ListedPayment {
    type Error = Error;

    /// Without its order.
    fn try_from(row: &PaymentRow) -> Result<Self, Error> {
        Ok(Self {
            payment: row.try_into()?,
            refund_attempts: u16::try_from(row.refund_attempts).unwrap_or(u16::MAX),
            refund_due_ms: row.refund_due_ms,
            reason: row.reason.clone(),
            order_state: None,
        })
    }
}

/// A row of `payment_events`.
#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
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
    attempt: Option<String>,
    resolved_at_ms: Option<i64>,
}

impl PaymentEventRow {
    pub(super) fn cursor(&self) -> EventCursor {
        EventCursor { at_ms: self.at_ms, event_id: self.event_id.clone() }
    }

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
            attempt: event.attempt.map(|attempt| attempt.to_string()),
            resolved_at_ms: None,
        })
    }

    /// Whether the report has had no effect yet, and no operator has resolved it.
    pub(super) fn is_unmatched(&self) -> bool {
        self.outcome == PaymentOutcome::Unmatched.to_db() && !self.is_resolved()
    }

    pub(super) fn is_resolved(&self) -> bool {
        self.resolved_at_ms.is_some()
    }
}

impl TryFrom<PaymentEventRow> for UnmatchedEvent {
    type Error = Error;

    fn try_from(row: PaymentEventRow) -> Result<Self, Error> {
        let name = || format!("payment event {}", row.event_id);
        let received = money(row.received, row.currency.as_deref(), name)?;
        let report = match received {
            None => PaymentReport::Closed,
            Some(received) if row.refunded_total > 0 => {
                PaymentReport::Refunded { received, total: row.refunded_total }
            }
            Some(received) => PaymentReport::Succeeded(received),
        };
        let attempt = row.attempt.as_deref();
        let attempt = attempt.map(|text| readable(text.parse().ok(), name, "attempt", text));
        let attempt = attempt.transpose()?;
        let PaymentEventRow { provider, event_id, payment_id, at_ms, .. } = row;
        let event = PaymentEvent { provider, event_id, payment_id, attempt, report };
        Ok(Self { event, at_ms })
    }
}
