//! Transfers of units between buckets, each counted exactly once.
//!
//! The lender numbers its loans and keeps at most one open per borrower; the borrower stores the
//! highest number that it added from each lender. A step that arrives twice or late therefore
//! changes nothing, and no record per loan is required to detect it.

use std::collections::BTreeMap;

use super::ids::BucketNo;

/// Units in transfer from one bucket to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loan {
    /// Counted by the lender, from 1.
    pub no: u64,
    pub units: u32,
}

/// The loans of one bucket, as lender and as borrower.
#[derive(Debug, Clone, Default)]
pub(super) struct Loans {
    open: BTreeMap<BucketNo, Loan>,
    last_no: u64,
    borrowed: BTreeMap<BucketNo, u64>,
}

impl Loans {
    /// The open loan to this borrower, or a new one of `units`; and whether it is new. `None` when
    /// no loan is open and `units` is 0.
    pub(super) fn lend(&mut self, to: BucketNo, units: u32) -> Option<(Loan, bool)> {
        if let Some(open) = self.open.get(&to) {
            return Some((*open, false));
        }
        if units == 0 {
            return None;
        }
        self.last_no += 1;
        let loan = Loan { no: self.last_no, units };
        self.open.insert(to, loan);
        Some((loan, true))
    }

    /// The units that a loan adds: 0 when its number is not higher than the last from this lender.
    pub(super) fn borrow(&mut self, from: BucketNo, loan: Loan) -> u32 {
        let last = self.borrowed.entry(from).or_default();
        if loan.no <= *last {
            return 0;
        }
        *last = loan.no;
        loan.units
    }

    /// Whether this call cleared the loan.
    pub(super) fn clear(&mut self, to: BucketNo, no: u64) -> bool {
        let is_open = self.open.get(&to).is_some_and(|loan| loan.no == no);
        if is_open {
            self.open.remove(&to);
        }
        is_open
    }

    pub(super) fn open(&self) -> impl Iterator<Item = (BucketNo, Loan)> + '_ {
        self.open.iter().map(|(to, loan)| (*to, *loan))
    }

    /// Units of all open loans.
    pub(super) fn units(&self) -> u32 {
        self.open.values().map(|loan| loan.units).sum()
    }
}
