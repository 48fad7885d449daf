//! Operators' routes for dead letters: list, show, replay, park, discard.

use actix_web::{HttpRequest, HttpResponse, web};

use super::dead_letter_filter::{DeadLettersQuery, parse_number};
use super::dead_letter_views::{
    DeadLetterContentView, DeadLetterView, DeadLettersView, DoneView, ParkBody, view_of,
};
use super::verbs::{by_operator, by_operator_in, record};
use crate::domain::{ByOperator, DeadLetterNo, VerbSubject};
use crate::http::buyers::views::page_cut;
use crate::http::middleware::body::{self, VerbBody};
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::state::{HttpState, State};
use crate::services::dead_letters::{DeadLetterError, DeadLetterOutcome, DeadLetterResult};

/// Dead letters, newest first or oldest first.
#[utoipa::path(
    get, path = "/admin/v1/dead-letters",
    operation_id = "adminListDeadLetters", tag = "operators", params(DeadLettersQuery),
    responses((status = 200, description = "a page", body = DeadLettersView)),
)]
pub async fn list(state: State, query: web::Query<DeadLettersQuery>) -> Handled {
    let (limit, filter) = (query.limit()?, query.filter(&state)?);
    let ledger = &state.deps.ledger;
    let counts = ledger.count_dead_letters().await?;
    let num_matching = ledger.num_dead_letters(filter.clone()).await?;
    let mut rows = ledger.dead_letters(filter, limit + 1).await?;
    let next_cursor = page_cut(&mut rows, limit, |last| last.no.to_string());
    Ok(HttpResponse::Ok().json(DeadLettersView {
        counts,
        num_matching,
        dead_letters: rows.into_iter().map(DeadLetterView::from).collect(),
        next_cursor,
    }))
}

/// One dead letter.
#[utoipa::path(
    get, path = "/admin/v1/dead-letters/{dead_letter_id}",
    operation_id = "adminShowDeadLetter", tag = "operators",
    params(("dead_letter_id" = String, Path, description = "`id` of the list")),
    responses((status = 200, description = "with its body", body = DeadLetterContentView)),
)]
pub async fn show(dead_letter_id: web::Path<String>, state: State) -> Handled {
    let content = state.dead_letters.show(parse_id(&dead_letter_id)?).await?;
    Ok(HttpResponse::Ok().json(view_of(&state, content)))
}

/// Replays a dead letter: publishes it, waits for the confirm, then marks it. Idempotent.
#[utoipa::path(
    post, path = "/admin/v1/dead-letters/{dead_letter_id}/replay",
    operation_id = "adminReplayDeadLetter", tag = "operators",
    params(("dead_letter_id" = String, Path, description = "`id` of the list")),
    request_body = Option<VerbBody>,
    responses((status = 200, description = "what was done", body = DoneView)),
)]
pub async fn replay(
    request: HttpRequest,
    dead_letter_id: web::Path<String>,
    payload: web::Payload,
    state: State,
) -> Handled {
    let by = by_operator_in(&request, payload, state.settings.http.body_max_bytes).await?;
    let result = state.dead_letters.replay(parse_id(&dead_letter_id)?).await;
    respond(&state, "replay", by, result).await
}

/// Parks a dead letter: it stays until an operator replays or discards it. Idempotent; an empty
/// body gives no reason.
#[utoipa::path(
    post, path = "/admin/v1/dead-letters/{dead_letter_id}/park",
    operation_id = "adminParkDeadLetter", tag = "operators",
    params(("dead_letter_id" = String, Path, description = "`id` of the list")),
    request_body = Option<ParkBody>,
    responses((status = 200, description = "what was done", body = DoneView)),
)]
pub async fn park(
    request: HttpRequest,
    dead_letter_id: web::Path<String>,
    payload: web::Payload,
    state: State,
) -> Handled {
    let max = state.settings.http.body_max_bytes;
    let ParkBody { reason } = body::optional(&request, payload, max).await?;
    let by = by_operator(&request, reason.clone())?;
    let result = state.dead_letters.park(parse_id(&dead_letter_id)?, reason.as_deref()).await;
    respond(&state, "park", by, result).await
}

/// Discards a dead letter: its requests without an order become recorded failures, their units are
/// released, and their buyers read `failed`. Idempotent; an empty body gives no reason.
#[utoipa::path(
    post, path = "/admin/v1/dead-letters/{dead_letter_id}/discard",
    operation_id = "adminDiscardDeadLetter", tag = "operators",
    params(("dead_letter_id" = String, Path, description = "`id` of the list")),
    request_body = Option<VerbBody>,
    responses((status = 200, description = "what was done", body = DoneView)),
)]
pub async fn discard(
    request: HttpRequest,
    dead_letter_id: web::Path<String>,
    payload: web::Payload,
    state: State,
) -> Handled {
    let max = state.settings.http.body_max_bytes;
    let VerbBody { reason } = body::optional(&request, payload, max).await?;
    let by = by_operator(&request, reason.clone())?;
    let result = state.dead_letters.discard(parse_id(&dead_letter_id)?, reason.as_deref()).await;
    respond(&state, "discard", by, result).await
}

/// Records what was done, and answers.
async fn respond(
    state: &HttpState,
    verb: &str,
    by: Option<ByOperator>,
    result: DeadLetterResult,
) -> Handled {
    let (done, dead_letter) = result?;
    if done != DeadLetterOutcome::Already {
        record(state, &VerbSubject::DeadLetter(dead_letter.no), verb, by).await;
    }
    Ok(HttpResponse::Ok().json(DoneView { done, dead_letter: dead_letter.into() }))
}

impl From<DeadLetterError> for Problem {
    fn from(error: DeadLetterError) -> Self {
        let code = match error {
            DeadLetterError::Ledger(error) => return error.into(),
            DeadLetterError::Unknown(_) => ProblemCode::UnknownDeadLetter,
            DeadLetterError::NotReplayable { .. } | DeadLetterError::Unreadable => {
                ProblemCode::DeadLetterNotReplayable
            }
            DeadLetterError::Ordered => ProblemCode::DeadLetterOrdered,
            DeadLetterError::Replayed | DeadLetterError::Discarded | DeadLetterError::Changed => {
                ProblemCode::DeadLetterConflict
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

fn parse_id(id: &str) -> Result<DeadLetterNo, Problem> {
    parse_number(id).ok_or_else(|| ProblemCode::UnknownDeadLetter.into())
}
