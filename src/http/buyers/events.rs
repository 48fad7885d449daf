//! Event streams: the status of a queued request, pushed. The
//! [status watcher](crate::actors::status_watcher) looks for all streams together; here its news
//! become server-sent events.

use std::convert::Infallible;
use std::future::ready;

use actix_web::http::Method;
use actix_web::http::header::{CONTENT_TYPE, HeaderValue};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, web};
use futures_util::{StreamExt, stream};

use super::requests::BuyerRequest;
use super::views::RequestView;
use crate::actors::status_watcher::StreamNews;
use crate::domain::BucketKey;
use crate::http::middleware::problem::{Handled, NO_STORE, Problem, ProblemCode};
use crate::http::state::State;

/// The states after which nothing follows.
const END_STATES: [&str; 2] = ["success", "failed"];

const LAST_EVENT_ID: &str = "last-event-id";

/// Keeps nginx from collecting the stream before it forwards it.
const NO_BUFFERING: (&str, &str) = ("x-accel-buffering", "no");

/// A comment, so that proxies do not take the stream for idle.
const BEAT: &[u8] = b": still queued\n\n";

/// Status of a request as server-sent events: one per change, until the end state. The id of an
/// event is its state: a client that reconnects after an end state gets 204, which ends its
/// attempts. A second stream of a request that has one in this process is `busy`.
#[utoipa::path(
    get, path = "/v1/requests/{request_id}/events", operation_id = "followRequest", tag = "buyers",
    responses(
        (status = 200, description = "events named `state`, whose data is a `RequestView`; closed \
            at the end state", body = String, content_type = "text/event-stream"),
        (status = 204, description = "the event in `Last-Event-ID` was an end state"),
    ),
)]
pub async fn events(request: HttpRequest, request_id: web::Path<String>, state: State) -> Handled {
    let owned = BuyerRequest::verified(&request_id, state.buyer(&request)?, &state).await?;
    let last_id = request.headers().get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
    if last_id.is_some_and(|id| END_STATES.contains(&id)) {
        return Ok(HttpResponse::NoContent().insert_header(NO_STORE).finish());
    }
    let mut answer = HttpResponse::Ok();
    let event_stream = (CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    answer.insert_header(event_stream).insert_header(NO_STORE).insert_header(NO_BUFFERING);
    if request.method() == Method::HEAD {
        // Nothing is sent after the head: a stream would keep its place and the connection.
        owned.poll(&state.deps).await?;
        return Ok(answer.streaming(stream::empty::<Result<Bytes, Infallible>>()));
    }
    let (streams, now, own) = (&state.deps.actors.streams, state.deps.clock.now(), &owned.own);
    let bucket = BucketKey { sku: own.sku.no, bucket: own.home() };
    let followed = streams.follow((bucket, owned.number), own.buyer, now);
    let followed = followed.ok_or_else(|| {
        Problem::from(ProblemCode::Busy)
            .with_detail("Too many event streams are open: poll the request instead.")
    })?;
    // Read after the stream is followed: no change falls between the two.
    let first = owned.poll(&state.deps).await?;
    let is_pending = first.poll_after_ms > 0;
    let news = stream::unfold(is_pending.then_some((owned, state, followed)), |open| async {
        let (owned, state, mut followed) = open?;
        let (chunk, goes_on) = match followed.next().await {
            Some(StreamNews::Beat) => (Bytes::from_static(BEAT), true),
            Some(StreamNews::Ended(record)) => {
                (event(&owned.view(&state.deps, &record).await), false)
            }
            None => (come_again(), false),
        };
        Some((chunk, goes_on.then_some((owned, state, followed))))
    });
    let chunks = stream::once(ready(event(&first))).chain(news);
    Ok(answer.streaming(chunks.map(Ok::<_, Infallible>)))
}

fn event(view: &RequestView) -> Bytes {
    let data = serde_json::to_string(view).unwrap_or_default();
    Bytes::from(format!("event: state\nid: {}\ndata: {data}\n\n", view.state))
}

/// When to reconnect: clients whose streams end together do not come again together.
fn come_again() -> Bytes {
    Bytes::from(format!("retry: {}\n\n", fastrand::u32(1_000..5_000)))
}
