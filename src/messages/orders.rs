//! Messages to the ledger writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::Message;
use tokio::sync::oneshot;

use super::reply;
use crate::db::ErrorClass;
use crate::domain::{OrderIntent, PlaceOutcome};
use crate::runtime::permits::Permit;

/// A submission: the intents that a gate or consumer hands over in one step, to be written as
/// orders.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct PlaceOrders {
    pub intents: Vec<OrderIntent>,
    /// Whether the submission gets transactions of its own, so that a failure has no other cause.
    pub exclusive: bool,
    /// Receives the results.
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
    /// The error message of the ledger.
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
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        match self {
            Self::Reply(to) => to.is_closed(),
            Self::AtCommit { to, .. } => to.is_closed(),
        }
    }

    /// Whether the submission is settled at COMMIT, before the results are written to the stock.
    #[must_use]
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
