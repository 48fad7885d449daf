//! Detects a wall clock that cannot be trusted: one that stepped against monotonic time, or that
//! differs from another clock.
//!
//! A clock of the same machine, which steps with it, is no evidence for a step: it may be a
//! correction, the end of a suspension, or a mistake. So a step is a fault at first, for an
//! operator to correct; a clock that then keeps its pace for [`CALM`] is trusted again. From then
//! on [`SteadyTime`] leaves a step forward out of every span that began before it, so that no span
//! is shorter than it was meant; after a step back they are longer by it.

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

/// How long a clock that stepped is not trusted.
pub const CALM: Duration = Duration::from_secs(300);

/// Most steps forward that are told apart; older ones are added up.
const STEPS_MAX: usize = 8;

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

/// A step forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    /// The latest time that the clock can have shown before it, epoch milliseconds.
    after_ms: i64,
    by_ms: i64,
}

/// A trusted wall time, and the steps that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SteadyTime {
    wall_ms: i64,
    /// Oldest first.
    steps: Vec<Step>,
}

impl SteadyTime {
    pub fn wall_ms(&self) -> i64 {
        self.wall_ms
    }

    /// The time as the clock would show it without its steps forward after `from_ms`.
    pub fn since(&self, from_ms: i64) -> i64 {
        let later = self.steps.iter().filter(|step| step.after_ms >= from_ms);
        self.wall_ms.saturating_sub(later.map(|step| step.by_ms).sum())
    }
}

#[derive(Debug)]
struct GuardState {
    /// When the clock had not stepped. Small steps in between are not added up.
    steady: Reading,
    /// The first reading after a step that is not trusted yet.
    stepped: Option<Reading>,
    /// The trusted steps forward.
    steps: Vec<Step>,
}

impl GuardState {
    /// Accepts a reading by its step since the last steady one.
    fn accept_reading(&mut self, now: Reading, skew_max_ms: u64) -> Result<(), ClockFault> {
        let by_ms = now.stepped_since(self.steady);
        if by_ms.unsigned_abs() <= skew_max_ms {
            (self.steady, self.stepped) = (now, None);
            return Ok(());
        }
        let keeps_pace = |first: &Reading| now.stepped_since(*first).unsigned_abs() <= skew_max_ms;
        let Some(first) = self.stepped.filter(keeps_pace) else {
            self.stepped = Some(now);
            return Err(ClockFault::Stepped { by_ms });
        };
        if now.at.saturating_duration_since(first.at) < CALM {
            return Err(ClockFault::Stepped { by_ms });
        }
        tracing::warn!(by_ms, "clock: stepped, and has kept its pace since");
        self.add_step(first, by_ms);
        (self.steady, self.stepped) = (now, None);
        Ok(())
    }

    /// Adds a step forward; a step back takes the latest ones back.
    fn add_step(&mut self, first: Reading, by_ms: i64) {
        if by_ms > 0 {
            let after_ms = first.wall_ms.saturating_sub(first.stepped_since(self.steady));
            self.steps.push(Step { after_ms, by_ms });
            if self.steps.len() > STEPS_MAX {
                let oldest_ms = self.steps.remove(0).by_ms;
                if let Some(next) = self.steps.first_mut() {
                    next.by_ms = next.by_ms.saturating_add(oldest_ms);
                }
            }
            return;
        }
        let mut back_ms = by_ms.saturating_neg();
        while let Some(last) = self.steps.last_mut() {
            let taken_ms = last.by_ms.min(back_ms);
            (last.by_ms, back_ms) = (last.by_ms - taken_ms, back_ms - taken_ms);
            if last.by_ms > 0 {
                break;
            }
            self.steps.pop();
        }
    }
}

/// Compares a clock with monotonic time and with another clock.
#[derive(Debug)]
pub struct ClockGuard {
    clock: SharedClock,
    skew_max_ms: u64,
    state: Mutex<GuardState>,
}

impl ClockGuard {
    /// Trusts the clock as it is now.
    pub fn new(clock: SharedClock, skew_max_ms: u64) -> Self {
        let steady = Reading::of(clock.as_ref());
        let state = Mutex::new(GuardState { steady, stepped: None, steps: Vec::new() });
        Self { clock, skew_max_ms, state }
    }

    pub fn read(&self) -> Reading {
        Reading::of(self.clock.as_ref())
    }

    /// Checks the clock by the answer of another clock, which was asked at `asked`.
    pub fn check(&self, asked: Reading, other_ms: i64) -> Result<SteadyTime, ClockFault> {
        let now = self.read();
        let mut state = self.state.lock();
        state.accept_reading(now, self.skew_max_ms)?;
        // The answer is of some time between the question and now.
        let by_ms = asked.wall_ms.saturating_sub(other_ms).max(0)
            + now.wall_ms.saturating_sub(other_ms).min(0);
        if by_ms.unsigned_abs() > self.skew_max_ms {
            return Err(ClockFault::Ahead { by_ms });
        }
        Ok(SteadyTime { wall_ms: now.wall_ms, steps: state.steps.clone() })
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

    fn checked(clock: &ManualClock, guard: &ClockGuard) -> Result<i64, ClockFault> {
        guard.check(guard.read(), clock.wall_ms()).map(|time| time.wall_ms())
    }

    #[test]
    fn a_step_is_a_fault_until_the_clock_is_back() {
        let (clock, guard) = guard();
        for by_ms in [3_600_000, -3_600_000, 5_001, -5_001] {
            clock.advance(Duration::from_secs(60));
            let good_ms = clock.wall_ms();
            clock.set_wall_ms(good_ms + by_ms);
            for _ in 0..2 {
                assert_eq!(checked(&clock, &guard), Err(ClockFault::Stepped { by_ms }));
                clock.advance(Duration::from_secs(60));
            }
            clock.set_wall_ms(good_ms + 120_000);
            assert_eq!(checked(&clock, &guard), Ok(good_ms + 120_000));
            let time = guard.check(guard.read(), clock.wall_ms()).unwrap();
            assert_eq!(time.since(0), clock.wall_ms(), "nothing is left of the step");
        }
    }

    /// The time after a step that was not taken back.
    fn after_calm(clock: &ManualClock, guard: &ClockGuard, by_ms: i64) -> SteadyTime {
        clock.set_wall_ms(clock.wall_ms() + by_ms);
        assert_eq!(checked(clock, guard), Err(ClockFault::Stepped { by_ms }));
        clock.advance(CALM.checked_sub(Duration::from_millis(1)).unwrap());
        assert_eq!(checked(clock, guard), Err(ClockFault::Stepped { by_ms }));
        clock.advance(Duration::from_millis(1));
        guard.check(guard.read(), clock.wall_ms()).unwrap()
    }

    #[test]
    fn a_step_forward_is_trusted_after_a_calm_and_shortens_no_span() {
        let (clock, guard) = guard();
        assert_eq!(checked(&clock, &guard), Ok(START_MS));
        let calm_ms = 300_000;
        let time = after_calm(&clock, &guard, 3_600_000);
        assert_eq!(time.wall_ms(), START_MS + 3_600_000 + calm_ms);
        assert_eq!(time.since(START_MS), START_MS + calm_ms, "began before the step");
        assert_eq!(time.since(START_MS + 1), time.wall_ms(), "began after it");

        let second_ms = clock.wall_ms();
        let time = after_calm(&clock, &guard, 60_000);
        assert_eq!(time.since(START_MS), START_MS + 2 * calm_ms);
        assert_eq!(time.since(second_ms), second_ms + calm_ms);
        assert_eq!(time.since(second_ms + 1), second_ms + 60_000 + calm_ms);

        let time = after_calm(&clock, &guard, -3_660_000);
        for from_ms in [START_MS, second_ms, second_ms + 60_000] {
            assert_eq!(time.since(from_ms), clock.wall_ms(), "all of it was taken back");
        }
    }

    #[test]
    fn a_step_back_shortens_no_span_and_many_steps_are_bounded() {
        let (clock, guard) = guard();
        let time = after_calm(&clock, &guard, -3_600_000);
        assert_eq!(time.since(START_MS), START_MS - 3_600_000 + 300_000);
        let mut time = time;
        let begin_ms = clock.wall_ms();
        for _ in 0..20 {
            time = after_calm(&clock, &guard, 10_000);
        }
        assert_eq!(time.steps.len(), STEPS_MAX);
        assert_eq!(time.since(begin_ms), begin_ms + 20 * 300_000);
        assert_eq!(time.since(time.wall_ms()), time.wall_ms());
    }

    #[test]
    fn a_clock_that_goes_on_stepping_is_not_trusted() {
        let (clock, guard) = guard();
        for _ in 0..10 {
            clock.set_wall_ms(clock.wall_ms() + 60_000);
            assert!(checked(&clock, &guard).is_err());
            clock.advance(Duration::from_secs(200));
        }
    }

    #[test]
    fn small_steps_are_not_added_up() {
        let (clock, guard) = guard();
        for _ in 0..3 {
            clock.set_wall_ms(clock.wall_ms() + 5_000);
            assert_eq!(checked(&clock, &guard), Ok(clock.wall_ms()));
        }
    }

    #[test]
    fn the_other_clock_is_compared_with_the_time_of_the_question_to_the_answer() {
        let (clock, guard) = guard();
        let asked = guard.read();
        clock.advance(Duration::from_secs(8));
        for (other_ms, expected) in [
            (START_MS - 5_000, Ok(START_MS + 8_000)),
            (START_MS - 5_001, Err(ClockFault::Ahead { by_ms: 5_001 })),
            (START_MS + 13_000, Ok(START_MS + 8_000)),
            (START_MS + 13_001, Err(ClockFault::Ahead { by_ms: -5_001 })),
        ] {
            let time = guard.check(asked, other_ms).map(|time| time.wall_ms());
            assert_eq!(time, expected, "{other_ms}");
        }
    }
}
