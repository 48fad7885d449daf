//! Messages to order consumers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::Message;
use tokio::sync::oneshot;

use super::reply;
use crate::db::ErrorClass;
use crate::domain::{OrderIntent, PlaceOutcome};
use crate::runtime::permits::Permit;

/// Asks for orders; one message carries what one gate decided, or one intake received, in one step.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct PlaceOrders {
    /// What to write.
    pub intents: Vec<OrderIntent>,
    /// Whether it must have its transactions to itself: a failure then is its own.
    pub exclusive: bool,
    /// How to settle once the ledger has answered.
    pub settlement: Settlement,
    /// The right to be inside the consumer, one per intent.
    pub permit: Permit,
}

/// What one intent came to: its outcome, committed, or why it has none.
pub type WriteResult = Result<PlaceOutcome, WriteError>;

/// Why an intent has no outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteError {
    /// `Unknown` if any try may have been written, else the class of the last error.
    pub class: ErrorClass,
    /// What the ledger said.
    pub text: Arc<str>,
}

/// The consumer died before it answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterExited {
    /// It had not begun with the submission.
    Before,
    /// It had the submission in hand.
    OverIt,
}

/// How a submission is settled. The consumer does not look inside: it calls
/// [`Settlement::settle`] when it has done what it could, and drops it when it dies.
#[derive(Debug)]
pub enum Settlement {
    /// Answers the gate that waits; `None`: the outcome is unknown. Dropped without an answer: the
    /// same of all.
    Reply(oneshot::Sender<Vec<Option<PlaceOutcome>>>),
    /// Tells an intake what was committed and why the rest was not. Dropped without an answer:
    /// nothing is known.
    Account {
        /// Who waits.
        to: oneshot::Sender<Vec<WriteResult>>,
        /// Set when the consumer takes the submission in hand: a consumer that dies takes its whole
        /// queue with it, and only what it had in hand can be to blame.
        begun: Arc<AtomicBool>,
    },
}

impl Settlement {
    /// The consumer takes the submission in hand.
    pub fn begin(&self) {
        if let Self::Account { begun, .. } = self {
            begun.store(true, Ordering::Release);
        }
    }

    /// Whether nobody waits any more. A gate or an intake that died, and an intake that lost its
    /// subscription, submit the same intents again: doing them twice would only hold up others.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        match self {
            Self::Reply(to) => to.is_closed(),
            Self::Account { to, .. } => to.is_closed(),
        }
    }

    /// Whether the sender waits for the commit only, and not until the stock can tell of it.
    #[must_use]
    pub fn is_at_commit(&self) -> bool {
        matches!(self, Self::Account { .. })
    }

    /// Delivers one result per intent, in order.
    pub fn settle(self, written: Vec<WriteResult>) {
        match self {
            // A gate that died meanwhile finds its unsettled intents again and resubmits them.
            Self::Reply(to) => {
                reply(to, written.into_iter().map(known).collect());
            }
            // What an intake that died had in hand is delivered again.
            Self::Account { to, .. } => reply(to, written),
        }
    }
}

/// What is certain of an intent: its outcome, or that it was not written.
fn known(written: WriteResult) -> Option<PlaceOutcome> {
    match written {
        Ok(outcome) => Some(outcome),
        Err(WriteError { class: ErrorClass::Unknown, .. }) => None,
        Err(_) => Some(PlaceOutcome::Unavailable),
    }
}
