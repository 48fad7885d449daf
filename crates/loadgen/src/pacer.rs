use std::sync::atomic::Ordering;
use std::time::Duration;

use super::plan::{LoadError, Until};
use super::pool::{Due, Pool};
use super::recorder::Recorder;
use super::run::pause;
use crate::clock;

/// Shortest sleep. At rates above its inverse a few requests leave together, at most this late:
/// waking for each would cost more than sending it.
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// How often waiting requests are checked for expiry while the last requests end.
const DRAIN_PERIOD: Duration = Duration::from_millis(2);
/// Longest wait for the connections before the run begins, so that it begins without a backlog.
const WARM_UP: Duration = Duration::from_secs(5);

/// Plans and sends requests at a constant rate until the run is over, then waits until each has
/// ended.
pub(super) fn run(pool: &Pool, recorder: &Recorder, per_second: f64) -> Result<(), LoadError> {
    reduce_timer_slack();
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
            pool.end_unsent(due, recorder);
        } else {
            pool.dispatch(due, now, recorder, &mut buffer);
        }
    }
    drain(pool, recorder)
}

/// Waits until every request has ended. A request expires or times out by then; if one is still
/// open well after that, its reader thread has panicked.
fn drain(pool: &Pool, recorder: &Recorder) -> Result<(), LoadError> {
    let timeout = pool.late_limit + 2 * pool.shared.load.answer_timeout;
    let begin = clock::now_monotonic();
    while pool.open.load(Ordering::Acquire) > 0 {
        let now = clock::now_monotonic();
        if now.saturating_duration_since(begin) > timeout {
            return Err(LoadError::Panicked);
        }
        pool.expire(now, recorder);
        pause(DRAIN_PERIOD);
    }
    Ok(())
}

/// Whether the run ends before request `seq`, which is planned `offset` after the beginning.
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

/// Reduces this thread's timer slack, by which Linux delays a sleep up to 50 µs. A failure only
/// makes the pace a little less even, so it is ignored.
fn reduce_timer_slack() {
    if let Ok(link) = std::fs::read_link("/proc/thread-self")
        && let Some(thread) = link.file_name()
    {
        let path = std::path::Path::new("/proc").join(thread).join("timerslack_ns");
        drop(std::fs::write(path, "1"));
    }
}
