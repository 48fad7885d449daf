//! What actors say to each other: plain data, one file per receiver family.
//!
//! Commands are imperatives, facts past participles, questions begin with `Observe`. A message that
//! travels under load carries its permit: the bound of the receiver is the number of permits, never
//! the size of a mailbox. Replies travel through a one-shot channel inside the message; a channel
//! that closes without an answer means that the receiver died, and the outcome is unknown.
//!
//! | message | kind | from | to | reply | when full |
//! |---|---|---|---|---|---|
//! | [`Reserve`] | command | gate handle | stock gate | [`GateReply`] | no permit: `busy` |
//! | [`LendStock`] | command | stock gate | sibling gate | units lent | one per gate |
//! | [`PlaceOrders`] | command | gate, consumer | writer | [`PlaceOutcome`] each | sender waits |
//! | [`Quiet`] | command | system | whoever holds work | when idle | never full |
//! | [`Stop`] | command | supervisor | any actor | none | never full |
//!
//! [`PlaceOutcome`]: crate::domain::PlaceOutcome

pub mod envelope;
pub mod gate;
pub mod lifecycle;
pub mod orders;

pub use gate::{BuyAnswer, GateReply, LendStock, Reserve};
pub use lifecycle::{Quiet, Stop};
pub use orders::{PlaceOrders, Settlement, WriteError, WriteResult, WriterExited};

/// Answers a question. Whoever asked may have gone away meanwhile; that is never an error here,
/// because results are read again by request id.
pub fn reply<T>(to: tokio::sync::oneshot::Sender<T>, answer: T) {
    let _gone = to.send(answer);
}
