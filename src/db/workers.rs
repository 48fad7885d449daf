//! Blocking SQL on a fixed set of named threads with one bounded queue, and a short one for probes.
//!
//! A job receives a connection. Its caller receives an exact outcome: the result, *not begun*
//! (nothing was written), or *unknown* (the job had begun and did not finish in time, or it
//! panicked). Dropping the caller's future cancels the job unless it has begun. A panic, in a job
//! or while a connection is closed, ends the connection, not the thread.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded, select};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{Error, ErrorClass};
use crate::runtime::progress;

/// Sends the result to its caller and returns whether its connection can be used again.
type Job<C> = Box<dyn FnOnce(Result<&mut C, Error>) -> bool + Send>;

/// What a job does with its connection; the result is put aside.
type Work<C> = Box<dyn FnOnce(&mut C) -> Result<(), Error> + Send>;

/// Probes that may wait; callers beyond share their answers, or are refused.
const PROBES_MAX: usize = 4;

/// One end of the queues of a set of threads.
struct Queues<E> {
    /// Jobs in order.
    jobs: E,
    /// Probes: they wait for the job on a thread, not for those in the queue.
    probes: E,
}

/// One of the queues, to submit to.
type ChosenQueue<C> = fn(&Queues<Sender<Job<C>>>) -> &Sender<Job<C>>;

impl<C> Queues<Receiver<Job<C>>> {
    fn next(&self, idle_max: Duration) -> Result<Job<C>, RecvTimeoutError> {
        if let Ok(probe) = self.probes.try_recv() {
            return Ok(probe);
        }
        select! {
            recv(self.probes) -> probe => match probe {
                Ok(probe) => Ok(probe),
                // Both queues are closed together.
                Err(_) => self.jobs.recv_timeout(idle_max),
            },
            recv(self.jobs) -> job => job.map_err(|_closed| RecvTimeoutError::Disconnected),
            default(idle_max) => Err(RecvTimeoutError::Timeout),
        }
    }
}

/// Opens the connections of the threads: each owns one, and opens it when a job needs it.
pub struct Connector<C> {
    pub connect: Box<dyn Fn() -> Result<C, Error> + Send + Sync>,
    /// Runs before each job. If it fails, the job fails with its error and the connection stays
    /// open.
    pub check: Box<dyn Fn() -> Result<(), Error> + Send + Sync>,
    /// Whether an open connection can run a job; otherwise another is opened.
    pub is_valid: fn(&mut C) -> bool,
    /// An unused connection is closed after this time.
    pub idle_max: Duration,
    /// Counts the jobs that found the database unreachable and the connections that were lost, for
    /// all threads of one database: afterwards each thread opens another connection, because its
    /// own may be lost as well.
    pub outages: Arc<AtomicU64>,
}

impl<C> Connector<C> {
    /// Runs jobs until the queue is closed and empty.
    fn serve(&self, queues: &Queues<Receiver<Job<C>>>, first: Option<C>) {
        let (mut connection, mut outages) = (first, self.outages.load(Ordering::Acquire));
        loop {
            let job = match queues.next(self.idle_max) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => {
                    connection = None;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if let Err(error) = (self.check)() {
                job(Err(error));
                continue;
            }
            let known = std::mem::replace(&mut outages, self.outages.load(Ordering::Acquire));
            let mut open = connection.take().filter(|_| known == outages);
            if open.as_mut().is_some_and(|open| !(self.is_valid)(open)) {
                open = None;
                outages = self.outages.fetch_add(1, Ordering::AcqRel) + 1;
            }
            match open.map_or_else(&self.connect, Ok) {
                // After any error the connection is replaced: this takes a millisecond and leaves
                // no open transaction.
                Ok(mut open) => {
                    if run_catching("ledger job panicked", || job(Ok(&mut open))) {
                        connection = Some(open);
                    }
                }
                Err(error) => {
                    job(Err(error));
                }
            }
        }
    }
}

/// Runs a job; after a panic its connection cannot be used again.
fn run_catching(message: &str, job: impl FnOnce() -> bool) -> bool {
    catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|_payload| {
        tracing::error!(thread = thread::current().name(), "{message}");
        false
    })
}

/// A set of threads that run jobs.
pub struct Workers<C> {
    queues: RwLock<Option<Queues<Sender<Job<C>>>>>,
    outages: Arc<AtomicU64>,
    /// Receives `None` once every thread has ended.
    ended: tokio::sync::Mutex<mpsc::Receiver<Infallible>>,
    deadline: Duration,
}

impl<C: Send + 'static> Workers<C> {
    /// Starts one thread per name; `first` is the connection of the first. At most `queue_max` jobs
    /// wait; the caller of a job waits at most `deadline`.
    pub fn start(
        names: Vec<String>,
        mut first: Option<C>,
        connector: Connector<C>,
        queue_max: usize,
        deadline: Duration,
    ) -> Result<Self, Error> {
        let (job_sender, jobs) = bounded(queue_max.max(1));
        let (probe_sender, probes) = bounded(PROBES_MAX);
        let queues = Queues { jobs: job_sender, probes: probe_sender };
        let (running, ended) = mpsc::channel(1);
        let outages = Arc::clone(&connector.outages);
        let connector = Arc::new(connector);
        for name in names {
            let (mut first, connector) = (first.take(), Arc::clone(&connector));
            let receiving = Queues { jobs: jobs.clone(), probes: probes.clone() };
            let running = running.clone();
            let work = move || {
                let mut serve = || {
                    connector.serve(&receiving, first.take());
                    true
                };
                while !run_catching("ledger thread: panicked and goes on", &mut serve) {}
                // `close` waits until every clone of `running` is dropped. The connector is
                // dropped before, so that no thread holds a connection after `close`.
                drop(connector);
                drop(running);
            };
            thread::Builder::new().name(name).spawn(work).map_err(|error| Error::CannotOpen {
                reason: format!("cannot start a ledger thread: {error}; raise the thread limit"),
            })?;
        }
        Ok(Self {
            queues: RwLock::new(Some(queues)),
            outages,
            ended: tokio::sync::Mutex::new(ended),
            deadline,
        })
    }

    /// Runs a job and waits for its result, up to the deadline.
    pub fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&mut C) -> Result<T, Error> + Send + 'static,
    ) -> impl Future<Output = Result<T, Error>> + Send {
        self.result_of(operation, job, |queues| &queues.jobs, self.deadline)
    }

    /// Runs a probe before the queued jobs, and waits for its result, up to the deadline.
    pub fn probe<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&mut C) -> Result<T, Error> + Send + 'static,
    ) -> impl Future<Output = Result<T, Error>> + Send {
        self.result_of(operation, job, |queues| &queues.probes, self.deadline)
    }

    /// Runs a job without a time limit, such as a scan that its visitor ends.
    pub fn run_long<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&mut C) -> Result<T, Error> + Send + 'static,
    ) -> impl Future<Output = Result<T, Error>> + Send {
        self.result_of(operation, job, |queues| &queues.jobs, Duration::MAX)
    }

    /// Only what names the type of the result is compiled for each job; queues and threads are not.
    fn result_of<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(&mut C) -> Result<T, Error> + Send + 'static,
        queue: ChosenQueue<C>,
        limit: Duration,
    ) -> impl Future<Output = Result<T, Error>> + Send {
        let slot = Arc::new(Mutex::new(None));
        let result = Arc::clone(&slot);
        let work: Work<C> = Box::new(move |connection| {
            let done = job(connection)?;
            *slot.lock() = Some(done);
            Ok(())
        });
        let waiting: BoxFuture<'_, _> =
            Box::pin(
                async move { self.wait_for(operation, self.submit(work, queue)?, limit).await },
            );
        waiting.map(move |ended| {
            ended.and_then(|()| result.lock().take().ok_or(Error::WorkerCrashed { operation }))
        })
    }

    async fn wait_for(
        &self,
        operation: &'static str,
        mut submitted: SubmittedJob,
        limit: Duration,
    ) -> Result<(), Error> {
        let reply = timeout(limit, &mut submitted.reply).await;
        progress::answered();
        match reply {
            Ok(Ok(result)) => result.map_err(|error| error.during(operation)),
            Ok(Err(_panicked)) => Err(Error::WorkerCrashed { operation }),
            Err(_) if submitted.cancel() => Err(Error::NotBegun { operation }),
            Err(_) => Err(Error::TimedOut { operation }),
        }
    }

    fn submit(&self, work: Work<C>, queue: ChosenQueue<C>) -> Result<SubmittedJob, Error> {
        let begun = Arc::new(AtomicBool::new(false));
        let (sender, reply) = oneshot::channel();
        let (begun_or_cancelled, outages) = (Arc::clone(&begun), Arc::clone(&self.outages));
        let run: Job<C> = Box::new(move |connection| {
            if begun_or_cancelled.swap(true, Ordering::AcqRel) {
                return true;
            }
            // Where none could be opened, those of the other threads may be good.
            let had_connection = connection.is_ok();
            let result = connection.and_then(work);
            let is_usable = result.is_ok();
            let class = result.as_ref().err().map(Error::class);
            let is_down = matches!(class, Some(ErrorClass::Down | ErrorClass::Unknown));
            if had_connection && is_down {
                outages.fetch_add(1, Ordering::AcqRel);
            }
            // Without a waiting caller the result is dropped; the job is done all the same.
            sender.send(result).ok();
            is_usable
        });
        match self.queues.read().as_ref().map(|queues| queue(queues).try_send(run)) {
            Some(Ok(())) => Ok(SubmittedJob { begun, reply }),
            Some(Err(TrySendError::Full(_))) => Err(Error::Full),
            Some(Err(TrySendError::Disconnected(_))) | None => Err(Error::Closed),
        }
    }

    /// Rejects new jobs, finishes the queued ones, and ends the threads and their connections.
    pub async fn close(&self) {
        self.queues.write().take();
        while self.ended.lock().await.recv().await.is_some() {}
    }
}

/// A job in the queue or on a thread. Dropping it cancels the job: an actor that crashed submits
/// its work again, and its earlier job must not run after that.
struct SubmittedJob {
    /// Set by the thread that begins the job or by the caller that cancels it, whichever is first.
    begun: Arc<AtomicBool>,
    reply: oneshot::Receiver<Result<(), Error>>,
}

impl SubmittedJob {
    /// True when the job had not begun, and never will.
    fn cancel(&self) -> bool {
        !self.begun.swap(true, Ordering::AcqRel)
    }
}

impl Drop for SubmittedJob {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[cfg(test)]
#[path = "workers_tests.rs"]
mod tests;
