//! Messages to order consumers.

use actix::Message;
use tokio::sync::oneshot;

use super::reply;
use crate::actors::permits::Permit;
use crate::domain::{OrderIntent, Outcome};

/// Asks for orders; one message carries what one gate decided in one step.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct PlaceOrders {
    /// What to write.
    pub intents: Vec<OrderIntent>,
    /// How to settle once every intent has its outcome.
    pub settlement: Settlement,
    /// The right to be inside the consumer, one per intent.
    pub permit: Permit,
}

/// How a submission is settled. The consumer does not look inside: it calls
/// [`Settlement::settle`] when the ledger has answered, and drops it when nobody knows.
#[derive(Debug)]
pub enum Settlement {
    /// Answers the gate that waits. Dropped without an answer: the outcome is unknown.
    Reply(oneshot::Sender<Vec<Outcome>>),
}

impl Settlement {
    /// Delivers one outcome per intent, in order.
    pub fn settle(self, outcomes: Vec<Outcome>) {
        match self {
            // A gate that died meanwhile finds its unsettled intents again and resubmits them.
            Self::Reply(to) => reply(to, outcomes),
        }
    }
}
