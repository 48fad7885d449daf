//! Status of a request, polled or as an event stream. Read from the stock, never from the ledger.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, web};
use futures_util::stream::{self, Stream};

use super::views::{OrderView, RequestView};
use crate::domain::{BuyerId, RequestId, RequestStatus, Sku};
use crate::http::buyers::request_tokens::RequestTokens;
use crate::http::middleware::problem::{Problem, ProblemCode};
use crate::http::state::HttpState;
use crate::services::catalog::CatalogSale;

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// First and longest wait between two polls of an event stream.
const POLL_WAIT_MIN: Duration = Duration::from_millis(100);
const POLL_WAIT_MAX: Duration = Duration::from_secs(1);

/// Interval of keep-alive comments on an idle stream: below the idle time-out of common proxies.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// Longest duration of one stream; the client reconnects afterwards.
const STREAM_MAX: Duration = Duration::from_mins(5);

/// A request id that was verified for the authenticated buyer.
struct OwnedRequest {
    sent_id: String,
    number: RequestId,
    listed: Arc<CatalogSale>,
    sku: Arc<Sku>,
    buyer: BuyerId,
}

impl OwnedRequest {
    /// Verifies that `sent_id` was issued to the authenticated buyer. Every fault of it is reported
    /// as `not-found`.
    fn new(sent_id: &str, request: &HttpRequest, state: &HttpState) -> Result<Self, Problem> {
        let deps = &state.deps;
        let buyer = state.buyer_auth.buyer(request.headers(), deps.clock.wall_ms())?;
        let found = || {
            let id = RequestTokens::read(sent_id)?;
            let (listed, sku) = deps.catalog.of_sku(id.sku_no)?;
            let ours = state.tokens.verify(&id, &listed.sale.id, sku.no, buyer);
            ours.then(|| Self {
                sent_id: sent_id.to_owned(),
                number: id.number,
                listed,
                sku,
                buyer,
            })
        };
        found().ok_or_else(|| not_found(sent_id))
    }

    async fn poll(&self, state: &HttpState) -> Result<RequestView, Problem> {
        let stored = state.deps.gates.status(&self.sku, self.number, self.buyer).await?;
        let Some(stored) = stored else { return Err(not_found(&self.sent_id)) };
        let id = self.sent_id.clone();
        Ok(match stored.status {
            RequestStatus::Queued => RequestView::pending(id, "queued"),
            RequestStatus::Failed(refusal) => RequestView::failed(id, refusal.code()),
            RequestStatus::Ordered { quantity, placed_at_ms, state } => {
                let placed = (quantity, placed_at_ms, state);
                let order = OrderView::from_gate(&id, &self.listed, &self.sku, self.buyer, placed);
                RequestView::success(id, order)
            }
        })
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
    params(("request_id" = String, Path)),
    responses((status = 200, description = "`queued`, `success` or `failed`", body = RequestView)),
)]
pub async fn show(
    request: HttpRequest,
    request_id: web::Path<String>,
    state: web::Data<HttpState>,
) -> Result<HttpResponse, Problem> {
    let view = OwnedRequest::new(&request_id, &request, &state)?.poll(&state).await?;
    let mut answer = HttpResponse::Ok();
    answer.insert_header((CACHE_CONTROL, NO_STORE));
    if view.poll_after_ms > 0 {
        answer.insert_header((RETRY_AFTER, view.poll_after_ms.div_ceil(1000)));
    }
    Ok(answer.json(view))
}

/// Status of a request as server-sent events: one per change, until the end state.
#[utoipa::path(
    get, path = "/v1/requests/{request_id}/events", tag = "buyers",
    params(("request_id" = String, Path)),
    responses((status = 200, description = "events named `state`; closed at the end state",
        body = RequestView, content_type = "text/event-stream")),
)]
pub async fn events(
    request: HttpRequest,
    request_id: web::Path<String>,
    state: web::Data<HttpState>,
) -> Result<HttpResponse, Problem> {
    let owned = OwnedRequest::new(&request_id, &request, &state)?;
    let first = owned.poll(&state).await?;
    let event_stream = (CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(HttpResponse::Ok()
        .insert_header(event_stream)
        .insert_header((CACHE_CONTROL, NO_STORE))
        .streaming(follow(owned, first, state)))
}

struct EventStream {
    owned: OwnedRequest,
    state: web::Data<HttpState>,
    /// Event to send before the next poll.
    next_event: Option<RequestView>,
    last_state: &'static str,
    wait: Duration,
    ends: Instant,
    last_sent: Instant,
}

fn follow(
    owned: OwnedRequest,
    first: RequestView,
    state: web::Data<HttpState>,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let now = state.deps.clock.now();
    let events = EventStream {
        owned,
        last_state: "",
        next_event: Some(first),
        wait: POLL_WAIT_MIN,
        ends: now + STREAM_MAX,
        last_sent: now,
        state,
    };
    stream::unfold(Some(events), |events| async {
        events?.next().await.map(|(part, next)| (Ok(part), next))
    })
}

impl EventStream {
    /// Returns the next chunk, and the stream itself unless it has ended.
    async fn next(mut self) -> Option<(Bytes, Option<Self>)> {
        loop {
            if let Some(view) = self.next_event.take() {
                let data = serde_json::to_string(&view).unwrap_or_default();
                let event = Bytes::from(format!("event: state\ndata: {data}\n\n"));
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
            let view = self.owned.poll(&self.state).await.ok()?;
            if view.state != self.last_state {
                self.next_event = Some(view);
            } else if now.duration_since(self.last_sent) >= KEEP_ALIVE_EVERY {
                self.last_sent = now;
                return Some((Bytes::from_static(b": still under way\n\n"), Some(self)));
            }
        }
    }
}
