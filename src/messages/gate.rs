//! Messages to stock gates.

use actix::Message;
use tokio::sync::oneshot;

use crate::domain::{BucketNo, Loan, OrderState, Refusal, Reservation};
use crate::runtime::permits::Permit;

/// Asks for units of the gate's bucket.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Reserve {
    /// What is asked.
    pub reservation: Reservation,
    /// Where the answer goes.
    pub reply: oneshot::Sender<GateReply>,
    /// The right to be inside the gate; returned with the answer.
    pub permit: Permit,
}

/// Asks a sibling gate for units of its bucket.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct LendStock {
    /// The bucket that ran dry.
    pub to: BucketNo,
    /// Units it needs at least.
    pub want: u32,
    /// Receives the loan, `None` when there is nothing to lend.
    pub reply: oneshot::Sender<Option<Loan>>,
}

/// What a gate answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateReply {
    /// Decided.
    Final(BuyAnswer),
    /// The asker knows another opening of the sale; look it up and ask again.
    StaleEpoch,
}

/// What a buyer hears of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuyAnswer {
    /// The ledger has the order.
    Placed {
        /// Units.
        quantity: u32,
        /// When the units were taken, epoch milliseconds.
        placed_at_ms: i64,
        /// Where the order stands.
        state: OrderState,
        /// Whether this repeats an earlier answer.
        replayed: bool,
    },
    /// Units are taken, the order is on its way.
    Queued {
        /// Whether this repeats an earlier answer.
        replayed: bool,
    },
    /// No, for good.
    Refused {
        /// Why.
        refusal: Refusal,
        /// Whether this repeats an earlier answer.
        replayed: bool,
    },
    /// Nobody knows yet: ask again with the same request id.
    Unknown,
    /// Nothing was taken; come back later.
    Busy,
}
