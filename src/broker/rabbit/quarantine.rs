//! Queues that are read one message at a time, because a message closed the connection (the client
//! library cannot parse it) or was delivered often (it may crash its consumers). Pure.
//!
//! Such a message is delivered again after each failure, together with all unacknowledged ones.
//! With a larger prefetch its neighbours would reach the delivery limit with it. One at a time,
//! only the deliveries of the poison message are counted, until the broker dead-letters it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::super::Route;

/// Longest quarantine without a failure. A delivery that waits for its store must not block those
/// behind it; a few extra deliveries are counted instead.
const QUARANTINE_MAX: Duration = Duration::from_secs(60);

/// What remains of the quarantine of one queue.
#[derive(Debug, Clone, Copy)]
struct QuarantineLeft {
    /// Deliveries still to be acknowledged one by one.
    deliveries: u16,
    until: Instant,
}

/// The queues in quarantine.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    active: Mutex<HashMap<Route, QuarantineLeft>>,
    /// When a frequently delivered message last started it, or [`Self::put_off`] was called.
    last_start: Mutex<HashMap<Route, Instant>>,
}

impl Quarantine {
    /// Starts or restarts the quarantine, for as many deliveries as were unacknowledged when the
    /// connection broke.
    pub(super) fn start(&self, source: Route, prefetch: u16, now: Instant) {
        // All of them again: the position at which the message returns to its queue is unknown.
        let left = QuarantineLeft { deliveries: prefetch.max(1), until: now + QUARANTINE_MAX };
        self.active.lock().insert(source, left);
    }

    /// Starts the quarantine for a frequently delivered message. Returns false if such a message
    /// started one less than two [`QUARANTINE_MAX`] ago: a message that stays in its queue must not
    /// slow down the others permanently, so they get as much time without quarantine.
    pub(super) fn start_once(&self, source: Route, prefetch: u16, now: Instant) -> bool {
        let mut last_start = self.last_start.lock();
        if last_start.get(&source).is_some_and(|at| now < *at + QUARANTINE_MAX * 2) {
            return false;
        }
        last_start.insert(source, now);
        self.start(source, prefetch, now);
        true
    }

    /// Lets no frequently delivered message start a quarantine now: the deliveries of this queue
    /// were not acknowledged in time, and are counted once more although no consumer crashed.
    pub(super) fn put_off(&self, source: Route, now: Instant) {
        self.last_start.lock().insert(source, now);
    }

    /// Whether the queue must be read one message at a time.
    pub(super) fn is_active(&self, source: Route, now: Instant) -> bool {
        let active = self.active.lock();
        active.get(&source).is_some_and(|left| left.deliveries > 0 && now < left.until)
    }

    /// Counts one delivery that was read alone and acknowledged.
    pub(super) fn count_acknowledged(&self, source: Route) {
        if let Some(left) = self.active.lock().get_mut(&source) {
            left.deliveries = left.deliveries.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock::now_monotonic;

    #[test]
    fn a_message_that_comes_often_leaves_the_others_as_much_time_as_it_takes() {
        let (quarantine, start) = (Quarantine::default(), now_monotonic());
        let source = Route::Orders(0);
        assert!(quarantine.start_once(source, 8, start) && quarantine.is_active(source, start));
        let end = start + QUARANTINE_MAX;
        assert!(!quarantine.is_active(source, end) && !quarantine.start_once(source, 8, end));
        assert!(!quarantine.is_active(source, end));
        assert!(quarantine.start_once(source, 8, start + QUARANTINE_MAX * 2));
    }

    const ORDERS: Route = Route::Orders(1);

    #[test]
    fn the_quarantine_lasts_for_as_many_deliveries_as_the_prefetch() {
        let (quarantine, now) = (Quarantine::default(), now_monotonic());
        assert!(!quarantine.is_active(ORDERS, now));
        quarantine.count_acknowledged(ORDERS);
        quarantine.start(ORDERS, 3, now);
        quarantine.count_acknowledged(ORDERS);
        // The poison message itself, read alone.
        quarantine.start(ORDERS, 3, now);
        for _ in 0..3 {
            assert!(quarantine.is_active(ORDERS, now) && !quarantine.is_active(Route::Dead, now));
            quarantine.count_acknowledged(ORDERS);
        }
        assert!(!quarantine.is_active(ORDERS, now));
    }

    #[test]
    fn the_quarantine_ends_in_time_without_acknowledgements() {
        let (quarantine, now) = (Quarantine::default(), now_monotonic());
        quarantine.start(ORDERS, 3, now);
        assert!(quarantine.is_active(ORDERS, now + QUARANTINE_MAX / 2));
        quarantine.start(ORDERS, 3, now + QUARANTINE_MAX / 2);
        assert!(quarantine.is_active(ORDERS, now + QUARANTINE_MAX));
        assert!(!quarantine.is_active(ORDERS, now + QUARANTINE_MAX * 2));
    }
}
