//! The only module that reads the time.
//!
//! Stored and displayed times are epoch milliseconds from [`Clock::wall_ms`]; waits and deadlines
//! use [`Clock::now`], which never jumps. The engine receives a [`SharedClock`]; tools outside the
//! engine (load generator, command line) use the free functions.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat};

/// Reads time.
pub trait Clock: Send + Sync + Debug {
    /// Milliseconds since 1970-01-01T00:00:00Z; jumps when the system clock is set.
    fn wall_ms(&self) -> i64;

    /// Monotonic time, for waits and deadlines.
    fn now(&self) -> Instant;
}

pub type SharedClock = Arc<dyn Clock>;

/// The system clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    pub fn shared() -> SharedClock {
        Arc::new(Self)
    }
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> i64 {
        wall_ms()
    }

    fn now(&self) -> Instant {
        now_monotonic()
    }
}

/// A clock that only tests advance.
#[derive(Debug)]
pub struct ManualClock {
    wall_ms: AtomicI64,
    start: Instant,
    /// Monotonic time since `start`.
    elapsed_ms: AtomicU64,
}

impl ManualClock {
    pub fn new(wall_ms: i64) -> Self {
        Self {
            wall_ms: AtomicI64::new(wall_ms),
            start: now_monotonic(),
            elapsed_ms: AtomicU64::new(0),
        }
    }

    /// Sets the wall time, forwards or backwards; monotonic time does not change, as when an
    /// operator sets the system clock.
    pub fn set_wall_ms(&self, wall_ms: i64) {
        self.wall_ms.store(wall_ms, Ordering::SeqCst);
    }

    /// Advances wall and monotonic time together, in whole milliseconds.
    pub fn advance(&self, by: Duration) {
        let ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.elapsed_ms.fetch_add(ms, Ordering::SeqCst);
        self.wall_ms.fetch_add(i64::try_from(ms).unwrap_or(i64::MAX), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn wall_ms(&self) -> i64 {
        self.wall_ms.load(Ordering::SeqCst)
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.elapsed_ms.load(Ordering::SeqCst))
    }
}

/// The time of tokio's timers, which tests pause; for code that only sets such timers.
pub fn now_of_timers() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Monotonic time, for tools without a [`Clock`].
#[expect(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
pub fn now_monotonic() -> Instant {
    Instant::now()
}

/// Epoch milliseconds, for tools without a [`Clock`]; negative before 1970.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub fn wall_ms() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        Err(before) => {
            i64::try_from(before.duration().as_millis()).map_or(i64::MIN, std::ops::Neg::neg)
        }
    }
}

/// The time in RFC 3339, UTC, with milliseconds.
pub fn rfc3339(epoch_ms: i64) -> String {
    let time = DateTime::from_timestamp_millis(epoch_ms).unwrap_or(DateTime::UNIX_EPOCH);
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_by_advance_and_its_wall_time_can_be_set() {
        let clock = ManualClock::new(1_000);
        let before = clock.now();
        assert_eq!((clock.wall_ms(), clock.now()), (1_000, before));
        clock.advance(Duration::from_millis(250));
        assert_eq!((clock.wall_ms(), clock.now() - before), (1_250, Duration::from_millis(250)));
        clock.set_wall_ms(10);
        assert_eq!((clock.wall_ms(), clock.now() - before), (10, Duration::from_millis(250)));
    }

    #[test]
    fn the_system_clock_is_after_2020_and_monotonic() {
        let clock = SystemClock::shared();
        assert!(clock.wall_ms() > 1_577_836_800_000);
        let first = clock.now();
        assert!(clock.now() >= first);
    }
}
