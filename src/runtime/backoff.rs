//! Exponential backoff with jitter. Pure: the caller waits.

use std::time::Duration;

/// A growing wait, from `min` to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// The first wait is `min_ms` (at least 1 ms); each wait doubles, up to `max_ms`.
    pub fn new(min_ms: u64, max_ms: u64) -> Self {
        Self::between(Duration::from_millis(min_ms), Duration::from_millis(max_ms))
    }

    /// As [`Self::new`].
    pub fn between(min: Duration, max: Duration) -> Self {
        let min = min.max(Duration::from_millis(1));
        Self { min, max: max.max(min), failures: 0 }
    }

    /// The next wait. `spread` is a random number in 0.0..1.0: the wait lies between half of the
    /// step and the whole step, so that many waiters do not retry at the same time.
    pub fn next_wait(&mut self, spread: f64) -> Duration {
        let step = doubled(self.min, self.max, self.failures);
        self.failures = self.failures.saturating_add(1);
        step.mul_f64(0.5 + 0.5 * spread.clamp(0.0, 1.0))
    }

    /// Makes the next wait the first one again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Number of calls of [`Self::next_wait`] since the last reset.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

/// `min * 2^times`, at most `max`.
pub fn doubled(min: Duration, max: Duration, times: u32) -> Duration {
    min.saturating_mul(1 << times.min(16)).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_limit() {
        let mut backoff = Backoff::new(10, 70);
        let waits: Vec<_> = (0..5).map(|_| backoff.next_wait(1.0).as_millis()).collect();
        assert_eq!(waits, [10, 20, 40, 70, 70]);
        assert_eq!(Backoff::new(10, 70).next_wait(0.0).as_millis(), 5);
        let (min, max) = (Duration::from_millis(10), Duration::from_millis(70));
        assert_eq!(doubled(min, max, u32::MAX), max, "after any number of failures");
    }
}
