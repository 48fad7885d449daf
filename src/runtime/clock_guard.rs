//! Detects a wall clock that cannot be trusted: one that stepped against monotonic time, or that
//! differs from another clock.
//!
//! After a step the clock is trusted again once it is back, or after a restart of the process: a
//! clock of the same machine, which steps with it, is no evidence for the step.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::clock::{Clock, SharedClock};

/// Why the wall clock is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClockFault {
    #[error("the clock stepped by {by_ms} ms")]
    Stepped { by_ms: i64 },
    #[error("the clock is {by_ms} ms ahead of the ledger's")]
    Ahead { by_ms: i64 },
}

/// A reading of both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    wall_ms: i64,
    at: Instant,
}

impl Reading {
    pub fn of(clock: &dyn Clock) -> Self {
        Self { wall_ms: clock.wall_ms(), at: clock.now() }
    }

    /// How far the wall clock went beyond monotonic time since `earlier`, in milliseconds.
    fn stepped_since(self, earlier: Self) -> i64 {
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let forward = ms(self.at.saturating_duration_since(earlier.at));
        let backward = ms(earlier.at.saturating_duration_since(self.at));
        self.wall_ms.saturating_sub(earlier.wall_ms).saturating_sub(forward - backward)
    }
}

/// Compares a clock with monotonic time and with another clock.
#[derive(Debug)]
pub struct ClockGuard {
    clock: SharedClock,
    skew_max_ms: u64,
    /// When the clock had not stepped. Small steps in between are not added up.
    steady: Mutex<Reading>,
}

impl ClockGuard {
    /// Trusts the clock as it is now.
    #[must_use]
    pub fn new(clock: SharedClock, skew_max_ms: u64) -> Self {
        let steady = Mutex::new(Reading::of(clock.as_ref()));
        Self { clock, skew_max_ms, steady }
    }

    #[must_use]
    pub fn read(&self) -> Reading {
        Reading::of(self.clock.as_ref())
    }

    /// Checks the clock by the answer of another clock, which was asked at `asked`.
    ///
    /// # Errors
    /// The clock is not trusted.
    pub fn check(&self, asked: Reading, other_ms: i64) -> Result<(), ClockFault> {
        let now = self.read();
        let mut steady = self.steady.lock();
        let by_ms = now.stepped_since(*steady);
        if by_ms.unsigned_abs() > self.skew_max_ms {
            return Err(ClockFault::Stepped { by_ms });
        }
        *steady = now;
        // The answer is of some time between the question and now.
        let by_ms = asked.wall_ms.saturating_sub(other_ms).max(0)
            + now.wall_ms.saturating_sub(other_ms).min(0);
        if by_ms.unsigned_abs() > self.skew_max_ms {
            return Err(ClockFault::Ahead { by_ms });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::runtime::clock::ManualClock;

    const START_MS: i64 = 1_000_000;

    fn guard() -> (Arc<ManualClock>, ClockGuard) {
        let clock = Arc::new(ManualClock::new(START_MS));
        (clock.clone(), ClockGuard::new(clock, 5_000))
    }

    #[test]
    fn a_step_is_a_fault_until_the_clock_is_back() {
        let (clock, guard) = guard();
        let checked = |guard: &ClockGuard| guard.check(guard.read(), clock.wall_ms());
        for by_ms in [3_600_000, -3_600_000, 5_001, -5_001] {
            clock.advance(Duration::from_secs(60));
            let good_ms = clock.wall_ms();
            clock.set_wall_ms(good_ms + by_ms);
            for _ in 0..2 {
                assert_eq!(checked(&guard), Err(ClockFault::Stepped { by_ms }));
                clock.advance(Duration::from_secs(7_200));
            }
            clock.set_wall_ms(good_ms + 14_400_000);
            assert_eq!(checked(&guard), Ok(()));
        }
    }

    #[test]
    fn small_steps_are_not_added_up() {
        let (clock, guard) = guard();
        for _ in 0..3 {
            clock.set_wall_ms(clock.wall_ms() + 5_000);
            assert_eq!(guard.check(guard.read(), clock.wall_ms()), Ok(()));
        }
    }

    #[test]
    fn the_other_clock_is_compared_with_the_time_of_the_question_to_the_answer() {
        let (clock, guard) = guard();
        let asked = guard.read();
        clock.advance(Duration::from_secs(8));
        for (other_ms, expected) in [
            (START_MS - 5_000, Ok(())),
            (START_MS - 5_001, Err(ClockFault::Ahead { by_ms: 5_001 })),
            (START_MS + 13_000, Ok(())),
            (START_MS + 13_001, Err(ClockFault::Ahead { by_ms: -5_001 })),
        ] {
            assert_eq!(guard.check(asked, other_ms), expected, "{other_ms}");
        }
    }
}
