//! Progress of an actor's work, as its supervisor sees it while the work is under way.
//!
//! Each piece of work counts for itself. What counts is a call that was answered inside of it: a
//! message that arrived, a timer that ticked, other work that ended or a lease that was renewed
//! beside it is no progress, for work that hangs would look alive.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

tokio::task_local! {
    static OF_THIS_WORK: Arc<AtomicU64>;
}

/// The counts of one actor and of those that replaced it.
#[derive(Debug, Default)]
pub struct Progress {
    steps: AtomicU64,
    begun: AtomicU64,
    /// Calls answered, of each piece of work under way.
    open: Mutex<BTreeMap<u64, Arc<AtomicU64>>>,
}

impl Progress {
    /// Steps completed, of every kind.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// A step was completed.
    pub fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// The work under way: its number, which is never given twice, and the calls answered so far.
    #[must_use]
    pub fn open(&self) -> Vec<(u64, u64)> {
        let open = self.open.lock();
        open.iter().map(|(no, answers)| (*no, answers.load(Ordering::Relaxed))).collect()
    }

    /// Work begins; it is under way until the guard is dropped, however it ends.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> WorkGuard {
        let no = self.begun.fetch_add(1, Ordering::Relaxed);
        let answers = Arc::<AtomicU64>::default();
        self.open.lock().insert(no, Arc::clone(&answers));
        WorkGuard { progress: Arc::clone(self), no, answers }
    }
}

/// Work under way.
#[derive(Debug)]
pub struct WorkGuard {
    progress: Arc<Progress>,
    no: u64,
    answers: Arc<AtomicU64>,
}

impl WorkGuard {
    /// Does the work; what is [`answered`] inside of it counts.
    pub fn observe<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        OF_THIS_WORK.scope(Arc::clone(&self.answers), work)
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.progress.open.lock().remove(&self.no);
    }
}

/// A store has answered a call of the work under way, whatever it said. To be called where a call
/// has a limit of its own, so that work of many calls may take as long as it takes.
pub fn answered() {
    // Outside of an actor nobody looks.
    OF_THIS_WORK.try_with(|answers| answers.fetch_add(1, Ordering::Relaxed)).ok();
}
