//! Whether a connection is still of use.

use std::fmt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::identity::{ServerIdentity, TopologyDoubts};
use super::{ConnectionPurpose, Error};
use crate::runtime::clock::now_monotonic;
use crate::runtime::single_flight::ValueStatus;

/// So many calls in a row without an answer, and the connection counts as dead: TCP itself would
/// take many minutes to say so.
const TIMEOUTS_MAX: u32 = 3;

/// The life of one connection. It ends once.
pub(super) struct ConnectionHealth {
    lane: ConnectionPurpose,
    doubts: Arc<TopologyDoubts>,
    /// Known from the end of the handshake on.
    identity: OnceLock<ServerIdentity>,
    death: OnceLock<String>,
    proven: AtomicBool,
    silence: Mutex<MissedAnswers>,
}

/// Calls in a row that got no answer.
#[derive(Default)]
struct MissedAnswers {
    timeouts: u32,
    /// Calls begun before the last time-out say nothing new when they time out too.
    counted_at: Option<Instant>,
}

impl fmt::Debug for ConnectionHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionHealth").field("death", &self.death).finish_non_exhaustive()
    }
}

impl ConnectionHealth {
    pub(super) fn new(lane: ConnectionPurpose, doubts: Arc<TopologyDoubts>) -> Arc<Self> {
        Arc::new(Self {
            lane,
            doubts,
            identity: OnceLock::new(),
            death: OnceLock::new(),
            proven: AtomicBool::new(false),
            silence: Mutex::default(),
        })
    }

    /// The handshake is over.
    pub(super) fn begin(&self, identity: ServerIdentity) {
        // Set once, here.
        drop(self.identity.set(identity));
    }

    /// Refuses once the connection is dead.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.death.get() {
            None => Ok(()),
            Some(why) => Err(Error::not_sent(why)),
        }
    }

    pub(super) fn standing(&self) -> ValueStatus<Error> {
        match self.check() {
            Ok(()) => ValueStatus::Good,
            Err(why) => ValueStatus::Gone { proven: self.proven.load(Ordering::SeqCst), why },
        }
    }

    /// Ends it; `look_again` if the master may be somewhere else now.
    pub(super) fn die(&self, why: &str, look_again: bool) {
        if look_again {
            self.doubts.look_again();
        }
        let Some(identity) = self.identity.get() else {
            drop(self.death.set(why.to_owned()));
            return;
        };
        let reason = format!("connection to {} given up: {why}", identity.node);
        if self.death.set(reason).is_ok() {
            let run_id = &identity.run_id;
            tracing::warn!(node = %identity.node, run_id, lane = ?self.lane, reason = why,
                "redis connection given up");
        }
    }

    /// An answer came.
    pub(super) fn answered(&self) {
        self.proven.store(true, Ordering::SeqCst);
        self.silence.lock().timeouts = 0;
    }

    /// A call that was begun at `begun` got no answer in time.
    pub(super) fn timed_out(&self, begun: Instant) {
        if let Some(identity) = self.identity.get() {
            let lane = self.lane;
            tracing::debug!(node = %identity.node, ?lane, "redis did not answer in time");
        }
        let timeouts = {
            let mut silence = self.silence.lock();
            if silence.counted_at.is_some_and(|at| begun < at) {
                return;
            }
            silence.counted_at = Some(now_monotonic());
            silence.timeouts += 1;
            silence.timeouts
        };
        if timeouts >= TIMEOUTS_MAX {
            self.die(&format!("no answer to {timeouts} calls in a row"), true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn alive() -> Arc<ConnectionHealth> {
        ConnectionHealth::new(ConnectionPurpose::Hot, Arc::default())
    }

    #[test]
    fn three_times_without_an_answer_are_the_end() {
        let vital = alive();
        for _ in 0..2 {
            vital.timed_out(now_monotonic());
            assert_eq!(vital.standing(), ValueStatus::Good);
        }
        vital.answered();
        for _ in 0..2 {
            vital.timed_out(now_monotonic());
            assert!(vital.check().is_ok());
        }
        vital.timed_out(now_monotonic());
        let why = Error::not_sent("no answer to 3 calls in a row");
        assert_eq!(vital.standing(), ValueStatus::Gone { proven: true, why });
    }

    #[test]
    fn calls_that_waited_together_count_once() {
        let vital = alive();
        let begun = now_monotonic();
        for _ in 0..10 {
            vital.timed_out(begun);
        }
        assert!(vital.check().is_ok());
        vital.timed_out(now_monotonic() + Duration::from_secs(1));
        vital.timed_out(now_monotonic() + Duration::from_secs(1));
        assert!(vital.check().is_err());
    }

    #[test]
    fn the_first_reason_stays() {
        let vital = alive();
        vital.die("the first", false);
        vital.die("the second", true);
        assert_eq!(vital.check().unwrap_err(), Error::not_sent("the first"));
        assert_eq!(vital.doubts.count(), 1, "the doubt counts all the same");
    }
}
