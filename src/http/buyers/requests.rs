//! Request ids, which distinguish a repeat of a purchase from a second purchase, and the status of
//! their requests: polled, or as an event stream. Read from the stock, never from the ledger.

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, web};
use futures_util::stream;
use serde::Deserialize;
use utoipa::ToSchema;

use super::mine::add_quota;
use super::views::{RequestIdView, RequestView, no_store, no_store_json, rfc3339};
use crate::domain::{BuyerId, RequestId, Sku};
use crate::http::buyers::request_tokens::RequestTokens;
use crate::http::middleware::body;
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::state::{HttpState, State};
use crate::services::catalog::CatalogSale;

/// First and longest wait between two polls of an event stream.
const POLL_WAIT_MIN: Duration = Duration::from_millis(100);
const POLL_WAIT_MAX: Duration = Duration::from_secs(1);

/// Interval of keep-alive comments on an idle stream: below the idle time-out of common proxies.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// The states after which nothing follows.
const END_STATES: [&str; 2] = ["success", "failed"];

const LAST_EVENT_ID: &str = "last-event-id";

/// Keeps nginx from collecting the stream before it forwards it.
const NO_BUFFERING: (&str, &str) = ("x-accel-buffering", "no");

/// Longest duration of one stream; the client reconnects afterwards.
const STREAM_MAX: Duration = Duration::from_mins(5);

/// The SKU that the request id is for.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestIdQuery<'b> {
    #[serde(borrow)]
    #[schema(value_type = String)]
    sku_id: Cow<'b, str>,
}

/// Issues a request id. For `one_per_buyer` it is the same at every call and is valid until the
/// sale ends.
#[utoipa::path(
    post, path = "/v1/sales/{sale_id}/request-ids", tag = "buyers",
    request_body = RequestIdQuery<'_>,
    responses((status = 200, description = "for one purchase", body = RequestIdView)),
)]
pub async fn create(
    request: HttpRequest,
    sale_id: web::Path<String>,
    payload: web::Payload,
    state: State,
) -> Handled {
    let deps = &state.deps;
    let now_ms = deps.clock.wall_ms();
    let buyer = state.buyer_auth.buyer(request.headers(), now_ms)?;
    let listed = deps.catalog.sale(&sale_id).ok_or(ProblemCode::UnknownSku)?;
    let bytes = body::read(payload, state.settings.http.body_max_bytes).await?;
    let query: RequestIdQuery<'_> = body::parse(request.headers(), &bytes)?;
    let sku = listed.sku(&query.sku_id).ok_or(ProblemCode::UnknownSku)?;
    let sale = &listed.sale;
    let (number, expires_at_ms) = if sku.policy.derives_request_id() {
        (state.tokens.derive(&sale.id, sku.no, buyer), sale.ends_at_ms)
    } else {
        let number = state.tokens.issue(now_ms);
        (number, state.tokens.expires_at_ms(number))
    };
    Ok(no_store_json(RequestIdView {
        request_id: state.tokens.sign(number, &sale.id, sku.no, buyer),
        expires_at: rfc3339(expires_at_ms),
    }))
}

/// A request of the authenticated buyer.
pub struct BuyerRequest {
    /// The signed request id.
    pub id: String,
    pub number: RequestId,
    listed: Arc<CatalogSale>,
    pub sku: Arc<Sku>,
    pub buyer: BuyerId,
}

impl BuyerRequest {
    /// Verifies that `sent_id` was issued to the authenticated buyer. Every fault of it is reported
    /// as `not-found`.
    pub fn verified(
        sent_id: &str,
        request: &HttpRequest,
        state: &HttpState,
    ) -> Result<Self, Problem> {
        let deps = &state.deps;
        let buyer = state.buyer_auth.buyer(request.headers(), deps.clock.wall_ms())?;
        let found = || {
            let id = RequestTokens::read(sent_id)?;
            let (listed, sku) = deps.catalog.of_sku(id.sku_no)?;
            let ours = state.tokens.verify(&id, &listed.sale.id, sku.no, buyer);
            ours.then(|| Self { id: sent_id.to_owned(), number: id.number, listed, sku, buyer })
        };
        found().ok_or_else(|| not_found(sent_id))
    }

    async fn poll(&self, state: &HttpState) -> Result<RequestView, Problem> {
        let stored = state.deps.gates.status(&self.sku, self.number, self.buyer).await?;
        let stored = stored.ok_or_else(|| not_found(&self.id))?;
        let Self { id, listed, sku, buyer, .. } = self;
        let mut view = RequestView::new(id.clone(), listed, sku, *buyer, stored.status);
        add_quota(&mut view, state, sku, *buyer).await;
        Ok(view)
    }
}

fn not_found(sent_id: &str) -> Problem {
    Problem::from(ProblemCode::NotFound)
        .with_detail("No request of yours with this id was accepted.")
        .with("state", "not_found")
        .with("request_id", sent_id)
}

/// Status of a request.
#[utoipa::path(
    get, path = "/v1/requests/{request_id}", tag = "buyers",
    responses((status = 200, description = "`queued`, `success` or `failed`", body = RequestView)),
)]
pub async fn show(request: HttpRequest, request_id: web::Path<String>, state: State) -> Handled {
    let view = BuyerRequest::verified(&request_id, &request, &state)?.poll(&state).await?;
    let mut answer = HttpResponse::Ok();
    answer.insert_header(no_store());
    if view.poll_after_ms > 0 {
        answer.insert_header((RETRY_AFTER, view.poll_after_ms.div_ceil(1000)));
    }
    Ok(answer.json(view))
}

/// Status of a request as server-sent events: one per change, until the end state. The id of an
/// event is its state: a client that reconnects after an end state gets 204, which ends its
/// attempts.
#[utoipa::path(
    get, path = "/v1/requests/{request_id}/events", tag = "buyers",
    responses(
        (status = 200, description = "events named `state`; closed at the end state",
            body = RequestView, content_type = "text/event-stream"),
        (status = 204, description = "the event in `Last-Event-ID` was an end state"),
    ),
)]
pub async fn events(request: HttpRequest, request_id: web::Path<String>, state: State) -> Handled {
    let owned = BuyerRequest::verified(&request_id, &request, &state)?;
    let last_id = request.headers().get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
    if last_id.is_some_and(|id| END_STATES.contains(&id)) {
        return Ok(HttpResponse::NoContent().insert_header(no_store()).finish());
    }
    let first = owned.poll(&state).await?;
    let now = state.deps.clock.now();
    let events = EventStream {
        request: owned,
        state,
        next_event: Some(first),
        last_state: "",
        wait: POLL_WAIT_MIN,
        ends: now + STREAM_MAX,
        last_sent: now,
    };
    let chunks = stream::unfold(Some(events), |events| async {
        let (chunk, next) = events?.next().await?;
        Some((Ok::<_, Infallible>(chunk), next))
    });
    let event_stream = (CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    let mut answer = HttpResponse::Ok();
    answer.insert_header(event_stream).insert_header(no_store()).insert_header(NO_BUFFERING);
    Ok(answer.streaming(chunks))
}

struct EventStream {
    request: BuyerRequest,
    state: State,
    /// Event to send before the next poll.
    next_event: Option<RequestView>,
    last_state: &'static str,
    wait: Duration,
    ends: Instant,
    last_sent: Instant,
}

impl EventStream {
    /// Returns the next chunk, and the stream itself unless it has ended.
    async fn next(mut self) -> Option<(Bytes, Option<Self>)> {
        loop {
            if let Some(view) = self.next_event.take() {
                let data = serde_json::to_string(&view).unwrap_or_default();
                let event =
                    Bytes::from(format!("event: state\nid: {}\ndata: {data}\n\n", view.state));
                self.last_state = view.state;
                self.last_sent = self.state.deps.clock.now();
                let is_pending = view.poll_after_ms > 0;
                return Some((event, is_pending.then_some(self)));
            }
            tokio::time::sleep(self.wait).await;
            self.wait = (self.wait * 2).min(POLL_WAIT_MAX);
            let now = self.state.deps.clock.now();
            if now >= self.ends || !self.state.is_ready() {
                return None;
            }
            // The gate has no record any more, or cannot be read: the client falls back to polling.
            let view = self.request.poll(&self.state).await.ok()?;
            if view.state != self.last_state {
                self.next_event = Some(view);
            } else if now.duration_since(self.last_sent) >= KEEP_ALIVE_EVERY {
                self.last_sent = now;
                return Some((Bytes::from_static(b": still under way\n\n"), Some(self)));
            }
        }
    }
}
