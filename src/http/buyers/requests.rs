//! Where a request stands, asked for or listened to. Read from where the units are counted, never
//! from the database.

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

/// First and longest wait between two looks of an event stream.
const LOOK_WAIT_MIN: Duration = Duration::from_millis(100);
const LOOK_WAIT_MAX: Duration = Duration::from_secs(1);

/// How often a silent stream shows that it lives: below the idle time of common proxies.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

/// How long one stream lasts; the client's own reconnect begins the next.
const STREAM_MAX: Duration = Duration::from_mins(5);

/// A request whose asker owns it.
struct OwnedRequest {
    written: String,
    number: RequestId,
    listed: Arc<CatalogSale>,
    sku: Arc<Sku>,
    buyer: BuyerId,
}

impl OwnedRequest {
    /// Checks that `written` was made here for the buyer who asks. Whatever is wrong with it reads
    /// the same: not found.
    fn new(written: &str, request: &HttpRequest, state: &HttpState) -> Result<Self, Problem> {
        let deps = &state.deps;
        let buyer = state.buyer_auth.buyer(request.headers(), deps.clock.wall_ms())?;
        let found = || {
            let id = RequestTokens::read(written)?;
            let (listed, sku) = deps.catalog.of_sku(id.sku_no)?;
            let ours = state.tokens.verify(&id, &listed.sale.id, sku.no, buyer);
            ours.then(|| Self {
                written: written.to_owned(),
                number: id.number,
                listed,
                sku,
                buyer,
            })
        };
        found().ok_or_else(|| not_found(written))
    }

    async fn look(&self, state: &HttpState) -> Result<RequestView, Problem> {
        let standing = state.deps.gates.standing(&self.sku, self.number, self.buyer).await?;
        let Some(known) = standing else { return Err(not_found(&self.written)) };
        let id = self.written.clone();
        Ok(match known.standing {
            RequestStatus::Queued => RequestView::under_way(id, "queued"),
            RequestStatus::Failed(refusal) => RequestView::failed(id, refusal.code()),
            RequestStatus::Ordered { quantity, placed_at_ms, state } => {
                let what = (quantity, placed_at_ms, state);
                let order = OrderView::remembered(&id, &self.listed, &self.sku, self.buyer, what);
                RequestView::success(id, order)
            }
        })
    }
}

fn not_found(written: &str) -> Problem {
    Problem::from(ProblemCode::NotFound)
        .with_detail("No request of yours with this id was accepted.")
        .with("state", "not_found")
        .with("request_id", written)
}

/// Where a request stands.
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
    let view = OwnedRequest::new(&request_id, &request, &state)?.look(&state).await?;
    let mut answer = HttpResponse::Ok();
    answer.insert_header((CACHE_CONTROL, NO_STORE));
    if view.poll_after_ms > 0 {
        answer.insert_header((RETRY_AFTER, view.poll_after_ms.div_ceil(1000)));
    }
    Ok(answer.json(view))
}

/// The same object as server-sent events, one for each change, until the end state.
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
    let first = owned.look(&state).await?;
    let event_stream = (CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(HttpResponse::Ok()
        .insert_header(event_stream)
        .insert_header((CACHE_CONTROL, NO_STORE))
        .streaming(follow(owned, first, state)))
}

/// What an open stream knows.
struct EventStream {
    owned: OwnedRequest,
    state: web::Data<HttpState>,
    /// What is to be told next, before anything is looked at again.
    untold: Option<RequestView>,
    told: &'static str,
    wait: Duration,
    ends: Instant,
    last_sign: Instant,
}

fn follow(
    owned: OwnedRequest,
    first: RequestView,
    state: web::Data<HttpState>,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let now = state.deps.clock.now();
    let following = EventStream {
        owned,
        told: "",
        untold: Some(first),
        wait: LOOK_WAIT_MIN,
        ends: now + STREAM_MAX,
        last_sign: now,
        state,
    };
    stream::unfold(Some(following), |following| async {
        following?.next().await.map(|(part, next)| (Ok(part), next))
    })
}

impl EventStream {
    /// The next part of the stream, and itself unless that was the last one.
    async fn next(mut self) -> Option<(Bytes, Option<Self>)> {
        loop {
            if let Some(view) = self.untold.take() {
                let data = serde_json::to_string(&view).unwrap_or_default();
                let event = Bytes::from(format!("event: state\ndata: {data}\n\n"));
                self.told = view.state;
                self.last_sign = self.state.deps.clock.now();
                let goes_on = view.poll_after_ms > 0;
                return Some((event, goes_on.then_some(self)));
            }
            tokio::time::sleep(self.wait).await;
            self.wait = (self.wait * 2).min(LOOK_WAIT_MAX);
            let now = self.state.deps.clock.now();
            if now >= self.ends || !self.state.is_ready() {
                return None;
            }
            // Forgotten by its gate, or a gate that cannot be read: the client asks by itself.
            let view = self.owned.look(&self.state).await.ok()?;
            if view.state != self.told {
                self.untold = Some(view);
            } else if now.duration_since(self.last_sign) >= COMMENT_EVERY {
                self.last_sign = now;
                return Some((Bytes::from_static(b": still under way\n\n"), Some(self)));
            }
        }
    }
}
