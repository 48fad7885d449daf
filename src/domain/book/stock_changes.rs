//! Units that enter and leave the stock of a book while the sale runs.

use super::{Book, BucketNo};
use crate::domain::Loan;

impl Book {
    pub fn available(&self) -> u32 {
        self.available
    }

    /// Lends up to `max_units` to the ledger, so that they can leave the stock. `None` if no unit
    /// is free, or while such a loan is open.
    pub fn withdraw(&mut self, max_units: u32) -> Option<Loan> {
        let units = max_units.min(self.available);
        let (loan, is_new) = self.loans.lend(BucketNo::LEDGER, units)?;
        let loan = is_new.then_some(loan)?;
        self.available -= loan.units;
        Some(loan)
    }

    /// Ends a loan to the ledger; its units are free again unless the ledger has recorded it.
    pub fn end_withdrawal(&mut self, loan: Loan, is_recorded: bool) {
        if self.loans.clear(BucketNo::LEDGER, loan.no) && !is_recorded {
            self.available = self.available.saturating_add(loan.units);
        }
    }

    /// Adds the bucket's units of a change of the SKU's stock, once, in the order of the changes.
    pub fn change_stock(&mut self, no: i32, units: u32) {
        if no == self.change_no + 1 {
            self.change_no = no;
            self.give_back(units);
        }
    }

    pub fn change_no(&self) -> i32 {
        self.change_no
    }

    /// Sets the last change of the SKU's stock that these units contain.
    pub fn load_change(&mut self, no: i32) {
        self.change_no = no;
    }
}
