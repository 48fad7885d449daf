//! Operators' routes for dead letters: list, show, replay, park, discard.

use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::dead_letter::TEXT_CHARS_MAX;
use crate::domain::{
    DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterOrigin, DeadLetterState, OrderIntent, RequestId,
};
use crate::http::buyers::views::{page_cursor, page_cut, page_limit, rfc3339};
use crate::http::middleware::body;
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::state::{HttpState, State};
use crate::messages::envelope;
use crate::services::dead_letters::{DeadLetterError, DeadLetterOutcome, DeadLetterResult};

const LIMIT_DEFAULT: u32 = 50;
const LIMIT_MAX: u32 = 500;

/// Length of the hexadecimal preview of the body, in bytes of the body.
const PREVIEW_BYTES: usize = 64;

/// Filter and page of the list.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DeadLettersQuery {
    /// `open`, `replayed`, `parked` or `discarded`; default: all.
    #[param(value_type = Option<String>)]
    state: Option<DeadLetterState>,
    /// `relay`, `consumer` or `broker`; default: all.
    #[param(value_type = Option<String>)]
    origin: Option<DeadLetterOrigin>,
    /// Most dead letters in the answer: 1 to 500, default 50.
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A dead letter without its body.
#[derive(Serialize, ToSchema)]
pub struct DeadLetterView {
    id: String,
    /// `open`, `replayed`, `parked` or `discarded`.
    state: &'static str,
    /// Where it was dead-lettered: `relay`, `consumer` or `broker`.
    origin: &'static str,
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
            state: dead_letter.state.name(),
            origin: dead_letter.origin.name(),
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

/// A page of dead letters.
#[derive(Serialize, ToSchema)]
pub struct DeadLettersView {
    /// Of all dead letters, independent of the filter.
    counts: DeadLetterCounts,
    /// Newest first.
    dead_letters: Vec<DeadLetterView>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// An order intent in the body.
#[derive(Serialize, ToSchema)]
pub struct IntentView {
    request: String,
    sku_no: i32,
    /// Null if the SKU is not in this process's catalog; `sku_id` likewise.
    sale_id: Option<String>,
    sku_id: Option<String>,
    bucket: u16,
    buyer_id: String,
    quantity: u32,
    amount: i64,
    /// When the request was accepted.
    asked_at: String,
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
    #[schema(value_type = String)]
    done: DeadLetterOutcome,
    dead_letter: DeadLetterView,
}

/// Body of `park`.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ParkBody {
    /// Note for other operators; at most 1000 characters.
    note: Option<String>,
}

/// Body of `discard`.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiscardBody {
    /// Stored as the note; at most 1000 characters.
    reason: Option<String>,
}

/// Dead letters, newest first.
#[utoipa::path(
    get, path = "/admin/v1/dead-letters", tag = "operators", params(DeadLettersQuery),
    responses((status = 200, description = "newest first", body = DeadLettersView)),
)]
pub async fn list(state: State, query: web::Query<DeadLettersQuery>) -> Handled {
    let limit = page_limit(query.limit, LIMIT_DEFAULT, LIMIT_MAX)?;
    let before = page_cursor(query.cursor.as_deref(), parse_number)?;
    let filter =
        DeadLetterFilter { state: query.state, origin: query.origin, before, request: None };
    let ledger = &state.deps.ledger;
    let counts = ledger.count_dead_letters().await?;
    let mut rows = ledger.dead_letters(filter, limit + 1).await?;
    let next_cursor = page_cut(&mut rows, limit, |last| last.no.to_string());
    Ok(HttpResponse::Ok().json(DeadLettersView {
        counts,
        dead_letters: rows.into_iter().map(DeadLetterView::from).collect(),
        next_cursor,
    }))
}

/// One dead letter.
#[utoipa::path(
    get, path = "/admin/v1/dead-letters/{letter_id}", tag = "operators",
    params(("letter_id" = String, Path, description = "`id` of the list")),
    responses((status = 200, description = "with its body", body = DeadLetterContentView)),
)]
pub async fn show(letter_id: web::Path<String>, state: State) -> Handled {
    let content = state.dead_letters.show(parse_id(&letter_id)?).await?;
    Ok(HttpResponse::Ok().json(view_of(&state, content)))
}

/// Replays a dead letter: publishes it, waits for the confirm, then marks it. Idempotent.
#[utoipa::path(
    post, path = "/admin/v1/dead-letters/{letter_id}/replay", tag = "operators",
    params(("letter_id" = String, Path, description = "`id` of the list")),
    responses((status = 200, description = "what was done", body = DoneView)),
)]
pub async fn replay(letter_id: web::Path<String>, state: State) -> Handled {
    respond(state.dead_letters.replay(parse_id(&letter_id)?).await)
}

/// Parks a dead letter: it stays until an operator replays or discards it. Idempotent; an empty
/// body adds no note.
#[utoipa::path(
    post, path = "/admin/v1/dead-letters/{letter_id}/park", tag = "operators",
    params(("letter_id" = String, Path, description = "`id` of the list")),
    request_body = ParkBody,
    responses((status = 200, description = "what was done", body = DoneView)),
)]
pub async fn park(
    request: HttpRequest,
    letter_id: web::Path<String>,
    payload: web::Payload,
    state: State,
) -> Handled {
    let max = state.settings.http.body_max_bytes;
    let body: ParkBody = body::optional(&request, payload, max).await?;
    let note = check_length("note", body.note.as_deref())?;
    respond(state.dead_letters.park(parse_id(&letter_id)?, note).await)
}

/// Discards a dead letter: its requests without an order become recorded failures, their units are
/// released, and their buyers read `failed`. Idempotent; an empty body gives no reason.
#[utoipa::path(
    post, path = "/admin/v1/dead-letters/{letter_id}/discard", tag = "operators",
    params(("letter_id" = String, Path, description = "`id` of the list")),
    request_body = DiscardBody,
    responses((status = 200, description = "what was done", body = DoneView)),
)]
pub async fn discard(
    request: HttpRequest,
    letter_id: web::Path<String>,
    payload: web::Payload,
    state: State,
) -> Handled {
    let max = state.settings.http.body_max_bytes;
    let body: DiscardBody = body::optional(&request, payload, max).await?;
    let reason = check_length("reason", body.reason.as_deref())?;
    respond(state.dead_letters.discard(parse_id(&letter_id)?, reason).await)
}

fn check_length<'t>(name: &str, text: Option<&'t str>) -> Result<Option<&'t str>, Problem> {
    if text.is_some_and(|text| text.chars().count() > TEXT_CHARS_MAX) {
        let detail = format!("{name} must have at most {TEXT_CHARS_MAX} characters");
        return Err(Problem::invalid(detail));
    }
    Ok(text)
}

fn respond(result: DeadLetterResult) -> Handled {
    let (done, dead_letter) = result?;
    Ok(HttpResponse::Ok().json(DoneView { done, dead_letter: dead_letter.into() }))
}

impl From<DeadLetterError> for Problem {
    fn from(error: DeadLetterError) -> Self {
        let code = match error {
            DeadLetterError::Ledger(error) => return error.into(),
            DeadLetterError::Unknown(_) => ProblemCode::UnknownLetter,
            DeadLetterError::NotReplayable { .. } | DeadLetterError::Unreadable => {
                ProblemCode::LetterNotReplayable
            }
            DeadLetterError::Ordered => ProblemCode::LetterOrdered,
            DeadLetterError::Replayed | DeadLetterError::Discarded | DeadLetterError::Changed => {
                ProblemCode::LetterConflict
            }
            DeadLetterError::NoBroker => ProblemCode::NoBroker,
            DeadLetterError::PublishRefused { .. } | DeadLetterError::NotConfirmed { .. } => {
                tracing::warn!(%error, "dead letter: not replayed");
                ProblemCode::BrokerAway
            }
        };
        Self::from(code).with_detail(error.to_string())
    }
}

/// Accepts decimal digits only, so that each number has one spelling.
fn parse_number(text: &str) -> Option<DeadLetterNo> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_decimal).map(DeadLetterNo)
}

fn parse_id(id: &str) -> Result<DeadLetterNo, Problem> {
    parse_number(id).ok_or_else(|| ProblemCode::UnknownLetter.into())
}

fn view_of(state: &HttpState, content: DeadLetterContent) -> DeadLetterContentView {
    let why_not = state.dead_letters.why_not_replayable(&content);
    let intents = envelope::intents_in(&content.body);
    let head = content.body.iter().take(PREVIEW_BYTES);
    DeadLetterContentView {
        headers: serde_json::from_str(&content.dead_letter.headers).unwrap_or_default(),
        intents: intents.iter().map(|intent| view_of_intent(state, intent)).collect(),
        replayable: why_not.is_none(),
        why_not,
        cut: content.is_cut(),
        preview: head.fold(String::new(), |text, byte| format!("{text}{byte:02x}")),
        body: STANDARD.encode(&content.body),
        requests: content.requests.iter().map(RequestId::to_string).collect(),
        dead_letter: content.dead_letter.into(),
    }
}

fn view_of_intent(state: &HttpState, intent: &OrderIntent) -> IntentView {
    let listed_sku = state.deps.catalog.of_sku(intent.sku);
    let ids = listed_sku.map(|(listed, sku)| (listed.sale.id.to_string(), sku.id.to_string()));
    let (sale_id, sku_id) = ids.unzip();
    IntentView {
        request: intent.request.to_string(),
        sku_no: intent.sku.0,
        sale_id,
        sku_id,
        bucket: intent.bucket.0,
        buyer_id: intent.buyer.to_string(),
        quantity: intent.quantity,
        amount: intent.amount,
        asked_at: rfc3339(intent.placed_at_ms),
        trace_id: intent.trace.to_string(),
    }
}
