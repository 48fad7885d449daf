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
    started: Instant,
    /// Set by the open loop, whose first request comes after the connections are open.
    began: OnceLock<Instant>,
    next: AtomicU64,
    stop: Arc<AtomicBool>,
}

impl Shared {
    /// Sets the beginning of the run to now, at the first call; returns it.
    pub(super) fn begin(&self) -> Instant {
        *self.began.get_or_init(clock::now_monotonic)
    }

    /// Whether the future of [`run`] was dropped.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn elapsed(&self) -> Duration {
        let began = self.began.get().copied().unwrap_or(self.started);
        clock::now_monotonic().saturating_duration_since(began)
    }

    /// The number of the next request; `None` if the run is over at `now`.
    pub(super) fn next(&self, now: Instant) -> Option<u64> {
        if self.is_stopped() {
            return None;
        }
        if let Until::Elapsed(total) = self.load.until
            && now.saturating_duration_since(self.started) >= total
        {
            return None;
        }
        let seq = self.next.fetch_add(1, Ordering::Relaxed);
        match self.load.until {
            Until::Requests(total) if seq >= total => None,
            _ => Some(seq),
        }
    }
}

fn run_until(load: Load, stop: Arc<AtomicBool>) -> Result<Report, LoadError> {
    load.check()?;
    let reports: Vec<Arc<Mutex<Report>>> = (0..load.threads).map(|_| Arc::default()).collect();
    let (started, next) = (clock::now_monotonic(), AtomicU64::new(0));
    let shared = Arc::new(Shared { load, started, began: OnceLock::new(), next, stop });
    let mut running = Vec::with_capacity(reports.len());
    for (thread, report) in reports.iter().enumerate() {
        let (shared, report) = (shared.clone(), report.clone());
        running.push(spawn("load-thread", move || generator::run(shared, report, thread))?);
    }
    show_progress(&shared, &reports, &running);
    for thread in running {
        thread.join().map_err(|_panic| LoadError::Panicked)??;
    }
    let mut report = Report::default();
    for of_thread in &reports {
        report.merge(&of_thread.lock());
    }
    report.elapsed = shared.elapsed();
    Ok(report)
}

type Running = JoinHandle<Result<(), LoadError>>;

fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, LoadError> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(LoadError::Start)
}

fn show_progress(shared: &Shared, reports: &[Arc<Mutex<Report>>], running: &[Running]) {
    let Some(bar) = &shared.load.progress else { return };
    while running.iter().any(|thread| !thread.is_finished()) {
        let counts = reports.iter().map(|report| {
            let report = report.lock();
            (report.attempted, report.answered)
        });
        let counts = counts.fold((0, 0), |(ended, answered), (e, a)| (ended + e, answered + a));
        progress::show(bar, counts, shared.elapsed(), shared.load.until);
        #[expect(clippy::disallowed_methods, reason = "the thread has no executor to block")]
        thread::sleep(PROGRESS_PERIOD);
    }
    bar.finish_and_clear();
}
