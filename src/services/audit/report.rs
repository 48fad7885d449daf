//! The report of an audit, and what the check of each invariant is based on.

use serde::Serialize;

use crate::domain::invariants::Violation;
use crate::domain::{AuditVerdict, InvariantId, RepairAction, RepairOutcome};

/// Result of an audit.
#[derive(Debug, Clone, Serialize)]
pub struct AuditReport {
    /// Whether every checked invariant holds.
    pub holds: bool,
    /// Whether every invariant could be checked.
    pub could_tell: bool,
    /// Time of the audit, RFC 3339.
    pub checked_at: String,
    /// The same, epoch milliseconds.
    pub checked_at_ms: i64,
    pub num_orders: u64,
    /// Open and parked dead letters of the whole ledger. They are end states of their requests.
    pub num_dead_letters: u64,
    /// Reports of no known payment that wait for an operator.
    pub num_unmatched_reports: u64,
    /// Reports of no known payment that an operator has resolved.
    pub num_resolved_reports: u64,
    pub num_violations: u64,
    /// What was compared, by verdict.
    pub verdicts: VerdictCounts,
    /// The first violations, in detail.
    pub violations: Vec<Violation>,
    /// What was done about them; of a dry run, what would be done.
    pub repairs: Vec<RepairReport>,
    /// The checked invariants with their evidence.
    pub judged: Vec<AuditBasis>,
    /// Checks that were skipped, each with the reason.
    pub notes: Vec<String>,
}

/// The number of orders that match, and of the violations in detail by verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct VerdictCounts {
    #[serde(rename = "match")]
    pub matched: u64,
    pub leak: u64,
    pub over_sell: u64,
    pub drift: u64,
}

impl VerdictCounts {
    pub(super) fn of(num_orders: u64, violations: &[Violation]) -> Self {
        let mut counts = Self { matched: num_orders, ..Self::default() };
        for violation in violations {
            match violation.verdict {
                AuditVerdict::Leak => counts.leak += 1,
                AuditVerdict::OverSell => counts.over_sell += 1,
                AuditVerdict::Drift => counts.drift += 1,
            }
            // A leaked request has no order.
            let is_order = violation.verdict != AuditVerdict::Leak;
            if is_order && violation.subject.request.is_some() {
                counts.matched = counts.matched.saturating_sub(1);
            }
        }
        counts
    }
}

/// A repair, made or planned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    pub verdict: AuditVerdict,
    pub action: RepairAction,
    /// `None`: planned by a dry run.
    pub outcome: Option<RepairOutcome>,
    pub detail: String,
}

/// Evidence for an invariant.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct AuditBasis {
    pub invariant: InvariantId,
    /// The data that was read and compared.
    pub evidence: &'static str,
    /// How many were found, also those that `violations` does not list.
    pub num_violations: u64,
}

/// The evidence for each invariant.
pub const EVIDENCE: [(InvariantId, &str); 11] = [
    (
        InvariantId::NoOversell,
        "units left + units of live orders = initial stock, per SKU, in one read transaction; no \
         order of a SKU that no sale has",
    ),
    (
        InvariantId::OneOrderPerRequest,
        "request ids of all orders of the ledger, grouped and counted without their index",
    ),
    (
        InvariantId::LimitHeld,
        "orders that count and units per buyer against the policy and quota rows",
    ),
    (
        InvariantId::NothingLost,
        "every success of the buckets against the ledger; request ids both ordered and failed; in \
         tier pipeline every overdue request against outbox, queues and dead letters",
    ),
    (
        InvariantId::StockConserved,
        "units and buyers of the buckets against the ledger; every order looked up at its bucket",
    ),
    (
        InvariantId::StatusMonotone,
        "every success that the buckets report against the ledger's orders",
    ),
    (
        InvariantId::CompensatedOnce,
        "units that the buckets gave back against the ledger's recorded failures and ended orders",
    ),
    (InvariantId::Drains, "age of the oldest unsettled request that is no dead letter"),
    (
        InvariantId::Fenced,
        "epoch and time of every order against the sale's window and its changes of phase",
    ),
    (
        InvariantId::TermsHeld,
        "quantity, amount and slot of every order against price and policy of its SKU",
    ),
    (InvariantId::MoneyAccounted, "state of every order against its payments, and the reverse"),
];

/// Invariants that cannot be checked without the buckets.
pub(super) const NEED_BUCKETS: [InvariantId; 4] = [
    InvariantId::StockConserved,
    InvariantId::StatusMonotone,
    InvariantId::CompensatedOnce,
    InvariantId::Drains,
];
