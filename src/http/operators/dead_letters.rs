//! Operators' routes for dead letters: list, show, replay, park, discard.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Deserialize;

use super::dead_letter_views::{
    DeadLetterContentView, DeadLetterView, DeadLettersView, DiscardBody, DoneView, ParkBody,
    view_of,
};
use crate::domain::dead_letter::TEXT_CHARS_MAX;
use crate::domain::{DeadLetterFilter, DeadLetterNo, DeadLetterOrigin, DeadLetterState};
use crate::http::buyers::views::{page_cursor, page_cut, page_limit};
use crate::http::middleware::body;
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::state::State;
use crate::services::dead_letters::{DeadLetterError, DeadLetterResult};

const LIMIT_DEFAULT: u32 = 50;
const LIMIT_MAX: u32 = 500;

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
            DeadLetterError::PublishRefused { .. } => {
                tracing::warn!(%error, "dead letter: not replayed");
                ProblemCode::BrokerAway
            }
            DeadLetterError::NotConfirmed { .. } => {
                tracing::warn!(%error, "dead letter: replay not confirmed");
                ProblemCode::NotConfirmed
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
