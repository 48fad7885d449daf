//! Requests that were published again recently, and the earliest time of their next copy. Pure.
//!
//! One copy normally gives a lost request its result. A request that is lost repeatedly can get
//! none: its order fails, and the ledger refuses its dead letter too. The wait doubles with each
//! copy, so that the copies do not fill the dead-letter queue.

use std::collections::HashMap;

use crate::domain::{OrderIntent, RequestId};

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
    /// `None`: its end is recorded.
    intent: Option<OrderIntent>,
    /// When its end was last looked up.
    looked_up_at_ms: i64,
    wait_ms: i64,
    /// Earliest time of the next copy.
    next_at_ms: i64,
}

impl RecentCopies {
    /// Whether this request may be published again now: also before its last copy, because the
    /// clock has stepped back since.
    pub(super) fn can_republish(&self, request: RequestId, now_ms: i64) -> bool {
        self.0.get(&request).is_none_or(|copy| {
            let copied_at_ms = copy.next_at_ms.saturating_sub(copy.wait_ms);
            !(copied_at_ms..copy.next_at_ms).contains(&now_ms)
        })
    }

    /// The requests whose end is not recorded yet, at most `max`: those that were looked up longest
    /// ago.
    pub(super) fn unrecorded(&mut self, max: usize, now_ms: i64) -> Vec<OrderIntent> {
        let mut open: Vec<_> = self.0.values_mut().filter(|copy| copy.intent.is_some()).collect();
        open.sort_unstable_by_key(|copy| copy.looked_up_at_ms);
        open.truncate(max);
        let looked_up = open.into_iter().filter_map(|copy| {
            copy.looked_up_at_ms = now_ms;
            copy.intent
        });
        looked_up.collect()
    }

    /// Marks the ends of requests as recorded.
    pub(super) fn set_recorded(&mut self, requests: impl Iterator<Item = RequestId>) {
        for request in requests {
            if let Some(copy) = self.0.get_mut(&request) {
                copy.intent = None;
            }
        }
    }

    /// Records a published copy of each request.
    pub(super) fn record(&mut self, intents: impl Iterator<Item = OrderIntent>, now_ms: i64) {
        for intent in intents {
            let request = intent.request;
            let doubled_ms = self.0.get(&request).map(|copy| copy.wait_ms.saturating_mul(2));
            let wait_ms = doubled_ms.unwrap_or(WAIT_MIN_MS).min(WAIT_MAX_MS);
            let next_at_ms = now_ms.saturating_add(wait_ms);
            let (intent, looked_up_at_ms) = (Some(intent), now_ms);
            self.0.insert(request, CopyWait { intent, looked_up_at_ms, wait_ms, next_at_ms });
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
    use crate::domain::samples::intent;

    fn id(request: u64) -> RequestId {
        RequestId::new(request).unwrap()
    }

    #[test]
    fn an_end_is_recorded_once() {
        let mut copies = RecentCopies::default();
        copies.record((1..=3).map(intent), 0);
        let looked_up = |copies: &mut RecentCopies, now_ms| {
            let found = copies.unrecorded(2, now_ms).into_iter().map(|one| one.request);
            found.collect::<Vec<_>>()
        };
        let first = looked_up(&mut copies, 1);
        assert_eq!(first.len(), 2);
        let second = looked_up(&mut copies, 2);
        assert!(!first.contains(&second[0]), "the one that was not looked up yet is the first");
        copies.set_recorded((1..=3).map(id));
        assert!(looked_up(&mut copies, 3).is_empty());
    }

    #[test]
    fn the_wait_doubles_with_each_copy() {
        let (mut copies, mut now_ms) = (RecentCopies::default(), 0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(copies.can_republish(id(1), now_ms));
            copies.record([intent(1)].into_iter(), now_ms);
            let begun_ms = now_ms;
            while !copies.can_republish(id(1), now_ms) {
                now_ms += 1_000;
            }
            waits.push((now_ms - begun_ms) / 1_000);
            copies.prune(now_ms);
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert!(copies.can_republish(id(2), 0), "the wait of another request is its own");
        copies.record([intent(1)].into_iter(), now_ms);
        assert!(!copies.can_republish(id(1), now_ms));
        assert!(copies.can_republish(id(1), now_ms - 1), "the clock has stepped back");
    }

    #[test]
    fn old_copies_are_pruned() {
        let mut copies = RecentCopies::default();
        copies.record((1..=10).map(intent), 0);
        copies.prune(WAIT_MIN_MS + WAIT_MAX_MS - 1);
        assert_eq!(copies.0.len(), 10);
        copies.prune(WAIT_MIN_MS + WAIT_MAX_MS);
        assert!(copies.0.is_empty());
        copies.record((1..=20_001).map(intent), 0);
        copies.prune(0);
        assert!(copies.0.is_empty(), "all are removed above the limit");
    }
}
