//! The messages between actors: plain data, one file per receiver family.
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
//!
//! [`PlaceOutcome`]: crate::domain::PlaceOutcome

pub mod envelope;
pub mod gate;
pub mod lifecycle;
pub mod orders;

pub use gate::{BuyAnswer, GateReply, LendStock, Reserve};
pub use lifecycle::{Quiet, Stop};
pub use orders::{PlaceOrders, Settlement, WriteError, WriteResult, WriterExited};

/// Sends a reply. A closed channel is no error: its receiver reads the result again by request id.
pub fn reply<T>(to: tokio::sync::oneshot::Sender<T>, answer: T) {
    let _gone = to.send(answer);
}
