//! What the buckets of one SKU are compared with the ledger by.

use super::ids::BucketNo;
use super::loans::Loan;

/// The sums over the buckets of one SKU, read while the buckets did not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketFacts {
    /// Whether the buckets count units; otherwise only requests are compared.
    pub counts_units: bool,
    /// Free units, including open loans.
    pub left: u64,
    /// Requests without a result of the ledger.
    pub num_unsettled: u64,
    /// When the oldest of them arrived, epoch milliseconds.
    pub oldest_unsettled_ms: Option<i64>,
    pub num_ordered: u64,
    /// Buyers with units; `None` when the policy does not require the buckets to store buyers.
    pub num_buyers: Option<u64>,
    /// Units given back after a refusal.
    pub released_units: u64,
    /// Units given back by orders that ended.
    pub returned_units: u64,
    /// The number of the last change of the stock that every bucket has.
    pub change_no: i32,
    /// An open loan with its lender.
    pub open_loan: Option<(BucketNo, Loan)>,
}

/// A bucket's status of a request that has an order in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketView {
    Ordered {
        /// Whether the order holds its units there: an order that has ended may still do so, until
        /// its bucket reads the change.
        is_live: bool,
    },
    Queued,
    Failed,
    /// The bucket has no record of the request.
    Unknown,
}
