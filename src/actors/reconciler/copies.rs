//! Requests that were published again, and how soon they may be once more. Pure.
//!
//! One copy brings a lost request to its end. A request that is lost again and again has no end
//! that can be written down: its order fails, and the ledger refuses the dead letter as well. So
//! that its copies do not fill the queue of dead letters, the wait doubles with each of them.

use std::collections::HashMap;

use crate::domain::RequestId;

/// The wait after the first copy and the longest one, milliseconds.
const WAIT_MIN_MS: i64 = 5_000;
const WAIT_MAX_MS: i64 = 300_000;

/// Requests that are remembered; more than that were lost with a queue, not one by one, and for
/// those a copy too many does not matter.
const REMEMBERED_MAX: usize = 20_000;

/// The copies of the last minutes.
#[derive(Debug, Default)]
pub(super) struct RecentCopies(HashMap<RequestId, Copied>);

#[derive(Debug, Clone, Copy)]
struct Copied {
    wait_ms: i64,
    /// When the next copy may be sent.
    next_at_ms: i64,
}

impl RecentCopies {
    /// Whether this request may be published again by now.
    pub(super) fn may(&self, request: RequestId, now_ms: i64) -> bool {
        self.0.get(&request).is_none_or(|copied| now_ms >= copied.next_at_ms)
    }

    /// These were published again.
    pub(super) fn sent(&mut self, requests: impl Iterator<Item = RequestId>, now_ms: i64) {
        for request in requests {
            let former = self.0.get(&request).map(|copied| copied.wait_ms.saturating_mul(2));
            let wait_ms = former.unwrap_or(WAIT_MIN_MS).min(WAIT_MAX_MS);
            let next_at_ms = now_ms.saturating_add(wait_ms);
            self.0.insert(request, Copied { wait_ms, next_at_ms });
        }
    }

    /// Forgets what came to its end, as far as can be told: what was not lost again for long.
    pub(super) fn forget(&mut self, now_ms: i64) {
        if self.0.len() > REMEMBERED_MAX {
            self.0.clear();
        }
        let long_ago_ms = now_ms.saturating_sub(WAIT_MAX_MS);
        self.0.retain(|_, copied| copied.next_at_ms > long_ago_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(request: u64) -> RequestId {
        RequestId::new(request).unwrap()
    }

    #[test]
    fn the_wait_doubles_with_each_copy() {
        let (mut copies, mut now_ms) = (RecentCopies::default(), 0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(copies.may(id(1), now_ms));
            copies.sent([id(1)].into_iter(), now_ms);
            let begun_ms = now_ms;
            while !copies.may(id(1), now_ms) {
                now_ms += 1_000;
            }
            waits.push((now_ms - begun_ms) / 1_000);
            copies.forget(now_ms);
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert!(copies.may(id(2), 0), "each request by itself");
    }

    #[test]
    fn what_came_to_its_end_is_forgotten() {
        let mut copies = RecentCopies::default();
        copies.sent((1..=10).map(id), 0);
        copies.forget(WAIT_MIN_MS + WAIT_MAX_MS - 1);
        assert_eq!(copies.0.len(), 10);
        copies.forget(WAIT_MIN_MS + WAIT_MAX_MS);
        assert!(copies.0.is_empty());
        copies.sent((1..=20_001).map(id), 0);
        copies.forget(0);
        assert!(copies.0.is_empty(), "never more than that for long");
    }
}
