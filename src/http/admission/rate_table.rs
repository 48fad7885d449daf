//! How often a key did something: the generic cell rate algorithm (GCRA) in a table of fixed size.
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
/// The unit of time: 2^42 of them are 8 years.
const TICKS_PER_MS: u64 = 16;

/// One cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CellSet([AtomicU64; 8]);

/// The hash of a key.
#[derive(Debug, Clone, Copy)]
pub struct HashedKey(u64);

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

    pub fn hash(&self, key: impl Hash) -> HashedKey {
        HashedKey(self.hasher.hash_one(key))
    }

    /// Counts one thing of a key. Each window of a key has a count of its own.
    ///
    /// # Errors
    /// The key did too much: how long until it may do the next thing. Nothing is counted.
    pub fn take(&self, key: HashedKey, rate: Rate, now: Instant) -> Result<(), Duration> {
        let now = ticks(now.saturating_duration_since(self.started));
        let window = ticks(rate.window);
        let interval = (window / u64::from(rate.count.max(1))).max(1);
        let HashedKey(hash) = key;
        // The number of sets is a power of two.
        let last_set = self.sets.len() - 1;
        let number = usize::try_from(hash & TIME_MASK).unwrap_or_default() & last_set;
        let tag = hash.wrapping_add(rate.window.as_secs() << TIME_BITS) & !TIME_MASK;
        loop {
            let chosen = self.sets.get(number).and_then(|set| choose(set, tag));
            let Some((cell, held)) = chosen else { return Ok(()) };
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
mod tests {
    use super::*;
    use crate::runtime::clock::now_monotonic;

    const THREE: Rate = Rate { count: 3, window: Duration::from_secs(3) };

    fn table(set_bits: u32) -> (RateTable, Instant) {
        let now = now_monotonic();
        (RateTable::with_sets(set_bits, now, Counter::default()), now)
    }

    #[test]
    fn a_key_may_do_its_count_at_once_and_then_one_thing_per_interval() {
        let (table, start) = table(2);
        let at = |ms| start + Duration::from_millis(ms);
        for _ in 0..3 {
            assert_eq!(table.take(table.hash(7), THREE, at(0)), Ok(()));
        }
        assert_eq!(table.take(table.hash(7), THREE, at(0)), Err(Duration::from_secs(1)));
        assert_eq!(table.take(table.hash(7), THREE, at(400)), Err(Duration::from_millis(600)));
        assert_eq!(table.take(table.hash(8), THREE, at(0)), Ok(()), "another key");
        assert_eq!(table.take(table.hash(7), THREE, at(1_000)), Ok(()));
        assert_eq!(table.take(table.hash(7), THREE, at(1_000)), Err(Duration::from_secs(1)));
        let longer = Rate { count: 1, window: Duration::from_secs(60) };
        assert_eq!(table.take(table.hash(7), longer, at(1_000)), Ok(()), "another window");
        assert!(table.take(table.hash(7), longer, at(1_000)).is_err());
        // After a whole window it has all of its count again.
        for _ in 0..3 {
            assert_eq!(table.take(table.hash(7), THREE, at(60_000)), Ok(()));
        }
        assert!(table.take(table.hash(7), THREE, at(60_000)).is_err());
        assert_eq!(table.forgotten.get(), 0);
    }

    #[test]
    fn a_full_set_forgets_the_key_that_is_free_first() {
        let (table, start) = table(0);
        let one = |seconds| Rate { count: 1, window: Duration::from_secs(seconds) };
        for key in 0..8 {
            assert_eq!(table.take(table.hash(key), one(10 + key), start), Ok(()));
        }
        assert!(table.take(table.hash(0_u64), one(10), start).is_err());
        assert_eq!(table.take(table.hash(99_u64), one(60), start), Ok(()));
        assert_eq!(table.forgotten.get(), 1);
        for key in 1..8 {
            assert!(
                table.take(table.hash(key), one(10 + key), start).is_err(),
                "key {key} is remembered"
            );
        }
        // Cells whose keys are free are taken without forgetting anything.
        let later = start + Duration::from_secs(30);
        for key in 100_u64..107 {
            assert_eq!(table.take(table.hash(key), one(60), later), Ok(()));
        }
        assert_eq!(table.forgotten.get(), 1);
    }

    #[test]
    fn threads_together_get_the_count_and_not_more() {
        let (table, now) = table(6);
        let rate = Rate { count: 500, window: Duration::from_secs(60) };
        let passed: usize = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| {
                scope.spawn(|| {
                    (0..1000).filter(|_| table.take(table.hash("k"), rate, now).is_ok()).count()
                })
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(passed, 500);
    }

    #[test]
    fn the_table_has_16_mebibytes_and_its_sets_are_cache_lines() {
        let (now, forgotten) = (now_monotonic(), Counter::default());
        let table = RateTable::new(now, forgotten);
        assert_eq!(size_of_val(&*table.sets), 16 << 20);
        assert_eq!((size_of::<CellSet>(), align_of::<CellSet>()), (64, 64));
    }
}
