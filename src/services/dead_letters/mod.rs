//! Dead letters: messages that could not be delivered from gate to ledger, and their replay.
//!
//! | file | holds |
//! |---|---|
//! | `headers` | message or outbox entry -> dead letter: digest, bounds, its requests |
//! | `replay` | dead letter -> message, or the reason why not |
//! | `service` | the operators' operations: show, replay, park, discard |
//!
//! Dead letters are stored in the ledger ([`crate::db::Ledger`]) by
//! [`crate::actors::dead_letter_collector`].

pub mod headers;
pub mod replay;
mod service;

pub use service::{DeadLetterError, DeadLetterOutcome, DeadLetterResult, DeadLetterService};
