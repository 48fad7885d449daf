//! Dead letters: undeliverable messages, stored with their bytes until an operator decides.
//!
//! An open or parked dead letter holds its requests. Those of a replayed one are in progress again:
//! they become orders, failures, or the same dead letter. Those of a discarded one are recorded
//! failures.
//!
//! A dead letter's reason is given in `outbox_relay/publish_round.rs` (refused by the broker),
//! `outbox_relay/plan.rs` (too long), `http/buyers/payments.rs` (a webhook), `messages/envelope.rs`
//! (unreadable), `order_consumer/deliveries.rs` (contradicts the sale),
//! `order_consumer/submission.rs` (failed at the ledger), `actors/payment_consumer.rs`, and
//! `broker/headers.rs` (given up by the broker). `services/dead_letters/new_dead_letter.rs` builds
//! the row.

use serde::Serialize;
use utoipa::ToSchema;

use super::ids::{BuyerId, DeadLetterNo, RequestId, SkuNo};
use super::named::{ledger_numbers, named_enum};
use super::order::OrderKey;

/// Maximum stored bytes of a body; a longer body is truncated, and its length is stored.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Maximum stored characters of a reason or note.
pub const TEXT_CHARS_MAX: usize = 1000;

/// Maximum stored characters of a message id; no broker allows more bytes.
pub const MESSAGE_ID_CHARS_MAX: usize = 255;

named_enum! {
    /// The component that dead-lettered a message, in the order of the flow.
    DeadLetterOrigin {
        /// The relay: the broker refused the message.
        Relay => "relay",
        /// The consumer: the message could not be decoded, its order contradicts the sale, or could
        /// not be written.
        Consumer => "consumer",
        /// The broker: the delivery limit was exceeded. Also the origin of a message that another
        /// application published to the queue `dead`.
        Broker => "broker",
    }
}

named_enum! {
    /// The state of a dead letter, with its number in the ledger and its name in the HTTP API.
    DeadLetterState {
        /// Waits for an operator.
        Open = 0 => "open",
        /// Published again, or its requests had reached a final state already.
        Replayed = 1 => "replayed",
        /// Set aside by an operator; can be replayed or discarded later.
        Parked = 2 => "parked",
        /// Discarded by an operator: its requests are recorded failures.
        Discarded = 3 => "discarded",
    }
}
ledger_numbers! { DeadLetterState }

named_enum! {
    /// The order of a list of dead letters, by their numbers.
    DeadLetterOrder {
        Newest => "newest",
        Oldest => "oldest",
    }
}

impl DeadLetterState {
    /// Whether the requests of a dead letter in this state wait in it for an operator.
    pub fn holds_requests(self) -> bool {
        matches!(self, Self::Open | Self::Parked)
    }
}

/// A dead letter to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// Identifies the message: equal for its copies, different for other messages.
    pub digest: [u8; 32],
    pub origin: DeadLetterOrigin,
    /// For the operator; at most [`TEXT_CHARS_MAX`] characters.
    pub reason: String,
    /// Failed attempts.
    pub attempts: u32,
    /// At most [`MESSAGE_ID_CHARS_MAX`] characters.
    pub message_id: String,
    /// A JSON object.
    pub headers: String,
    /// At most the first [`BODY_BYTES_MAX`] bytes.
    pub body: Vec<u8>,
    /// The length of the whole body.
    pub body_bytes: u64,
    /// The accepted requests of the message, each once.
    pub requests: Vec<OrderKey>,
    /// When the message was dead-lettered, epoch milliseconds.
    pub dead_at_ms: i64,
}

/// A stored dead letter without its body. Origin, reason, attempts, headers and `dead_at_ms` are
/// those of the latest arrival, each as in [`NewDeadLetter`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub no: DeadLetterNo,
    pub origin: DeadLetterOrigin,
    pub reason: String,
    pub attempts: u32,
    pub message_id: String,
    pub headers: String,
    pub body_bytes: u64,
    pub dead_at_ms: i64,
    /// How often the message arrived in the ledger, copies included.
    pub arrivals: u32,
    pub state: DeadLetterState,
    /// The time of the last state change, epoch milliseconds.
    pub changed_at_ms: i64,
    /// The operator's note.
    pub note: Option<String>,
}

/// A dead letter with its body and requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterContent {
    pub dead_letter: DeadLetter,
    /// At most the first [`BODY_BYTES_MAX`] bytes.
    pub body: Vec<u8>,
    /// The accepted requests of the message, in ascending order.
    pub requests: Vec<RequestId>,
}

impl DeadLetterContent {
    /// Whether the stored body is truncated.
    pub fn is_cut(&self) -> bool {
        self.dead_letter.body_bytes != self.body.len() as u64
    }
}

/// The outcome of storing a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreDeadLetterOutcome {
    /// The first arrival of this message.
    New,
    /// The stored dead letter had been replayed and is open again.
    Reopened,
    /// The dead letter was stored already and not replayed: only its latest arrival was updated.
    AlreadyStored,
}

/// Which dead letters to list. Every condition that is set must hold; those on requests hold for
/// one request of the dead letter together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadLetterFilter {
    pub state: Option<DeadLetterState>,
    pub origin: Option<DeadLetterOrigin>,
    /// Part of the reason, in upper or lower case.
    pub reason: Option<String>,
    /// Dead-lettered at or after this time, epoch milliseconds.
    pub since_ms: Option<i64>,
    /// Dead-lettered before this time, epoch milliseconds.
    pub until_ms: Option<i64>,
    pub order: Option<DeadLetterOrder>,
    /// The last number of the previous page in this order.
    pub after: Option<DeadLetterNo>,
    /// Only dead letters that contain this request.
    pub request: Option<RequestId>,
    /// Only dead letters with a request of this buyer.
    pub buyer: Option<BuyerId>,
    /// Only dead letters with a request for one of these SKUs.
    pub skus: Option<Vec<SkuNo>>,
}

impl DeadLetterFilter {
    /// The dead letters that contain `request`.
    pub fn with(request: RequestId) -> Self {
        Self { request: Some(request), ..Self::default() }
    }

    /// Newest first, unless it says otherwise.
    pub fn is_oldest_first(&self) -> bool {
        self.order == Some(DeadLetterOrder::Oldest)
    }

    /// Whether it has a condition on the requests.
    pub fn has_requests(&self) -> bool {
        self.request.is_some() || self.buyer.is_some() || self.skus.is_some()
    }
}

/// A state change by an operator. Applied only if state and arrivals are unchanged since the read:
/// a message that was dead-lettered again meanwhile must not be marked as replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterTransition {
    pub no: DeadLetterNo,
    /// The state that was read.
    pub from: DeadLetterState,
    /// The arrivals that were read.
    pub arrivals: u32,
    pub to: DeadLetterState,
    /// The new note; `None` keeps the present one.
    pub note: Option<String>,
    /// The time of the change, epoch milliseconds.
    pub at_ms: i64,
}

/// The number of dead letters by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, ToSchema)]
pub struct DeadLetterCounts {
    pub open: u64,
    pub replayed: u64,
    pub parked: u64,
    pub discarded: u64,
}
