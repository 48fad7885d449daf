//! What waits in hand because the ledger or the stock is away, and how it is tried again. Pure.
//!
//! While somebody is away one delivery at a time asks again, each time another one and after a
//! longer wait; once that succeeds twice as many follow, and so on: a store that comes back is not
//! met by everything at once, and one delivery that fails on its own account does not keep the
//! others waiting.

use std::collections::VecDeque;
use std::time::Duration;

use crate::backoff::Backoff;

/// Deliveries that wait.
#[derive(Debug)]
pub struct Holding<T> {
    waiting: VecDeque<T>,
    /// The waits of a store that just went away.
    fresh: Backoff,
    backoff: Backoff,
    /// How many are tried at once.
    at_once: usize,
    /// How many of them have not come back, and whether one failed.
    out: usize,
    failed: bool,
}

impl<T> Holding<T> {
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

    fn holding(held: u32) -> Holding<u32> {
        let mut holding = Holding::new(Backoff::new(10, 40));
        for one in 0..held {
            holding.push(one);
        }
        holding
    }

    #[test]
    fn one_at_a_time_asks_after_a_growing_wait_and_each_in_turn() {
        let mut holding = holding(3);
        let mut waits = Vec::new();
        for turn in 0..5 {
            waits.push(holding.next_wait(1.0).unwrap().as_millis());
            assert_eq!(holding.take(), [turn % 3]);
            assert_eq!(holding.next_wait(1.0), None, "one is being tried");
            assert!(holding.take().is_empty());
            holding.push(turn % 3);
            holding.back(false);
        }
        assert_eq!(waits, [10, 20, 40, 40, 40]);
    }

    #[test]
    fn success_doubles_what_follows_at_once() {
        let mut holding = holding(8);
        holding.next_wait(1.0).unwrap();
        for expected in [1, 2, 4] {
            let tried = holding.take();
            assert_eq!(tried.len(), expected);
            for _ in tried {
                holding.back(true);
            }
            assert_eq!(holding.next_wait(1.0), Some(Duration::ZERO));
        }
        assert_eq!(holding.take(), [7]);
        assert!(!holding.is_empty(), "one is being tried");
        holding.back(true);
        assert!(holding.is_empty() && holding.next_wait(1.0).is_none());
    }

    #[test]
    fn one_failure_among_many_begins_anew() {
        let mut holding = holding(4);
        assert_eq!(holding.take(), [0]);
        holding.back(true);
        assert_eq!(holding.take(), [1, 2]);
        holding.push(2);
        holding.back(false);
        holding.back(true);
        assert_eq!(holding.next_wait(1.0).unwrap().as_millis(), 10);
        assert_eq!(holding.take(), [3]);
    }
}
