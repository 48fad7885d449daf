//! One run: a task per connection, which sends a request and reads its answer.
//!
//! In a closed loop a connection sends its next request when it has read an answer. In an open loop
//! the pacer queues each request at its planned time, and any idle connection sends it. All share
//! one thread: another one would have to wake up, which would add to every latency.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};

use super::pacer;
use super::plan::{Load, LoadError, Outcome, Pace, TransportError, Until};
use super::report::Report;
use super::response::{self, Response};
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

/// What the tasks of a run share.
pub(super) struct Generator {
    pub(super) load: Load,
    stop: Arc<AtomicBool>,
    pub(super) state: Mutex<RunState>,
    planned: Notify,
    /// On a terminal, if one is wanted.
    progress: Option<ProgressBar>,
}

#[derive(Default)]
pub(super) struct RunState {
    report: Report,
    /// Set by the first request.
    began: Option<Instant>,
    /// The number of the next request of a closed loop.
    next: u64,
    /// Requests of an open loop that wait for a connection.
    backlog: VecDeque<Due>,
    /// Requests that were planned and have not ended.
    pub(super) open: u64,
    /// Connections that were established.
    pub(super) connected: usize,
}

/// Runs a load to its end without blocking the caller's executor.
///
/// Dropping the future stops the run: no further request is sent, and the generator's thread awaits
/// the requests in flight.
pub async fn run(load: Load) -> Result<Report, LoadError> {
    load.check()?;
    let (sender, receiver) = oneshot::channel();
    let stop = StopOnDrop(Arc::default());
    let stopped = stop.0.clone();
    let work = move || drop(sender.send(run_here(load, stopped)));
    thread::Builder::new().name("load".to_owned()).spawn(work).map_err(LoadError::Start)?;
    receiver.await.map_err(|_closed| LoadError::Panicked)?
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn run_here(load: Load, stop: Arc<AtomicBool>) -> Result<Report, LoadError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().map_err(LoadError::Start)?;
    let (pace, connections) = (load.pace, load.connections);
    let progress = load.progress.and_then(|title| progress_bar(title, load.until));
    let (state, planned) = (Mutex::default(), Notify::new());
    let generator = Arc::new(Generator { load, stop, state, planned, progress });
    let serve = |_| runtime.spawn(serve(generator.clone()));
    let tasks: Vec<_> = (0..connections).map(serve).collect();
    runtime.block_on(async {
        match pace {
            Pace::Open { per_second, late_limit } => {
                pacer::run(&generator, per_second, late_limit).await
            }
            Pace::Closed if join_all(tasks).await.iter().any(Result::is_err) => {
                Err(LoadError::Panicked)
            }
            Pace::Closed => Ok(()),
        }
    })?;
    let RunState { report, began, .. } = std::mem::take(&mut *generator.state.lock());
    let since = |began| clock::now_monotonic().saturating_duration_since(began);
    Ok(Report { elapsed: began.map_or(Duration::ZERO, since), ..report })
}

/// A progress bar on standard error; `None` if that is not a terminal.
fn progress_bar(title: &'static str, until: Until) -> Option<ProgressBar> {
    let (length, share) = match until {
        Until::Requests(total) => (Some(total), "[{bar:40}] {percent:>3} % "),
        Until::Elapsed(_) => (None, ""),
    };
    let bar = length.map_or_else(ProgressBar::no_length, ProgressBar::new);
    // Also after a failure.
    let bar = bar.with_finish(ProgressFinish::AndClear);
    let template = format!("{{prefix:>12}} {share}{{human_pos}} requests, {{per_sec}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(title);
    (!bar.is_hidden()).then_some(bar)
}

impl Generator {
    /// Sets the beginning of the run to now, at the first call; returns it.
    pub(super) fn begin(&self) -> Instant {
        *self.state.lock().began.get_or_insert_with(clock::now_monotonic)
    }

    /// Whether the run ends before request `seq`, which comes `elapsed` after the first, or the
    /// future of [`run`] was dropped.
    pub(super) fn is_over(&self, seq: u64, elapsed: Duration) -> bool {
        let is_done = match self.load.until {
            Until::Requests(total) => seq >= total,
            Until::Elapsed(total) => elapsed >= total,
        };
        is_done || self.stop.load(Ordering::Relaxed)
    }

    /// Queues a request of an open loop.
    pub(super) fn plan(&self, due: Due) {
        let mut state = self.state.lock();
        state.open += 1;
        state.backlog.push_back(due);
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
        let backlog = &mut self.state.lock().backlog;
        backlog.front().is_some_and(condition).then(|| backlog.pop_front()).flatten()
    }

    /// The next request; `None` if a closed loop is over.
    async fn next(&self) -> Option<Due> {
        let late_limit = match self.load.pace {
            Pace::Open { late_limit, .. } => late_limit,
            Pace::Closed => return self.next_at_once(),
        };
        loop {
            self.expire(clock::now_monotonic(), late_limit);
            if let Some(due) = self.pop(|_| true) {
                return Some(due);
            }
            self.planned.notified().await;
        }
    }

    fn next_at_once(&self) -> Option<Due> {
        let (begin, planned) = (self.begin(), clock::now_monotonic());
        let mut state = self.state.lock();
        let seq = state.next;
        if self.is_over(seq, planned.saturating_duration_since(begin)) {
            return None;
        }
        (state.next, state.open) = (seq + 1, state.open + 1);
        Some(Due { seq, planned })
    }

    /// Records the end of a request.
    fn end(&self, due: Due, outcome: &Outcome<'_>) {
        let latency = clock::now_monotonic().saturating_duration_since(due.planned);
        if let Some(observer) = &self.load.observer {
            observer(due.seq, outcome);
        }
        if let Some(bar) = &self.progress {
            bar.inc(1);
        }
        let mut state = self.state.lock();
        state.report.count(outcome, latency);
        state.open -= 1;
    }
}

/// Keeps one connection open and sends requests over it.
async fn serve(generator: Arc<Generator>) {
    let load = &generator.load;
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
        generator.state.lock().connected += 1;
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
    stream.write_all(request).await.map_err(|_error| TransportError::Broken)?;
    while stream.read_buf(received).await.map_err(|_error| TransportError::Broken)? > 0 {
        if let Some(response) = response::parse(received)? {
            return Ok(response);
        }
    }
    Err(TransportError::Broken)
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
