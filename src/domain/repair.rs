//! What an audit finds, and what it does about it.

use super::ids::{RequestId, SkuNo};
use super::named::{ledger_numbers, named_enum};

named_enum! {
    /// How the stores contradict each other.
    AuditVerdict {
        /// An accepted request, or units, are in no store that goes on with them.
        Leak = 1 => "leak",
        /// The ledger holds more than the sale allows: units beyond the stock, orders beyond a
        /// limit, outside the sale's time, or with other terms.
        OverSell = 2 => "over_sell",
        /// Two records of one fact differ: of a request, or of a count.
        Drift = 3 => "drift",
    }
}

named_enum! {
    /// What a repair does. Each action may be repeated.
    RepairAction {
        /// Writes the request to the ledger, which places or refuses it.
        Submit => "submit",
        /// Adds lent units to the bucket that borrowed them.
        FinishTransfers => "finish_transfers",
        /// Sets a count of the ledger to what its orders say.
        Recount => "recount",
        /// Loads the buckets of the SKU from the ledger.
        LoadBuckets => "load_buckets",
        /// Records the contradiction for an operator.
        Record => "record",
    }
}

named_enum! {
    /// The end of a repair.
    RepairOutcome {
        /// The stores agree again.
        Compensated = 1 => "compensated",
        /// Final: no repair gives what was promised; an operator decides.
        FailedFinal = 2 => "failed_final",
    }
}
ledger_numbers! { AuditVerdict RepairOutcome }

/// A repair, as the ledger records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    pub sku: SkuNo,
    /// `None`: the repair of a count.
    pub request: Option<RequestId>,
    pub verdict: AuditVerdict,
    pub action: RepairAction,
    pub outcome: RepairOutcome,
    /// The contradiction and the result, at most [`DETAIL_CHARS_MAX`] characters.
    pub detail: String,
    /// Epoch milliseconds.
    pub at_ms: i64,
}

/// Most characters of a repair's detail that the ledger keeps.
pub const DETAIL_CHARS_MAX: usize = 1000;
