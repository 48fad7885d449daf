//! One thread of the generator: a task per connection, which sends a request and reads its answer.
//!
//! In a closed loop a connection sends its next request when it has read an answer. In an open loop
//! the pacer, a task on the same thread, queues each request at its planned time, and any idle
//! connection sends it: no other thread has to wake up, which would add to every latency.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::pacer;
use super::plan::{Load, LoadError, Outcome, Pace, TransportError};
use super::response::{self, Response};
use super::run::Shared;
use crate::clock;

/// Bytes of one read; the server's responses are far smaller.
const READ_SIZE: usize = 8 * 1024;
/// Pause between two attempts to connect, so that a server that is down is not hammered.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// A planned request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    pub(super) seq: u64,
    pub(super) planned: Instant,
}

/// State shared by the tasks of one thread.
pub(super) struct Generator {
    pub(super) shared: Arc<Shared>,
    /// Requests of an open loop that wait for a connection.
    backlog: Mutex<VecDeque<Due>>,
    planned: Notify,
    /// Requests that were planned and have not ended.
    pub(super) open: AtomicU64,
    /// Connections that were established.
    pub(super) connected: AtomicUsize,
}

/// Runs thread `thread` of a load to its end.
pub(super) fn run(shared: Arc<Shared>, thread: usize) -> Result<(), LoadError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().map_err(LoadError::Start)?;
    let (pace, connections) = (shared.load.pace, shared.load.connections_of(thread));
    let generator = Arc::new(Generator {
        shared,
        backlog: Mutex::default(),
        planned: Notify::new(),
        open: AtomicU64::new(0),
        connected: AtomicUsize::new(0),
    });
    let serve = |_| runtime.spawn(serve(generator.clone()));
    let tasks: Vec<_> = (0..connections).map(serve).collect();
    runtime.block_on(async {
        match pace {
            Pace::Open { per_second, late_limit } => {
                pacer::run(&generator, thread, per_second, late_limit).await
            }
            Pace::Closed if join_all(tasks).await.iter().any(Result::is_err) => {
                Err(LoadError::Panicked)
            }
            Pace::Closed => Ok(()),
        }
    })
}

impl Generator {
    /// Queues a request of an open loop.
    pub(super) fn plan(&self, due: Due) {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.backlog.lock().push_back(due);
        self.planned.notify_one();
    }

    /// Ends queued requests that were planned before `now - late_limit` as unsent.
    pub(super) fn expire(&self, now: Instant, late_limit: Duration) {
        let is_late = |due: &Due| now.saturating_duration_since(due.planned) > late_limit;
        while let Some(due) = self.pop(is_late) {
            self.end(due, &Outcome::Unsent);
        }
    }

    /// Takes the oldest queued request if the condition holds for it.
    fn pop(&self, condition: impl FnOnce(&Due) -> bool) -> Option<Due> {
        let mut backlog = self.backlog.lock();
        backlog.front().is_some_and(condition).then(|| backlog.pop_front()).flatten()
    }

    /// The next request; `None` if a closed loop is over.
    async fn next(&self) -> Option<Due> {
        let late_limit = match self.shared.load.pace {
            Pace::Open { late_limit, .. } => late_limit,
            Pace::Closed => {
                let planned = clock::now_monotonic();
                let seq = self.shared.next(planned)?;
                self.open.fetch_add(1, Ordering::Relaxed);
                return Some(Due { seq, planned });
            }
        };
        loop {
            self.expire(clock::now_monotonic(), late_limit);
            if let Some(due) = self.pop(|_| true) {
                return Some(due);
            }
            self.planned.notified().await;
        }
    }

    /// Records the end of a request.
    fn end(&self, due: Due, outcome: &Outcome<'_>) {
        let latency = clock::now_monotonic().saturating_duration_since(due.planned);
        if let Some(observer) = &self.shared.load.observer {
            observer(due.seq, outcome);
        }
        self.shared.report.lock().count(outcome, latency);
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Keeps one connection open and sends requests over it.
async fn serve(generator: Arc<Generator>) {
    let load = &generator.shared.load;
    let (mut request, mut received) = (Vec::with_capacity(512), Vec::with_capacity(READ_SIZE));
    loop {
        let Some(mut stream) = connect(load).await else {
            // In an open loop requests wait for another connection.
            if load.pace == Pace::Closed {
                let Some(due) = generator.next().await else { return };
                generator.end(due, &Outcome::Unknown(TransportError::Connect));
            }
            continue;
        };
        generator.connected.fetch_add(1, Ordering::Relaxed);
        let (mut is_reusable, mut has_answered) = (true, false);
        while is_reusable {
            let due = tokio::select! {
                biased;
                due = generator.next() => due,
                () = closed(&stream) => break,
            };
            let Some(due) = due else { return };
            request.clear();
            (load.source)(due.seq, &mut request);
            let exchange = exchange(&mut stream, &request, &mut received);
            let result = tokio::time::timeout(load.answer_timeout, exchange).await;
            let outcome = match result.unwrap_or(Err(TransportError::Timeout)) {
                Ok(answered) => {
                    (is_reusable, has_answered) = (answered.is_reusable, true);
                    Outcome::Answered(answered.answer(&received))
                }
                Err(error) => {
                    is_reusable = false;
                    Outcome::Unknown(error)
                }
            };
            generator.end(due, &outcome);
        }
        if !has_answered {
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    }
}

/// Connects, with retries until the connect timeout has passed.
async fn connect(load: &Load) -> Option<TcpStream> {
    let attempts = async {
        loop {
            if let Ok(stream) = TcpStream::connect(load.target).await
                && stream.set_nodelay(true).is_ok()
            {
                return stream;
            }
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    };
    tokio::time::timeout(load.connect_timeout, attempts).await.ok()
}

/// Sends a request over an open connection and reads its answer into `received`. A read of a
/// `TcpStream` clears its readiness if it is short, which saves the system call that would only
/// return `WouldBlock`.
async fn exchange(
    stream: &mut TcpStream,
    request: &[u8],
    received: &mut Vec<u8>,
) -> Result<Response, TransportError> {
    received.clear();
    stream.write_all(request).await.map_err(|_error| TransportError::Write)?;
    while stream.read_buf(received).await.map_err(|_error| TransportError::Read)? > 0 {
        if let Some(response) = response::parse(received)? {
            return Ok(response);
        }
    }
    Err(TransportError::Closed)
}

/// Sends one request over an open connection and waits for its answer: status and body.
///
/// # Errors
/// There is no complete answer; nothing can be sent over the connection any more.
pub async fn call(
    stream: &mut TcpStream,
    request: &[u8],
) -> Result<(u16, Vec<u8>), TransportError> {
    let mut received = Vec::new();
    let response = exchange(stream, request, &mut received).await?;
    let answer = response.answer(&received);
    Ok((answer.status, answer.body.to_vec()))
}

/// Returns when the server closes an idle connection, or sends more than it was asked for.
async fn closed(stream: &TcpStream) {
    while stream.readable().await.is_ok() {
        match stream.try_read(&mut [0]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}
