//! Operators' routes for dead letters: list, show, replay, park, discard.

use actix_web::{HttpResponse, web};

use super::dead_letter_filter::{DeadLettersQuery, parse_number};
use super::dead_letter_views::{
    DeadLetterContentView, DeadLetterView, DeadLettersView, DoneView, UnreadableDeadLetterView,
    view_of,
};
use super::verbs::{VERB_BYTES_MAX, record};
use crate::domain::{DeadLetterNo, VerbSubject};
use crate::http::buyers::views::page_cut;
use crate::http::middleware::body::{UnreadCall, VerbBody};
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
    let mut rows = ledger.dead_letter_page(filter, limit + 1).await?;
    let next_cursor = page_cut(&mut rows, limit, |(no, _)| no.to_string());
    let (mut dead_letters, mut unreadable) = (Vec::with_capacity(rows.len()), Vec::new());
    for (no, row) in rows {
        match row {
            Ok(dead_letter) => dead_letters.push(DeadLetterView::from(dead_letter)),
            Err(error) => {
                let (id, reason) = (no.to_string(), error.to_string());
                unreadable.push(UnreadableDeadLetterView { id, reason });
            }
        }
    }
    let view = DeadLettersView { counts, num_matching, dead_letters, unreadable, next_cursor };
    Ok(HttpResponse::Ok().json(view))
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
    Ok(HttpResponse::Ok().json(view_of(&state, content).await))
}

/// What an operator does with a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Replay,
    Park,
    Discard,
}

impl Verb {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Park => "park",
            Self::Discard => "discard",
        }
    }

    pub(super) async fn run(
        self,
        state: &HttpState,
        no: DeadLetterNo,
        reason: Option<&str>,
    ) -> DeadLetterResult {
        match self {
            Self::Replay => state.dead_letters.replay(no).await,
            Self::Park => state.dead_letters.park(no, reason).await,
            Self::Discard => state.dead_letters.discard(no, reason).await,
        }
    }
}

/// Defines the handlers, one per verb.
macro_rules! handlers {
    ($(
        $(#[$doc:meta])* $handler:ident $path:literal $id:literal $body:ident => $verb:ident;
    )+) => {$(
        $(#[$doc])*
        #[utoipa::path(
            post, path = $path, tag = "operators", operation_id = $id,
            params(("dead_letter_id" = String, Path, description = "`id` of the list")),
            request_body = Option<$body>,
            responses((status = 200, description = "what was done", body = DoneView)),
        )]
        pub async fn $handler(
            mut call: UnreadCall,
            dead_letter_id: web::Path<String>,
            state: State,
        ) -> Handled {
            let $body { reason } = call.optional_body(VERB_BYTES_MAX).await?;
            let by = call.by(reason.clone())?;
            let (no, verb) = (parse_id(&dead_letter_id)?, Verb::$verb);
            let (done, dead_letter) = verb.run(&state, no, reason.as_deref()).await?;
            if done != DeadLetterOutcome::Already {
                record(&state, &[VerbSubject::DeadLetter(no)], verb.name(), by).await;
            }
            Ok(HttpResponse::Ok().json(DoneView { done, dead_letter: dead_letter.into() }))
        }
    )+};
}

handlers! {
    /// Replays a dead letter: publishes it, waits for the confirm, then marks it. Idempotent.
    replay "/admin/v1/dead-letters/{dead_letter_id}/replay" "adminReplayDeadLetter" VerbBody
        => Replay;
    /// Parks a dead letter: it stays until an operator replays or discards it. Idempotent; an empty
    /// body gives no reason.
    park "/admin/v1/dead-letters/{dead_letter_id}/park" "adminParkDeadLetter" VerbBody => Park;
    /// Discards a dead letter: its requests without an order become recorded failures, their units
    /// are released, and their buyers read `failed`. Idempotent; an empty body gives no reason.
    discard "/admin/v1/dead-letters/{dead_letter_id}/discard" "adminDiscardDeadLetter" VerbBody
        => Discard;
}

impl From<DeadLetterError> for Problem {
    fn from(error: DeadLetterError) -> Self {
        let code = match error {
            DeadLetterError::Ledger(error) => return error.into(),
            DeadLetterError::Unknown(_) => ProblemCode::UnknownDeadLetter,
            DeadLetterError::NotReplayable { .. } | DeadLetterError::Unreadable => {
                ProblemCode::DeadLetterNotReplayable
            }
            DeadLetterError::UnreadableRow(_) => ProblemCode::DeadLetterUnreadable,
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
