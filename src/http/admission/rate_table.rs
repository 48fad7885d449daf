//! How often a key did something: the generic cell rate algorithm (GCRA) in a table of fixed size.
//!
//! A key, such as a buyer, may do `count` things at once and as many in each window. Its state is
//! one time, the *theoretical arrival time*: when the key will have all of its count again. The
//! table holds 2^21 of them, 16 MiB, in sets of eight that share a cache line; it takes no lock. A
//! key whose set is full takes the cell of the key that will be free first; that key starts afresh.
//! So a crowd of more keys than cells passes instead of filling memory, and is counted.
//!
//! The hash has a random key per process: two keys cannot be made to share a set.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;

use crate::limits::Rate;

/// Cells of one set.
const WAYS: usize = 8;
/// 2^18 sets of eight cells of eight bytes are 16 MiB.
const SET_BITS: u32 = 18;
/// Bits of a cell that hold the time; the others hold a part of the key's hash.
const TIME_BITS: u32 = 42;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
/// The unit of time: 2^42 of them are 8 years.
const TICKS_PER_MS: u64 = 16;

/// The table of one process.
#[derive(Debug)]
pub struct RateTable {
    cells: Box<[AtomicU64]>,
    hasher: RandomState,
    /// Zero of the times in the cells.
    started: Instant,
    /// Keys that lost their cell before they were free.
    forgotten: Counter,
}

impl RateTable {
    pub fn new(now: Instant, forgotten: Counter) -> Self {
        Self::with_sets(1 << SET_BITS, now, forgotten)
    }

    fn with_sets(num_sets: usize, now: Instant, forgotten: Counter) -> Self {
        let cells = vec![0; num_sets * WAYS].into_iter().map(AtomicU64::new).collect();
        Self { cells, hasher: RandomState::new(), started: now, forgotten }
    }

    /// Counts one thing of a key.
    ///
    /// # Errors
    /// The key did too much: how long until it may do the next thing. Nothing is counted.
    pub fn take(&self, key: impl Hash, rate: Rate, now: Instant) -> Result<(), Duration> {
        let now = ticks(now.saturating_duration_since(self.started));
        let window = ticks(rate.window);
        let interval = (window / u64::from(rate.count.max(1))).max(1);
        let hash = self.hasher.hash_one(key);
        let num_sets = self.cells.len() / WAYS;
        let first = usize::try_from(hash & TIME_MASK).unwrap_or_default() % num_sets.max(1) * WAYS;
        let tag = hash & !TIME_MASK;
        let set = self.cells.get(first..first.saturating_add(WAYS)).unwrap_or_default();
        loop {
            let Some((cell, held)) = choose(set, tag) else { return Ok(()) };
            let is_own = held & !TIME_MASK == tag;
            let arrival = held & TIME_MASK;
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
fn choose(set: &[AtomicU64], tag: u64) -> Option<(&AtomicU64, u64)> {
    let values = set.iter().map(|cell| (cell, cell.load(Ordering::Relaxed)));
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
mod tests {
    use super::*;
    use crate::runtime::clock::now_monotonic;

    const THREE: Rate = Rate { count: 3, window: Duration::from_secs(3) };

    fn table(num_sets: usize) -> (RateTable, Instant) {
        let now = now_monotonic();
        (RateTable::with_sets(num_sets, now, Counter::default()), now)
    }

    #[test]
    fn a_key_may_do_its_count_at_once_and_then_one_thing_per_interval() {
        let (table, start) = table(4);
        let at = |ms| start + Duration::from_millis(ms);
        for _ in 0..3 {
            assert_eq!(table.take(7, THREE, at(0)), Ok(()));
        }
        assert_eq!(table.take(7, THREE, at(0)), Err(Duration::from_secs(1)));
        assert_eq!(table.take(7, THREE, at(400)), Err(Duration::from_millis(600)));
        assert_eq!(table.take(8, THREE, at(0)), Ok(()), "another key");
        assert_eq!(table.take(7, THREE, at(1_000)), Ok(()));
        assert_eq!(table.take(7, THREE, at(1_000)), Err(Duration::from_secs(1)));
        // After a whole window it has all of its count again.
        for _ in 0..3 {
            assert_eq!(table.take(7, THREE, at(60_000)), Ok(()));
        }
        assert!(table.take(7, THREE, at(60_000)).is_err());
        assert_eq!(table.forgotten.get(), 0);
    }

    #[test]
    fn a_full_set_forgets_the_key_that_is_free_first() {
        let (table, start) = table(1);
        let one = |seconds| Rate { count: 1, window: Duration::from_secs(seconds) };
        for key in 0..8 {
            assert_eq!(table.take(key, one(10 + key), start), Ok(()));
        }
        assert!(table.take(0_u64, one(10), start).is_err());
        assert_eq!(table.take(99_u64, one(60), start), Ok(()));
        assert_eq!(table.forgotten.get(), 1);
        for key in 1..8 {
            assert!(table.take(key, one(10 + key), start).is_err(), "key {key} is remembered");
        }
        // Cells whose keys are free are taken without forgetting anything.
        let later = start + Duration::from_secs(30);
        for key in 100_u64..107 {
            assert_eq!(table.take(key, one(60), later), Ok(()));
        }
        assert_eq!(table.forgotten.get(), 1);
    }

    #[test]
    fn threads_together_get_the_count_and_not_more() {
        let (table, now) = table(64);
        let rate = Rate { count: 500, window: Duration::from_secs(60) };
        let passed: usize = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| {
                scope.spawn(|| (0..1000).filter(|_| table.take("k", rate, now).is_ok()).count())
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(passed, 500);
    }

    #[test]
    fn the_table_has_16_mebibytes() {
        let (now, forgotten) = (now_monotonic(), Counter::default());
        let table = RateTable::new(now, forgotten);
        assert_eq!(size_of_val(&*table.cells), 16 << 20);
    }
}
