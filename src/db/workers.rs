//! Blocking SQL on a fixed set of named threads, fed by one bounded queue.
//!
//! A job gets a connection, and its caller an exact account of what became of it: an answer, *not
//! begun* (nothing was written), or *unknown* (it had begun and no answer came in time, or its
//! worker died under it). A job whose caller has gone is taken back, unless it has begun. A job
//! that panics costs its connection, not its thread; a thread that dies all the same is replaced.

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

/// Makes a connection; called again whenever the last one is given up.
pub type Connect<C> = Arc<dyn Fn() -> Result<C, Error> + Send + Sync>;

/// Answers its caller itself, and says whether its connection is still good.
type Job<C> = Box<dyn FnOnce(Result<&mut C, Error>) -> bool + Send>;

/// Where the threads get their connections.
pub enum ConnectionSource<M: ManageConnection> {
    /// The one thread keeps a connection of its own, `first` to begin with.
    Own {
        /// A connection that is open already.
        first: Option<M::Connection>,
        /// Replaces it.
        connect: Connect<M::Connection>,
    },
    /// Each job borrows a connection.
    Pool(Pool<M>),
}

impl<M: ManageConnection> ConnectionSource<M> {
    /// What a thread that replaces a dead one starts with.
    fn again(&self) -> Self {
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
                // After any error the connection is replaced: that costs a millisecond and leaves
                // no half-open transaction behind.
                if caught(|| job(Ok(&mut connection))) {
                    *first = Some(connection);
                }
            }
            Self::Pool(pool) => match pool.get() {
                // A panic unwinds through the borrowed connection, which the pool then throws away.
                Ok(mut connection) => {
                    caught(move || job(Ok(&mut *connection)));
                }
                Err(error) => {
                    job(Err(Error::NoConnection { reason: error.to_string() }));
                }
            },
        }
    }
}

/// Runs a job to its end; a panic counts as a connection that is not good any more.
fn caught(job: impl FnOnce() -> bool) -> bool {
    catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|_payload| {
        tracing::error!(thread = thread::current().name(), "a ledger job panicked");
        false
    })
}

/// A set of threads that run jobs.
pub struct Workers<C> {
    queue: RwLock<Option<Sender<Job<C>>>>,
    /// Yields `None` once every thread has ended.
    ended: Mutex<mpsc::Receiver<Infallible>>,
    deadline: Duration,
}

impl<C: Send + 'static> Workers<C> {
    /// Starts one thread per name. At most `queue_max` jobs wait; one that has no answer after
    /// `deadline` is given up.
    pub fn start<M: ManageConnection<Connection = C>>(
        names: Vec<String>,
        source: ConnectionSource<M>,
        queue_max: usize,
        deadline: Duration,
    ) -> Result<Self, Error> {
        let (queue, jobs) = bounded(queue_max.max(1));
        let (alive, ended) = mpsc::channel(1);
        let again = source.again();
        let mut first = Some(source);
        for name in names {
            let source = first.take().unwrap_or_else(|| again.again());
            let worker = Worker { name, source, jobs: jobs.clone(), alive: alive.clone() };
            worker.spawn().map_err(|error| Error::CannotOpen {
                reason: format!("cannot start a ledger thread: {error}; raise the thread limit"),
            })?;
        }
        Ok(Self { queue: RwLock::new(Some(queue)), ended: Mutex::new(ended), deadline })
    }

    /// Runs a job and waits for its answer, up to the deadline.
    ///
    /// # Errors
    /// The job's own; `Full`, `Closed` and `NotBegun`: it did not run and will not; `TimedOut` and
    /// `WorkerDied`: nobody knows.
    pub async fn run<T, F>(&self, doing: &'static str, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut C) -> Result<T, Error> + Send + 'static,
    {
        self.answer(doing, self.submit(job)?).await
    }

    async fn answer<T>(
        &self,
        doing: &'static str,
        mut submitted: SubmittedJob<T>,
    ) -> Result<T, Error> {
        let answer = timeout(self.deadline, &mut submitted.answer).await;
        answered();
        match answer {
            Ok(answer) => told(answer, doing),
            Err(_) if submitted.take_back() => Err(Error::NotBegun { doing }),
            Err(_) => Err(Error::TimedOut { doing }),
        }
    }

    /// Runs a job that may take as long as it takes: a scan ends when its visitor says so.
    pub async fn run_long<T, F>(&self, doing: &'static str, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut C) -> Result<T, Error> + Send + 'static,
    {
        let mut submitted = self.submit(job)?;
        let answer = (&mut submitted.answer).await;
        answered();
        told(answer, doing)
    }

    fn submit<T, F>(&self, job: F) -> Result<SubmittedJob<T>, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut C) -> Result<T, Error> + Send + 'static,
    {
        let begun = Arc::new(AtomicBool::new(false));
        let (reply, answer) = oneshot::channel();
        let mine = Arc::clone(&begun);
        let run: Job<C> = Box::new(move |connection| {
            if mine.swap(true, Ordering::AcqRel) {
                return true;
            }
            let result = connection.and_then(job);
            let good = result.is_ok();
            // A caller who left does not change what the job did.
            reply.send(result).ok();
            good
        });
        match self.queue.read().as_ref().map(|queue| queue.try_send(run)) {
            Some(Ok(())) => Ok(SubmittedJob { begun, answer }),
            Some(Err(TrySendError::Full(_))) => Err(Error::Full),
            Some(Err(TrySendError::Disconnected(_))) | None => Err(Error::Closed),
        }
    }

    /// Threads that run; as many as were started, unless the operating system refused to replace
    /// one. 0 once they are told to end.
    #[must_use]
    pub fn num_threads(&self) -> usize {
        // Each thread holds one sender; only `close` holds the lock.
        self.ended.try_lock().map_or(0, |ended| ended.sender_strong_count())
    }

    /// Takes no more jobs, finishes those it has, and ends the threads and their connections.
    pub async fn close(&self) {
        self.queue.write().take();
        while self.ended.lock().await.recv().await.is_some() {}
    }
}

/// What the job answered, if its worker lived to say so.
fn told<T>(answer: Result<Result<T, Error>, RecvError>, doing: &'static str) -> Result<T, Error> {
    answer
        .map_or(Err(Error::WorkerDied { doing }), |said| said.map_err(|error| error.during(doing)))
}

/// A job that was given to the threads. Dropped, it is taken back: a caller that crashed submits
/// its work again, and must not be overtaken later by what it left in the queue.
struct SubmittedJob<T> {
    /// Set by the thread that begins the job, or by the caller that takes it back, whichever is
    /// first.
    begun: Arc<AtomicBool>,
    answer: oneshot::Receiver<Result<T, Error>>,
}

impl<T> SubmittedJob<T> {
    /// True when the job had not begun, and never will.
    fn take_back(&self) -> bool {
        !self.begun.swap(true, Ordering::AcqRel)
    }
}

impl<T> Drop for SubmittedJob<T> {
    fn drop(&mut self) {
        self.take_back();
    }
}

struct Worker<M: ManageConnection> {
    name: String,
    source: ConnectionSource<M>,
    jobs: Receiver<Job<M::Connection>>,
    alive: mpsc::Sender<Infallible>,
}

impl<M: ManageConnection> Worker<M> {
    fn spawn(self) -> std::io::Result<()> {
        let name = self.name.clone();
        thread::Builder::new().name(name).spawn(move || self.work()).map(drop)
    }

    fn work(self) {
        let Self { name, mut source, jobs, alive } = self;
        // Declared after `source`: on the way out of a panic the successor starts before the old
        // connection is closed, which may panic too.
        let successor =
            RespawnGuard(Some(Self { name, source: source.again(), jobs: jobs.clone(), alive }));
        while let Ok(job) = jobs.recv() {
            source.run(job);
        }
        drop(source);
        drop(successor);
    }
}

/// Starts the next worker when its own thread unwinds.
struct RespawnGuard<M: ManageConnection>(Option<Worker<M>>);

impl<M: ManageConnection> Drop for RespawnGuard<M> {
    fn drop(&mut self) {
        let Some(worker) = self.0.take().filter(|_| thread::panicking()) else { return };
        let name = worker.name.clone();
        match worker.spawn() {
            Ok(()) => tracing::error!(thread = name, "a ledger thread died and was replaced"),
            Err(error) => tracing::error!(thread = name, %error, "a ledger thread was lost"),
        }
    }
}

#[cfg(test)]
#[path = "workers_tests.rs"]
mod tests;
