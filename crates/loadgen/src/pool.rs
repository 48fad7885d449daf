//! The connections of a run. In a closed loop each sends its next request when it has read an
//! answer. In an open loop one thread (the pacer) sends each request at its planned moment over
//! whichever connection is idle, and the other threads read the answers.
//!
//! The pacer writes to the socket itself. Handing a request to a reader thread would add a wake-up
//! to every latency, and a runtime's timer knows only milliseconds.

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
    flight: Mutex<Flight>,
}

enum Flight {
    Idle,
    /// Sent at the given moment.
    Waiting(Due, Instant),
    Closed,
}

/// Connections without a request, or requests without a connection: never both.
#[derive(Default)]
struct Queue {
    idle: VecDeque<Arc<Socket>>,
    backlog: VecDeque<Due>,
}

/// What pacer and readers share.
pub(super) struct Pool {
    pub(super) shared: Arc<Shared>,
    pub(super) late_limit: Duration,
    queue: Mutex<Queue>,
    /// Requests planned and not ended.
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
                if ended.iter().any(Result::is_err) { Err(LoadError::Died) } else { Ok(()) }
            }
            () = pool.finished.notified() => {
                // The next reader thread waits on the same permit.
                pool.finish();
                Ok(())
            }
        }
    })
}

/// Lets the readers end even when a request source panics in the pacer.
struct FinishOnDrop(Arc<Pool>);

impl Drop for FinishOnDrop {
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl Pool {
    /// Gives `due` to an idle connection, or lets it wait for one.
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

    /// Ends the waiting requests that were planned before `now - late_limit`.
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
            self.unsent(due, recorder);
        }
    }

    pub(super) fn is_late(&self, due: Due, now: Instant) -> bool {
        now.saturating_duration_since(due.planned) > self.late_limit
    }

    pub(super) fn unsent(&self, due: Due, recorder: &Recorder) {
        recorder.unsent(due.seq);
        self.open.fetch_sub(1, Ordering::AcqRel);
    }

    /// Connections that wait for a request.
    pub(super) fn idle(&self) -> usize {
        self.queue.lock().idle.len()
    }

    fn finish(&self) {
        self.finished.notify_one();
    }

    fn unknown(&self, due: Due, error: TransportError, recorder: &Recorder) {
        recorder.unknown(due.seq, error);
        self.open.fetch_sub(1, Ordering::AcqRel);
    }

    /// False when the socket turned out to be closed, and `due` is still to be sent.
    fn send(
        &self,
        socket: &Socket,
        due: Due,
        now: Instant,
        recorder: &Recorder,
        buffer: &mut Vec<u8>,
    ) -> bool {
        {
            let mut flight = socket.flight.lock();
            if matches!(*flight, Flight::Closed) {
                return false;
            }
            // Before the bytes leave, because the reader may see the answer at once.
            *flight = Flight::Waiting(due, now);
        }
        buffer.clear();
        (self.shared.load.source)(due.seq, buffer);
        // A request fits into the empty send buffer of an idle connection; if it does not, its
        // outcome is unknown.
        if socket.writer.try_write(buffer).is_ok_and(|written| written == buffer.len()) {
            return true;
        }
        let mut flight = socket.flight.lock();
        if let Flight::Waiting(due, _) = std::mem::replace(&mut *flight, Flight::Closed) {
            drop(flight);
            self.unknown(due, TransportError::Write, recorder);
        }
        true
    }

    /// The reader's side: takes the next request, or offers the socket to the pacer; false when a
    /// closed loop is over.
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
                self.unsent(due, recorder);
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
            // The requests of an open loop wait for another connection.
            if pool.is_closed_loop() {
                let Some(seq) = pool.shared.next(clock::now_monotonic()) else { return };
                recorder.unknown(seq, TransportError::Connect);
            }
            continue;
        };
        let (reading, writer) = stream.into_split();
        let socket = Arc::new(Socket { writer, flight: Mutex::new(Flight::Idle) });
        let (error, answers) = read_answers(&pool, &recorder, &socket, reading).await;
        let left = std::mem::replace(&mut *socket.flight.lock(), Flight::Closed);
        if let Flight::Waiting(due, _) = left {
            pool.unknown(due, error.unwrap_or(TransportError::Closed), &recorder);
        }
        if error.is_none() {
            return;
        }
        if answers == 0 {
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    }
}

/// Reads answers until the connection or the closed loop ends: why the connection ended, and how
/// many there were.
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
        *socket.flight.lock() = Flight::Idle;
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
        let left = std::mem::replace(&mut *socket.flight.lock(), Flight::Idle);
        // An answer nobody asked for, or one to a request whose sending failed half-way.
        let (Flight::Waiting(due, _), Some(answer)) = (left, reader.answer()) else {
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

/// Waits for one whole answer; an idle connection has no deadline.
async fn read_answer(
    socket: &Socket,
    reading: &mut OwnedReadHalf,
    reader: &mut ResponseReader,
    timer: &mut LazyTimer,
    timeout: Duration,
) -> Result<(), TransportError> {
    if matches!(*socket.flight.lock(), Flight::Closed) {
        return Err(TransportError::Write);
    }
    poll_fn(|context| {
        if let Poll::Ready(result) = poll_answer(reading, reader, context) {
            return Poll::Ready(result);
        }
        while timer.poll(context).is_ready() {
            let now = clock::now_monotonic();
            // The pacer set the request off at an unknown moment after the timer was armed.
            let since = match *socket.flight.lock() {
                Flight::Idle => now,
                Flight::Waiting(_, sent) => sent,
                Flight::Closed => return Poll::Ready(Err(TransportError::Write)),
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
