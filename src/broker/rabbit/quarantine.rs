//! Which queues are read one message at a time, because some message there ended the connection
//! (the client library cannot read it) or was delivered often (it may end every process that takes
//! it in). Pure.
//!
//! Such a message is delivered again after each break, with everything that was in hand; read many
//! at a time, its neighbours would be given up by the broker as often as itself. Read one at a
//! time, only the one that breaks the connection is counted, until the broker sets it aside.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::super::Source;

/// The longest time without a break. A delivery that waits for its store must not keep everything
/// behind it waiting: rather a few more of them are counted once.
const CAUTION_MAX: Duration = Duration::from_secs(60);

/// How long one queue is still read with caution.
#[derive(Debug, Clone, Copy)]
struct QuarantineLeft {
    /// Deliveries to be acknowledged one by one.
    deliveries: u16,
    until: Instant,
}

/// The queues that are read with caution.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    left: Mutex<HashMap<Source, QuarantineLeft>>,
    /// When a message that came often last began it.
    begun: Mutex<HashMap<Source, Instant>>,
}

impl Quarantine {
    /// A connection broke over a message that may have been among `prefetch` of this queue.
    pub(super) fn begin(&self, source: Source, prefetch: u16, now: Instant) {
        // Again all of them, whoever was read since: nobody knows where in its queue it comes back.
        let left = QuarantineLeft { deliveries: prefetch.max(1), until: now + CAUTION_MAX };
        self.left.lock().insert(source, left);
    }

    /// A message of this queue was delivered often before. False where that began it already: a
    /// message that stays for long must not keep those behind it waiting for ever, so they have as
    /// long a time again.
    pub(super) fn begin_once(&self, source: Source, prefetch: u16, now: Instant) -> bool {
        let mut begun = self.begun.lock();
        if begun.get(&source).is_some_and(|at| now < *at + CAUTION_MAX * 2) {
            return false;
        }
        begun.insert(source, now);
        self.begin(source, prefetch, now);
        true
    }

    /// Whether one message at a time must be read.
    pub(super) fn is_on(&self, source: Source, now: Instant) -> bool {
        let mut all = self.left.lock();
        let on = all.get(&source).is_some_and(|left| left.deliveries > 0 && now < left.until);
        if !on {
            all.remove(&source);
        }
        on
    }

    /// One more was read alone, and acknowledged.
    pub(super) fn passed(&self, source: Source) {
        if let Some(left) = self.left.lock().get_mut(&source) {
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
        let (caution, start) = (Quarantine::default(), now_monotonic());
        let source = Source::Orders(0);
        assert!(caution.begin_once(source, 8, start) && caution.is_on(source, start));
        let over = start + CAUTION_MAX;
        assert!(!caution.is_on(source, over) && !caution.begin_once(source, 8, over));
        assert!(!caution.is_on(source, over));
        assert!(caution.begin_once(source, 8, start + CAUTION_MAX * 2));
    }

    const ORDERS: Source = Source::Orders(1);

    #[test]
    fn as_many_are_read_alone_as_may_have_been_in_hand() {
        let (caution, now) = (Quarantine::default(), now_monotonic());
        assert!(!caution.is_on(ORDERS, now));
        caution.passed(ORDERS);
        caution.begin(ORDERS, 3, now);
        caution.passed(ORDERS);
        // The message itself, read alone.
        caution.begin(ORDERS, 3, now);
        for _ in 0..3 {
            assert!(caution.is_on(ORDERS, now) && !caution.is_on(Source::Dead, now));
            caution.passed(ORDERS);
        }
        assert!(!caution.is_on(ORDERS, now));
    }

    #[test]
    fn a_delivery_that_waits_ends_the_caution_in_time() {
        let (caution, now) = (Quarantine::default(), now_monotonic());
        caution.begin(ORDERS, 3, now);
        assert!(caution.is_on(ORDERS, now + CAUTION_MAX / 2));
        caution.begin(ORDERS, 3, now + CAUTION_MAX / 2);
        assert!(caution.is_on(ORDERS, now + CAUTION_MAX));
        assert!(!caution.is_on(ORDERS, now + CAUTION_MAX * 2));
        assert!(!caution.is_on(ORDERS, now), "and is over");
    }
}
