use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::plan::{Load, LoadError, Until};
use super::report::Report;
use super::{generator, progress};
use crate::clock;

const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// Runs a load to its end without blocking the caller's executor.
///
/// Dropping the future stops the run: no further request is sent, and the generator's threads await
/// the requests in flight.
///
/// # Errors
/// [`LoadError`] if the plan is impossible or a generator thread fails; answers and transport
/// errors are results.
pub async fn run(load: Load) -> Result<Report, LoadError> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let stop = StopOnDrop(Arc::default());
    let stopped = stop.0.clone();
    spawn("load", move || drop(sender.send(run_until(load, stopped))))?;
    receiver.await.map_err(|_closed| LoadError::Panicked)?
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// State shared by the threads of one run.
pub(super) struct Shared {
    pub(super) load: Load,
    /// Locked for less than a microsecond for each request.
    pub(super) report: Mutex<Report>,
    /// Set by the first request.
    began: OnceLock<Instant>,
    next: AtomicU64,
    stop: Arc<AtomicBool>,
}

impl Shared {
    /// Sets the beginning of the run to now, at the first call; returns it.
    pub(super) fn begin(&self) -> Instant {
        *self.began.get_or_init(clock::now_monotonic)
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

    /// The number of the next request of a closed loop; `None` if the run is over at `now`.
    pub(super) fn next(&self, now: Instant) -> Option<u64> {
        let seq = self.next.fetch_add(1, Ordering::Relaxed);
        let elapsed = now.saturating_duration_since(self.begin());
        (!self.is_over(seq, elapsed)).then_some(seq)
    }

    fn elapsed(&self) -> Duration {
        let since = |began: &Instant| clock::now_monotonic().saturating_duration_since(*began);
        self.began.get().map_or(Duration::ZERO, since)
    }
}

fn run_until(load: Load, stop: Arc<AtomicBool>) -> Result<Report, LoadError> {
    load.check()?;
    let (began, next) = (OnceLock::new(), AtomicU64::new(0));
    let shared = Arc::new(Shared { load, report: Mutex::default(), began, next, stop });
    let mut running = Vec::new();
    for thread in 0..shared.load.threads {
        let shared = shared.clone();
        running.push(spawn("load-thread", move || generator::run(shared, thread))?);
    }
    show_progress(&shared, &running);
    for thread in running {
        thread.join().map_err(|_panic| LoadError::Panicked)??;
    }
    let elapsed = shared.elapsed();
    Ok(Report { elapsed, ..std::mem::take(&mut *shared.report.lock()) })
}

type Running = JoinHandle<Result<(), LoadError>>;

fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, LoadError> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(LoadError::Start)
}

fn show_progress(shared: &Shared, running: &[Running]) {
    let Some(bar) = &shared.load.progress else { return };
    while running.iter().any(|thread| !thread.is_finished()) {
        let counts = {
            let report = shared.report.lock();
            (report.attempted, report.answered)
        };
        progress::show(bar, counts, shared.elapsed(), shared.load.until);
        #[expect(clippy::disallowed_methods, reason = "the thread has no executor to block")]
        thread::sleep(PROGRESS_PERIOD);
    }
    bar.finish_and_clear();
}
