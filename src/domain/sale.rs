//! A sale and the SKUs on offer.

use std::ops::Range;
use std::sync::Arc;

use super::ids::{BucketNo, Epoch, SaleId, SkuId, SkuNo};
use super::lifecycle::SlotReturns;
use super::named::{ledger_numbers, named_enum};
use super::payment::Currency;
use super::policy::{Policy, SkuHistory, Terms};
use super::retention::Retention;

/// The maximum number of buckets of one SKU.
pub const BUCKETS_MAX: u16 = 256;

/// The maximum stock of one SKU: sums stay exact in every backend.
pub const STOCK_MAX: u32 = 1_000_000_000;

/// The maximum of `ends_max`.
const HIGHEST_ENDS_MAX: u16 = 1_000;

/// The maximum of `payment_window_s` and `queue_timeout_s`: 30 days.
const WINDOW_S_MAX: i32 = 2_592_000;

/// The maximum number of SKUs in one sale.
pub const SKUS_MAX: usize = 200;

/// The maximum amount of an order: a JSON number that every client reads exactly.
const AMOUNT_MAX: i64 = (1 << 53) - 1;

/// The maximum length of a title, as the columns of the ledger count it.
const TITLE_CHARS_MAX: usize = 200;

const TITLE_FAULT: &str =
    "title must be 1 to 200 characters, not blank, without control characters";

fn is_title(text: &str) -> bool {
    let has_control = text.contains(char::is_control);
    !has_control && !text.trim().is_empty() && text.chars().count() <= TITLE_CHARS_MAX
}

named_enum! {
    /// The phase of a sale as set by an operator, with its number in the ledger. The window
    /// additionally limits the selling time.
    ///
    /// The pair (epoch, phase) only increases: an opening, a change of terms and an earlier end
    /// increment the epoch, and within one epoch the phases only advance.
    Phase {
        /// Created, never opened.
        Draft = 0 => "draft",
        /// Sells inside its window.
        Open = 1 => "open",
        /// Stopped; may be opened again.
        Paused = 2 => "paused",
        /// Final.
        Closed = 3 => "closed",
    }
}
ledger_numbers! { Phase }

impl Phase {
    /// Whether an operator may change the phase to `next`. The same phase is allowed, so that a
    /// command can be repeated.
    pub fn may_become(self, next: Self) -> bool {
        match (self, next) {
            (Self::Draft | Self::Open | Self::Paused, Self::Open | Self::Closed) => true,
            (Self::Open | Self::Paused, Self::Paused) => true,
            (from, to) => from == to,
        }
    }

    /// What operators can do to a sale in this phase, for a message.
    pub fn possible_now(self) -> String {
        let others = [Self::Open, Self::Paused, Self::Closed].into_iter();
        let possible = others.filter(|next| *next != self && self.may_become(*next));
        let verbs: Vec<_> = possible.map(Self::verb).collect();
        if verbs.is_empty() {
            return "that is final: create another sale".to_owned();
        }
        format!("possible now: {}", verbs.join(", "))
    }

    /// The operator's verb that sets this phase.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Draft => "create",
            Self::Open => "open",
            Self::Paused => "pause",
            Self::Closed => "close",
        }
    }
}

/// A timed offer of one or more SKUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sale {
    pub no: i32,
    pub id: SaleId,
    pub title: String,
    /// First instant of the window, epoch milliseconds.
    pub starts_at_ms: i64,
    /// First instant after the window, epoch milliseconds.
    pub ends_at_ms: i64,
    /// When an operator closed it, epoch milliseconds.
    pub closed_at_ms: Option<i64>,
    pub phase: Phase,
    /// Of the latest opening, change of terms or earlier end.
    pub epoch: Epoch,
    /// Of every price and amount.
    pub currency: Currency,
    /// Whether a purchase requires a ticket.
    pub ticket_required: bool,
    /// Whether its rows are archived or deleted.
    pub retention: Retention,
    /// Shared with the gates.
    pub skus: Vec<Arc<Sku>>,
}

/// How long a sale is shown after its end, and a closed one has gates: buyers still ask for the
/// status of their requests.
const SHOWN_MS: i64 = 86_400_000;

fn is_long_ago(at_ms: i64, now_ms: i64) -> bool {
    now_ms > at_ms.saturating_add(SHOWN_MS)
}

impl Sale {
    /// Whether buyers see the sale: it was opened, is not purged, nor over for more than a day, by
    /// its window or because an operator closed it.
    pub fn is_public(&self, now_ms: i64) -> bool {
        let over_at_ms = self.closed_at_ms.map_or(self.ends_at_ms, |at| at.min(self.ends_at_ms));
        self.has_buckets() && !is_long_ago(over_at_ms, now_ms)
    }

    /// Whether nothing is sold any more: the sale is closed, or its window is over.
    pub fn is_over(&self, now_ms: i64) -> bool {
        self.phase == Phase::Closed || now_ms >= self.ends_at_ms
    }

    /// Whether the sale is closed and past its window for long, or purged: it has no gates any
    /// more, and its requests are rarely read.
    pub fn is_dormant(&self, now_ms: i64) -> bool {
        let is_long_closed = self.phase == Phase::Closed && is_long_ago(self.ends_at_ms, now_ms);
        self.retention.is_purged() || is_long_closed
    }

    /// Whether the sale has buckets: it was opened, and is not purged.
    pub fn has_buckets(&self) -> bool {
        self.epoch > Epoch(0) && !self.retention.is_purged()
    }

    /// Whether the sale is as it was created from this description.
    pub fn is_new(&self, draft: &SaleDraft) -> bool {
        let described = SaleDraft {
            id: self.id.clone(),
            title: self.title.clone(),
            starts_at_ms: self.starts_at_ms,
            ends_at_ms: self.ends_at_ms,
            currency: self.currency,
            ticket_required: self.ticket_required,
            skus: self.skus.iter().map(|sku| sku.draft()).collect(),
        };
        self.phase == Phase::Draft && described == *draft
    }

    /// The SKU with this public name.
    pub fn sku(&self, id: &str) -> Option<&Arc<Sku>> {
        self.skus.iter().find(|sku| sku.id.as_str() == id)
    }
}

/// One article of a sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sku<No = SkuNo> {
    /// The number in the ledger, unique over all sales.
    pub no: No,
    /// Unique within the sale.
    pub id: SkuId,
    pub title: String,
    /// Price of one unit, in the currency's smallest unit.
    pub price: i64,
    /// The units at the creation, and those of every change of the stock since.
    pub initial: u32,
    pub policy: Policy,
    /// Number of buckets that share the stock; each has its own gate.
    pub buckets: u16,
    /// How long an order may stay unpaid, seconds from its commit; 0: no limit.
    pub payment_window_s: i32,
    /// Whether a buyer whose order timed out is barred from the sale.
    pub bar_lapsed: bool,
    /// The ends after which an order no longer counts for its buyer's limit.
    pub slot_returns: SlotReturns,
    /// After this number of a buyer's ended orders the limit does not return any more.
    pub ends_max: u16,
    /// How long a request may stay queued, seconds from its acceptance; 0: no limit.
    pub queue_timeout_s: i32,
    /// What has changed since the creation.
    pub history: SkuHistory,
}

impl Sku {
    /// The units of one bucket when `total` units are distributed evenly; the first buckets get the
    /// remainder.
    pub fn share(&self, total: u32, bucket: u16) -> u32 {
        let buckets = u32::from(self.buckets.max(1));
        total / buckets + u32::from(u32::from(bucket) < total % buckets)
    }

    /// The SKU without its number.
    fn draft(&self) -> SkuDraft {
        Sku {
            no: (),
            id: self.id.clone(),
            title: self.title.clone(),
            price: self.price,
            initial: self.initial,
            policy: self.policy,
            buckets: self.buckets,
            payment_window_s: self.payment_window_s,
            bar_lapsed: self.bar_lapsed,
            slot_returns: self.slot_returns,
            ends_max: self.ends_max,
            queue_timeout_s: self.queue_timeout_s,
            history: self.history.clone(),
        }
    }
}

/// A sale as an operator describes it, before the ledger assigns numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaleDraft {
    pub id: SaleId,
    pub title: String,
    /// First instant of the window, epoch milliseconds.
    pub starts_at_ms: i64,
    /// First instant after the window, epoch milliseconds.
    pub ends_at_ms: i64,
    pub currency: Currency,
    /// Whether a purchase requires a ticket.
    pub ticket_required: bool,
    pub skus: Vec<SkuDraft>,
}

/// A SKU as an operator describes it, before the ledger assigns its number.
pub type SkuDraft = Sku<()>;

impl SaleDraft {
    /// Every validation error, each with the accepted range; empty when the draft is valid.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = window_and_title_faults(&self.title, self.starts_at_ms, self.ends_at_ms);
        if self.skus.is_empty() || self.skus.len() > SKUS_MAX {
            faults.push(format!("skus must be 1 to {SKUS_MAX}"));
        }
        for (index, sku) in self.skus.iter().enumerate() {
            if self.skus.iter().skip(index + 1).any(|other| other.id == sku.id) {
                faults.push(format!("sku_id {} occurs twice", sku.id));
            }
            let no_stock = !(1..=STOCK_MAX).contains(&sku.initial);
            let no_stock =
                no_stock.then(|| "initial_stock must be from 1 to 1000000000".to_owned());
            let of_sku = sku.faults().into_iter().chain(no_stock);
            faults.extend(of_sku.map(|fault| format!("sku {}: {fault}", sku.id)));
        }
        faults
    }
}

/// Why a request that arrived at this time was outside the window; `None`: inside.
pub(super) fn window_fault(window: &Range<i64>, placed_at_ms: i64) -> Option<String> {
    let Range { start, end } = *window;
    if placed_at_ms < start {
        Some(format!("arrived {} ms before the window", start.abs_diff(placed_at_ms)))
    } else if placed_at_ms >= end {
        Some(format!("arrived {} ms after the window", placed_at_ms.abs_diff(end)))
    } else {
        None
    }
}

/// The faults of a sale's own columns.
pub(super) fn window_and_title_faults(
    title: &str,
    starts_at_ms: i64,
    ends_at_ms: i64,
) -> Vec<String> {
    let checks = [
        (ends_at_ms <= starts_at_ms, "ends_at must be after starts_at"),
        (!is_title(title), TITLE_FAULT),
    ];
    checks.iter().filter(|(bad, _)| *bad).map(|(_, text)| (*text).to_owned()).collect()
}

impl<No> Sku<No> {
    /// The present terms.
    pub fn terms(&self) -> Terms {
        Terms {
            price: self.price,
            limit: self.policy.quota(),
            max_quantity: self.policy.max_quantity(),
            payment_window_s: self.payment_window_s,
        }
    }

    /// The terms of an epoch.
    pub fn terms_in(&self, epoch: Epoch) -> Terms {
        self.history.terms_in(epoch).unwrap_or_else(|| self.terms())
    }

    /// The units at the creation. The pages of the buckets are planned for these, so that a change
    /// of the stock moves no record.
    pub fn planned_units(&self) -> u32 {
        self.initial.saturating_add_signed(self.history.changed_units.saturating_neg())
    }

    /// The faults of all columns but the stock.
    pub(super) fn faults(&self) -> Vec<String> {
        let amount_max = self.price.saturating_mul(i64::from(self.policy.units_max()));
        let checks = [
            (!is_title(&self.title), TITLE_FAULT),
            (
                !(0..=1_000_000_000_000).contains(&self.price),
                "price must be 0 to 1000000000000 smallest units of the currency",
            ),
            (amount_max > AMOUNT_MAX, "price times max_quantity must be at most 9007199254740991"),
            (!(1..=BUCKETS_MAX).contains(&self.buckets), "buckets must be from 1 to 256"),
            (
                !(0..=WINDOW_S_MAX).contains(&self.payment_window_s),
                "payment_window_s must be from 0 (no limit) to 2592000 (30 days)",
            ),
            (self.ends_max > HIGHEST_ENDS_MAX, "ends_max must be from 0 to 1000"),
            (
                !(0..=WINDOW_S_MAX).contains(&self.queue_timeout_s),
                "queue_timeout_s must be from 0 (no limit) to 2592000 (30 days)",
            ),
        ];
        checks.iter().filter(|(bad, _)| *bad).map(|(_, text)| (*text).to_owned()).collect()
    }
}

/// One bucket of one SKU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketKey {
    pub sku: SkuNo,
    pub bucket: BucketNo,
}

impl BucketKey {
    /// Every bucket of a SKU.
    pub fn all_of(sku: &Sku) -> impl Iterator<Item = Self> + use<> {
        let no = sku.no;
        (0..sku.buckets).map(move |bucket| Self { sku: no, bucket: BucketNo(bucket) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::samples;

    #[test]
    fn shares_add_up_to_the_total() {
        let sku = |buckets| Sku { buckets, ..samples::sku() };
        for buckets in [1, 3, 7, 64] {
            for total in [0, 1, 5, 100, 1001] {
                let sum: u32 = (0..buckets).map(|b| sku(buckets).share(total, b)).sum();
                assert_eq!(sum, total, "{total} over {buckets}");
            }
        }
    }

    #[test]
    fn a_closed_sale_stays_closed() {
        for next in [Phase::Draft, Phase::Open, Phase::Paused] {
            assert!(!Phase::Closed.may_become(next));
        }
        assert!(Phase::Closed.may_become(Phase::Closed));
        assert!(!Phase::Draft.may_become(Phase::Paused));
    }
}
