//! Whether the ledger is worth asking: opened by the consumer when the ledger fails, read by every
//! gate before it takes units for a new request.
//!
//! While it is open, new requests hear `busy` before anything is taken for them, so that what waits
//! for a dead ledger stays bounded by what was accepted before. What was accepted goes on being
//! submitted, and one new request in a while is let through: whichever succeeds first closes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::SharedClock;

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
    answers: Arc<AtomicU64>,
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
            answers: Arc::default(),
        }
    }

    /// The ledger failed: opens. True when it was closed before.
    pub fn open(&self) -> bool {
        let next = self.now_ms().saturating_add(millis(PROBE_EVERY));
        self.next_probe_ms
            .compare_exchange(CLOSED, next, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The ledger answered: closes. True when it was open before.
    pub fn close(&self) -> bool {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.next_probe_ms.load(Ordering::Relaxed) != CLOSED
            && self.next_probe_ms.swap(CLOSED, Ordering::AcqRel) != CLOSED
    }

    /// How often the ledger has answered. Whoever fails while this number grows fails by itself.
    #[must_use]
    pub fn num_answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
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
    use crate::clock::ManualClock;

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
}
