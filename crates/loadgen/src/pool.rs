//! The connections of a run. In a closed loop each connection sends its next request when it has
//! read an answer. In an open loop one thread (the pacer) sends each request at its planned time
//! over any idle connection, and the other threads read the answers.
//!
//! The pacer writes to the socket itself: passing a request to a reader thread would add a wake-up
//! to every latency, and tokio's timer has a resolution of one millisecond.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;

use super::connection::{CONNECT_PAUSE, connect, poll_answer};
use super::pacer;
use super::plan::{LoadError, Pace, TransportError};
use super::recorder::Recorder;
use super::response::ResponseReader;
use super::run::{Running, Shared, runtime, spawn};
use super::timer::LazyTimer;
use crate::clock;

/// A planned request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    pub(super) seq: u64,
    pub(super) planned: Instant,
}

/// One connection, shared by the pacer, which writes, and its reader task.
pub(super) struct Socket {
    writer: OwnedWriteHalf,
    state: Mutex<SocketState>,
}

enum SocketState {
    Idle,
    /// A request and the time at which it was sent.
    Waiting(Due, Instant),
    Closed,
}

/// Idle connections and waiting requests; one of the two is always empty.
#[derive(Default)]
struct Queue {
    idle: VecDeque<Arc<Socket>>,
    backlog: VecDeque<Due>,
}

/// State shared by pacer and readers.
pub(super) struct Pool {
    pub(super) shared: Arc<Shared>,
    pub(super) late_limit: Duration,
    queue: Mutex<Queue>,
    /// Requests that were planned and have not ended.
    pub(super) open: AtomicU64,
    finished: Notify,
}

/// Starts a reader thread for each of `recorders`, and the pacer of an open loop, which uses
/// `extra`.
pub(super) fn start(
    shared: &Arc<Shared>,
    recorders: &[Arc<Recorder>],
    extra: &Arc<Recorder>,
) -> Result<Vec<Running>, LoadError> {
    let late_limit = match shared.load.pace {
        Pace::Closed => Duration::ZERO,
        Pace::Open { late_limit, .. } => late_limit,
    };
    let pool = Arc::new(Pool {
        shared: shared.clone(),
        late_limit,
        queue: Mutex::default(),
        open: AtomicU64::new(0),
        finished: Notify::new(),
    });
    let mut running = Vec::with_capacity(recorders.len() + 1);
    for (thread, recorder) in recorders.iter().enumerate() {
        let (pool, recorder) = (pool.clone(), recorder.clone());
        let connections = shared.load.connections_of(thread);
        running.push(spawn("load-reader", move || read(&pool, &recorder, connections))?);
    }
    if let Pace::Open { per_second, .. } = shared.load.pace {
        let recorder = extra.clone();
        running.push(spawn("load-pacer", move || {
            let pool = FinishOnDrop(pool);
            pacer::run(&pool.0, &recorder, per_second)
        })?);
    }
    Ok(running)
}

/// A reader thread: a closed loop ends with its connections, an open loop with its pacer.
fn read(pool: &Arc<Pool>, recorder: &Arc<Recorder>, connections: usize) -> Result<(), LoadError> {
    let runtime = runtime()?;
    let serve = |_| runtime.spawn(serve(pool.clone(), recorder.clone()));
    let tasks: Vec<_> = (0..connections).map(serve).collect();
    runtime.block_on(async {
        tokio::select! {
            ended = join_all(tasks) => {
                if ended.iter().any(Result::is_err) { Err(LoadError::Panicked) } else { Ok(()) }
            }
            () = pool.finished.notified() => {
                // Passes the permit on to the next reader thread.
                pool.finish();
                Ok(())
            }
        }
    })
}

/// Ends the readers even if the request source panics in the pacer.
struct FinishOnDrop(Arc<Pool>);

impl Drop for FinishOnDrop {
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl Pool {
    /// Sends `due` over an idle connection, or queues it.
    pub(super) fn dispatch(
        &self,
        due: Due,
        now: Instant,
        recorder: &Recorder,
        buffer: &mut Vec<u8>,
    ) {
        loop {
            let socket = {
                let mut queue = self.queue.lock();
                let Some(socket) = queue.idle.pop_front() else {
                    queue.backlog.push_back(due);
                    return;
                };
                socket
            };
            if self.send(&socket, due, now, recorder, buffer) {
                return;
            }
        }
    }

    /// Ends queued requests that were planned before `now - late_limit` as unsent.
    pub(super) fn expire(&self, now: Instant, recorder: &Recorder) {
        loop {
            let late = {
                let mut queue = self.queue.lock();
                match queue.backlog.front() {
                    Some(due) if self.is_late(*due, now) => queue.backlog.pop_front(),
                    _ => None,
                }
            };
            let Some(due) = late else { return };
            self.end_unsent(due, recorder);
        }
    }

    pub(super) fn is_late(&self, due: Due, now: Instant) -> bool {
        now.saturating_duration_since(due.planned) > self.late_limit
    }

    pub(super) fn end_unsent(&self, due: Due, recorder: &Recorder) {
        recorder.unsent(due.seq);
        self.open.fetch_sub(1, Ordering::AcqRel);
    }

    /// The number of idle connections.
    pub(super) fn idle(&self) -> usize {
        self.queue.lock().idle.len()
    }

    fn finish(&self) {
        self.finished.notify_one();
    }

    fn end_unknown(&self, due: Due, error: TransportError, recorder: &Recorder) {
        recorder.unknown(due.seq, error);
        self.open.fetch_sub(1, Ordering::AcqRel);
    }

    /// Sends `due` over `socket`; false if the socket is closed and `due` was not sent.
    fn send(
        &self,
        socket: &Socket,
        due: Due,
        now: Instant,
        recorder: &Recorder,
        buffer: &mut Vec<u8>,
    ) -> bool {
        {
            let mut state = socket.state.lock();
            if matches!(*state, SocketState::Closed) {
                return false;
            }
            // Set before the write: the reader may receive the answer at once.
            *state = SocketState::Waiting(due, now);
        }
        buffer.clear();
        (self.shared.load.source)(due.seq, buffer);
        // A request fits into the empty send buffer of an idle connection; if it does not, its
        // outcome is unknown.
        if socket.writer.try_write(buffer).is_ok_and(|written| written == buffer.len()) {
            return true;
        }
        let mut state = socket.state.lock();
        if let SocketState::Waiting(due, _) = std::mem::replace(&mut *state, SocketState::Closed) {
            drop(state);
            self.end_unknown(due, TransportError::Write, recorder);
        }
        true
    }

    /// Called by the reader for an idle socket: sends the next request over it, or queues the
    /// socket for the pacer; false when a closed loop is over.
    fn release(&self, socket: &Arc<Socket>, recorder: &Recorder, buffer: &mut Vec<u8>) -> bool {
        if self.is_closed_loop() {
            let now = clock::now_monotonic();
            let Some(seq) = self.shared.next(now) else { return false };
            self.open.fetch_add(1, Ordering::AcqRel);
            self.send(socket, Due { seq, planned: now }, now, recorder, buffer);
            return true;
        }
        loop {
            let due = {
                let mut queue = self.queue.lock();
                let Some(due) = queue.backlog.pop_front() else {
                    queue.idle.push_back(socket.clone());
                    return true;
                };
                due
            };
            let now = clock::now_monotonic();
            if self.is_late(due, now) {
                self.end_unsent(due, recorder);
                continue;
            }
            if !self.send(socket, due, now, recorder, buffer) {
                self.queue.lock().backlog.push_front(due);
            }
            return true;
        }
    }

    fn is_closed_loop(&self) -> bool {
        self.shared.load.pace == Pace::Closed
    }
}

/// Keeps one connection of the pool open and reads its answers.
async fn serve(pool: Arc<Pool>, recorder: Arc<Recorder>) {
    let load = &pool.shared.load;
    loop {
        let Ok(stream) = connect(load.target, load.connect_timeout).await else {
            // In an open loop requests wait for another connection.
            if pool.is_closed_loop() {
                let Some(seq) = pool.shared.next(clock::now_monotonic()) else { return };
                recorder.unknown(seq, TransportError::Connect);
            }
            continue;
        };
        let (reading, writer) = stream.into_split();
        let socket = Arc::new(Socket { writer, state: Mutex::new(SocketState::Idle) });
        let (error, answers) = read_answers(&pool, &recorder, &socket, reading).await;
        let previous = std::mem::replace(&mut *socket.state.lock(), SocketState::Closed);
        if let SocketState::Waiting(due, _) = previous {
            pool.end_unknown(due, error.unwrap_or(TransportError::Closed), &recorder);
        }
        if error.is_none() {
            return;
        }
        if answers == 0 {
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    }
}

/// Reads answers until the connection fails or the closed loop ends. Returns the connection's error
/// and the number of answers.
async fn read_answers(
    pool: &Pool,
    recorder: &Recorder,
    socket: &Arc<Socket>,
    mut reading: OwnedReadHalf,
) -> (Option<TransportError>, u64) {
    let mut answers = 0;
    let timeout = pool.shared.load.answer_timeout;
    let mut reader = ResponseReader::default();
    let mut timer = LazyTimer::new(clock::now_monotonic());
    let mut buffer = Vec::with_capacity(512);
    loop {
        *socket.state.lock() = SocketState::Idle;
        if !pool.release(socket, recorder, &mut buffer) {
            return (None, answers);
        }
        timer.set(clock::now_monotonic() + timeout);
        if let Err(error) =
            read_answer(socket, &mut reading, &mut reader, &mut timer, timeout).await
        {
            return (Some(error), answers);
        }
        let ended = clock::now_monotonic();
        let previous = std::mem::replace(&mut *socket.state.lock(), SocketState::Idle);
        // Else an answer without a request, or to a request that was written incompletely.
        let (SocketState::Waiting(due, _), Some(answer)) = (previous, reader.answer()) else {
            return (Some(TransportError::Malformed), answers);
        };
        recorder.answered(due.seq, answer, ended.saturating_duration_since(due.planned));
        pool.open.fetch_sub(1, Ordering::AcqRel);
        answers += 1;
        if !reader.reset() {
            return (Some(TransportError::Closed), answers);
        }
    }
}

/// Reads one complete answer; an idle connection has no deadline.
async fn read_answer(
    socket: &Socket,
    reading: &mut OwnedReadHalf,
    reader: &mut ResponseReader,
    timer: &mut LazyTimer,
    timeout: Duration,
) -> Result<(), TransportError> {
    if matches!(*socket.state.lock(), SocketState::Closed) {
        return Err(TransportError::Write);
    }
    poll_fn(|context| {
        if let Poll::Ready(result) = poll_answer(reading, reader, context) {
            return Poll::Ready(result);
        }
        while timer.poll(context).is_ready() {
            let now = clock::now_monotonic();
            // The pacer may have sent the request at any time after the timer was armed.
            let since = match *socket.state.lock() {
                SocketState::Idle => now,
                SocketState::Waiting(_, sent) => sent,
                SocketState::Closed => return Poll::Ready(Err(TransportError::Write)),
            };
            if now.saturating_duration_since(since) >= timeout {
                return Poll::Ready(Err(TransportError::Timeout));
            }
            timer.set(since + timeout);
        }
        Poll::Pending
    })
    .await
}
