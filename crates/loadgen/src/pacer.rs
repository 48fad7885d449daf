use std::sync::atomic::Ordering;
use std::time::Duration;

use super::plan::{LoadError, Until};
use super::pool::{Due, Pool};
use super::recorder::Recorder;
use super::run::pause;
use crate::clock;

/// Shortest sleep. Above its inverse in rate, a few requests leave together, at most this late;
/// waking for each would cost more than sending it.
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// How often waiting requests are looked through while the last ones end.
const DRAIN_PERIOD: Duration = Duration::from_millis(2);
/// How long to wait for the connections, so that the run does not begin with a queue.
const WARM_UP: Duration = Duration::from_secs(5);

/// Plans and sends requests at a constant rate until the run is over, then waits until each has
/// ended.
pub(super) fn run(pool: &Pool, recorder: &Recorder, per_second: f64) -> Result<(), LoadError> {
    sharpen_sleep();
    await_connections(pool);
    let begin = pool.shared.begin();
    let mut buffer = Vec::with_capacity(512);
    let mut now = begin;
    for seq in 0.. {
        let planned = begin + Duration::from_secs_f64(seq as f64 / per_second);
        if is_over(pool.shared.load.until, seq, planned.duration_since(begin)) {
            break;
        }
        if planned > now {
            let early = planned.saturating_duration_since(clock::now_monotonic());
            if !early.is_zero() {
                pause(early.max(SLEEP_MIN));
            }
            now = clock::now_monotonic();
        }
        if pool.shared.is_stopped() {
            break;
        }
        pool.open.fetch_add(1, Ordering::AcqRel);
        pool.expire(now, recorder);
        let due = Due { seq, planned };
        if pool.is_late(due, now) {
            pool.unsent(due, recorder);
        } else {
            pool.dispatch(due, now, recorder, &mut buffer);
        }
    }
    drain(pool, recorder)
}

/// Each request ends at the latest when it is late or its answer is overdue; one that has not
/// ended well after that was lost with a reader.
fn drain(pool: &Pool, recorder: &Recorder) -> Result<(), LoadError> {
    let patience = pool.late_limit + 2 * pool.shared.load.answer_timeout;
    let begin = clock::now_monotonic();
    while pool.open.load(Ordering::Acquire) > 0 {
        let now = clock::now_monotonic();
        if now.saturating_duration_since(begin) > patience {
            return Err(LoadError::Died);
        }
        pool.expire(now, recorder);
        pause(DRAIN_PERIOD);
    }
    Ok(())
}

/// Whether request number `seq`, planned at `offset` from the beginning, is one too many.
fn is_over(until: Until, seq: u64, offset: Duration) -> bool {
    match until {
        Until::Requests(total) => seq >= total,
        Until::Elapsed(total) => offset >= total,
    }
}

fn await_connections(pool: &Pool) {
    let begin = clock::now_monotonic();
    let wanted = pool.shared.load.connections;
    while pool.idle() < wanted && clock::now_monotonic().duration_since(begin) < WARM_UP {
        pause(DRAIN_PERIOD);
    }
}

/// Linux rounds a thread's sleeps up by 50 µs unless told otherwise. Where it cannot be told, the
/// run is only a little less even, so a failure is not reported.
fn sharpen_sleep() {
    if let Ok(link) = std::fs::read_link("/proc/thread-self")
        && let Some(thread) = link.file_name()
    {
        let path = std::path::Path::new("/proc").join(thread).join("timerslack_ns");
        drop(std::fs::write(path, "1"));
    }
}
