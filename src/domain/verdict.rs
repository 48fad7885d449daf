//! The answers of a gate and of the ledger. Refusals are values: counted, never logged as errors.

use super::ids::RequestId;
use super::order::OrderState;

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
        /// Units of the buyer's live orders.
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
        }
    }
}

/// The status of an accepted request, as its gate stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestStatus {
    /// Units are reserved; the result of the ledger is pending.
    Queued,
    /// The order is committed in the ledger.
    Ordered {
        quantity: u32,
        /// When the request arrived, epoch milliseconds.
        placed_at_ms: i64,
        state: OrderState,
    },
    /// The ledger refused. The bucket gave the units back, unless the ledger was sold out.
    Failed(Refusal),
}

/// A gate's answer to one reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Units are reserved for this request.
    Reserved,
    /// The request was accepted before; no further units were reserved.
    Repeat(RequestStatus),
    /// Final.
    Refused(Refusal),
    /// The epochs of the reservation and of the bucket differ; nothing was decided.
    StaleEpoch,
    /// This bucket has fewer units than requested; other buckets may have them.
    Short,
    /// Too many accepted requests wait for the broker; nothing was reserved. Retry later.
    Full,
}
