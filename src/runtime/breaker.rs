//! Whether the ledger is worth asking: opened by the consumer when the ledger fails, read by every
//! gate before it takes units for a new request.
//!
//! While it is open, new requests hear `busy` before anything is taken for them, so that what waits
//! for a dead ledger stays bounded by what was accepted before. What was accepted goes on being
//! submitted, its repeats read where it stands, and one new request in a while is let through:
//! whichever succeeds first closes it.
//!
//! It also counts what the ledger commits: the evidence without which no failure is an order's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::domain::RequestId;
use crate::runtime::clock::SharedClock;

/// Failures of different orders in a row that open the breaker, whatever the errors say.
const FAILURES_MAX: usize = 3;

/// How often one new request is let through while the breaker is open.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// Stands for a closed breaker in place of an instant.
const CLOSED: i64 = -1;

/// A breaker in front of the ledger. Clones share one state.
#[derive(Clone)]
pub struct Breaker {
    clock: SharedClock,
    begun: Instant,
    /// When the next request is let through, milliseconds since `begun`; or [`CLOSED`].
    next_probe_ms: Arc<AtomicI64>,
    commits: Arc<AtomicU64>,
    /// The first requests of batches that failed since the last success.
    failed: Arc<Mutex<Vec<RequestId>>>,
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(clock: SharedClock) -> Self {
        let begun = clock.now();
        Self {
            clock,
            begun,
            next_probe_ms: Arc::new(AtomicI64::new(CLOSED)),
            commits: Arc::default(),
            failed: Arc::default(),
        }
    }

    /// The ledger failed: opens. True when it was closed before.
    pub fn open(&self) -> bool {
        let next = self.now_ms().saturating_add(millis(PROBE_EVERY));
        self.next_probe_ms
            .compare_exchange(CLOSED, next, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// A batch of so many requests failed, for whatever reason; `first` is one of them. One too
    /// many failures in a row opens. True when it was closed before.
    pub fn failed(&self, first: RequestId, num: usize) -> bool {
        let mut failed = self.failed.lock();
        // One order that fails again and again says nothing of the others.
        if (num > 1 || !failed.contains(&first)) && failed.len() < FAILURES_MAX {
            failed.push(first);
        }
        failed.len() >= FAILURES_MAX && self.open()
    }

    /// The ledger wrote a batch or said what it has of it: closes. True when it was open before.
    pub fn close(&self) -> bool {
        self.failed.lock().clear();
        self.next_probe_ms.load(Ordering::Relaxed) != CLOSED
            && self.next_probe_ms.swap(CLOSED, Ordering::AcqRel) != CLOSED
    }

    /// The ledger committed something new.
    pub fn committed(&self) {
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the ledger has committed. What fails alone while this number grows fails on its
    /// own account.
    #[must_use]
    pub fn num_commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.next_probe_ms.load(Ordering::Acquire) != CLOSED
    }

    /// Whether a new request may go on. While open, one in half a second may.
    #[must_use]
    pub fn lets_through(&self) -> bool {
        let next = self.next_probe_ms.load(Ordering::Acquire);
        if next == CLOSED {
            return true;
        }
        let now = self.now_ms();
        let later = now.saturating_add(millis(PROBE_EVERY));
        now >= next
            && self
                .next_probe_ms
                .compare_exchange(next, later, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }

    fn now_ms(&self) -> i64 {
        millis(self.clock.now().duration_since(self.begun))
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock::ManualClock;

    #[test]
    fn an_open_breaker_lets_one_request_through_in_a_while() {
        let clock = Arc::new(ManualClock::new(0));
        let breaker = Breaker::new(clock.clone());
        assert!(breaker.lets_through() && !breaker.is_open());
        assert!(breaker.open(), "news");
        assert!(!breaker.open(), "no news");
        assert!(!breaker.lets_through());
        clock.advance(PROBE_EVERY);
        assert!(breaker.lets_through(), "the probe");
        assert!(!breaker.lets_through(), "one only");
        assert!(breaker.close() && !breaker.close());
        assert!(breaker.lets_through() && breaker.lets_through());
    }

    #[test]
    fn failures_in_a_row_open_it_and_those_of_one_order_do_not() {
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
