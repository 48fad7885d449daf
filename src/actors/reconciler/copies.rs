//! Requests that were published again recently, and the earliest time of their next copy. Pure.
//!
//! One copy normally gives a lost request its result. A request that is lost repeatedly can get
//! none: its order fails, and the ledger refuses its dead letter too. The wait doubles with each
//! copy, so that the copies do not fill the dead-letter queue.

use std::collections::HashMap;

use crate::domain::RequestId;

/// Wait after the first copy, and the longest wait, milliseconds.
const WAIT_MIN_MS: i64 = 5_000;
const WAIT_MAX_MS: i64 = 300_000;

/// Most requests kept. More lost requests mean a lost queue, and then an additional copy does no
/// harm.
const REQUESTS_MAX: usize = 20_000;

/// The requests that were published again in the last minutes.
#[derive(Debug, Default)]
pub(super) struct RecentCopies(HashMap<RequestId, CopyWait>);

#[derive(Debug, Clone, Copy)]
struct CopyWait {
    wait_ms: i64,
    /// Earliest time of the next copy.
    next_at_ms: i64,
}

impl RecentCopies {
    /// Whether this request may be published again now.
    pub(super) fn can_republish(&self, request: RequestId, now_ms: i64) -> bool {
        self.0.get(&request).is_none_or(|copy| now_ms >= copy.next_at_ms)
    }

    /// Records a published copy of each request.
    pub(super) fn record(&mut self, requests: impl Iterator<Item = RequestId>, now_ms: i64) {
        for request in requests {
            let doubled_ms = self.0.get(&request).map(|copy| copy.wait_ms.saturating_mul(2));
            let wait_ms = doubled_ms.unwrap_or(WAIT_MIN_MS).min(WAIT_MAX_MS);
            let next_at_ms = now_ms.saturating_add(wait_ms);
            self.0.insert(request, CopyWait { wait_ms, next_at_ms });
        }
    }

    /// Removes the requests that could have been published again for five minutes and were not;
    /// removes all of them above the limit.
    pub(super) fn prune(&mut self, now_ms: i64) {
        if self.0.len() > REQUESTS_MAX {
            self.0.clear();
        }
        let before_ms = now_ms.saturating_sub(WAIT_MAX_MS);
        self.0.retain(|_, copy| copy.next_at_ms > before_ms);
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
            assert!(copies.can_republish(id(1), now_ms));
            copies.record([id(1)].into_iter(), now_ms);
            let begun_ms = now_ms;
            while !copies.can_republish(id(1), now_ms) {
                now_ms += 1_000;
            }
            waits.push((now_ms - begun_ms) / 1_000);
            copies.prune(now_ms);
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert!(copies.can_republish(id(2), 0), "the wait of another request is its own");
    }

    #[test]
    fn old_copies_are_pruned() {
        let mut copies = RecentCopies::default();
        copies.record((1..=10).map(id), 0);
        copies.prune(WAIT_MIN_MS + WAIT_MAX_MS - 1);
        assert_eq!(copies.0.len(), 10);
        copies.prune(WAIT_MIN_MS + WAIT_MAX_MS);
        assert!(copies.0.is_empty());
        copies.record((1..=20_001).map(id), 0);
        copies.prune(0);
        assert!(copies.0.is_empty(), "all are removed above the limit");
    }
}
