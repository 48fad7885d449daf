//! Circuit breaker of the ledger: the ledger writer opens it when the ledger fails, every gate
//! reads it before it takes units for a new request.
//!
//! While the breaker is open, new requests are answered `busy` before any unit is taken, so that
//! the number of accepted requests waiting for the ledger stays bounded. Accepted requests are
//! still submitted, repeats still read their status, and one new request per probe interval is
//! admitted: the first success closes the breaker.
//!
//! The breaker also counts the commits of the ledger: only a failure while others commit is
//! evidence that the order itself is the cause.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::domain::RequestId;
use crate::runtime::clock::SharedClock;

/// Consecutive failures of different batches that open the breaker, whatever their errors.
const FAILURES_MAX: usize = 3;

/// Interval at which an open breaker admits one new request.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// Circuit breaker of the ledger. Clones share one state.
#[derive(Clone)]
pub struct Breaker {
    clock: SharedClock,
    commits: Arc<AtomicU64>,
    state: Arc<Mutex<BreakerState>>,
}

#[derive(Default)]
struct BreakerState {
    /// Time of the next probe; `None`: the breaker is closed.
    next_probe: Option<Instant>,
    /// The first request of each batch that failed since the last success.
    failed: Vec<RequestId>,
}

impl BreakerState {
    fn open(&mut self, now: Instant) -> bool {
        let was_closed = self.next_probe.is_none();
        self.next_probe.get_or_insert(now + PROBE_EVERY);
        was_closed
    }
}

impl Breaker {
    /// A closed breaker.
    pub fn new(clock: SharedClock) -> Self {
        Self { clock, commits: Arc::default(), state: Arc::default() }
    }

    /// Opens the breaker. Returns whether it was closed before.
    pub fn open(&self) -> bool {
        self.state.lock().open(self.clock.now())
    }

    /// Counts a failed batch of `num` requests, of which `first` is one; opens the breaker after
    /// three failures without a success between them. Returns whether this call opened it.
    pub fn failed(&self, first: RequestId, num: usize) -> bool {
        let mut state = self.state.lock();
        // A single order that fails repeatedly counts once: it may be the cause.
        if (num > 1 || !state.failed.contains(&first)) && state.failed.len() < FAILURES_MAX {
            state.failed.push(first);
        }
        state.failed.len() >= FAILURES_MAX && state.open(self.clock.now())
    }

    /// Closes the breaker, after the ledger wrote or read a batch. Returns whether it was open
    /// before.
    pub fn close(&self) -> bool {
        std::mem::take(&mut *self.state.lock()).next_probe.is_some()
    }

    /// Counts a commit of the ledger.
    pub fn committed(&self) {
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of commits. An order that fails alone while this number grows is the cause of its
    /// failure.
    pub fn num_commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    pub fn is_open(&self) -> bool {
        self.state.lock().next_probe.is_some()
    }

    /// Whether to admit a new request. An open breaker admits one request per 500 ms; each
    /// admission moves the next one.
    #[must_use]
    pub fn try_admit(&self) -> bool {
        let mut state = self.state.lock();
        let Some(next) = state.next_probe else { return true };
        let now = self.clock.now();
        if now >= next {
            state.next_probe = Some(now + PROBE_EVERY);
        }
        now >= next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock::ManualClock;

    #[test]
    fn an_open_breaker_lets_one_request_through_in_a_while() {
        let clock = Arc::new(ManualClock::new(0));
        let breaker = Breaker::new(clock.clone());
        assert!(breaker.try_admit() && !breaker.is_open());
        assert!(breaker.open(), "opened");
        assert!(!breaker.open(), "already open");
        assert!(!breaker.try_admit());
        clock.advance(PROBE_EVERY);
        assert!(breaker.try_admit(), "the probe");
        assert!(!breaker.try_admit(), "one request only");
        assert!(breaker.close() && !breaker.close());
        assert!(breaker.try_admit() && breaker.try_admit());
    }

    #[test]
    fn consecutive_failures_of_different_batches_open_the_breaker() {
        let breaker = Breaker::new(Arc::new(ManualClock::new(0)));
        let request = |number| RequestId::new(number).unwrap();
        for _ in 0..9 {
            assert!(!breaker.failed(request(1), 1));
        }
        assert!(!breaker.failed(request(2), 1) && !breaker.close());
        assert!(!breaker.failed(request(2), 9) && !breaker.failed(request(2), 9));
        assert!(breaker.failed(request(4), 1) && !breaker.failed(request(5), 1));
        assert!(breaker.is_open() && breaker.close());
    }
}
