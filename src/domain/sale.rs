//! A sale and the SKUs on offer.

use serde::Serialize;

use super::ids::{Epoch, SaleId, SkuId, SkuNo};
use super::policy::Policy;

/// Most buckets one SKU may have.
pub const BUCKETS_MAX: u16 = 256;

/// Most units one SKU may start with: sums stay exact in every backend.
pub const STOCK_MAX: u32 = 1_000_000_000;

/// Most SKUs in one sale.
pub const SKUS_MAX: usize = 200;

/// Where a sale stands by the operator's word; the window decides the rest.
///
/// With the epoch in front it is an ordered pair that only grows: an opening raises the epoch, and
/// within one the phases only go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Created, never opened.
    Draft = 0,
    /// Sells inside its window.
    Open = 1,
    /// Held; may be opened again.
    Paused = 2,
    /// Over, for good.
    Closed = 3,
}

impl Phase {
    /// Every phase, in the order of its number.
    pub const ALL: [Self; 4] = [Self::Draft, Self::Open, Self::Paused, Self::Closed];

    /// The number stored in the ledger.
    #[must_use]
    pub fn to_db(self) -> i16 {
        self as i16
    }

    /// Reads the number stored in the ledger.
    #[must_use]
    pub fn from_db(number: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.to_db() == number)
    }

    /// Whether an operator may move the sale from here to `next`. The same phase again is allowed,
    /// so that a repeated command does no harm.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        match (self, next) {
            (Self::Draft | Self::Open | Self::Paused, Self::Open | Self::Closed) => true,
            (Self::Open | Self::Paused, Self::Paused) => true,
            (from, to) => from == to,
        }
    }
}

/// A timed offer of one or more SKUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sale {
    /// The ledger's number.
    pub no: i32,
    /// The public name.
    pub id: SaleId,
    /// What buyers read.
    pub title: String,
    /// First instant of the window, epoch milliseconds.
    pub starts_at_ms: i64,
    /// First instant after the window, epoch milliseconds.
    pub ends_at_ms: i64,
    /// Where it stands by the operator's word.
    pub phase: Phase,
    /// The latest opening.
    pub epoch: Epoch,
    /// What is on offer.
    pub skus: Vec<Sku>,
}

/// The buckets of a closed sale are looked after for so long after its end: its buyers may still
/// ask what became of their requests.
const REMEMBERED_MS: i64 = 86_400_000;

impl Sale {
    /// Whether it has been over for so long that its buckets are not looked after any more.
    #[must_use]
    pub fn is_forgotten(&self, now_ms: i64) -> bool {
        self.phase == Phase::Closed && now_ms > self.ends_at_ms.saturating_add(REMEMBERED_MS)
    }

    /// The SKU with this public name.
    #[must_use]
    pub fn sku(&self, id: &str) -> Option<&Sku> {
        self.skus.iter().find(|sku| sku.id.as_str() == id)
    }
}

/// One article of a sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sku {
    /// The ledger's number, unique over all sales.
    pub no: SkuNo,
    /// The public name, unique within the sale.
    pub id: SkuId,
    /// What buyers read.
    pub title: String,
    /// Price of one unit, in the currency's smallest unit.
    pub price: i64,
    /// Units at the start.
    pub initial: u32,
    /// How much a buyer may have.
    pub policy: Policy,
    /// How many gates share the stock.
    pub buckets: u16,
    /// How long an order may stay unpaid, seconds.
    pub payment_window_s: i32,
    /// Whether a buyer who lets an order time out is barred from the sale.
    pub bar_lapsed: bool,
}

impl Sku {
    /// When an order placed then ends unpaid, epoch milliseconds.
    #[must_use]
    pub fn pay_by_ms(&self, placed_at_ms: i64) -> i64 {
        placed_at_ms.saturating_add(i64::from(self.payment_window_s).saturating_mul(1000))
    }

    /// The units of one bucket when `total` units are dealt out evenly; the first buckets get the
    /// remainder.
    #[must_use]
    pub fn share(&self, total: u32, bucket: u16) -> u32 {
        let buckets = u32::from(self.buckets.max(1));
        total / buckets + u32::from(u32::from(bucket) < total % buckets)
    }
}

/// A sale as an operator describes it, before the ledger numbers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaleDraft {
    /// The public name.
    pub id: SaleId,
    /// What buyers read.
    pub title: String,
    /// First instant of the window, epoch milliseconds.
    pub starts_at_ms: i64,
    /// First instant after the window, epoch milliseconds.
    pub ends_at_ms: i64,
    /// What is on offer.
    pub skus: Vec<SkuDraft>,
}

/// A SKU as an operator describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkuDraft {
    /// The public name.
    pub id: SkuId,
    /// What buyers read.
    pub title: String,
    /// Price of one unit, in the currency's smallest unit.
    pub price: i64,
    /// Units at the start.
    pub initial: u32,
    /// How much a buyer may have.
    pub policy: Policy,
    /// How many gates share the stock.
    pub buckets: u16,
    /// How long an order may stay unpaid, seconds.
    pub payment_window_s: i32,
    /// Whether a buyer who lets an order time out is barred from the sale.
    pub bar_lapsed: bool,
}

impl SaleDraft {
    /// Every fault of the description, each with what would be right; empty when it may be created.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.ends_at_ms <= self.starts_at_ms {
            faults.push("ends_at must be after starts_at".to_owned());
        }
        if self.title.is_empty() || self.title.len() > 200 {
            faults.push("title must be 1 to 200 bytes".to_owned());
        }
        if self.skus.is_empty() || self.skus.len() > SKUS_MAX {
            faults.push(format!("skus must be 1 to {SKUS_MAX}"));
        }
        for (index, sku) in self.skus.iter().enumerate() {
            if self.skus.iter().skip(index + 1).any(|other| other.id == sku.id) {
                faults.push(format!("sku_id {} occurs twice", sku.id));
            }
            faults.extend(sku.faults().into_iter().map(|fault| format!("sku {}: {fault}", sku.id)));
        }
        faults
    }
}

impl SkuDraft {
    fn faults(&self) -> Vec<String> {
        let checks = [
            (self.title.is_empty() || self.title.len() > 200, "title must be 1 to 200 bytes"),
            (
                !(0..=1_000_000_000_000).contains(&self.price),
                "price must be 0 to 1000000000000 smallest units of the currency",
            ),
            (
                !(1..=STOCK_MAX).contains(&self.initial),
                "initial_stock must be from 1 to 1000000000",
            ),
            (!(1..=BUCKETS_MAX).contains(&self.buckets), "buckets must be from 1 to 256"),
            (
                !(1..=2_592_000).contains(&self.payment_window_s),
                "payment_window_s must be from 1 to 2592000 (30 days)",
            ),
        ];
        checks.iter().filter(|(bad, _)| *bad).map(|(_, text)| (*text).to_owned()).collect()
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
