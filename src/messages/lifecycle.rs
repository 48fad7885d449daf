//! Messages that every actor understands.

use actix::Message;
use tokio::sync::oneshot;

/// Take no new work, finish what is in hand, then say so.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Quiet {
    /// Answered when nothing is in hand any more.
    pub done: oneshot::Sender<()>,
}

/// End at once; what is in hand is found again by the next of its kind.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Stop;
