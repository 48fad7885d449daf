//! Messages to stock gates.

use actix::Message;
use tokio::sync::oneshot;

use crate::domain::{BucketNo, Loan, OrderState, Refusal, Reservation};
use crate::runtime::permits::Permit;

/// Reserves units of the gate's bucket.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Reserve {
    pub reservation: Reservation,
    pub reply: oneshot::Sender<GateReply>,
    /// Held until the reply.
    pub permit: Permit,
}

/// Borrows units from the bucket of a sibling gate.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct LendStock {
    /// The borrowing bucket.
    pub to: BucketNo,
    /// Units needed.
    pub want: u32,
    /// Receives the loan; `None` if the bucket has nothing to lend.
    pub reply: oneshot::Sender<Option<Loan>>,
}

/// The reply of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateReply {
    Final(BuyAnswer),
    /// The reservation names another epoch of the sale; the caller reads the sale and retries.
    StaleEpoch,
}

/// The answer to a buyer's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuyAnswer {
    /// The order is committed.
    Placed {
        quantity: u32,
        /// Time of the reservation, epoch milliseconds.
        placed_at_ms: i64,
        state: OrderState,
        /// Whether this repeats an earlier answer.
        replayed: bool,
    },
    /// Units are reserved, the order is not committed yet.
    Queued {
        /// Whether this repeats an earlier answer.
        replayed: bool,
    },
    /// The final refusal.
    Refused {
        refusal: Refusal,
        /// Whether this repeats an earlier answer.
        replayed: bool,
    },
    /// The outcome is unknown: the buyer repeats the request with the same id.
    Unknown,
    /// Nothing was reserved: the buyer retries later.
    Busy,
}
