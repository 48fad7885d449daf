//! The messages between actors: plain data.
//!
//! Commands are imperatives, facts past participles, questions begin with `Observe`. A message of
//! the order path carries its permit: the number of permits bounds the receiver, not the size of
//! its mailbox. Replies are sent through a one-shot channel inside the message; a channel that
//! closes without a reply means that the receiver exited, and the outcome is unknown.
//!
//! | message | kind | from | to | reply | when full |
//! |---|---|---|---|---|---|
//! | [`Reserve`] | command | gate handle | stock gate | [`GateReply`] | no permit: `busy` |
//! | [`LendStock`] | command | stock gate | sibling gate | units lent | one per gate |
//! | [`PlaceOrders`] | command | gate, consumer | writer | [`PlaceOutcome`] each | sender waits |
//! | [`Quiet`] | command | system | actors with work in flight | when idle | never full |
//! | [`Stop`] | command | supervisor | any actor | none | never full |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::Message;
use tokio::sync::oneshot;

use crate::db::ErrorClass;
use crate::domain::{BucketNo, Loan, OrderIntent, OrderState, PlaceOutcome, Refusal, Reservation};
use crate::runtime::permits::Permit;

pub mod envelope;

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
    pub to: BucketNo,
    pub want: u32,
    /// Receives the loan; `None` if the bucket has nothing to lend.
    pub reply: oneshot::Sender<Option<Loan>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateReply {
    Final(BuyAnswer),
    /// The reservation names another epoch of the sale; the caller reads the sale and retries.
    StaleEpoch,
}

/// The answer to a buyer's request. `replayed`: whether it repeats an earlier answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuyAnswer {
    /// The order is committed.
    Placed {
        quantity: u32,
        /// Time of the reservation, epoch milliseconds.
        placed_at_ms: i64,
        state: OrderState,
        replayed: bool,
    },
    /// Units are reserved, the order is not committed yet.
    Queued { replayed: bool },
    /// The final refusal.
    Refused { refusal: Refusal, replayed: bool },
    /// The outcome is unknown: the buyer repeats the request with the same id.
    Unknown,
    /// Nothing was reserved: the buyer retries later.
    Busy,
}

/// A submission: the intents that a gate or consumer hands over in one step, to be written as
/// orders.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct PlaceOrders {
    pub intents: Vec<OrderIntent>,
    /// Whether the submission gets transactions of its own, so that a failure has no other cause.
    pub exclusive: bool,
    pub settlement: Settlement,
    /// One permit per intent, held until the submission is settled.
    pub permit: Permit,
}

/// The committed outcome of one intent, or why it has none.
pub type WriteResult = Result<PlaceOutcome, WriteError>;

/// Why an intent has no outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteError {
    /// `Unknown` if any attempt may have been committed, else the class of the last error.
    pub class: ErrorClass,
    pub text: Arc<str>,
}

/// The ledger writer exited before it settled a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterExited {
    /// The submission had not been started.
    BeforeWrite,
    /// The submission was being written, and may be the cause.
    DuringWrite,
}

/// Receiver of the results of a submission. The ledger writer calls [`Settlement::settle`]; if it
/// exits before, the drop means that the outcome of every intent is unknown.
#[derive(Debug)]
pub enum Settlement {
    /// Replies to a gate, after the results were written to the stock; `None`: the outcome is
    /// unknown.
    Reply(oneshot::Sender<Vec<Option<PlaceOutcome>>>),
    /// Replies to a consumer at COMMIT, with the error of each intent that was not committed.
    AtCommit {
        to: oneshot::Sender<Vec<WriteResult>>,
        /// Set when the writer starts the submission. A writer that crashes drops its whole queue,
        /// and only a started submission can be the cause.
        begun: Arc<AtomicBool>,
    },
}

impl Settlement {
    /// Marks the submission as started.
    pub fn begin(&self) {
        if let Self::AtCommit { begun, .. } = self {
            begun.store(true, Ordering::Release);
        }
    }

    /// Whether the sender has closed the channel. A gate or consumer that restarted, or a consumer
    /// that lost its subscription, submits the same intents again: writing an abandoned submission
    /// would only delay others.
    pub fn is_abandoned(&self) -> bool {
        match self {
            Self::Reply(to) => to.is_closed(),
            Self::AtCommit { to, .. } => to.is_closed(),
        }
    }

    /// Whether the submission is settled at COMMIT, before the results are written to the stock.
    pub fn is_at_commit(&self) -> bool {
        matches!(self, Self::AtCommit { .. })
    }

    /// Sends one result per intent, in the order of the intents.
    pub fn settle(self, written: Vec<WriteResult>) {
        match self {
            // A restarted gate finds its unsettled intents and resubmits them.
            Self::Reply(to) => reply(to, written.into_iter().map(certain_outcome).collect()),
            // The broker redelivers the unacknowledged deliveries of a restarted consumer.
            Self::AtCommit { to, .. } => reply(to, written),
        }
    }
}

/// The outcome of an intent, or `Unavailable` if it was certainly not written; `None`: unknown.
fn certain_outcome(written: WriteResult) -> Option<PlaceOutcome> {
    match written {
        Ok(outcome) => Some(outcome),
        Err(WriteError { class: ErrorClass::Unknown, .. }) => None,
        Err(_) => Some(PlaceOutcome::Unavailable),
    }
}

/// Accept no new work, finish the work in flight, then reply.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Quiet {
    /// Receives the reply when no work is in flight.
    pub done: oneshot::Sender<()>,
}

/// Terminate at once; the successor resumes the work in flight.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// Sends a reply. A closed channel is no error: its receiver reads the result again by request id.
pub fn reply<T>(to: oneshot::Sender<T>, answer: T) {
    let _gone = to.send(answer);
}
