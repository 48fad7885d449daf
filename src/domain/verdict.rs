//! What a gate or the ledger may answer. Refusals are values: counted, never logged as errors.

use super::ids::RequestId;
use super::order::OrderState;

/// Why a request gets no units. Final: nothing was taken, nothing will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Fewer units are left than were asked for, in all buckets and transfers together.
    SoldOut,
    /// The buyer has its one order already.
    AlreadyPurchased {
        /// The request of that order.
        first: RequestId,
    },
    /// The order would exceed the buyer's quota.
    QuotaExceeded {
        /// Units the buyer has.
        owned: u32,
        /// Units the buyer may have.
        limit: u32,
    },
    /// The same request id came with other content, or belongs to another buyer.
    RequestIdReused,
    /// The sale is not open: before its window, or paused.
    NotStarted,
    /// The sale is over.
    Ended,
    /// An operator gave up the dead letter that it was in.
    Discarded,
}

impl Refusal {
    /// Every kind of refusal, with zeroed details; for metrics and tables.
    pub const KINDS: [&'static str; 7] = [
        "sold-out",
        "already-purchased",
        "quota-exceeded",
        "request-id-reused",
        "not-started",
        "ended",
        "discarded",
    ];

    /// The stable code of the interface.
    #[must_use]
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

/// What a gate remembers of a request that it accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestStatus {
    /// Units are taken; the ledger has not answered yet.
    Queued,
    /// The ledger has the order.
    Ordered {
        /// Units.
        quantity: u32,
        /// When the units were taken, epoch milliseconds.
        placed_at_ms: i64,
        /// Where the order stands.
        state: OrderState,
    },
    /// The ledger refused; the units went back where the ledger still has them.
    Failed(Refusal),
}

/// A gate's answer to one reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Units are taken for this request.
    Reserved,
    /// This request was accepted before; nothing was taken again.
    Repeat(RequestStatus),
    /// No, for good.
    Refused(Refusal),
    /// The asker knows another opening of the sale than the bucket; nothing was decided.
    StaleEpoch,
    /// This bucket has fewer units than asked for; others may have them.
    Short,
    /// Too much of what was accepted waits for the broker; nothing was taken. Ask again later.
    Full,
}
