//! A contradiction between the stores, as an audit reports it.

use serde::Serialize;

use super::ids::{BucketNo, BuyerId, RequestId, SkuNo};
use super::invariants::InvariantId;
use super::loans::Loan;
use super::repair::AuditVerdict::{Drift, Leak, OverSell};
use super::repair::RepairAction::{FinishTransfers, Record, Recount};
use super::repair::{AuditVerdict, RepairAction};

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    pub invariant: InvariantId,
    pub verdict: AuditVerdict,
    /// The repair; `None`: nothing can be done but to wait.
    pub action: Option<RepairAction>,
    /// The contradiction, with the ids needed to look it up.
    pub detail: String,
    #[serde(skip)]
    pub subject: Subject,
}

/// What a violation is about. Two audits that find the same subject find the same violation,
/// although the numbers in its detail may have changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Subject {
    pub sku: Option<SkuNo>,
    pub buyer: Option<BuyerId>,
    pub request: Option<RequestId>,
    /// By how much two counts differ: in a running sale the counts change, their difference must
    /// not.
    pub difference: i128,
}

impl Violation {
    pub fn new(
        invariant: InvariantId,
        verdict: AuditVerdict,
        action: impl Into<Option<RepairAction>>,
        detail: String,
    ) -> Self {
        let subject = Subject::default();
        Self { invariant, verdict, action: action.into(), detail, subject }
    }

    #[must_use]
    pub fn of_sku(mut self, sku: SkuNo) -> Self {
        self.subject.sku = Some(sku);
        self
    }

    #[must_use]
    pub fn of_buyer(mut self, buyer: impl Into<Option<BuyerId>>) -> Self {
        self.subject.buyer = buyer.into();
        self
    }

    #[must_use]
    pub fn of_request(mut self, request: impl Into<Option<RequestId>>) -> Self {
        self.subject.request = request.into();
        self
    }

    #[must_use]
    pub fn by(mut self, difference: impl Into<i128>) -> Self {
        self.subject.difference = difference.into();
        self
    }

    /// Whether another audit found the same.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.invariant, self.verdict, self.subject)
            == (other.invariant, other.verdict, other.subject)
    }
}

/// The violations that are found by other reads than the stream of orders.
impl Violation {
    /// A request id with more than one order.
    pub fn duplicate_request(request: i64, num_orders: i64) -> Self {
        let detail = format!("request {request}: {num_orders} orders");
        let violation = Self::new(InvariantId::OneOrderPerRequest, OverSell, Record, detail);
        violation.of_request(RequestId::from_db(request)).by(num_orders)
    }

    /// A SKU without a sale, which therefore was never on offer.
    pub fn unknown_sku(sku: SkuNo, num_orders: u64, num_failures: u64) -> Self {
        let detail = format!(
            "sku {sku}: no sale has it, and the ledger has {num_orders} orders and {num_failures} \
             recorded failures of it"
        );
        let (violated, verdict) = match num_orders {
            0 => (InvariantId::NothingLost, Drift),
            _ => (InvariantId::NoOversell, OverSell),
        };
        Self::new(violated, verdict, Record, detail).of_sku(sku)
    }

    /// A request id that is both an order and a failure.
    pub fn order_and_failure(sku: SkuNo, request: i64) -> Self {
        let detail = format!("request {request}: both an order and a recorded failure");
        let violation = Self::new(InvariantId::NothingLost, Drift, Record, detail);
        violation.of_sku(sku).of_request(RequestId::from_db(request))
    }

    /// A quota row that differs from the units of the buyer's orders that count.
    pub fn wrong_quota(sku: SkuNo, buyer: i64, owned: i64, counted: i64) -> Self {
        let detail =
            format!("sku {sku} buyer {buyer}: quota row says {owned}, orders say {counted}");
        let violation = Self::new(InvariantId::LimitHeld, Drift, Recount, detail);
        let violation = violation.of_sku(sku).of_buyer(BuyerId::from_db(buyer));
        violation.by(owned - counted)
    }

    /// An order whose state and money contradict each other.
    pub fn wrong_money(sku: SkuNo, request: i64) -> Self {
        let detail = format!("sku {sku} request {request}: the order contradicts its payments");
        let violation = Self::new(InvariantId::MoneyAccounted, Drift, Record, detail);
        violation.of_sku(sku).of_request(RequestId::from_db(request))
    }

    /// Units that left one bucket and may not have reached the other.
    pub fn open_transfer(sku: SkuNo, lender: BucketNo, loan: Loan) -> Self {
        let detail = format!(
            "sku {sku} bucket {lender}: loan {} of {} units is not finished",
            loan.no, loan.units
        );
        let violation = Self::new(InvariantId::StockConserved, Leak, FinishTransfers, detail);
        let loan_id = i128::from(lender.0) << 64 | i128::from(loan.no);
        violation.of_sku(sku).by(loan_id)
    }
}
