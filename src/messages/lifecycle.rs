//! Lifecycle messages of all actors.

use actix::Message;
use tokio::sync::oneshot;

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
