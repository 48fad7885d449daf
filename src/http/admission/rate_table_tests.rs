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
        assert_eq!(table.take(7, THREE, at(0)), Ok(()));
    }
    assert_eq!(table.take(7, THREE, at(0)), Err(Duration::from_secs(1)));
    assert_eq!(table.take(7, THREE, at(400)), Err(Duration::from_millis(600)));
    assert_eq!(table.take(8, THREE, at(0)), Ok(()), "another key");
    assert_eq!(table.take(7, THREE, at(1_000)), Ok(()));
    assert_eq!(table.take(7, THREE, at(1_000)), Err(Duration::from_secs(1)));
    let longer = Rate { count: 1, window: Duration::from_secs(60) };
    assert_eq!(table.take(7, longer, at(1_000)), Ok(()), "another window");
    assert!(table.take(7, longer, at(1_000)).is_err());
    // After a whole window it has all of its count again.
    for _ in 0..3 {
        assert_eq!(table.take(7, THREE, at(60_000)), Ok(()));
    }
    assert!(table.take(7, THREE, at(60_000)).is_err());
    assert_eq!(table.forgotten.get(), 0);
}

#[test]
fn no_rate_lets_more_pass_than_its_count() {
    for count in [1, 7, 300, 901, 5_400, 8_001, 10_000] {
        let rate = Rate { count, window: Duration::from_secs(1) };
        let (table, start) = table(2);
        let passed = |at| {
            let takes = (0..2 * count).filter(|_| table.take(7, rate, at).is_ok());
            u32::try_from(takes.count()).unwrap()
        };
        assert_eq!(passed(start), count);
        let in_next = passed(start + rate.window);
        assert!(in_next <= count && in_next >= count - count / 7, "{in_next} of {count}");
    }
}

#[test]
fn a_full_set_forgets_the_key_that_is_free_first() {
    let (table, start) = table(0);
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

/// The times of the table last for two years.
#[test]
fn a_key_is_not_locked_out_when_the_times_begin_again() {
    let (table, start) = table(2);
    let again_ms = (1 << TIME_BITS) / TICKS_PER_MS;
    for at_ms in [again_ms - 6_000, again_ms + 1_000] {
        let at = start + Duration::from_millis(at_ms);
        for _ in 0..3 {
            assert_eq!(table.take(7, THREE, at), Ok(()));
        }
        assert!(table.take(7, THREE, at).is_err());
    }
}

#[test]
fn threads_together_get_the_count_and_not_more() {
    let (table, now) = table(6);
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
fn the_table_has_16_mebibytes_and_its_sets_are_cache_lines() {
    let (now, forgotten) = (now_monotonic(), Counter::default());
    let table = RateTable::new(now, forgotten);
    assert_eq!(size_of_val(&*table.sets), 16 << 20);
    assert_eq!((size_of::<CellSet>(), align_of::<CellSet>()), (64, 64));
}
