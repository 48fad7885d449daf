//! Dead letters: what was given up on the way from gate to ledger, and how it gets on its way
//! again.
//!
//! | file | holds |
//! |---|---|
//! | `seal` | a message becomes a letter: digest, bounds, the requests in it |
//! | `replay` | a letter becomes a message again, or why it cannot |
//! | `desk` | the operators' verbs |
//!
//! Letters live in the ledger ([`crate::db::Ledger`]); they are brought there by
//! [`crate::actors::dead_letter_collector`].

pub mod headers;
pub mod replay;
mod service;

pub use service::{DeadLetterError, DeadLetterService, VerbOutcome, VerbResult};
