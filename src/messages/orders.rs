//! Messages to order consumers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::Message;
use tokio::sync::oneshot;

use super::reply;
use crate::actors::permits::Permit;
use crate::db::Class;
use crate::domain::{OrderIntent, Outcome};

/// Asks for orders; one message carries what one gate decided, or one intake received, in one step.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct PlaceOrders {
    /// What to write.
    pub intents: Vec<OrderIntent>,
    /// Whether it must have its transactions to itself: what failed among others is tried so, that
    /// the guilty one is known and the others are free of it.
    pub alone: bool,
    /// How to settle once the ledger has answered.
    pub settlement: Settlement,
    /// The right to be inside the consumer, one per intent.
    pub permit: Permit,
}

/// What one intent came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landing {
    /// The ledger's word; `None`: nobody knows.
    pub outcome: Option<Outcome>,
    /// What stands between the intent and its end. `None`: the ledger's word is in the stock.
    pub fault: Option<Fault>,
}

/// Why an intent is not at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The ledger did not do what it was asked to.
    Ledger {
        /// `Unknown` if any try may have been written, else the class of the last error.
        class: Class,
        /// What it said.
        said: Arc<str>,
    },
    /// The ledger's word stands, and the stock was not told.
    Stock {
        /// Whether the store is away, rather than unwilling.
        is_away: bool,
        /// What it said.
        said: Arc<str>,
    },
}

/// The consumer died before it answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Died {
    /// It had not begun with the submission.
    Before,
    /// It had the submission in hand.
    OverIt,
}

/// How a submission is settled. The consumer does not look inside: it calls
/// [`Settlement::settle`] when it has done what it could, and drops it when it dies.
#[derive(Debug)]
pub enum Settlement {
    /// Answers the gate that waits. Dropped without an answer: the outcome is unknown.
    Reply(oneshot::Sender<Vec<Outcome>>),
    /// Tells everything to an intake. Dropped without an answer: nothing is known.
    Account {
        /// Who waits.
        to: oneshot::Sender<Vec<Landing>>,
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

    /// Delivers one landing per intent, in order. A gate hears outcomes, and only when all are
    /// known.
    pub fn settle(self, landings: Vec<Landing>) {
        match self {
            // A gate that died meanwhile finds its unsettled intents again and resubmits them.
            Self::Reply(to) => {
                let outcomes: Option<Vec<Outcome>> =
                    landings.into_iter().map(|landing| landing.outcome).collect();
                if let Some(outcomes) = outcomes {
                    reply(to, outcomes);
                }
            }
            // What an intake that died had in hand is delivered again.
            Self::Account { to, .. } => reply(to, landings),
        }
    }
}
