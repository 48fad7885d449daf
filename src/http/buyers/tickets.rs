//! Challenges, and the tickets that their answers yield.

use actix_web::web;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::views::{no_store_json, rfc3339};
use crate::config::ChallengeKind;
use crate::http::admission::LimitedCall;
use crate::http::admission::challenge::ChallengeTask;
use crate::http::middleware::body::UnreadCall;
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::state::State;

/// The kind of challenge that a buyer prefers.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChallengeRequest {
    /// One that the server offers; default the first of `tickets.challenges`.
    kind: Option<ChallengeKind>,
}

/// A challenge.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChallengeView {
    challenge_id: String,
    kind: ChallengeKind,
    /// Kinds that the server offers.
    kinds: Vec<ChallengeKind>,
    #[serde(flatten)]
    task: ChallengeTask,
    /// The answer must arrive before this time.
    expires_at: String,
}

/// The answer to a challenge.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TicketRequest {
    challenge_id: String,
    answer: Answer,
}

/// A decimal number, as string or number.
#[derive(Deserialize, ToSchema)]
#[serde(untagged, expecting = "answer must be a decimal number, as string or number")]
enum Answer {
    Number(u64),
    Text(String),
}

/// A ticket.
#[derive(Debug, Serialize, ToSchema)]
pub struct TicketView {
    /// For `POST /v1/buy/{path_id}`, with one request id.
    path_id: String,
    /// After this, the ticket is accepted only for a request that was accepted before.
    expires_at: String,
}

/// A new challenge, for a ticket.
#[utoipa::path(
    post, path = "/v1/sales/{sale_id}/challenges", operation_id = "issueChallenge", tag = "buyers",
    request_body = Option<ChallengeRequest>,
    responses((status = 200, description = "to be solved for a ticket", body = ChallengeView)),
)]
pub async fn challenge(mut call: UnreadCall, sale_id: web::Path<String>, state: State) -> Handled {
    let now_ms = state.deps.clock.wall_ms();
    let buyer = state.admit(&call.request, LimitedCall::Challenge)?;
    let sale = state.sale(|catalog| catalog.announced(&sale_id)).await?;
    let body_max = state.settings.http.body_max_bytes;
    let wanted: ChallengeRequest = call.optional_body(body_max).await?;
    let kind = state.challenges.kind(wanted.kind).ok_or_else(|| {
        Problem::invalid("kind is none of those that the server offers (tickets.challenges)")
    })?;
    state.admit_shared(&call.request, LimitedCall::Challenge, buyer, &sale.skus).await?;
    let issued = state.challenges.issue(kind, &sale, buyer, now_ms);
    Ok(no_store_json(ChallengeView {
        challenge_id: issued.challenge_id,
        kind,
        kinds: state.settings.tickets.challenges.clone(),
        task: issued.task,
        expires_at: rfc3339(issued.expires_at_ms),
    }))
}

/// The ticket for the answer to a challenge: the same at each repeat. A challenge may be answered
/// three times.
#[utoipa::path(
    post, path = "/v1/sales/{sale_id}/tickets", operation_id = "issueTicket", tag = "buyers",
    request_body = TicketRequest,
    responses((status = 200, description = "the path of one purchase", body = TicketView)),
)]
pub async fn ticket(mut call: UnreadCall, sale_id: web::Path<String>, state: State) -> Handled {
    let now_ms = state.deps.clock.wall_ms();
    let buyer = state.admit(&call.request, LimitedCall::Ticket)?;
    let sale = state.sale(|catalog| catalog.announced(&sale_id)).await?;
    let sent: TicketRequest = call.body(state.settings.http.body_max_bytes).await?;
    state.admit_shared(&call.request, LimitedCall::Ticket, buyer, &sale.skus).await?;
    let answer = match sent.answer {
        Answer::Number(number) => number.to_string(),
        Answer::Text(text) => text,
    };
    let now = state.deps.clock.now();
    let may_answer = |number| state.admission.may_answer(number, state.challenges.attempts(), now);
    let id = &sent.challenge_id;
    let ticket = state.challenges.redeem(id, &answer, &sale, buyer, now_ms, may_answer);
    let ticket = ticket.ok_or(ProblemCode::ChallengeFailed)?;
    Ok(no_store_json(TicketView {
        path_id: ticket.path_id(&state.deps.signer, &sale.id, buyer),
        expires_at: rfc3339(i64::from(ticket.expires_s) * 1000),
    }))
}
