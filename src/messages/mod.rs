//! The messages between actors: plain data.
//!
//! All are commands, named by an imperative. A message of the order path carries its permit: the
//! number of permits bounds the receiver, not the size of its mailbox. Replies are sent through a
//! one-shot channel inside the message; a channel that closes without a reply means that the
//! receiver exited, and the outcome is unknown.
//!
//! | message | kind | from | to | reply | when full |
//! |---|---|---|---|---|---|
//! | [`Reserve`] | command | gate handle | stock gate | [`BuyAnswer`] or none | no permit: `busy` |
//! | [`LendStock`] | command | stock gate | sibling gate | units lent | one per gate |
//! | [`PlaceOrders`] | command | gate, consumer | writer | [`WriteResult`] each | sender waits |
//! | [`RunNow`] | command | who changed orders | periodic actor | none | dropped: a run follows |
//! | [`Quiet`] | command | system | actors with work in flight | when idle | never full |

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use actix::Message;
use tokio::sync::oneshot;

use crate::db::ErrorClass;
use crate::domain::{
    BucketNo, Loan, OrderIntent, PlaceOutcome, RecordState, Refusal, RequestRecord,
};
use crate::runtime::permits::Permit;

pub mod envelope;

/// Reserves units of the gate's bucket.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Reserve {
    pub intent: OrderIntent,
    /// Receives the answer; `None` if the intent names another epoch of the sale: the sender
    /// reads the sale and retries.
    pub reply: oneshot::Sender<Option<BuyAnswer>>,
    /// Held until the reply.
    pub permit: Permit,
}

/// Borrows units from the bucket of a sibling gate.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct LendStock {
    pub to: BucketNo,
    pub want: u32,
    /// Receives the loan; `None` if the bucket has nothing to lend.
    pub reply: oneshot::Sender<Option<Loan>>,
}

/// The answer to a buyer's request; `replayed`: whether it repeats an earlier answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuyAnswer {
    /// The request is accepted, and waits for the ledger.
    Queued { replayed: bool },
    /// The request is an order.
    Ordered { record: RequestRecord, replayed: bool },
    /// Final.
    Refused { refusal: Refusal, replayed: bool },
    /// The outcome is unknown: the buyer repeats the request with the same id.
    Unknown,
    /// Nothing was reserved: the buyer retries later.
    Busy,
}

impl BuyAnswer {
    /// The first answer to a request that is refused.
    pub fn refused(refusal: Refusal) -> Self {
        Self::Refused { refusal, replayed: false }
    }

    /// The answer to a repeat of the request with this record.
    pub fn repeat(record: RequestRecord) -> Self {
        match record.state {
            RecordState::Queued { .. } => Self::Queued { replayed: true },
            RecordState::Ordered { .. } => Self::Ordered { record, replayed: true },
            RecordState::Failed(refusal) => Self::Refused { refusal, replayed: true },
        }
    }
}

/// A submission: the intents that a gate or consumer submits in one message, to be written as
/// orders.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct PlaceOrders {
    pub intents: Vec<OrderIntent>,
    /// Whether the submission gets transactions of its own, so that a failure has no other cause.
    pub is_exclusive: bool,
    /// Whether the sender is answered at COMMIT, or after the results are written to the stock.
    pub at_commit: bool,
    /// Receives one result per intent, in order. Dropped without a result: the outcome of every
    /// intent is unknown, and the sender submits the same intents again, as it does after a restart
    /// of its own, or after the broker redelivered them.
    pub reply: oneshot::Sender<Vec<WriteResult>>,
    /// Set when the writer starts the submission. A writer that crashes drops its whole queue, and
    /// only a started submission can be the cause.
    pub begun: Arc<AtomicBool>,
    /// One permit per intent, held until the submission is committed.
    pub permit: Permit,
}

/// The committed outcome of one intent, or why it has none.
pub type WriteResult = Result<PlaceOutcome, WriteError>;

/// Why an intent, or a submission, has no outcome. The text is for operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    #[error("the ledger writer crashed before it began")]
    NotTried,
    /// The ledger failed.
    #[error("{text}")]
    Ledger {
        /// `Unknown` if any attempt may have been committed, else the class of the last error.
        class: ErrorClass,
        /// The error message of the ledger.
        text: Arc<str>,
    },
    /// The submission may be the cause.
    #[error("the ledger writer crashed while writing it")]
    Crashed,
}

impl WriteError {
    /// Whether the ledger itself did not write the order; a later submission may succeed.
    pub fn is_unwritten(&self) -> bool {
        matches!(self, Self::Ledger { class, .. } if *class != ErrorClass::Unknown)
    }
}

/// Run now instead of at the end of the interval, or once more after the present run.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RunNow;

/// Accept no new work, finish the work in flight, then reply.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Quiet {
    /// Receives the reply when no work is in flight.
    pub done: oneshot::Sender<()>,
}

/// Sends a reply. A closed channel is no error: its receiver reads the result again by request id.
pub fn reply<T>(to: oneshot::Sender<T>, answer: T) {
    let _gone = to.send(answer);
}
