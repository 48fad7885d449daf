//! Flow step 1/12: buyer -> gate handle.
//!
//! The checks run in the order of their cost: limits of this process, buyer, ticket or sale, body,
//! SKU, request id, quantity, refusals that this process can decide from its own memory; only then
//! the shared limits, the use of the ticket, and the gate. `sold-out`, the most frequent answer,
//! needs no wait, no log line and no network call.
//!
//! On crash: a buyer without an answer sends the request again with the same request id. May
//! repeat: everything; a request that was accepted before gets its first answer again.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use actix_web::{HttpRequest, HttpResponse, web};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use serde::Deserialize;
use utoipa::ToSchema;

use super::mine::BuyerSku;
use super::views::{RequestView, rfc3339};
use crate::domain::{BuyerId, OrderIntent, Phase, Refusal, RequestId, Sale};
use crate::http::admission::LimitedCall;
use crate::http::admission::tickets::{Ticket, UnverifiedTicket, is_ticket};
use crate::http::buyers::auth::single;
use crate::http::buyers::request_ids::RequestIds;
use crate::http::middleware::body;
use crate::http::middleware::problem::{
    IDEMPOTENT_REPLAYED, NO_SNIFF, NO_STORE, Problem, ProblemCode, retry_later,
};
use crate::http::middleware::trace_context::{TRACEPARENT, TraceContext};
use crate::http::state::{HttpDeps, HttpState, State};
use crate::messages::BuyAnswer;
use crate::observe::metrics::{Metrics, OutcomeLabel, RouteLabel, RouteStatus};

/// The path of this route.
pub const BUY: &str = "/v1/buy/{path_id}";

/// The header that may carry the request id.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

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
    post, path = "/v1/buy/{path_id}", operation_id = "buyUnits", tag = "buyers",
    params(
        ("path_id" = String, Path,
            description = "the sale's id, or a ticket's where the sale requires one"),
        ("Idempotency-Key" = Option<String>, Header,
            description = "the request id, where the body has none; 400 if both differ"),
    ),
    request_body = PurchaseRequest<'_>,
    responses(
        (status = 200, description = "in the ledger", body = RequestView, headers(
            ("Location" = String, description = "the status of the request"),
            ("Idempotent-Replayed" = Option<bool>, description = "`true`: was answered before"),
        )),
        (status = 202, description = "`queued`, or `unknown`: ask again", body = RequestView,
            headers(
                ("Location" = String, description = "the status of the request"),
                ("Retry-After" = u32, description = "seconds"),
                ("Idempotent-Replayed" = Option<bool>, description = "`true`: was answered before"),
            )),
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
    let buyer = state.admit(request, LimitedCall::Buy)?;
    let path_id = request.match_info().query("path_id");
    let (sale, ticket) = sale_of_path(path_id, buyer, state).await?;
    let bytes = body::read(payload.into_inner(), state.settings.http.body_max_bytes).await?;
    let purchase: PurchaseRequest<'_> = body::parse(request.headers(), &bytes)?;
    let sku = Arc::clone(sale.sku(&purchase.sku_id).ok_or(ProblemCode::UnknownSku)?);
    let sent_id = sent_request_id(request.headers(), purchase.request_id.as_deref())?;
    let own = BuyerSku { sale, sku, buyer };
    let number = identify(deps, sent_id, &own, now_ms).await?;
    check_quantity(deps, purchase.quantity, &own, number).await?;
    let BuyerSku { sale, sku, .. } = &own;
    let intent = sku.intent(number, buyer, sale.epoch, purchase.quantity, now_ms);
    let intent = OrderIntent { trace: trace.trace, ..intent };
    let refusal = deps.gates.refuse(sale, &intent, now_ms).await?;
    let answer = if let Some(refusal) = refusal {
        BuyAnswer::refused(refusal)
    } else {
        state.admit_shared(request, LimitedCall::Buy, buyer, std::slice::from_ref(sku)).await?;
        if let Some(ticket) = &ticket {
            use_ticket(ticket, number, &own, deps, now_ms).await?;
        }
        let _in_flight = state.admission.enter()?;
        deps.gates.buy(intent).await
    };
    let id = || sent_id.map_or_else(|| own.sign(deps, number), str::to_owned);
    let (mut view, replayed) = match answer {
        BuyAnswer::Queued { replayed } => (RequestView::pending(id(), "queued"), replayed),
        BuyAnswer::Ordered { record, replayed } => {
            (RequestView::new(id(), &own, &record), replayed)
        }
        BuyAnswer::Refused { refusal, replayed } => {
            let is_second = refusal == Refusal::RequestIdReused && sent_id.is_none();
            let (refusal, again) = if is_second {
                own.refusal_of_second(deps, number).await?
            } else {
                (refusal, None)
            };
            let again = again.or_else(|| own.again(deps, number, &refusal));
            return Err(refused(&refusal, again, &own, deps, now_ms).replayed(replayed));
        }
        BuyAnswer::Unknown => (RequestView::pending(id(), "unknown"), false),
        BuyAnswer::Busy => return Err(ProblemCode::Busy.into()),
    };
    own.add_limit(&mut view, deps).await;
    let outcome = match view.state {
        _ if replayed => "replayed",
        "success" => "placed",
        pending => pending,
    };
    Ok((accepted(&view, replayed, trace), outcome))
}

/// The sale of a path, and the ticket if the path is one.
async fn sale_of_path(
    path_id: &str,
    buyer: BuyerId,
    state: &HttpState,
) -> Result<(Arc<Sale>, Option<Ticket>), Problem> {
    if !is_ticket(path_id) {
        let sale = state.sale(|catalog| catalog.announced(path_id)).await?;
        if sale.ticket_required {
            let detail = "This sale requires a ticket: POST /v1/sales/{sale_id}/challenges.";
            return Err(Problem::from(ProblemCode::TicketInvalid).with_detail(detail));
        }
        return Ok((sale, None));
    }
    let sent = UnverifiedTicket::read(path_id).ok_or(ProblemCode::TicketInvalid)?;
    let found = state.deps.sales.find(|catalog| catalog.of_no(sent.sale_no())).await?;
    let sale = found.ok_or(ProblemCode::TicketInvalid)?;
    let ticket = sent.verified(&state.deps.signer, &sale.id, buyer);
    Ok((sale, Some(ticket.ok_or(ProblemCode::TicketInvalid)?)))
}

/// Binds the ticket to this request; the first request wins. An expired ticket is accepted for a
/// request that was accepted before, so that a repeat gets its first answer.
async fn use_ticket(
    ticket: &Ticket,
    request: RequestId,
    own: &BuyerSku,
    deps: &HttpDeps,
    now_ms: i64,
) -> Result<(), Problem> {
    if ticket.is_expired(now_ms) {
        let known = own.record(deps, request).await?;
        return known.map(drop).ok_or_else(|| ProblemCode::TicketInvalid.into());
    }
    // The buyer has one first request in the whole sale: there is no other to bind. Later ones buy
    // again, after each cancellation.
    let has_one_first = own.sku.policy.derives_request_id() && own.sale.skus.len() == 1;
    if has_one_first && request == own.first(deps) {
        return Ok(());
    }
    let expires_at_ms = i64::from(ticket.expires_s) * 1000;
    let bound = deps.ticket_uses.bind(ticket.number, request, expires_at_ms).await?;
    if bound == request { Ok(()) } else { Err(ProblemCode::TicketInvalid.into()) }
}

/// The request id of the body, or of `Idempotency-Key` where the body has none.
fn sent_request_id<'r>(
    headers: &'r HeaderMap,
    in_body: Option<&'r str>,
) -> Result<Option<&'r str>, Problem> {
    if !headers.contains_key(IDEMPOTENCY_KEY) {
        return Ok(in_body);
    }
    let key = single(headers, IDEMPOTENCY_KEY)
        .ok_or_else(|| Problem::invalid("Idempotency-Key must be one request id"))?;
    // A string of RFC 9651 stands in quotes.
    let unquoted = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    let key = unquoted.unwrap_or(key);
    if in_body.is_some_and(|id| id != key) {
        return Err(Problem::invalid("Idempotency-Key and request_id differ; send one of them"));
    }
    Ok(Some(key))
}

/// The number of the request. An expired id is accepted as long as its bucket has a record of it,
/// so that a repeat gets its first answer.
async fn identify(
    deps: &HttpDeps,
    sent_id: Option<&str>,
    own: &BuyerSku,
    now_ms: i64,
) -> Result<RequestId, Problem> {
    let BuyerSku { sale, sku, buyer } = own;
    let (ids, derives) = (&deps.request_ids, sku.policy.derives_request_id());
    let Some(sent_id) = sent_id else {
        if derives {
            return Ok(own.first(deps));
        }
        let path = "POST /v1/sales/{sale_id}/request-ids";
        return Err(Problem::invalid(format!("request_id is missing; get one from {path}")));
    };
    let id = RequestIds::read(sent_id).ok_or(ProblemCode::RequestIdInvalid)?;
    if !ids.verify(&id, &sale.id, sku.no, *buyer) {
        return Err(ProblemCode::RequestIdInvalid.into());
    }
    // A derived number is signed only for a buyer who may use it, and never expires.
    let is_valid = derives
        || now_ms < ids.expires_at_ms(id.number)
        || own.record(deps, id.number).await?.is_some();
    if is_valid { Ok(id.number) } else { Err(ProblemCode::RequestIdInvalid.into()) }
}

/// Refuses a quantity that the SKU does not allow. A request that was accepted before its limit was
/// lowered gets its first answer.
async fn check_quantity(
    deps: &HttpDeps,
    quantity: u32,
    own: &BuyerSku,
    request: RequestId,
) -> Result<(), Problem> {
    let max = own.sku.policy.max_quantity();
    let is_allowed = match quantity {
        0 => false,
        _ if quantity <= max => true,
        _ => own.record(deps, request).await?.is_some(),
    };
    let invalid = || Problem::invalid(format!("quantity must be from 1 to {max}"));
    is_allowed.then_some(()).ok_or_else(invalid)
}

/// The problem of a refusal. `again`: the id of another purchase.
fn refused(
    refusal: &Refusal,
    again: Option<String>,
    own: &BuyerSku,
    deps: &HttpDeps,
    now_ms: i64,
) -> Problem {
    let sale = &own.sale;
    let problem = Problem::from(ProblemCode::from(refusal));
    let problem = match again {
        Some(id) => problem.with("again", id),
        None => problem,
    };
    match *refusal {
        Refusal::AlreadyPurchased { first } => problem.with("request_id", own.sign(deps, first)),
        Refusal::QuotaExceeded { owned, limit } => {
            problem.with("owned", owned).with("limit", limit)
        }
        // Also where the gate knows of the pause before the catalog does.
        Refusal::NotStarted if sale.phase == Phase::Paused || now_ms >= sale.starts_at_ms => {
            ProblemCode::Paused.into()
        }
        Refusal::NotStarted => problem.with("starts_at", rfc3339(sale.starts_at_ms)),
        Refusal::SoldOut
        | Refusal::RequestIdReused
        | Refusal::Ended
        | Refusal::Discarded
        | Refusal::Barred
        | Refusal::CancelledByBuyer
        | Refusal::QueueTimeout => problem,
    }
}

/// 200 for an order, 202 for a request without a final result.
fn accepted(view: &RequestView, replayed: bool, trace: &TraceContext) -> HttpResponse {
    let mut answer =
        if view.order.is_some() { HttpResponse::Ok() } else { HttpResponse::Accepted() };
    answer
        .insert_header(NO_STORE)
        .insert_header(NO_SNIFF)
        .insert_header((LOCATION, format!("/v1/requests/{}", view.request_id)))
        .insert_header((TRACEPARENT, trace.header()));
    if view.order.is_none() {
        answer.insert_header(retry_later());
    }
    if replayed {
        answer.insert_header((IDEMPOTENT_REPLAYED, HeaderValue::from_static("true")));
    }
    answer.json(view)
}

/// Outcomes of `floodgate_buy` besides the problem codes: an order in the ledger; accepted; perhaps
/// accepted; the answer to a repeat.
const OUTCOMES: [&str; 4] = ["placed", "queued", "unknown", "replayed"];

/// Counters and the latency histogram of the buy route, looked up in the registry at start.
#[derive(Debug)]
pub struct BuyMeter {
    outcomes: Vec<(&'static str, Counter)>,
    statuses: Vec<(u16, Counter)>,
    duration: Histogram,
}

impl BuyMeter {
    /// Looks up the counters of every outcome and status.
    pub fn new(metrics: &Metrics) -> Self {
        let with_outcome =
            |outcome| (outcome, metrics.buy.get_or_create_owned(&OutcomeLabel { outcome }));
        let with_status = |status| {
            let label = RouteStatus { route: BUY, status };
            (status, metrics.http_requests.get_or_create_owned(&label))
        };
        let codes = ProblemCode::ALL.iter().map(|code| code.as_str());
        let statuses = ProblemCode::ALL.iter().map(|code| code.status()).chain([200, 202]);
        let statuses: BTreeSet<u16> = statuses.collect();
        Self {
            outcomes: OUTCOMES.into_iter().chain(codes).map(with_outcome).collect(),
            statuses: statuses.into_iter().map(with_status).collect(),
            duration: metrics.http_request_duration.get_or_create_owned(&RouteLabel { route: BUY }),
        }
    }

    /// Counts one answer and observes its latency.
    pub fn record(&self, outcome: &str, status: u16, took: Duration) {
        let outcome = self.outcomes.iter().find(|(name, _)| *name == outcome);
        let status = self.statuses.iter().find(|(number, _)| *number == status);
        let counters = [outcome.map(|(_, counter)| counter), status.map(|(_, counter)| counter)];
        counters.into_iter().flatten().for_each(|counter| {
            counter.inc();
        });
        self.duration.observe(took.as_secs_f64());
    }
}
