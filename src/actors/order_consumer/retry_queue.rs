//! Submissions that the ledger did not write, and the pace of their retries. Pure.
//!
//! While the ledger fails, one submission at a time is retried, in turn, with a growing wait. After
//! each round without a failure the next round is twice as large: a ledger that recovers is not
//! overloaded, and one submission that fails by itself does not delay the others.

use std::collections::VecDeque;
use std::time::Duration;

use crate::runtime::backoff::Backoff;

/// Submissions to retry, in turn.
#[derive(Debug)]
pub struct RetryQueue<T> {
    waiting: VecDeque<T>,
    initial_backoff: Backoff,
    backoff: Backoff,
    /// Submissions in the next round.
    round_size: usize,
    /// Submissions of the present round without a result.
    num_in_flight: usize,
    /// Whether a submission of the present round has failed.
    has_failed: bool,
}

impl<T> RetryQueue<T> {
    pub fn new(backoff: Backoff) -> Self {
        Self {
            waiting: VecDeque::new(),
            initial_backoff: backoff,
            backoff,
            round_size: 1,
            num_in_flight: 0,
            has_failed: false,
        }
    }

    pub fn push(&mut self, submission: T) {
        self.waiting.push_back(submission);
    }

    /// Number of waiting submissions that match.
    pub fn count(&self, matches: impl Fn(&T) -> bool) -> usize {
        self.waiting.iter().filter(|waiting| matches(waiting)).count()
    }

    /// Whether no submission waits or is in flight.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.num_in_flight == 0
    }

    /// How long to wait before [`Self::take`]; `None` while nothing waits or a round is in flight.
    /// `spread` in 0.0..1.0 is the caller's randomness.
    pub fn next_wait(&mut self, spread: f64) -> Option<Duration> {
        if self.waiting.is_empty() || self.num_in_flight > 0 {
            return None;
        }
        Some(if self.round_size > 1 { Duration::ZERO } else { self.backoff.next_wait(spread) })
    }

    /// After [`Self::next_wait`], starts a round: the submissions to retry now. Each must be
    /// reported to [`Self::complete`].
    pub fn take(&mut self) -> Vec<T> {
        let size = self.round_size.min(self.waiting.len());
        self.num_in_flight = size;
        self.has_failed = false;
        self.waiting.drain(..size).collect()
    }

    /// Completes one submission of the round. One that is to be retried must have been pushed
    /// before.
    pub fn complete(&mut self, is_success: bool) {
        self.has_failed |= !is_success;
        self.num_in_flight = self.num_in_flight.saturating_sub(1);
        if self.num_in_flight > 0 {
            return;
        }
        if self.has_failed {
            self.round_size = 1;
        } else {
            self.round_size = self.round_size.saturating_mul(2);
            self.backoff = self.initial_backoff;
        }
        if self.waiting.is_empty() {
            *self = Self::new(self.initial_backoff);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_of(len: u32) -> RetryQueue<u32> {
        let mut queue = RetryQueue::new(Backoff::new(10, 40));
        for submission in 0..len {
            queue.push(submission);
        }
        queue
    }

    #[test]
    fn failing_submissions_are_retried_one_at_a_time_in_turn_with_growing_waits() {
        let mut queue = queue_of(3);
        let mut waits = Vec::new();
        for round in 0..5 {
            waits.push(queue.next_wait(1.0).unwrap().as_millis());
            assert_eq!(queue.take(), [round % 3]);
            assert_eq!(queue.next_wait(1.0), None, "one is in flight");
            queue.push(round % 3);
            queue.complete(false);
        }
        assert_eq!(waits, [10, 20, 40, 40, 40]);
    }

    #[test]
    fn success_doubles_the_next_round_and_a_failure_resets_it() {
        let mut queue = queue_of(11);
        queue.next_wait(1.0).unwrap();
        for expected in [1, 2, 4] {
            let round = queue.take();
            assert_eq!(round.len(), expected);
            for _ in round {
                queue.complete(true);
            }
            assert_eq!(queue.next_wait(1.0), Some(Duration::ZERO));
        }
        assert_eq!(queue.take(), [7, 8, 9, 10]);
        queue.push(9);
        for is_success in [true, true, false, true] {
            assert!(queue.next_wait(1.0).is_none(), "some are in flight");
            queue.complete(is_success);
        }
        assert_eq!(queue.next_wait(1.0).unwrap().as_millis(), 10);
        assert_eq!(queue.take(), [9]);
        assert!(!queue.is_empty(), "one is in flight");
        queue.complete(true);
        assert!(queue.is_empty() && queue.next_wait(1.0).is_none());
    }
}
