use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::plan::{Load, LoadError, Until};
use super::recorder::Recorder;
use super::report::Report;
use super::{pool, progress};
use crate::clock;

/// How often progress is shown.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// Runs a load to its end without blocking the caller's executor.
///
/// Dropping the future stops the run: no further request is sent, those in flight are awaited by
/// the generator's own threads.
///
/// # Errors
/// [`LoadError`] when the plan is impossible or the generator's threads fail; never for what the
/// server does.
pub async fn run(load: Load) -> Result<Report, LoadError> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let stop = StopOnDrop(Arc::default());
    let stopped = stop.0.clone();
    spawn("load", move || drop(sender.send(run_until(load, stopped))))?;
    receiver.await.map_err(|_closed| LoadError::Died)?
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the threads of one run share.
pub(super) struct Shared {
    pub(super) load: Load,
    started: Instant,
    /// Set where the first request comes later than the start.
    began: OnceLock<Instant>,
    next: AtomicU64,
    stop: Arc<AtomicBool>,
}

impl Shared {
    /// Moves the beginning of the run to now.
    pub(super) fn begin(&self) -> Instant {
        *self.began.get_or_init(clock::now_monotonic)
    }

    /// Nobody waits for the report any more.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn elapsed(&self) -> Duration {
        let began = self.began.get().copied().unwrap_or(self.started);
        clock::now_monotonic().saturating_duration_since(began)
    }

    /// Number of the next request; `None` when the run is over at `now`.
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
    let recorder = |_| Arc::new(Recorder::new(load.observer.clone()));
    let (mut recorders, extra): (Vec<_>, _) =
        ((0..load.threads).map(recorder).collect(), recorder(0));
    let (started, next) = (clock::now_monotonic(), AtomicU64::new(0));
    let shared = Arc::new(Shared { load, started, began: OnceLock::new(), next, stop });
    let running = pool::start(&shared, &recorders, &extra)?;
    recorders.push(extra);
    watch(&shared, &recorders, &running);
    for thread in running {
        thread.join().map_err(|_panic| LoadError::Died)??;
    }
    let mut report = Report::default();
    for recorder in &recorders {
        recorder.add_to(&mut report);
    }
    report.elapsed = shared.elapsed();
    Ok(report)
}

/// A generator thread.
pub(super) type Running = JoinHandle<Result<(), LoadError>>;

/// Starts a named thread.
pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, LoadError> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(LoadError::Start)
}

/// The runtime of a generator thread.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, LoadError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LoadError::Start)
}

/// Blocks this generator thread; its work is to keep time.
#[expect(clippy::disallowed_methods, reason = "the only thing a pacer waits for is a moment")]
pub(super) fn pause(duration: Duration) {
    thread::sleep(duration);
}

fn watch(shared: &Shared, recorders: &[Arc<Recorder>], running: &[Running]) {
    let Some(bar) = &shared.load.progress else { return };
    while running.iter().any(|thread| !thread.is_finished()) {
        let counts = recorders.iter().map(|recorder| recorder.ended());
        let counts = counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        progress::show(bar, counts, shared.elapsed(), shared.load.until);
        pause(PROGRESS_PERIOD);
    }
    bar.finish_and_clear();
}
