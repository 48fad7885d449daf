//! What became of the requests that gates call queued.
//!
//! A request ends as an order, a recorded failure or a dead letter. One that has ended in none of
//! them must be on its way: in the outbox, in a queue, or in somebody's hand. Hands cannot be
//! looked into, but nothing stays in one for long; so a request that is old, while outbox and
//! queues are empty and nothing moves, is lost.

use super::{AuditRun, CHUNK, Error};
use crate::broker::QueueDepth;
use crate::domain::invariants::{Checker, DETAILS_MAX, DRAIN_LIMIT_MS, GateFacts};
use crate::domain::{InvariantId, OrderIntent, RequestId, Sku};
use crate::stock::{BucketKey, Stock};

/// The queued requests of one SKU.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct QueuedRequests {
    /// Those that are dead letters.
    num_dead: u64,
    dead_units: u64,
    /// When the oldest of the others was accepted.
    oldest_alive_ms: Option<i64>,
    /// Those that are overdue and in no store: the first of them, and how many there are.
    nowhere: Vec<RequestId>,
    num_nowhere: u64,
}

impl QueuedRequests {
    /// What the gates say, without the dead letters: those have ended, and hold units that the
    /// ledger still counts as left.
    pub(super) fn apart_from(&self, gates: GateFacts) -> GateFacts {
        if self.num_dead == 0 {
            return gates;
        }
        GateFacts {
            left: gates.left.saturating_add(self.dead_units),
            num_unsettled: gates.num_unsettled.saturating_sub(self.num_dead),
            oldest_unsettled_ms: self.oldest_alive_ms,
            // A buyer may have an order beside the dead letter, or only that.
            num_buyers: None,
            ..gates
        }
    }

    /// Whether anything is overdue and in no store.
    pub(super) fn misses_any(&self) -> bool {
        self.num_nowhere > 0
    }

    /// Why gates that stand still are not at rest, with so many unsettled requests.
    pub(super) fn why_not_at_rest(&self, num_unsettled: u64) -> String {
        match self.num_nowhere {
            0 => format!(
                "{num_unsettled} requests are queued, and none that the ledger lacks for longer \
                 than {} s: ask again in a moment",
                DRAIN_LIMIT_MS / 1000
            ),
            overdue => format!(
                "{overdue} of {num_unsettled} queued requests are in no store for over {} s, and \
                 may still be between the gates and the ledger: ask again when the outbox and \
                 the queues are empty",
                DRAIN_LIMIT_MS / 1000
            ),
        }
    }

    /// Reports what is overdue as lost: it is on no way either.
    pub(super) fn report_lost(&self, sku: &Sku, checker: &mut Checker) {
        for request in &self.nowhere {
            let detail = format!(
                "sku {} request {request}: queued for over 30 s, and neither in the outbox nor in \
                 a queue; no order, no failure, no dead letter",
                sku.no
            );
            checker.report(InvariantId::NothingLost, detail);
        }
        let others = self.num_nowhere - self.nowhere.len() as u64;
        if others > 0 {
            let detail = format!("sku {}: {others} more requests like these", sku.no);
            checker.report(InvariantId::NothingLost, detail);
        }
    }

    fn add(&mut self, intent: &OrderIntent, end: RequestEnd, now_ms: i64) {
        if end == RequestEnd::DeadLetter {
            self.num_dead += 1;
            self.dead_units += u64::from(intent.quantity);
            return;
        }
        let asked = intent.placed_at_ms;
        self.oldest_alive_ms = Some(self.oldest_alive_ms.map_or(asked, |least| least.min(asked)));
        if end == RequestEnd::None && now_ms - asked > DRAIN_LIMIT_MS {
            self.num_nowhere += 1;
            if self.nowhere.len() < DETAILS_MAX {
                self.nowhere.push(intent.request);
            }
        }
    }
}

/// Where a queued request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestEnd {
    /// In the ledger; its gate has not heard of it.
    Ledger,
    DeadLetter,
    None,
}

impl AuditRun<'_> {
    /// Looks every queued request of a SKU up in the ledger.
    pub(super) async fn queued(
        &self,
        stock: &dyn Stock,
        sku: &Sku,
    ) -> Result<QueuedRequests, Error> {
        let mut queued = QueuedRequests::default();
        for key in BucketKey::all_of(sku) {
            for chunk in stock.unsettled(key, i64::MAX).await?.chunks(CHUNK) {
                let ended = self.ledger.examine(chunk.to_vec()).await?;
                let has_ended = |request: &RequestId| {
                    ended.orders.contains_key(request) || ended.failures.contains_key(request)
                };
                let open = chunk.iter().map(|intent| intent.request);
                let dead = self.ledger.dead_among(open.filter(|r| !has_ended(r)).collect()).await?;
                for intent in chunk {
                    let end = match intent.request {
                        request if has_ended(&request) => RequestEnd::Ledger,
                        request if dead.contains(&request) => RequestEnd::DeadLetter,
                        _ => RequestEnd::None,
                    };
                    queued.add(intent, end, self.now_ms);
                }
            }
        }
        Ok(queued)
    }

    /// Whether there is a way between the gates of a SKU and the ledger that can be looked into,
    /// and nothing waits on it.
    pub(super) async fn way_is_empty(&mut self, sku: &Sku) -> Result<bool, Error> {
        let Some(pipeline) = self.pipeline else { return Ok(false) };
        for key in BucketKey::all_of(sku) {
            let found = pipeline.outbox.standing(key).await?;
            let in_hand = found.in_hand.iter().any(|(_, count)| *count > 0);
            if found.num_waiting > 0 || found.num_dead > 0 || in_hand {
                return Ok(false);
            }
        }
        match pipeline.subscriber.depths().await {
            Ok(depths) => Ok(depths.iter().all(QueueDepth::is_surely_empty)),
            Err(error) => {
                self.not_told(format!(
                    "sku {}: {error}; overdue requests may be in its queues",
                    sku.no
                ));
                Ok(false)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::dead_letters::replay::tests::intent;

    const NOW: i64 = 1_800_000_000_000 + DRAIN_LIMIT_MS + 1;

    #[test]
    fn dead_letters_have_ended_and_keep_their_units() {
        let mut queued = QueuedRequests::default();
        queued.add(&OrderIntent { quantity: 3, ..intent(1) }, RequestEnd::DeadLetter, NOW);
        queued.add(&OrderIntent { placed_at_ms: NOW - 5, ..intent(2) }, RequestEnd::None, NOW);
        queued.add(&OrderIntent { placed_at_ms: NOW - 9, ..intent(3) }, RequestEnd::Ledger, NOW);
        let gates = GateFacts {
            left: 10,
            num_unsettled: 3,
            oldest_unsettled_ms: Some(intent(1).placed_at_ms),
            num_buyers: Some(3),
            ..GateFacts::default()
        };
        let seen = queued.apart_from(gates);
        assert_eq!((seen.left, seen.num_unsettled), (13, 2));
        assert_eq!((seen.oldest_unsettled_ms, seen.num_buyers), (Some(NOW - 9), None));
        assert_eq!(QueuedRequests::default().apart_from(gates), gates);
        assert!(!queued.misses_any(), "what is young may be in somebody's hand");
    }

    #[test]
    fn only_what_is_overdue_and_has_no_end_is_missed() {
        let mut queued = QueuedRequests::default();
        queued.add(&intent(1), RequestEnd::Ledger, NOW);
        queued.add(&intent(2), RequestEnd::DeadLetter, NOW);
        queued.add(&intent(3), RequestEnd::None, NOW - 1);
        assert!(!queued.misses_any());
        (4..300).for_each(|number| queued.add(&intent(number), RequestEnd::None, NOW));
        assert_eq!((queued.num_nowhere, queued.nowhere.len()), (296, DETAILS_MAX));
    }
}
