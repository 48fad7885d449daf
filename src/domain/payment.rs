//! The payments of orders: facts from the provider, and what becomes of the money.
//!
//! Facts only grow: received money stays received, and the refunded total never decreases, so that
//! reports may arrive in any order and any number of times. Money is recorded first and never
//! refused: the price of a live, unpaid order is applied to it, that of a timed-out order buys
//! again if it can ([`super::retake`]), and all other money is due back.
//!
//! | state | money | next |
//! |---|---|---|
//! | `started` | none yet | `closed`, `applied`, `retaking`, `refund_due` |
//! | `closed` | none; failed, stopped, or the payment moved | `applied`, `retaking`, `refund_due` |
//! | `applied` | paid an order | `refunded` |
//! | `retaking` | the price of a timed-out order | `applied`, `refund_due`, `refunded` |
//! | `refund_due` | received, and not applied | `refunded`, `refund_failed` |
//! | `refund_failed` | the provider refused the refund; an operator decides | `refunded` |
//! | `refunded` | refunded in full | |

use std::fmt;
use std::str::FromStr;

use super::ids::SkuNo;
use super::lifecycle::OrderTrigger;
use super::named::{ledger_numbers, named_enum};
use super::order::{Order, OrderKey, OrderState};

/// A currency by its three capital letters (ISO 4217).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Currency([u8; 3]);

impl Default for Currency {
    fn default() -> Self {
        Self(*b"CNY")
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|letter| write!(f, "{}", char::from(*letter)))
    }
}

impl FromStr for Currency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match <[u8; 3]>::try_from(text.as_bytes()) {
            Ok(letters) if letters.iter().all(u8::is_ascii_uppercase) => Ok(Self(letters)),
            _ => Err("currency must be three capital letters (ISO 4217)".to_owned()),
        }
    }
}

/// An amount in the currency's smallest unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Money {
    pub amount: i64,
    pub currency: Currency,
}

/// One attempt to pay an order; also the provider's idempotency key. As text
/// `<sku>-<buyer>-<request>-<no>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptKey {
    pub order: OrderKey,
    /// From 1.
    pub no: u16,
}

impl fmt::Display for AttemptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OrderKey { sku, buyer, request } = self.order;
        write!(f, "{sku}-{buyer}-{request}-{}", self.no)
    }
}

impl FromStr for AttemptKey {
    type Err = String;

    /// Accepts one spelling of each key.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split('-');
        let mut next = || parts.next();
        let mut read = || {
            let sku = SkuNo(next()?.parse().ok()?);
            let order =
                OrderKey { sku, buyer: next()?.parse().ok()?, request: next()?.parse().ok()? };
            Some(Self { order, no: next()?.parse().ok()? })
        };
        let read: Option<Self> = read().filter(|attempt| attempt.to_string() == text);
        read.ok_or_else(|| format!("{text:?} is not <sku>-<buyer>-<request>-<no>"))
    }
}

named_enum! {
    /// What became of an attempt and its money; see the module.
    PaymentState {
        Started = 0 => "started",
        Closed = 1 => "closed",
        Applied = 2 => "applied",
        RefundDue = 3 => "refund_due",
        RefundFailed = 4 => "refund_failed",
        Refunded = 5 => "refunded",
        Retaking = 6 => "retaking",
    }
}
ledger_numbers! { PaymentState }

/// A payment attempt with all that is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payment {
    pub key: AttemptKey,
    /// The name of the provider.
    pub provider: String,
    /// The provider's id and the page where the buyer pays; `None`: the provider's answer to the
    /// start is not known yet.
    pub started: Option<StartedPayment>,
    /// The price of the order.
    pub price: Money,
    pub state: PaymentState,
    pub received: Option<Money>,
    /// Of the received amount; never decreases.
    pub refunded_total: i64,
}

impl Payment {
    /// A payment that the provider made under the same attempt, beside this one, with the next
    /// number of the order. It is `closed`: no page leads the buyer to it, and the order does not
    /// wait for it.
    #[must_use]
    pub fn beside(&self, no: u16, payment_id: &str) -> Self {
        let started = StartedPayment { payment_id: payment_id.to_owned(), url: String::new() };
        Self {
            key: AttemptKey { no, ..self.key },
            started: Some(started),
            state: PaymentState::Closed,
            received: None,
            refunded_total: 0,
            ..self.clone()
        }
    }
}

/// The provider's answer to the start of a payment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedPayment {
    /// Unique per provider.
    pub payment_id: String,
    /// Where the buyer pays; empty if unknown.
    pub url: String,
}

/// How a payment is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaymentTerms {
    /// The name of the provider.
    pub provider: String,
    /// See [`OrderTrigger::PaymentOpened`].
    pub paying_window_ms: i64,
    pub extension_max_ms: i64,
}

/// The outcome of opening a payment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenPayment {
    /// The order is `paying` with this attempt, which was opened now or before.
    Open(Order, Payment),
    /// The order is paid, ended or due, or has no attempts left.
    NotPayable(Order),
    UnknownOrder,
}

/// The outcome of a cancellation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelOutcome {
    /// Cancelled now or before.
    Cancelled(Order),
    /// Nothing was changed: the provider must stop this open attempt first, and its answer be
    /// recorded.
    Paying(Order, Payment),
    /// The order is paid or ended otherwise.
    Decided(Order),
    UnknownOrder,
}

/// An order whose deadline has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueOrder {
    pub order: Order,
    /// The open attempt of a `paying` order: the provider must stop it first.
    pub open: Option<Payment>,
}

/// What a provider says of a payment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PaymentReport {
    Succeeded(Money),
    /// Failed, expired or stopped: no money was received and none will be.
    Closed,
    /// Money was received, and this total of it was refunded.
    Refunded {
        received: Money,
        total: i64,
    },
}

/// A verified report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaymentEvent {
    pub provider: String,
    /// Unique per provider; a repeat has no effect.
    pub event_id: String,
    pub payment_id: String,
    /// The attempt, where the report names it: its payment id may not be stored yet.
    pub attempt: Option<AttemptKey>,
    pub report: PaymentReport,
}

named_enum! {
    /// The effect of a report.
    PaymentOutcome {
        /// Paid the order.
        Applied = 0 => "applied",
        /// The attempt is closed without money.
        Closed = 1 => "closed",
        /// Received for an ended order: buys again if the order timed out, else due back.
        Late = 2 => "late",
        /// Received for an order that another payment paid: due back.
        Duplicate = 3 => "duplicate",
        /// Received with another amount or currency than the price: due back. Or reported with
        /// another amount than before, which changes nothing. Alarm.
        Mismatch = 4 => "mismatch",
        /// Refunded in full.
        Refunded = 5 => "refunded",
        PartlyRefunded = 6 => "partly_refunded",
        /// Says nothing new.
        Unchanged = 7 => "unchanged",
        /// Of no known attempt; stored as it is. Alarm.
        Unmatched = 8 => "unmatched",
    }
}
ledger_numbers! { PaymentOutcome }

/// The record of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PaymentRecorded {
    /// The event was recorded before.
    Known,
    /// Recorded now; `None` for [`PaymentOutcome::Unmatched`], else the payment and its order.
    Recorded(PaymentOutcome, Option<Box<(Order, Payment)>>),
}

impl PaymentRecorded {
    /// The effect of the report; a repeat has none.
    pub fn outcome(&self) -> PaymentOutcome {
        match self {
            Self::Recorded(outcome, _) => *outcome,
            Self::Known => PaymentOutcome::Unchanged,
        }
    }
}

/// A report of no known attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmatchedEvent {
    pub event: PaymentEvent,
    /// When it was recorded, epoch milliseconds.
    pub at_ms: i64,
}

/// A payment with what an operator needs of its refund and its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPayment {
    pub payment: Payment,
    /// Refunds tried.
    pub refund_attempts: u16,
    /// When the refund is tried next, epoch milliseconds; `None`: no refund is due.
    pub refund_due_ms: Option<i64>,
    /// Why the refund was given up.
    pub reason: Option<String>,
    /// The state of the order; `None`: there is no such order.
    pub order_state: Option<OrderState>,
}

impl From<(Order, Payment)> for ListedPayment {
    /// A payment without a refund.
    fn from((order, payment): (Order, Payment)) -> Self {
        Self {
            payment,
            refund_attempts: 0,
            refund_due_ms: None,
            reason: None,
            order_state: Some(order.state),
        }
    }
}

/// A refund to be made: all that is left of a payment's money.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueRefund {
    /// Also the provider's idempotency key: a payment is refunded at most once.
    pub key: AttemptKey,
    pub provider: String,
    pub payment_id: String,
    pub money: Money,
    /// Refunds tried before.
    pub attempts: u16,
}

/// The provider's answer to a refund.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefundResult {
    Done,
    /// Pending or unknown: ask again at this time, epoch milliseconds.
    Again {
        next_ms: i64,
    },
    /// Refused for ever, with the provider's reason.
    Failed {
        reason: String,
    },
}

/// Adds a report to a payment of `order`, and decides what its money does. Returns the payment, the
/// trigger for the order if any, and the effect.
#[must_use]
pub fn record(
    order: &Order,
    payment: &Payment,
    report: &PaymentReport,
) -> (Payment, Option<OrderTrigger>, PaymentOutcome) {
    let mut next = payment.clone();
    let (money, total) = match report {
        PaymentReport::Closed => return close(order, next),
        PaymentReport::Succeeded(money) => (*money, 0),
        PaymentReport::Refunded { received, total } => (*received, *total),
    };
    let received = *next.received.get_or_insert(money);
    next.refunded_total = next.refunded_total.max(total.min(received.amount));
    let is_known = payment.received.is_some_and(|known| known == money);
    let mut outcome = if is_known {
        PaymentOutcome::Unchanged
    } else if payment.received.is_some() || received != payment.price {
        PaymentOutcome::Mismatch
    } else if order.state.is_unpaid() {
        PaymentOutcome::Applied
    } else if order.state == OrderState::Paid {
        PaymentOutcome::Duplicate
    } else {
        PaymentOutcome::Late
    };
    if payment.received.is_none() {
        next.state = match outcome {
            PaymentOutcome::Applied => PaymentState::Applied,
            // A cancelled order was given up by its buyer, a refunded one has had its money.
            PaymentOutcome::Late if order.state == OrderState::TimedOut => PaymentState::Retaking,
            _ => PaymentState::RefundDue,
        };
    }
    let is_applied = next.state == PaymentState::Applied;
    let mut trigger = (outcome == PaymentOutcome::Applied).then_some(OrderTrigger::PaymentApplied);
    let is_returned = next.refunded_total >= received.amount;
    if is_returned && next.state != PaymentState::Refunded && (!is_applied || total > 0) {
        next.state = PaymentState::Refunded;
        trigger = is_applied.then_some(OrderTrigger::PaymentRefunded);
        outcome = PaymentOutcome::Refunded;
    } else if next.refunded_total > payment.refunded_total && outcome == PaymentOutcome::Unchanged {
        outcome = PaymentOutcome::PartlyRefunded;
    }
    // The open attempt ended, and its money is not the order's: the buyer may pay again.
    if trigger.is_none() && payment.state == PaymentState::Started {
        trigger = (order.state == OrderState::Paying).then_some(OrderTrigger::PaymentClosed);
    }
    let is_owed = next.state == PaymentState::RefundDue;
    if is_owed && payment.state != PaymentState::RefundDue && !order.state.is_live() {
        trigger = Some(OrderTrigger::MoneyOwed);
    }
    (next, trigger, outcome)
}

fn close(order: &Order, mut next: Payment) -> (Payment, Option<OrderTrigger>, PaymentOutcome) {
    if next.state != PaymentState::Started {
        return (next, None, PaymentOutcome::Unchanged);
    }
    next.state = PaymentState::Closed;
    let is_open = order.state == OrderState::Paying;
    (next, is_open.then_some(OrderTrigger::PaymentClosed), PaymentOutcome::Closed)
}
