//! What waits in hand because the ledger did not write it, and how it is tried again. Pure.
//!
//! While the ledger fails, one submission at a time is tried, each time another one and after a
//! longer wait; once that succeeds twice as many follow, and so on: a ledger that comes back is not
//! met by everything at once, and one submission that fails on its own account does not keep the
//! others waiting.

use std::collections::VecDeque;
use std::time::Duration;

use crate::runtime::backoff::Backoff;

/// Submissions that wait.
#[derive(Debug)]
pub struct RetryQueue<T> {
    waiting: VecDeque<T>,
    /// The waits of a ledger that just went away.
    fresh: Backoff,
    backoff: Backoff,
    /// How many are tried at once.
    at_once: usize,
    /// How many of them have not come back, and whether one failed.
    out: usize,
    failed: bool,
}

impl<T> RetryQueue<T> {
    /// Nothing waits.
    #[must_use]
    pub fn new(backoff: Backoff) -> Self {
        let waiting = VecDeque::new();
        Self { waiting, fresh: backoff, backoff, at_once: 1, out: 0, failed: false }
    }

    /// One more waits.
    pub fn push(&mut self, held: T) {
        self.waiting.push_back(held);
    }

    /// How many of those that wait are such.
    #[must_use]
    pub fn num(&self, is_such: impl Fn(&T) -> bool) -> usize {
        self.waiting.iter().filter(|waiting| is_such(waiting)).count()
    }

    /// Whether nothing waits or is being tried.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.out == 0
    }

    /// How long to wait before [`Self::take`]; `None` while that would be in vain. `spread` in
    /// 0.0..1.0 is the caller's randomness.
    pub fn next_wait(&mut self, spread: f64) -> Option<Duration> {
        if self.waiting.is_empty() || self.out > 0 {
            return None;
        }
        Some(if self.at_once > 1 { Duration::ZERO } else { self.backoff.next_wait(spread) })
    }

    /// Those to try now; each must come [`Self::back`].
    pub fn take(&mut self) -> Vec<T> {
        if self.out > 0 {
            return Vec::new();
        }
        let size = self.at_once.min(self.waiting.len());
        self.out = size;
        self.failed = false;
        self.waiting.drain(..size).collect()
    }

    /// One of those was tried. One that failed has been pushed again before, or went another way.
    pub fn back(&mut self, is_well: bool) {
        self.failed |= !is_well;
        self.out = self.out.saturating_sub(1);
        if self.out > 0 {
            return;
        }
        if self.failed {
            self.at_once = 1;
        } else {
            self.at_once = self.at_once.saturating_mul(2);
            self.backoff = self.fresh;
        }
        if self.waiting.is_empty() {
            *self = Self::new(self.fresh);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_of(held: u32) -> RetryQueue<u32> {
        let mut queue = RetryQueue::new(Backoff::new(10, 40));
        for one in 0..held {
            queue.push(one);
        }
        queue
    }

    #[test]
    fn one_at_a_time_asks_after_a_growing_wait_and_each_in_turn() {
        let mut queue = queue_of(3);
        let mut waits = Vec::new();
        for turn in 0..5 {
            waits.push(queue.next_wait(1.0).unwrap().as_millis());
            assert_eq!(queue.take(), [turn % 3]);
            assert_eq!(queue.next_wait(1.0), None, "one is being tried");
            assert!(queue.take().is_empty());
            queue.push(turn % 3);
            queue.back(false);
        }
        assert_eq!(waits, [10, 20, 40, 40, 40]);
    }

    #[test]
    fn success_doubles_what_follows_at_once() {
        let mut queue = queue_of(8);
        queue.next_wait(1.0).unwrap();
        for expected in [1, 2, 4] {
            let tried = queue.take();
            assert_eq!(tried.len(), expected);
            for _ in tried {
                queue.back(true);
            }
            assert_eq!(queue.next_wait(1.0), Some(Duration::ZERO));
        }
        assert_eq!(queue.take(), [7]);
        assert!(!queue.is_empty(), "one is being tried");
        queue.back(true);
        assert!(queue.is_empty() && queue.next_wait(1.0).is_none());
    }

    #[test]
    fn one_failure_among_many_begins_anew() {
        let mut queue = queue_of(4);
        assert_eq!(queue.take(), [0]);
        queue.back(true);
        assert_eq!(queue.take(), [1, 2]);
        queue.push(2);
        queue.back(false);
        queue.back(true);
        assert_eq!(queue.next_wait(1.0).unwrap().as_millis(), 10);
        assert_eq!(queue.take(), [3]);
    }
}
