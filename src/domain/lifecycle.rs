//! The life of an order after its placement: a pure transition table.
//!
//! | from | trigger | to |
//! |---|---|---|
//! | `pending_payment`, not due | payment opened | `paying`; the first attempt extends the time |
//! | `paying` | the open attempt closed without money | `pending_payment`, due at `pay_by` |
//! | `pending_payment`, `paying` | payment applied | `paid` |
//! | `pending_payment`, `paying`, `paid` | all money refunded | `refunded` |
//! | `pending_payment` | due | `timed_out` |
//! | `paying` | due, and the limit of extensions has passed | `timed_out` |
//! | `pending_payment` | cancelled | `cancelled` |
//! | `timed_out`, `cancelled`, `refunded` | money that arrived is to be paid back | the same |
//!
//! An ended order stays in its state: its units went back to the stock in the transaction that
//! ended it. Money that arrives later is decided in [`super::payment`].

use super::named::named_enum;
use super::order::{Order, OrderState};
use super::sale::Sku;

/// The maximum number of payment attempts of an order.
pub const ATTEMPTS_MAX: u16 = 100;

/// What may change an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderTrigger {
    PaymentOpened {
        /// The number of the attempt, from 1.
        attempt: u16,
        /// How long the first attempt keeps the units at least.
        paying_window_ms: i64,
        /// How long after `pay_by` a payment may keep the units at most.
        extension_max_ms: i64,
    },
    /// The open attempt ended without money.
    PaymentClosed,
    /// The price was received.
    PaymentApplied,
    /// The price was received and refunded.
    PaymentRefunded,
    /// The deadline may have passed. The time is compared here.
    Due {
        extension_max_ms: i64,
    },
    Cancelled,
    /// Money was received for the ended order and is to be paid back: an event, and no other
    /// change.
    MoneyOwed,
}

/// The ends after which an order no longer counts for its buyer's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotReturns(i16);

impl SlotReturns {
    const ENDS: [OrderState; 3] =
        [OrderState::Cancelled, OrderState::TimedOut, OrderState::Refunded];

    /// `None`: one of the states is not an end.
    pub fn of(ends: &[OrderState]) -> Option<Self> {
        let bit = |state: &OrderState| Self::ENDS.contains(state).then(|| 1 << state.to_db());
        ends.iter().try_fold(0, |bits, state| Some(bits | bit(state)?)).map(Self)
    }

    pub fn contains(self, end: OrderState) -> bool {
        self.ends().any(|one| one == end)
    }

    pub fn ends(self) -> impl Iterator<Item = OrderState> {
        Self::ENDS.into_iter().filter(move |end| self.0 & (1 << end.to_db()) != 0)
    }

    /// One bit per state of an end, at the position of its number.
    pub fn to_db(self) -> i16 {
        self.0
    }

    /// `None`: a bit that is not an end.
    pub fn from_db(bits: i16) -> Option<Self> {
        let known = Self(bits).ends().fold(0, |known, end| known | 1 << end.to_db());
        (known == bits).then_some(Self(bits))
    }
}

impl Default for SlotReturns {
    /// After a cancellation and a time-out.
    fn default() -> Self {
        Self(1 << OrderState::Cancelled.to_db() | 1 << OrderState::TimedOut.to_db())
    }
}

/// One change of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderChange {
    pub before: Order,
    pub after: Order,
    /// Whether the buyer may not order in the sale any more.
    pub bars_buyer: bool,
}

impl OrderChange {
    /// Whether the order ended with this change.
    pub fn ends(&self) -> bool {
        self.before.state.is_live() && !self.after.state.is_live()
    }

    /// The units that return to the stock.
    pub fn units_back(&self) -> u32 {
        if self.ends() { self.after.quantity } else { 0 }
    }

    /// Whether the order stops counting for its buyer's limit.
    pub fn returns_limit(&self) -> bool {
        self.before.counts_for_limit && !self.after.counts_for_limit
    }
}

impl Sku {
    /// Whether an order that ends in this state stops counting for its buyer's limit, after so many
    /// ended orders of the buyer.
    pub fn returns_limit(&self, end: OrderState, num_ended: u32) -> bool {
        self.slot_returns.contains(end) && num_ended < u32::from(self.ends_max)
    }

    /// Whether an order that ends in this state bars its buyer.
    pub fn bars_after(&self, end: OrderState) -> bool {
        end == OrderState::TimedOut && self.bar_lapsed
    }
}

/// The change of an order of `sku` by a trigger at `now_ms`; `None`: the table has none.
/// `num_ended` is the number of the buyer's ended orders of the SKU.
#[must_use]
pub fn change(
    order: &Order,
    trigger: OrderTrigger,
    sku: &Sku,
    num_ended: u32,
    now_ms: i64,
) -> Option<OrderChange> {
    let (state, due_ms) = transition(order, trigger, now_ms)?;
    let mut after = Order { state, due_ms, version: order.version.checked_add(1)?, ..*order };
    let ends = order.state.is_live() && !state.is_live();
    // A bar alone stops the buyer: the limit is left to late money, which the bar does not stop.
    let bars_buyer = ends && sku.bars_after(state);
    if ends && sku.returns_limit(state, num_ended) {
        after.counts_for_limit = false;
        // Frees slot 0 for the buyer's next order; the row stays beside the buyer's other rows.
        after.slot = order.request.to_db();
    }
    Some(OrderChange { before: *order, after, bars_buyer })
}

/// The next state, and the deadline in it.
fn transition(
    order: &Order,
    trigger: OrderTrigger,
    now_ms: i64,
) -> Option<(OrderState, Option<i64>)> {
    use OrderState::{Cancelled, Paid, Paying, PendingPayment, Refunded, TimedOut};
    use OrderTrigger as On;
    let is_due = order.due_ms.is_some_and(|due_ms| due_ms <= now_ms);
    let pay_by_ms = order.pay_by_ms;
    let limit_ms = |extension_max_ms| {
        pay_by_ms.map_or(i64::MAX, |pay_by_ms| pay_by_ms.saturating_add(extension_max_ms))
    };
    match (order.state, trigger) {
        (PendingPayment, On::PaymentOpened { attempt, paying_window_ms, extension_max_ms })
            if !is_due && attempt <= ATTEMPTS_MAX =>
        {
            let extended_ms =
                now_ms.saturating_add(paying_window_ms).min(limit_ms(extension_max_ms));
            let is_first = attempt <= 1;
            let due_ms = pay_by_ms
                .map(|pay_by_ms| if is_first { pay_by_ms.max(extended_ms) } else { pay_by_ms });
            Some((Paying, due_ms))
        }
        (Paying, On::PaymentClosed) => Some((PendingPayment, pay_by_ms)),
        (PendingPayment | Paying, On::PaymentApplied) => Some((Paid, None)),
        (PendingPayment | Paying | Paid, On::PaymentRefunded) => Some((Refunded, None)),
        (PendingPayment, On::Due { .. }) if is_due => Some((TimedOut, None)),
        (Paying, On::Due { extension_max_ms })
            if is_due && limit_ms(extension_max_ms) <= now_ms =>
        {
            Some((TimedOut, None))
        }
        (PendingPayment, On::Cancelled) => Some((Cancelled, None)),
        (TimedOut | Cancelled | Refunded, On::MoneyOwed) => Some((order.state, None)),
        _ => None,
    }
}

named_enum! {
    /// Who changed an order.
    Actor {
        Buyer => "buyer",
        Timer => "timer",
        Provider => "provider",
    }
}

/// A committed event of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderEvent {
    /// Ascending, without gaps, in an order in which each order's versions ascend.
    pub feed_no: i64,
    /// The order as the event left it.
    pub order: Order,
    /// When the event happened, epoch milliseconds.
    pub at_ms: i64,
    pub actor: Actor,
    pub reason: Option<String>,
    /// The provider's id of the payment that caused the event.
    pub payment_id: Option<String>,
    /// Whether the event says that money of the ended order is to be paid back.
    pub is_unfulfilled: bool,
}
