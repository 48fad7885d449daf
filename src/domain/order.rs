//! The values of a purchase, in order: an order intent, the gate's verdict, the ledger's outcome,
//! and an order or a recorded failure. Refusals are values: counted, never logged as errors.

use super::ids::{BucketNo, BuyerId, Epoch, RequestId, SkuNo, TraceId};
use super::named::{ledger_numbers, named_enum};
use super::policy::Terms;
use super::request_record::RequestRecord;
use super::sale::{Sale, Sku, window_fault};

/// How far outside its sale's window an accepted request is still written, milliseconds, and left
/// to the audit: a process that does not read the ledger for a while sells by the old window.
pub const WINDOW_SLACK_MS: i64 = 60_000;

/// A gate's answer to one intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Units are reserved for this request.
    Reserved,
    /// The request was accepted before, and is an order or has failed; no further units were
    /// reserved.
    Repeat(RequestRecord),
    /// The request was accepted before, and the ledger has not decided it; no further units were
    /// reserved. `intent`: what was accepted, if the stock has no outbox and keeps it.
    Queued { intent: Option<OrderIntent> },
    /// Final.
    Refused(Refusal),
    /// The epochs of the intent and of the bucket differ; nothing was decided.
    StaleEpoch,
    /// This bucket has fewer units than requested; other buckets may have them.
    Short,
    /// Too many accepted requests wait for the broker; nothing was reserved. Retry later.
    Full,
}

/// Why a request is refused. Final: a refused request holds no units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Fewer units than requested are left in all buckets and transfers together.
    SoldOut,
    /// The buyer already has an order, and the policy allows one.
    AlreadyPurchased {
        /// The request of the existing order.
        first: RequestId,
    },
    /// The order would exceed the buyer's quota.
    QuotaExceeded {
        /// Units of the buyer's accepted requests and live orders.
        owned: u32,
        /// The buyer's quota of units.
        limit: u32,
    },
    /// The request id was used with another SKU or quantity, or by another buyer.
    RequestIdReused,
    /// The sale is not open: before its window, or paused.
    NotStarted,
    Ended,
    /// An operator discarded the dead letter that contained the request.
    Discarded,
    /// An order of the buyer timed out, and the sale bars such buyers.
    Barred,
    /// The buyer cancelled the request while it was queued.
    CancelledByBuyer,
    /// The request was queued for longer than the SKU allows.
    QueueTimeout,
}

impl Refusal {
    /// The stable code of the HTTP API.
    pub fn code(&self) -> &'static str {
        match self {
            Self::SoldOut => "sold-out",
            Self::AlreadyPurchased { .. } => "already-purchased",
            Self::QuotaExceeded { .. } => "quota-exceeded",
            Self::RequestIdReused => "request-id-reused",
            Self::NotStarted => "not-started",
            Self::Ended => "ended",
            Self::Discarded => "discarded",
            Self::Barred => "barred",
            Self::CancelledByBuyer => "cancelled-by-buyer",
            Self::QueueTimeout => "queue-timeout",
        }
    }

    /// Whether the request was ended before the ledger decided it: its buyer may buy again.
    pub fn is_undecided(&self) -> bool {
        matches!(self, Self::Discarded | Self::CancelledByBuyer | Self::QueueTimeout)
    }
}

/// A purchase with its terms: the gate reserves its units, then the ledger writes it as an order.
/// Contains all that a gate needs to decide it, and every column of the row, so that any consumer
/// can write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderIntent {
    /// At most one order has this request id; a repeat carries the same.
    pub request: RequestId,
    pub sku: SkuNo,
    /// The buyer's home bucket, which reserves the units.
    pub bucket: BucketNo,
    /// The epoch of the sale in the sender's catalog; a bucket with another epoch answers
    /// [`Verdict::StaleEpoch`].
    pub epoch: Epoch,
    pub buyer: BuyerId,
    /// Units, at least 1.
    pub quantity: u32,
    /// Unique with `(sku, buyer)`; see [`super::Policy::slot`].
    pub slot: i64,
    /// The buyer's limit of units, if the policy has one.
    pub quota: Option<u32>,
    /// Price times quantity, in the currency's smallest unit.
    pub amount: i64,
    /// When the request arrived, epoch milliseconds.
    pub placed_at_ms: i64,
    /// How long the order may stay unpaid, seconds from its commit; 0: no limit.
    pub payment_window_s: i32,
    /// The trace of the HTTP request.
    pub trace: TraceId,
    /// When the message with this intent was published, epoch milliseconds; `None` without a
    /// broker. Not part of the encoded intent: each copy of a message has its own time.
    pub published_at_ms: Option<i64>,
}

impl OrderIntent {
    /// The key of the order that this intent writes.
    pub fn key(&self) -> OrderKey {
        OrderKey { sku: self.sku, buyer: self.buyer, request: self.request }
    }

    /// The order row that this intent writes at `recorded_at_ms`. Its payment window begins then,
    /// and never before the time of the gate: a ledger writer whose clock is behind ends no order
    /// early.
    pub fn order(&self, recorded_at_ms: i64) -> Order {
        let begins_at_ms = recorded_at_ms.max(self.placed_at_ms);
        let window_ms = i64::from(self.payment_window_s) * 1_000;
        let pay_by_ms = (window_ms > 0).then(|| begins_at_ms.saturating_add(window_ms));
        Order {
            request: self.request,
            sku: self.sku,
            epoch: self.epoch,
            buyer: self.buyer,
            quantity: self.quantity,
            slot: self.slot,
            amount: self.amount,
            state: OrderState::PendingPayment,
            placed_at_ms: self.placed_at_ms,
            pay_by_ms,
            version: 0,
            due_ms: pay_by_ms,
            counts_for_limit: true,
        }
    }

    /// The record of this intent's request, refused for this reason at `recorded_at_ms`.
    pub fn failure(&self, reason: Refusal, recorded_at_ms: i64) -> Failure {
        Failure {
            request: self.request,
            sku: self.sku,
            buyer: self.buyer,
            quantity: self.quantity,
            reason,
            recorded_at_ms,
        }
    }

    /// How this intent differs from the one that a gate makes for its SKU, under the terms of the
    /// intent's epoch; `None`: not at all. `latest` is the latest epoch of the sale.
    pub fn contradiction(&self, sku: &Sku, latest: Epoch) -> Option<String> {
        let max = sku.terms_in(self.epoch).max_quantity;
        let Self { request, buyer, epoch, quantity, placed_at_ms, .. } = *self;
        let OrderIntent { bucket, slot, quota, amount, payment_window_s: window_s, .. } =
            sku.intent(request, buyer, epoch, quantity, placed_at_ms);
        Some(if self.quantity > max {
            format!("quantity {} is more than {max}", self.quantity)
        } else if self.epoch < Epoch(1) || self.epoch > latest {
            format!("epoch {} is none of 1 to {}", self.epoch.0, latest.0)
        } else if self.bucket != bucket {
            format!("bucket {}, the buyer's is {bucket}", self.bucket)
        } else if self.slot != slot {
            format!("slot {}, the policy's is {slot}", self.slot)
        } else if self.quota != quota {
            let named = |quota: Option<u32>| quota.map_or("none".to_owned(), |it| it.to_string());
            format!("quota {}, the policy's is {}", named(self.quota), named(quota))
        } else if self.amount != amount {
            format!("amount {}, price times quantity is {amount}", self.amount)
        } else if self.payment_window_s != window_s {
            format!("payment within {} s, the SKU says {window_s} s", self.payment_window_s)
        } else {
            return None;
        })
    }

    /// How far outside the window of its sale the request was accepted, if by more than
    /// [`WINDOW_SLACK_MS`]; `None`: it was not.
    pub fn window_contradiction(&self, sale: &Sale) -> Option<String> {
        let window = sale.starts_at_ms..sale.ends_at_ms;
        let (start, end) = (window.start, window.end);
        let tolerated = start.saturating_sub(WINDOW_SLACK_MS)..end.saturating_add(WINDOW_SLACK_MS);
        let fault = window_fault(&window, self.placed_at_ms);
        fault.filter(|_| !tolerated.contains(&self.placed_at_ms))
    }
}

impl Sku {
    /// The order intent of a request, under the terms of its epoch; without a trace.
    pub fn intent(
        &self,
        request: RequestId,
        buyer: BuyerId,
        epoch: Epoch,
        quantity: u32,
        placed_at_ms: i64,
    ) -> OrderIntent {
        let Terms { price, limit: quota, payment_window_s, .. } = self.terms_in(epoch);
        OrderIntent {
            request,
            sku: self.no,
            bucket: BucketNo::home_of(buyer, self.buckets),
            epoch,
            buyer,
            quantity,
            slot: self.policy.slot(request),
            quota,
            amount: price.saturating_mul(i64::from(quantity)),
            placed_at_ms,
            payment_window_s,
            trace: TraceId(0),
            published_at_ms: None,
        }
    }
}

/// The ledger's outcome of one intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceOutcome {
    Placed(Order),
    /// The request already had this order: success.
    Repeat(Order),
    /// Final.
    Refused(Refusal),
}

impl PlaceOutcome {
    /// The order of `Placed` and `Repeat`.
    pub fn order(&self) -> Option<&Order> {
        match self {
            Self::Placed(order) | Self::Repeat(order) => Some(order),
            Self::Refused(_) => None,
        }
    }
}

/// An order row of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    pub request: RequestId,
    pub sku: SkuNo,
    pub epoch: Epoch,
    pub buyer: BuyerId,
    pub quantity: u32,
    pub slot: i64,
    pub amount: i64,
    pub state: OrderState,
    pub placed_at_ms: i64,
    /// The payment deadline without a payment, epoch milliseconds; `None`: no deadline.
    pub pay_by_ms: Option<i64>,
    /// The number of changes since the order was placed.
    pub version: u16,
    /// When the order ends unless it is paid, epoch milliseconds; an open payment extends it beyond
    /// `pay_by_ms`. `None`: paid, ended, or without a deadline.
    pub due_ms: Option<i64>,
    /// Whether the order counts for its buyer's limit; an ended order may still count.
    pub counts_for_limit: bool,
}

/// A request with its SKU and buyer: what finds its order along the ledger's primary key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderKey {
    pub sku: SkuNo,
    pub buyer: BuyerId,
    pub request: RequestId,
}

impl Order {
    pub fn key(&self) -> OrderKey {
        OrderKey { sku: self.sku, buyer: self.buyer, request: self.request }
    }

    /// Until when the buyer can pay, epoch milliseconds: an open payment extends the deadline.
    pub fn pay_until_ms(&self) -> Option<i64> {
        if self.state == OrderState::Paying { self.due_ms } else { self.pay_by_ms }
    }

    /// Whether `intent` has the same request, SKU, buyer and quantity.
    pub fn answers(&self, intent: &OrderIntent) -> bool {
        (self.key(), self.quantity) == (intent.key(), intent.quantity)
    }
}

named_enum! {
    /// The state of an order, with its number in the ledger and its name in the HTTP API.
    OrderState {
        /// Placed; the payment is due until `pay_by_ms`.
        PendingPayment = 0 => "pending_payment",
        Paid = 1 => "paid",
        /// Not paid in time; its units are free again.
        TimedOut = 2 => "timed_out",
        /// Cancelled by the buyer before payment; its units are free again.
        Cancelled = 3 => "cancelled",
        /// Paid and refunded; its units are free again.
        Refunded = 4 => "refunded",
        /// A payment attempt is open.
        Paying = 5 => "paying",
    }
}
ledger_numbers! { OrderState }

impl OrderState {
    /// Whether the order still holds its units.
    pub fn is_live(self) -> bool {
        self == Self::Paid || self.is_unpaid()
    }

    /// Whether money can still pay the order.
    pub fn is_unpaid(self) -> bool {
        matches!(self, Self::PendingPayment | Self::Paying)
    }
}

/// The record of an accepted request that did not become an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    pub request: RequestId,
    pub sku: SkuNo,
    pub buyer: BuyerId,
    pub quantity: u32,
    pub reason: Refusal,
    /// Epoch milliseconds.
    pub recorded_at_ms: i64,
}

/// An order with its times from the HTTP request to the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderTimeline {
    /// `placed_at_ms` is the start of the timeline.
    pub order: Order,
    /// The trace of the HTTP request.
    pub trace: TraceId,
    /// When the message with the intent was published, epoch milliseconds; `None` without a broker.
    pub published_at_ms: Option<i64>,
    /// When the row was written, epoch milliseconds.
    pub recorded_at_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::super::samples::intent;
    use super::*;

    #[test]
    fn the_payment_window_begins_with_the_later_of_two_clocks() {
        let placed = intent(1);
        let at_ms = placed.placed_at_ms;
        let pay_by_ms = |recorded_at_ms: i64| placed.order(recorded_at_ms).pay_by_ms;
        assert_eq!(pay_by_ms(at_ms + 40_000), Some(at_ms + 940_000), "it waited in the broker");
        assert_eq!(pay_by_ms(at_ms - 3_600_000), Some(at_ms + 900_000), "the writer is behind");
        let endless = OrderIntent { payment_window_s: 0, ..placed };
        assert_eq!(endless.order(at_ms).pay_by_ms, None);
    }
}
