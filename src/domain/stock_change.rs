//! Changes of a SKU's stock while the sale runs.
//!
//! Units enter the ledger before the buckets, and leave the buckets before the ledger: at every
//! instant the buckets hold at most the units of the ledger.

use super::ids::{BucketNo, LoaderToken, SkuNo};
use super::loans::Loan;
use super::sale::{STOCK_MAX, Sku};

/// A change of a SKU's stock, as an operator asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StockChangeRequest {
    /// Names the change among those of the SKU: a repeat with the same id changes nothing.
    pub id: String,
    pub sku: SkuNo,
    /// Units to add; negative: to take out.
    pub wanted: i32,
    /// Of the units to take out, those that the buckets gave up.
    pub withdrawn: u32,
    /// The load of the buckets that gave them up; `None`: no other process loads buckets.
    pub load: Option<LoaderToken>,
    pub reason: Option<String>,
    /// The name of the operator's token.
    pub operator: Option<String>,
    /// Epoch milliseconds.
    pub at_ms: i64,
}

/// A change of a SKU's stock, as the ledger recorded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StockChange {
    pub sku: SkuNo,
    /// Counted by SKU, from 1.
    pub no: i32,
    pub wanted: i32,
    /// The units that were added; negative: taken out.
    pub units: i32,
}

impl StockChange {
    /// The units that a bucket adds. Units that were taken out left the buckets before the change.
    pub fn share(&self, sku: &Sku, bucket: BucketNo) -> u32 {
        sku.share(u32::try_from(self.units).unwrap_or(0), bucket.0)
    }
}

/// The result of a change of the stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StockChangeOutcome {
    Recorded(StockChange),
    /// The change was recorded before; nothing was written.
    Repeat(StockChange),
    /// The id names a change of other units.
    OtherContent,
    /// The sale is closed.
    Closed,
    /// The buckets were loaded since they gave up the units, and have them again.
    Reloaded,
    /// The stock would exceed [`STOCK_MAX`].
    TooMany,
}

impl StockChangeRequest {
    /// The outcome of a request whose id is recorded.
    pub fn repeats(&self, recorded: StockChange) -> StockChangeOutcome {
        if recorded.wanted == self.wanted {
            StockChangeOutcome::Repeat(recorded)
        } else {
            StockChangeOutcome::OtherContent
        }
    }

    /// The units that change, with `initial` and `available` units in the ledger; `None`: too many.
    pub fn units(&self, initial: i32, available: i32) -> Option<i32> {
        if self.wanted < 0 {
            let withdrawn = i32::try_from(self.withdrawn).unwrap_or(i32::MAX);
            return Some(-withdrawn.min(available).min(self.wanted.saturating_neg()));
        }
        let sum = initial.checked_add(self.wanted)?;
        u32::try_from(sum).is_ok_and(|sum| sum <= STOCK_MAX).then_some(self.wanted)
    }
}

/// How many of `units` each bucket gives up, in proportion to its free units.
pub fn withdrawn_from(free: &[u32], units: u32) -> Vec<u32> {
    let mut left = free.iter().map(|units| u64::from(*units)).sum::<u64>();
    let mut rest = u64::from(units).min(left);
    let give_up = |free: &u32| {
        let share = (rest * u64::from(*free)).div_ceil(left.max(1)).min(rest);
        left -= u64::from(*free);
        rest -= share;
        u32::try_from(share).unwrap_or(*free)
    };
    free.iter().map(give_up).collect()
}

/// Free units that buckets gave up for the ledger, as loans to [`BucketNo::LEDGER`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Withdrawal {
    pub units: u32,
    pub loans: Vec<(BucketNo, Loan)>,
    /// The load of these buckets; `None`: no other process loads them.
    pub load: Option<LoaderToken>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_give_up_units_in_proportion_and_never_more_than_they_have() {
        for (free, units, expected) in [
            (vec![10, 10], 6, vec![3, 3]),
            (vec![1, 9], 5, vec![1, 4]),
            (vec![0, 3], 5, vec![0, 3]),
            (vec![5, 0, 5], 1, vec![1, 0, 0]),
            (vec![u32::MAX, 7], u32::MAX, vec![u32::MAX - 6, 6]),
            (vec![], 4, vec![]),
        ] {
            assert_eq!(withdrawn_from(&free, units), expected, "{free:?} {units}");
        }
    }

    #[test]
    fn the_ledger_gives_up_only_what_it_has_and_knows_its_changes_by_their_units() {
        let request = |wanted, withdrawn| StockChangeRequest {
            id: "change".to_owned(),
            sku: SkuNo(1),
            wanted,
            withdrawn,
            load: None,
            reason: None,
            operator: None,
            at_ms: 0,
        };
        assert_eq!(request(5, 0).units(10, 3), Some(5));
        assert_eq!(request(5, 0).units(STOCK_MAX.cast_signed() - 4, 3), None);
        assert_eq!(request(-5, 4).units(10, 7), Some(-4));
        assert_eq!(request(-5, 4).units(10, 3), Some(-3));
        assert_eq!(request(-5, 9).units(10, 10), Some(-5));

        let recorded = StockChange { sku: SkuNo(1), no: 1, wanted: 5, units: 5 };
        assert_eq!(request(5, 0).repeats(recorded), StockChangeOutcome::Repeat(recorded));
        let other = StockChange { wanted: 6, units: 6, ..recorded };
        assert_eq!(request(5, 0).repeats(other), StockChangeOutcome::OtherContent);
    }
}
