//! JSON shapes of the operators' routes for dead letters.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::text::hex;
use crate::domain::{
    DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterOrigin, DeadLetterState,
    OrderIntent, RequestId,
};
use crate::http::buyers::views::rfc3339;
use crate::http::state::HttpState;
use crate::messages::envelope;
use crate::services::dead_letters::DeadLetterOutcome;

/// Length of the hexadecimal preview of the body, in bytes of the body.
const PREVIEW_BYTES: usize = 64;

/// A dead letter without its body.
#[derive(Serialize, ToSchema)]
pub struct DeadLetterView {
    id: String,
    state: DeadLetterState,
    origin: DeadLetterOrigin,
    /// Why it was dead-lettered.
    reason: String,
    /// Failed attempts.
    attempts: u32,
    /// Message id of the message.
    message_id: String,
    body_bytes: u64,
    /// When it was last dead-lettered.
    dead_at: String,
    /// Arrivals of the same message, copies included.
    arrivals: u32,
    /// Time of the last state change.
    changed_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl From<DeadLetter> for DeadLetterView {
    fn from(dead_letter: DeadLetter) -> Self {
        Self {
            id: dead_letter.no.to_string(),
            state: dead_letter.state,
            origin: dead_letter.origin,
            reason: dead_letter.reason,
            attempts: dead_letter.attempts,
            message_id: dead_letter.message_id,
            body_bytes: dead_letter.body_bytes,
            dead_at: rfc3339(dead_letter.dead_at_ms),
            arrivals: dead_letter.arrivals,
            changed_at: rfc3339(dead_letter.changed_at_ms),
            note: dead_letter.note,
        }
    }
}

/// A dead letter whose row in the ledger has a value that this version does not write.
#[derive(Serialize, ToSchema)]
pub struct UnreadableDeadLetterView {
    pub(super) id: String,
    /// Names column and value.
    pub(super) reason: String,
}

/// A page of dead letters.
#[derive(Serialize, ToSchema)]
pub struct DeadLettersView {
    /// Of all dead letters, independent of the filter.
    pub(super) counts: DeadLetterCounts,
    /// Dead letters that the filter matches from the cursor on.
    pub(super) num_matching: u64,
    /// In the order of the query.
    pub(super) dead_letters: Vec<DeadLetterView>,
    /// Those of the page that cannot be read.
    pub(super) unreadable: Vec<UnreadableDeadLetterView>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_cursor: Option<String>,
}

/// An order intent in the body.
#[derive(Serialize, ToSchema)]
pub struct IntentView {
    request: String,
    sku_no: String,
    /// Null if the SKU is not in this process's catalog; `sku_id` likewise.
    sale_id: Option<String>,
    sku_id: Option<String>,
    bucket: u16,
    buyer_id: String,
    quantity: u32,
    amount: i64,
    /// When the request arrived.
    placed_at: String,
    trace_id: String,
}

/// A dead letter with its body.
#[derive(Serialize, ToSchema)]
pub struct DeadLetterContentView {
    #[serde(flatten)]
    dead_letter: DeadLetterView,
    /// Headers of the message.
    #[schema(value_type = Object)]
    headers: Value,
    /// Accepted requests for which this dead letter is the end state, while it is open or parked.
    requests: Vec<String>,
    /// The readable intents of the body.
    intents: Vec<IntentView>,
    /// Whether it can be replayed unchanged.
    replayable: bool,
    /// Why it cannot be replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
    /// Whether the body is truncated.
    cut: bool,
    /// The body, in base64.
    body: String,
    /// First 64 bytes of the body, in hexadecimal.
    preview: String,
}

/// Outcome of an operation, and the dead letter afterwards.
#[derive(Serialize, ToSchema)]
pub struct DoneView {
    /// `replay`: `published`, `resolved` (nothing was published: all its requests have a result) or
    /// `already`; `park`: `parked` or `already`; `discard`: `discarded` or `already`.
    pub(super) done: DeadLetterOutcome,
    pub(super) dead_letter: DeadLetterView,
}

/// The dead letter with its body, and why it cannot be replayed.
pub(super) async fn view_of(
    state: &HttpState,
    content: DeadLetterContent,
) -> DeadLetterContentView {
    let why_not = state.dead_letters.why_not_replayable(&content).await;
    let intents = envelope::intents_in(&content.body);
    DeadLetterContentView {
        headers: serde_json::from_str(&content.dead_letter.headers).unwrap_or_default(),
        intents: intents.iter().map(|intent| view_of_intent(state, intent)).collect(),
        replayable: why_not.is_none(),
        why_not,
        cut: content.is_cut(),
        preview: hex(content.body.iter().take(PREVIEW_BYTES)),
        body: STANDARD.encode(&content.body),
        requests: content.requests.iter().map(RequestId::to_string).collect(),
        dead_letter: content.dead_letter.into(),
    }
}

fn view_of_intent(state: &HttpState, intent: &OrderIntent) -> IntentView {
    let (sale_id, sku_id) = state.deps.names_of(intent.sku).unzip();
    IntentView {
        request: intent.request.to_string(),
        sku_no: intent.sku.to_string(),
        sale_id,
        sku_id,
        bucket: intent.bucket.0,
        buyer_id: intent.buyer.to_string(),
        quantity: intent.quantity,
        amount: intent.amount,
        placed_at: rfc3339(intent.placed_at_ms),
        trace_id: intent.trace.to_string(),
    }
}
