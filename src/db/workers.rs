//! Blocking SQL on a fixed set of named threads with one bounded queue.
//!
//! A job receives a connection. Its caller receives an exact outcome: the result, *not begun*
//! (nothing was written), or *unknown* (the job had begun and did not finish in time, or it
//! panicked). Dropping the caller's future cancels the job unless it has begun. A job that panics
//! closes its connection, not its thread; a thread that panics nevertheless is replaced.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use parking_lot::RwLock;
use r2d2::{ManageConnection, Pool};
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::timeout;

use super::Error;
use crate::runtime::progress::answered;

/// Opens a connection; called again after a connection was closed.
pub type Connect<C> = Arc<dyn Fn() -> Result<C, Error> + Send + Sync>;

/// Sends the result to its caller and returns whether its connection can be used again.
type Job<C> = Box<dyn FnOnce(Result<&mut C, Error>) -> bool + Send>;

/// The source of the threads' connections.
pub enum ConnectionSource<M: ManageConnection> {
    /// A single thread owns its connection.
    Own {
        /// The connection to start with; `None`: `connect` opens one.
        first: Option<M::Connection>,
        connect: Connect<M::Connection>,
    },
    /// Each job borrows a connection.
    Pool(Pool<M>),
}

impl<M: ManageConnection> ConnectionSource<M> {
    /// The source of a further or a replacing thread, without an open connection.
    fn without_connection(&self) -> Self {
        match self {
            Self::Own { connect, .. } => Self::Own { first: None, connect: Arc::clone(connect) },
            Self::Pool(pool) => Self::Pool(pool.clone()),
        }
    }

    fn run(&mut self, job: Job<M::Connection>) {
        match self {
            Self::Own { first, connect } => {
                let mut connection = match first.take().map_or_else(|| connect(), Ok) {
                    Ok(connection) => connection,
                    Err(error) => {
                        job(Err(error));
                        return;
                    }
                };
                // After any error the connection is replaced: this takes a millisecond and leaves
                // no open transaction.
                if run_catching(|| job(Ok(&mut connection))) {
                    *first = Some(connection);
                }
            }
            Self::Pool(pool) => match pool.get() {
                // A panic unwinds through the borrowed connection, which the pool then closes.
                Ok(mut connection) => {
                    run_catching(move || job(Ok(&mut *connection)));
                }
                Err(error) => {
                    job(Err(Error::NoConnection { reason: error.to_string() }));
                }
            },
        }
    }
}

/// Runs a job; after a panic its connection cannot be used again.
fn run_catching(job: impl FnOnce() -> bool) -> bool {
    catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|_payload| {
        tracing::error!(thread = thread::current().name(), "ledger job panicked");
        false
    })
}

/// A set of threads that run jobs.
pub struct Workers<C> {
    queue: RwLock<Option<Sender<Job<C>>>>,
    /// Receives `None` once every thread has ended.
    ended: Mutex<mpsc::Receiver<Infallible>>,
    deadline: Duration,
}

impl<C: Send + 'static> Workers<C> {
    /// Starts one thread per name. At most `queue_max` jobs wait; the caller of a job waits at most
    /// `deadline`.
    pub fn start<M: ManageConnection<Connection = C>>(
        names: Vec<String>,
        source: ConnectionSource<M>,
        queue_max: usize,
        deadline: Duration,
    ) -> Result<Self, Error> {
        let (queue, jobs) = bounded(queue_max.max(1));
        let (running, ended) = mpsc::channel(1);
        let further = source.without_connection();
        let mut first = Some(source);
        for name in names {
            let source = first.take().unwrap_or_else(|| further.without_connection());
            let worker = Worker { name, source, jobs: jobs.clone(), running: running.clone() };
            worker.spawn().map_err(|error| Error::CannotOpen {
                reason: format!("cannot start a ledger thread: {error}; raise the thread limit"),
            })?;
        }
        Ok(Self { queue: RwLock::new(Some(queue)), ended: Mutex::new(ended), deadline })
    }

    /// Runs a job and waits for its result, up to the deadline.
    ///
    /// # Errors
    /// The job's own; `Full`, `Closed` and `NotBegun`: the job did not run and will not; `TimedOut`
    /// and `WorkerCrashed`: the outcome is unknown.
    pub async fn run<T, F>(&self, operation: &'static str, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut C) -> Result<T, Error> + Send + 'static,
    {
        self.wait_for(operation, self.submit(job)?).await
    }

    async fn wait_for<T>(
        &self,
        operation: &'static str,
        mut submitted: SubmittedJob<T>,
    ) -> Result<T, Error> {
        let reply = timeout(self.deadline, &mut submitted.reply).await;
        answered();
        match reply {
            Ok(reply) => result_of(reply, operation),
            Err(_) if submitted.cancel() => Err(Error::NotBegun { operation }),
            Err(_) => Err(Error::TimedOut { operation }),
        }
    }

    /// Runs a job without a time limit, such as a scan that its visitor ends.
    pub async fn run_long<T, F>(&self, operation: &'static str, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut C) -> Result<T, Error> + Send + 'static,
    {
        let mut submitted = self.submit(job)?;
        let reply = (&mut submitted.reply).await;
        answered();
        result_of(reply, operation)
    }

    fn submit<T, F>(&self, job: F) -> Result<SubmittedJob<T>, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut C) -> Result<T, Error> + Send + 'static,
    {
        let begun = Arc::new(AtomicBool::new(false));
        let (sender, reply) = oneshot::channel();
        let begun_or_cancelled = Arc::clone(&begun);
        let run: Job<C> = Box::new(move |connection| {
            if begun_or_cancelled.swap(true, Ordering::AcqRel) {
                return true;
            }
            let result = connection.and_then(job);
            let is_usable = result.is_ok();
            // Without a waiting caller the result is dropped; the job is done all the same.
            sender.send(result).ok();
            is_usable
        });
        match self.queue.read().as_ref().map(|queue| queue.try_send(run)) {
            Some(Ok(())) => Ok(SubmittedJob { begun, reply }),
            Some(Err(TrySendError::Full(_))) => Err(Error::Full),
            Some(Err(TrySendError::Disconnected(_))) | None => Err(Error::Closed),
        }
    }

    /// Number of running threads: as many as were started, unless the operating system refused to
    /// replace one. 0 during and after [`Self::close`].
    #[must_use]
    pub fn num_threads(&self) -> usize {
        // Each thread holds one sender; only `close` holds the lock.
        self.ended.try_lock().map_or(0, |ended| ended.sender_strong_count())
    }

    /// Rejects new jobs, finishes the queued ones, and ends the threads and their connections.
    pub async fn close(&self) {
        self.queue.write().take();
        while self.ended.lock().await.recv().await.is_some() {}
    }
}

/// The job's result; `WorkerCrashed` if the job panicked.
fn result_of<T>(
    reply: Result<Result<T, Error>, RecvError>,
    operation: &'static str,
) -> Result<T, Error> {
    match reply {
        Ok(result) => result.map_err(|error| error.during(operation)),
        Err(_closed) => Err(Error::WorkerCrashed { operation }),
    }
}

/// A job in the queue or on a thread. Dropping it cancels the job: an actor that crashed submits
/// its work again, and its earlier job must not run after that.
struct SubmittedJob<T> {
    /// Set by the thread that begins the job or by the caller that cancels it, whichever is first.
    begun: Arc<AtomicBool>,
    reply: oneshot::Receiver<Result<T, Error>>,
}

impl<T> SubmittedJob<T> {
    /// True when the job had not begun, and never will.
    fn cancel(&self) -> bool {
        !self.begun.swap(true, Ordering::AcqRel)
    }
}

impl<T> Drop for SubmittedJob<T> {
    fn drop(&mut self) {
        self.cancel();
    }
}

struct Worker<M: ManageConnection> {
    name: String,
    source: ConnectionSource<M>,
    jobs: Receiver<Job<M::Connection>>,
    running: mpsc::Sender<Infallible>,
}

impl<M: ManageConnection> Worker<M> {
    fn spawn(self) -> std::io::Result<()> {
        let name = self.name.clone();
        thread::Builder::new().name(name).spawn(move || self.work()).map(drop)
    }

    fn work(self) {
        let Self { name, mut source, jobs, running } = self;
        // Declared after `source`: a panic starts the replacement before it closes the old
        // connection, which may panic too.
        let replacement = RespawnGuard(Some(Self {
            name,
            source: source.without_connection(),
            jobs: jobs.clone(),
            running,
        }));
        while let Ok(job) = jobs.recv() {
            source.run(job);
        }
        drop(source);
        drop(replacement);
    }
}

/// Starts a replacement when the thread of this worker unwinds.
struct RespawnGuard<M: ManageConnection>(Option<Worker<M>>);

impl<M: ManageConnection> Drop for RespawnGuard<M> {
    fn drop(&mut self) {
        let Some(worker) = self.0.take().filter(|_| thread::panicking()) else { return };
        let name = worker.name.clone();
        match worker.spawn() {
            Ok(()) => tracing::error!(thread = name, "ledger thread: panicked and was replaced"),
            Err(error) => {
                tracing::error!(thread = name, %error, "ledger thread: panicked, not replaced");
            }
        }
    }
}

#[cfg(test)]
#[path = "workers_tests.rs"]
mod tests;
