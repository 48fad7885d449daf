//! The requests of a connection, one in each turn.
//!
//! A client may send many requests without waiting for answers (pipelining). actix-http decodes
//! all that it has read, up to 128 KiB, and runs the requests one after the other until one has to
//! wait: meanwhile no other connection of the worker is polled. Here:
//!
//! * A *turn* is one poll of the connection, which begins by reading and ends by flushing. One
//!   request begins in each turn; a further one waits for the next turn, after the other
//!   connections have had theirs, and then lets the other threads of its core run: the scheduler
//!   would give a worker with a burst of requests milliseconds, for which gates and ledger wait.
//! * While a request is in progress, that is, until its answer is complete, little more is read
//!   behind it than its own body: [`READ_AHEAD_MAX`] bytes, or twice as many if it began in the
//!   turn that read as many. The rest stays in the kernel, and the client has to wait. What was
//!   read is given to actix-http a few heads at a time (see [`super::heads`]).
//! * The body of a request is kept until its answer is complete: if it has not arrived as a whole
//!   when the answer begins, and its handler did not read it, actix-http closes the connection. Of
//!   a chunked body that was dropped it would await the end, without a limit.
//! * An answer is handed to actix-http in slices of [`SLICE`]: it copies each into its buffer, and
//!   sends that beyond 32 KiB. Beside these copies a slow reader keeps the rest of its body in
//!   memory: the parts of long bodies are shared by all readers.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use actix_http::error::PayloadError;
use actix_http::{Payload, Request, Response};
use actix_service::Service;
use actix_web::HttpResponse;
use actix_web::body::{BodySize, EitherBody, MessageBody};
use actix_web::web::Bytes;
use futures_util::future::{Either, ready};
use futures_util::{FutureExt, Stream, StreamExt};

/// Bytes after which reading waits for the end of a request in progress, or for the next turn.
pub const READ_AHEAD_MAX: usize = 8 * 1024;

/// Heads that actix-http gets while a request is in progress, with that of the request.
pub const HEADS_MAX: usize = 8;

/// Most bytes of an answer in one piece.
const SLICE: usize = 16 * 1024;

/// The requests of one connection; shared by its stream, its service and its answers.
#[derive(Debug, Clone, Default)]
pub struct ConnectionRequests(Rc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    in_progress: Cell<u32>,
    /// Whether a request has begun in this turn.
    has_begun: Cell<bool>,
    /// Whether a handler waits for more of its body.
    awaits_body: Cell<bool>,
    /// Bytes read in this turn, and since a request is in progress.
    read_ahead: Cell<usize>,
    /// Whether the connection was not read in its last turn.
    reads_later: Cell<bool>,
    /// Heads that actix-http got since a request is in progress, and whether in this turn.
    num_heads: Cell<usize>,
    has_head: Cell<bool>,
    /// Whether bytes were read, and not given to actix-http.
    withholds: Cell<bool>,
    /// Whether the last body was not read to its end.
    has_unread_body: Cell<bool>,
}

/// A request whose answer is not complete, until drop.
#[derive(Debug)]
pub struct RequestInProgress(ConnectionRequests);

impl ConnectionRequests {
    /// Counts a request, and waits for the next turn if another one has begun in this.
    pub async fn begin(&self) -> RequestInProgress {
        self.0.in_progress.set(self.0.in_progress.get() + 1);
        let request = RequestInProgress(self.clone());
        if self.0.has_begun.replace(true) {
            tokio::task::yield_now().await;
            std::thread::yield_now();
            self.0.has_begun.set(true);
        }
        request
    }

    /// Whether no request is in progress.
    pub fn is_none(&self) -> bool {
        self.0.in_progress.get() == 0
    }

    /// How many more heads actix-http may get. `None`: nothing, for enough were given, and no
    /// handler waits for the rest of a body, of which a piece is given in each turn.
    pub fn num_heads_wanted(&self) -> Option<usize> {
        let num_heads = HEADS_MAX.saturating_sub(self.0.num_heads.get());
        let is_piece_wanted = self.0.awaits_body.get() && !self.0.has_head.get();
        (num_heads > 0 || is_piece_wanted).then_some(num_heads)
    }

    /// Begins a turn that reads nothing anew.
    pub fn begin_turn(&self) {
        self.0.has_begun.set(false);
    }

    /// actix-http got a head.
    pub fn has_given_head(&self) {
        self.0.num_heads.set(self.0.num_heads.get() + 1);
        self.0.has_head.set(true);
    }

    /// Bytes were read and wait: the connection is woken when actix-http may get them.
    pub fn withhold(&self) {
        self.0.withholds.set(true);
    }

    /// Begins a turn. Returns whether the connection may be read; otherwise it is woken when it
    /// may. `is_writing`: the client does not take its answer, so nothing more is read from it.
    pub fn may_read(&self, cx: &Context<'_>, is_writing: bool) -> bool {
        self.begin_turn();
        let waits = is_writing || self.waits_for_end();
        self.0.reads_later.set(waits);
        if waits {
            return false;
        }
        let has_read_enough = self.0.read_ahead.get() >= READ_AHEAD_MAX;
        if has_read_enough {
            // What was read comes first; the next turn reads on.
            self.0.read_ahead.set(0);
            cx.waker().wake_by_ref();
        }
        !has_read_enough
    }

    /// Ends a turn: wakes the connection if it was not read and now may be. While the next request
    /// waits for its turn it is not woken, which would give it the turns of others.
    pub fn end_turn(&self, cx: &Context<'_>, is_writing: bool) {
        if self.is_none() && !is_writing {
            // All that was read has been answered, or is part of a request.
            self.0.read_ahead.set(0);
            self.0.num_heads.set(0);
        }
        self.0.has_head.set(false);
        let may_be_given = self.0.num_heads.get() == 0 || self.0.awaits_body.get();
        if self.0.withholds.get() && may_be_given {
            self.0.withholds.set(false);
            cx.waker().wake_by_ref();
        }
        if self.0.reads_later.get() && !is_writing && !self.waits_for_end() {
            self.0.reads_later.set(false);
            cx.waker().wake_by_ref();
        }
    }

    /// Whether enough was read behind a request in progress.
    fn waits_for_end(&self) -> bool {
        let has_read_enough = self.0.read_ahead.get() >= READ_AHEAD_MAX;
        has_read_enough && !self.is_none() && !self.0.awaits_body.get()
    }

    /// Whether the last body was not read to its end, for which actix-http closes a connection.
    pub fn has_unread_body(&self) -> bool {
        self.0.has_unread_body.get()
    }

    /// Counts bytes that were read.
    pub fn record_read(&self, num_bytes: usize) {
        self.0.read_ahead.set(self.0.read_ahead.get() + num_bytes);
    }

    /// There is nothing left to read.
    pub fn record_end(&self) {
        if self.is_none() {
            self.0.read_ahead.set(0);
        }
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        let in_progress = &self.0.0.in_progress;
        in_progress.set(in_progress.get().saturating_sub(1));
    }
}

/// The body of a request.
struct RequestBody {
    payload: Rc<RefCell<Payload>>,
    is_read: bool,
    requests: ConnectionRequests,
}

impl Stream for RequestBody {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let chunk = Pin::new(&mut *self.payload.borrow_mut()).poll_next(cx);
        self.requests.0.awaits_body.set(chunk.is_pending());
        self.is_read |= matches!(chunk, Poll::Ready(None));
        chunk
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.requests.0.awaits_body.set(false);
        self.requests.0.has_unread_body.set(!self.is_read);
    }
}

/// The body of an answer, in slices; its request is in progress until drop.
#[derive(Debug)]
pub struct SlicedBody<B> {
    body: B,
    /// What is left of the last chunk of `body`.
    rest: Bytes,
    _request: RequestInProgress,
    _request_body: Option<Rc<dyn Any>>,
}

impl<B: MessageBody + Unpin> MessageBody for SlicedBody<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_next(cx)) {
                Some(Ok(chunk)) => this.rest = chunk,
                end => return Poll::Ready(end),
            }
        }
        let length = this.rest.len().min(SLICE);
        Poll::Ready(Some(Ok(this.rest.split_to(length))))
    }
}

/// Answers a request of a connection, in its turn: with the refusal, or by the service.
///
/// # Errors
/// None: an error of the service is its answer.
pub fn call_in_turn<S, B>(
    mut request: Request,
    refuse: fn(&Request) -> Option<HttpResponse>,
    service: &S,
) -> impl Future<Output = Result<Response<SlicedBody<EitherBody<B>>>, HttpResponse>> + use<S, B>
where
    S: Service<Request, Error = HttpResponse>,
    S::Response: Into<Response<B>>,
{
    let requests = request.conn_data::<ConnectionRequests>().cloned().unwrap_or_default();
    let mut request_body = None;
    if !matches!(request.payload(), Payload::None) {
        let payload = Rc::new(RefCell::new(request.take_payload()));
        request_body = Some(Rc::clone(&payload));
        let body = RequestBody { payload, is_read: false, requests: requests.clone() };
        *request.payload() = Payload::Stream { payload: Box::pin(body) };
    }
    let answer = match refuse(&request) {
        Some(refusal) => Either::Left(ready(Err(refusal))),
        None => Either::Right(service.call(request)),
    };
    async move {
        let in_progress = requests.begin().await;
        let answer = answer.await;
        if let Some(payload) = request_body.clone().filter(|_| requests.has_unread_body()) {
            // Until the next poll actix-http decodes what has come together with the head.
            tokio::task::yield_now().await;
            let mut body = RequestBody { payload, is_read: false, requests: requests.clone() };
            while let Some(Some(Ok(_))) = body.next().now_or_never() {}
        }
        let answer = match answer {
            Ok(answer) => answer.into().map_body(|_, body| EitherBody::left(body)),
            Err(error) => Response::from(error).map_body(|_, body| EitherBody::right(body)),
        };
        Ok(answer.map_body(|_, body| SlicedBody {
            body,
            rest: Bytes::new(),
            _request: in_progress,
            _request_body: request_body.map(|payload| payload as Rc<dyn Any>),
        }))
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
