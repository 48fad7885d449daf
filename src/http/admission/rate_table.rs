//! Rate limiter (GCRA) in a table of fixed size.
//!
//! A key, such as a buyer, may do `count` things at once and as many in each window. Its state is
//! one time, the *theoretical arrival time*: when the key will have all of its count again. The
//! table holds 2^21 of them, 16 MiB, in sets of eight; it takes no lock. A set is one cache line,
//! and all windows of a key are in the same set: the crowd's next buyer is in no cache, so that the
//! memory is the cost of a call. A key whose set is full takes the cell of the key that will be
//! free first; that key starts afresh. So a crowd of more keys than cells passes instead of filling
//! memory, and is counted.
//!
//! The hash has a random key per process: two keys cannot be made to share a set.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;

use crate::limits::Rate;

/// 2^18 sets of eight cells of eight bytes are 16 MiB.
const SET_BITS: u32 = 18;
/// Bits of a cell that hold the time; the others hold a part of the key's hash.
const TIME_BITS: u32 = 42;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
/// The unit of time: 2^42 of them are 2 years.
const TICKS_PER_MS: u64 = 64;

/// One cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CellSet([AtomicU64; 8]);

/// The table of one process.
#[derive(Debug)]
pub struct RateTable {
    sets: Box<[CellSet]>,
    hasher: RandomState,
    /// Zero of the times in the cells.
    started: Instant,
    /// Keys that lost their cell before they were free.
    forgotten: Counter,
}

impl RateTable {
    pub fn new(now: Instant, forgotten: Counter) -> Self {
        Self::with_sets(SET_BITS, now, forgotten)
    }

    fn with_sets(set_bits: u32, now: Instant, forgotten: Counter) -> Self {
        let sets = (0..1 << set_bits).map(|_| CellSet::default()).collect();
        Self { sets, hasher: RandomState::new(), started: now, forgotten }
    }

    /// Counts one thing of a key. Each window of a key has a count of its own.
    ///
    /// # Errors
    /// The key did too much: how long until it may do the next thing. Nothing is counted.
    pub fn take(&self, key: impl Hash, rate: Rate, now: Instant) -> Result<(), Duration> {
        let now = ticks(now.saturating_duration_since(self.started));
        let count = u64::from(rate.count.max(1));
        // Rounded up: a key never gets more than its count.
        let interval = ticks(rate.window).div_ceil(count).max(1);
        let window = interval * count;
        let hash = self.hasher.hash_one(key);
        // The number of sets is a power of two.
        let last_set = self.sets.len() - 1;
        let number = usize::try_from(hash & TIME_MASK).unwrap_or_default() & last_set;
        let tag = hash.wrapping_add(rate.window.as_secs() << TIME_BITS) & !TIME_MASK;
        loop {
            let chosen = self.sets.get(number).and_then(|set| choose(set, tag));
            let Some((cell, held)) = chosen else { return Ok(()) };
            let arrival = held & TIME_MASK;
            // A time further ahead than a window was set before the times wrapped, two years ago.
            let is_own = held & !TIME_MASK == tag && arrival <= now + window;
            let base = if is_own { arrival.max(now) } else { now };
            if base - now > window.saturating_sub(interval) {
                return Err(duration(base + interval - now - window));
            }
            let next = tag | ((base + interval) & TIME_MASK);
            if cell.compare_exchange(held, next, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                // Another thread changed the cell: look again.
                continue;
            }
            if !is_own && arrival > now {
                self.forgotten.inc();
            }
            return Ok(());
        }
    }
}

/// The cell of the tag, or else the one that is free first; with its value.
fn choose(CellSet(cells): &CellSet, tag: u64) -> Option<(&AtomicU64, u64)> {
    let values = cells.iter().map(|cell| (cell, cell.load(Ordering::Relaxed)));
    values.min_by_key(|(_, held)| if held & !TIME_MASK == tag { 0 } else { held & TIME_MASK | 1 })
}

fn ticks(time: Duration) -> u64 {
    let ticks = time.as_nanos() * u128::from(TICKS_PER_MS) / 1_000_000;
    u64::try_from(ticks).unwrap_or(TIME_MASK) & TIME_MASK
}

fn duration(ticks: u64) -> Duration {
    Duration::from_nanos(ticks.saturating_mul(1_000_000) / TICKS_PER_MS)
}

#[cfg(test)]
#[path = "rate_table_tests.rs"]
mod tests;
