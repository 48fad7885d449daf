//! What operators do with dead letters.

use std::fmt::Write as _;

use actix_web::{HttpRequest, HttpResponse, web};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::dead_letter::TEXT_CHARS_MAX;
use crate::domain::{
    BuyerId, DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterOrigin, DeadLetterState, OrderIntent, RequestId,
};
use crate::http::buyers::views::rfc3339;
use crate::http::middleware::body;
use crate::http::middleware::problem::{Problem, ProblemCode};
use crate::http::page;
use crate::http::state::HttpState;
use crate::messages::envelope;
use crate::services::dead_letters::{DeadLetterError, VerbOutcome, VerbResult};

const LIMIT_DEFAULT: u32 = 50;
const LIMIT_MAX: u32 = 500;

/// Bytes of the body that are shown for people.
const PREVIEW_BYTES: usize = 64;

/// Which dead letters.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DeadLettersQuery {
    /// `open`, `replayed` or `parked`; all when left out.
    #[param(value_type = Option<String>)]
    state: Option<DeadLetterState>,
    /// `relay`, `consumer`, `broker` or `unroutable`; all when left out.
    #[param(value_type = Option<String>)]
    origin: Option<DeadLetterOrigin>,
    /// Most letters in the answer, 1 to 500; 50 when left out.
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// A letter in a list.
#[derive(Serialize, ToSchema)]
pub struct DeadLetterView {
    id: String,
    /// `open`, `replayed`, `parked` or `discarded`.
    state: &'static str,
    /// Who gave it up: `relay`, `consumer`, `broker` or `unroutable`.
    origin: &'static str,
    /// Why.
    reason: String,
    /// Attempts that failed.
    attempts: u32,
    /// What the message called itself.
    message_id: String,
    body_bytes: u64,
    /// When it was given up, the last time.
    dead_at: String,
    /// How often it came; copies count.
    arrivals: u32,
    /// Since when it is in its state.
    changed_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl From<DeadLetter> for DeadLetterView {
    fn from(letter: DeadLetter) -> Self {
        Self {
            id: letter.no.to_string(),
            state: letter.state.name(),
            origin: letter.origin.name(),
            reason: letter.reason,
            attempts: letter.attempts,
            message_id: letter.message_id,
            body_bytes: letter.body_bytes,
            dead_at: rfc3339(letter.dead_at_ms),
            arrivals: letter.arrivals,
            changed_at: rfc3339(letter.changed_at_ms),
            note: letter.note,
        }
    }
}

/// How many letters there are, by state.
#[derive(Serialize, ToSchema)]
pub struct DeadLetterCountsView {
    open: u64,
    replayed: u64,
    parked: u64,
    discarded: u64,
}

/// A page of letters.
#[derive(Serialize, ToSchema)]
pub struct DeadLettersView {
    /// All letters, whatever was asked for.
    counts: DeadLetterCountsView,
    /// Newest first.
    dead_letters: Vec<DeadLetterView>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// One order that was wanted.
#[derive(Serialize, ToSchema)]
pub struct IntentView {
    #[schema(value_type = String)]
    request: RequestId,
    sku_no: i32,
    /// Where this process knows the SKU.
    sale_id: Option<String>,
    sku_id: Option<String>,
    bucket: u16,
    #[schema(value_type = String)]
    buyer_id: BuyerId,
    quantity: u32,
    amount: i64,
    /// When it was accepted.
    asked_at: String,
    trace_id: String,
}

/// A letter with everything that is kept of it.
#[derive(Serialize, ToSchema)]
pub struct DeadLetterContentView {
    #[serde(flatten)]
    letter: DeadLetterView,
    /// What travelled beside the body.
    #[schema(value_type = Object)]
    headers: Value,
    /// The accepted requests that end here while it is open or parked.
    #[schema(value_type = Vec<String>)]
    requests: Vec<RequestId>,
    /// What can be read of the body.
    intents: Vec<IntentView>,
    /// Whether it can be put on its way again, as it is.
    replayable: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
    /// Whether the end of the body is missing.
    cut: bool,
    /// The body, in base64.
    body: String,
    /// Its first 64 bytes, in hexadecimal digits.
    preview: String,
}

/// What was done, and the letter afterwards.
#[derive(Serialize, ToSchema)]
pub struct DoneView {
    /// `published`, `resolved` (its requests had ended: nothing was published) or `already`; of
    /// `park`: `parked` or `already`; of `discard`: `discarded` or `already`.
    #[schema(value_type = String)]
    done: VerbOutcome,
    dead_letter: DeadLetterView,
}

/// How to set a letter aside.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ParkBody {
    /// Why, for whoever comes next; at most 1000 characters.
    note: Option<String>,
}

/// Why a letter is given up.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiscardBody {
    /// Kept as its note; at most 1000 characters.
    reason: Option<String>,
}

/// Dead letters, newest first.
#[utoipa::path(
    get, path = "/admin/v1/dead-letters", tag = "operators", params(DeadLettersQuery),
    responses((status = 200, description = "newest first", body = DeadLettersView)),
)]
pub async fn list(
    state: web::Data<HttpState>,
    which: web::Query<DeadLettersQuery>,
) -> Result<HttpResponse, Problem> {
    let limit = page::limit(which.limit, LIMIT_DEFAULT, LIMIT_MAX)?;
    let before = page::cursor(which.cursor.as_deref(), number)?;
    let filter =
        DeadLetterFilter { state: which.state, origin: which.origin, before, request: None };
    let ledger = &state.deps.ledger;
    let DeadLetterCounts { open, replayed, parked, discarded } =
        ledger.count_dead_letters().await?;
    let mut found = ledger.dead_letters(filter, limit + 1).await?;
    let next_cursor = page::cut(&mut found, limit, |last| last.no.to_string());
    Ok(HttpResponse::Ok().json(DeadLettersView {
        counts: DeadLetterCountsView { open, replayed, parked, discarded },
        dead_letters: found.into_iter().map(DeadLetterView::from).collect(),
        next_cursor,
    }))
}

/// One dead letter.
#[utoipa::path(
    get, path = "/admin/v1/dead-letters/{letter_id}", tag = "operators",
    params(("letter_id" = String, Path, description = "`id` of the list")),
    responses((status = 200, description = "with its body", body = DeadLetterContentView)),
)]
pub async fn show(
    letter_id: web::Path<String>,
    state: web::Data<HttpState>,
) -> Result<HttpResponse, Problem> {
    let whole = state.letters.show(known(&letter_id)?).await?;
    Ok(HttpResponse::Ok().json(view_of(&state, whole)))
}

/// Puts a dead letter on its way again: published, confirmed, then marked. Repeat-safe.
#[utoipa::path(
    post, path = "/admin/v1/dead-letters/{letter_id}/replay", tag = "operators",
    params(("letter_id" = String, Path, description = "`id` of the list")),
    responses((status = 200, description = "what was done", body = DoneView)),
)]
pub async fn put_back(
    letter_id: web::Path<String>,
    state: web::Data<HttpState>,
) -> Result<HttpResponse, Problem> {
    carried(state.letters.replay(known(&letter_id)?).await)
}

/// Sets a dead letter aside for good. Repeat-safe; an empty body adds no note.
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
    state: web::Data<HttpState>,
) -> Result<HttpResponse, Problem> {
    let max = state.settings.http.body_max_bytes;
    let wanted = body::optional::<ParkBody>(&request, payload, max).await?;
    let note = text("note", wanted.and_then(|wanted| wanted.note))?;
    carried(state.letters.park(known(&letter_id)?, note.as_deref()).await)
}

/// Gives a dead letter up: its requests that are no orders become recorded failures, their units
/// come back, their buyers read `failed`. Repeat-safe; an empty body gives no reason.
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
    state: web::Data<HttpState>,
) -> Result<HttpResponse, Problem> {
    let max = state.settings.http.body_max_bytes;
    let wanted = body::optional::<DiscardBody>(&request, payload, max).await?;
    let reason = text("reason", wanted.and_then(|wanted| wanted.reason))?;
    carried(state.letters.discard(known(&letter_id)?, reason.as_deref()).await)
}

fn text(name: &str, text: Option<String>) -> Result<Option<String>, Problem> {
    let is_long = text.as_ref().is_some_and(|text| text.chars().count() > TEXT_CHARS_MAX);
    let long = || Problem::invalid(format!("{name} must have at most {TEXT_CHARS_MAX} characters"));
    if is_long { Err(long()) } else { Ok(text) }
}

fn carried(carried: VerbResult) -> Result<HttpResponse, Problem> {
    let (done, letter) = carried?;
    Ok(HttpResponse::Ok().json(DoneView { done, dead_letter: letter.into() }))
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
            DeadLetterError::Replayed | DeadLetterError::Changed => ProblemCode::LetterConflict,
            DeadLetterError::NoBroker => ProblemCode::NoBroker,
            DeadLetterError::NotTaken { .. } | DeadLetterError::NotConfirmed { .. } => {
                tracing::warn!(%error, "a dead letter was not replayed");
                ProblemCode::BrokerAway
            }
        };
        Self::from(code).with_detail(error.to_string())
    }
}

/// The number of a letter, as lists have it.
fn number(text: &str) -> Option<DeadLetterNo> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain).map(DeadLetterNo)
}

fn known(id: &str) -> Result<DeadLetterNo, Problem> {
    number(id).ok_or_else(|| ProblemCode::UnknownLetter.into())
}

fn view_of(state: &HttpState, whole: DeadLetterContent) -> DeadLetterContentView {
    let why_not = match state.letters.open(&whole) {
        None => Some(DeadLetterError::NoBroker.to_string()),
        Some(Err(why)) => Some(why),
        Some(Ok(_)) => None,
    };
    let intents = envelope::intents_in(&whole.body);
    let preview = whole.body.get(..PREVIEW_BYTES).unwrap_or(&whole.body);
    DeadLetterContentView {
        headers: serde_json::from_str(&whole.letter.headers).unwrap_or_default(),
        intents: intents.iter().map(|intent| view_of_intent(state, intent)).collect(),
        replayable: why_not.is_none(),
        why_not,
        cut: whole.is_cut(),
        preview: hex(preview),
        body: STANDARD.encode(&whole.body),
        requests: whole.requests,
        letter: whole.letter.into(),
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing into a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn view_of_intent(state: &HttpState, intent: &OrderIntent) -> IntentView {
    let place = state.deps.catalog.of_sku(intent.sku);
    IntentView {
        request: intent.request,
        sku_no: intent.sku.0,
        sale_id: place.as_ref().map(|(listed, _)| listed.sale.id.to_string()),
        sku_id: place.as_ref().map(|(_, sku)| sku.id.to_string()),
        bucket: intent.bucket.0,
        buyer_id: intent.buyer,
        quantity: intent.quantity,
        amount: intent.amount,
        asked_at: rfc3339(intent.placed_at_ms),
        trace_id: intent.trace.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_has_one_spelling() {
        assert_eq!(number("17"), Some(DeadLetterNo(17)));
        for text in ["", "x", "-1", "+1", "1.0", "9223372036854775808", "１"] {
            assert_eq!(number(text), None, "{text:?}");
        }
    }
}
