use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use super::generator::{Due, Generator};
use super::plan::LoadError;
use crate::clock;

/// Shortest sleep. At rates above its inverse a few requests leave together, at most this late:
/// waking for each would cost more than sending it.
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// How often waiting requests are checked for expiry while the last requests end.
const DRAIN_PERIOD: Duration = Duration::from_millis(2);
/// Longest wait for the connections before the run begins, so that it begins without a backlog.
const WARM_UP: Duration = Duration::from_secs(5);

/// Plans every request at a constant rate until the run is over, then waits until each has ended.
pub(super) async fn run(
    generator: &Generator,
    per_second: f64,
    late_limit: Duration,
) -> Result<(), LoadError> {
    let timer = Timer::new().map_err(LoadError::Start)?;
    await_connections(generator).await;
    let begin = generator.begin();
    let mut now = begin;
    for seq in 0.. {
        let offset = Duration::from_secs_f64(seq as f64 / per_second);
        if generator.is_over(seq, offset) {
            break;
        }
        let planned = begin + offset;
        if planned > now {
            let early = planned.saturating_duration_since(clock::now_monotonic());
            if !early.is_zero() {
                timer.sleep(early.max(SLEEP_MIN)).await.map_err(LoadError::Start)?;
            }
            now = clock::now_monotonic();
        }
        generator.expire(now, late_limit);
        generator.plan(Due { seq, planned });
    }
    drain(generator, late_limit).await
}

/// Waits until every request has ended. A request expires or times out by then; if one is still
/// open well after that, its task has panicked.
async fn drain(generator: &Generator, late_limit: Duration) -> Result<(), LoadError> {
    let timeout = late_limit + 2 * generator.load.answer_timeout;
    let begin = clock::now_monotonic();
    while generator.state.lock().open > 0 {
        let now = clock::now_monotonic();
        if now.saturating_duration_since(begin) > timeout {
            return Err(LoadError::Panicked);
        }
        generator.expire(now, late_limit);
        tokio::time::sleep(DRAIN_PERIOD).await;
    }
    Ok(())
}

async fn await_connections(generator: &Generator) {
    let all = async {
        while generator.state.lock().connected < generator.load.connections {
            tokio::time::sleep(DRAIN_PERIOD).await;
        }
    };
    drop(tokio::time::timeout(WARM_UP, all).await);
}

/// A timer of the kernel: tokio's own has a resolution of one millisecond.
struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    fn new() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
        #[expect(deprecated, reason = "its successor is unsafe; an `OwnedFd` keeps its descriptor")]
        AsyncFd::new(timer).map(Self)
    }

    async fn sleep(&self, duration: Duration) -> io::Result<()> {
        let it_value = Timespec::try_from(duration).map_err(io::Error::other)?;
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let times = Itimerspec { it_interval, it_value };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &times)?;
        loop {
            self.0.readable().await?.clear_ready();
            match rustix::io::read(self.0.get_ref(), &mut [0_u8; 8]) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
