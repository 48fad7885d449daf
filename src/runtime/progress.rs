//! Progress of an actor's work under way, for stall detection by its supervisor, and what the
//! supervisor reports of its children.
//!
//! Each unit of work has its own counter, which counts the calls answered within that work.
//! Messages, timer ticks, lease renewals and other work do not count: they would hide work that
//! hangs.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::timeout;

tokio::task_local! {
    static ANSWERS: Arc<AtomicU64>;
}

/// The counters of one actor, over all its incarnations.
#[derive(Debug, Default)]
pub struct Progress {
    steps: AtomicU64,
    /// Number of the next work.
    next_no: AtomicU64,
    /// Answered calls of each work under way, by number.
    open: Mutex<BTreeMap<u64, Arc<AtomicU64>>>,
}

impl Progress {
    /// Completed steps.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Counts a completed step.
    pub fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// The work under way: its unique number and its answered calls.
    pub fn open(&self) -> Vec<(u64, u64)> {
        let open = self.open.lock();
        open.iter().map(|(no, answers)| (*no, answers.load(Ordering::Relaxed))).collect()
    }

    /// Begins a unit of work, which ends when the guard is dropped.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> WorkGuard {
        let no = self.next_no.fetch_add(1, Ordering::Relaxed);
        let answers = Arc::<AtomicU64>::default();
        self.open.lock().insert(no, Arc::clone(&answers));
        WorkGuard { progress: Arc::clone(self), no, answers }
    }
}

/// A unit of work under way.
#[derive(Debug)]
pub struct WorkGuard {
    progress: Arc<Progress>,
    no: u64,
    answers: Arc<AtomicU64>,
}

impl WorkGuard {
    /// Runs the work and counts the calls of [`answered`] within it.
    pub fn observe<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        ANSWERS.scope(Arc::clone(&self.answers), work)
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.progress.open.lock().remove(&self.no);
    }
}

/// Counts an answered call, successful or not, as progress of the work under way. Called for calls
/// with a time-out of their own, so that work of many calls has no time limit.
pub fn answered() {
    // Outside of an actor there is no counter.
    ANSWERS.try_with(|answers| answers.fetch_add(1, Ordering::Relaxed)).ok();
}

/// Awaits calls with limits of their own that take long, and counts each of their seconds as an
/// answered call.
pub async fn of_long_calls<T>(calls: impl Future<Output = T>) -> T {
    let mut calls = std::pin::pin!(calls);
    loop {
        if let Ok(result) = timeout(Duration::from_secs(1), &mut calls).await {
            return result;
        }
        answered();
    }
}

/// State of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildState {
    Up,
    /// The actor exited and is started again after a backoff.
    Restarting,
    /// The restart budget is exhausted.
    Down,
}

/// Status of one child.
#[derive(Debug, Clone, Serialize)]
pub struct ChildReport {
    pub name: String,
    pub kind: &'static str,
    pub state: ChildState,
    pub restarts: u64,
    pub panics: u64,
    pub stalls: u64,
    /// Steps completed by all incarnations.
    pub steps: u64,
    /// Exit reason of the last incarnation.
    pub last_exit: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_second_of_a_long_call_is_progress() {
        let progress = Arc::<Progress>::default();
        let work = progress.begin();
        let call = tokio::time::sleep(Duration::from_millis(3_500));
        work.observe(of_long_calls(call)).await;
        assert_eq!(progress.open(), [(0, 3)]);
    }
}
