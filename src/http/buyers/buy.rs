//! Flow step 1/12: buyer -> gate handle.
//!
//! The checks run in the order of their cost: credentials, sale, body, SKU, quantity, request id,
//! refusals that this process can decide from its own memory; only then the gate. `sold-out`, the
//! most frequent answer, needs no wait, no log line and no network call.
//!
//! On crash: a buyer without an answer sends the request again with the same request id. May
//! repeat: everything; a request that was accepted before gets its first answer again.

use std::borrow::Cow;
use std::sync::Arc;

use actix_web::http::header::{HeaderValue, LOCATION, RETRY_AFTER};
use actix_web::{HttpRequest, HttpResponse, web};
use serde::Deserialize;
use utoipa::ToSchema;

use super::mine::add_quota;
use super::views::{RequestView, no_store, rfc3339};
use crate::domain::{
    BucketNo, BuyerId, Phase, Refusal, RequestId, RequestStatus, Reservation, Sale, Sku,
};
use crate::http::buyers::request_tokens::RequestTokens;
use crate::http::middleware::body;
use crate::http::middleware::problem::{IDEMPOTENT_REPLAYED, Problem, ProblemCode};
use crate::http::middleware::trace_context::{TRACEPARENT, TraceContext};
use crate::http::state::{HttpState, State};
use crate::messages::BuyAnswer;
use crate::services::catalog::CatalogSale;

/// Body of a purchase.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PurchaseRequest<'b> {
    #[serde(borrow)]
    #[schema(value_type = String)]
    sku_id: Cow<'b, str>,
    /// Units, from 1 to the SKU's `max_quantity`.
    #[schema(minimum = 1)]
    quantity: u32,
    /// From `POST /v1/sales/{sale_id}/request-ids`; may be left out for `one_per_buyer`.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    request_id: Option<Cow<'b, str>>,
}

/// Buys units of a SKU.
#[utoipa::path(
    post, path = "/v1/buy/{path_id}", tag = "buyers",
    params(("path_id" = String, Path, description = "the sale's id")),
    request_body = PurchaseRequest<'_>,
    responses(
        (status = 200, description = "in the ledger", body = RequestView),
        (status = 202, description = "`queued`, or `unknown`: ask again", body = RequestView),
    ),
)]
pub async fn buy(request: HttpRequest, payload: web::Payload, state: State) -> HttpResponse {
    let started = state.deps.clock.now();
    let trace = TraceContext::of(request.headers());
    let (answer, outcome) = match decide(&request, payload, &state, &trace).await {
        Ok(decided) => decided,
        Err(problem) => (problem.respond(&trace), problem.outcome()),
    };
    let took = state.deps.clock.now().duration_since(started);
    state.buy_meter.record(outcome, answer.status().as_u16(), took);
    answer
}

/// The answer and its outcome in the metrics.
async fn decide(
    request: &HttpRequest,
    payload: web::Payload,
    state: &HttpState,
    trace: &TraceContext,
) -> Result<(HttpResponse, &'static str), Problem> {
    let deps = &state.deps;
    let now_ms = deps.clock.wall_ms();
    let buyer = state.buyer_auth.buyer(request.headers(), now_ms)?;
    let path_id = request.match_info().query("path_id");
    let listed = deps.catalog.sale(path_id).ok_or(ProblemCode::UnknownSku)?;
    let bytes = body::read(payload, state.settings.http.body_max_bytes).await?;
    let purchase: PurchaseRequest<'_> = body::parse(request.headers(), &bytes)?;
    let sku = Arc::clone(listed.sku(&purchase.sku_id).ok_or(ProblemCode::UnknownSku)?);
    let max = sku.policy.max_quantity();
    if !(1..=max).contains(&purchase.quantity) {
        return Err(Problem::invalid(format!("quantity must be from 1 to {max}")));
    }
    let number = identify(state, &purchase, &listed, &sku, buyer, now_ms).await?;
    let reservation = Reservation {
        request: number,
        sku: sku.no,
        bucket: BucketNo::home_of(buyer, sku.buckets),
        epoch: listed.sale.epoch,
        buyer,
        quantity: purchase.quantity,
        asked_at_ms: now_ms,
        trace: trace.trace,
    };
    let answer = match deps.gates.refuse(&listed, &reservation, now_ms).await? {
        Some(refusal) => BuyAnswer::first(RequestStatus::Failed(refusal)),
        None => deps.gates.buy(reservation).await,
    };
    if let BuyAnswer::Known { status: RequestStatus::Failed(refusal), replayed } = answer {
        let first_id = |first| state.tokens.sign(first, &listed.sale.id, sku.no, buyer);
        return Err(refused(&refusal, &listed.sale, first_id).replayed(replayed));
    }
    let id = match purchase.request_id {
        Some(sent_id) => sent_id.into_owned(),
        None => state.tokens.sign(number, &listed.sale.id, sku.no, buyer),
    };
    let (mut view, replayed) = match answer {
        BuyAnswer::Known { status, replayed } => {
            (RequestView::new(id, &listed, &sku, buyer, status), replayed)
        }
        BuyAnswer::Unknown => (RequestView::pending(id, "unknown"), false),
        BuyAnswer::Busy => return Err(ProblemCode::Busy.into()),
    };
    add_quota(&mut view, state, &sku, buyer).await;
    let outcome = match view.state {
        _ if replayed => "replayed",
        "success" => "placed",
        pending => pending,
    };
    Ok((accepted(&view, replayed, trace), outcome))
}

/// The number of the request. An expired id is accepted as long as its bucket has a record of it,
/// so that a repeat gets its first answer.
async fn identify(
    state: &HttpState,
    purchase: &PurchaseRequest<'_>,
    listed: &CatalogSale,
    sku: &Arc<Sku>,
    buyer: BuyerId,
    now_ms: i64,
) -> Result<RequestId, Problem> {
    let (deps, sale) = (&state.deps, &listed.sale.id);
    let derives = sku.policy.derives_request_id();
    let Some(sent_id) = &purchase.request_id else {
        if derives {
            return Ok(state.tokens.derive(sale, sku.no, buyer));
        }
        let path = "POST /v1/sales/{sale_id}/request-ids";
        return Err(Problem::invalid(format!("request_id is missing; get one from {path}")));
    };
    let id = RequestTokens::read(sent_id).ok_or(ProblemCode::RequestIdInvalid)?;
    if !state.tokens.verify(&id, sale, sku.no, buyer) {
        return Err(ProblemCode::RequestIdInvalid.into());
    }
    // A derived number is signed only for a buyer who may use it, and never expires.
    let is_valid = derives
        || now_ms < state.tokens.expires_at_ms(id.number)
        || deps.gates.status(sku, id.number, buyer).await?.is_some();
    if is_valid { Ok(id.number) } else { Err(ProblemCode::RequestIdInvalid.into()) }
}

/// The problem of a refusal. `sign` signs the id of another request of the buyer.
fn refused(refusal: &Refusal, sale: &Sale, sign: impl FnOnce(RequestId) -> String) -> Problem {
    let problem = Problem::from(ProblemCode::from(refusal));
    match *refusal {
        Refusal::AlreadyPurchased { first } => problem.with("request_id", sign(first)),
        Refusal::QuotaExceeded { owned, limit } => {
            problem.with("owned", owned).with("limit", limit)
        }
        Refusal::NotStarted => {
            let problem = problem.with("starts_at", rfc3339(sale.starts_at_ms));
            if sale.phase == Phase::Paused {
                return problem.with_detail("The sale is paused.");
            }
            problem
        }
        Refusal::SoldOut
        | Refusal::RequestIdReused
        | Refusal::Ended
        | Refusal::Discarded
        | Refusal::Barred => problem,
    }
}

/// 200 for an order, 202 for a request without a final result.
fn accepted(view: &RequestView, replayed: bool, trace: &TraceContext) -> HttpResponse {
    let mut answer =
        if view.order.is_some() { HttpResponse::Ok() } else { HttpResponse::Accepted() };
    answer
        .insert_header(no_store())
        .insert_header((LOCATION, format!("/v1/requests/{}", view.request_id)))
        .insert_header((TRACEPARENT, trace.header()));
    if view.order.is_none() {
        answer.insert_header((RETRY_AFTER, HeaderValue::from_static("1")));
    }
    if replayed {
        answer.insert_header((IDEMPOTENT_REPLAYED, HeaderValue::from_static("true")));
    }
    answer.json(view)
}
