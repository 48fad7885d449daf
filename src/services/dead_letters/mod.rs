//! Dead letters: messages that could not be delivered from gate to ledger, and their replay.
//! [`crate::actors::dead_letter_collector`] stores them in the ledger.

pub mod new_dead_letter;
pub mod replay;
mod service;

pub use service::{DeadLetterError, DeadLetterOutcome, DeadLetterResult, DeadLetterService};
