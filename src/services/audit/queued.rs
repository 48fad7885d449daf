//! Finds lost requests among those that buckets have as queued.
//!
//! A request ends as an order, a recorded failure or a dead letter. Until then it is in the outbox,
//! in a queue, or in flight in a process. Requests in flight cannot be read, but they are
//! short-lived: an overdue request, while outbox and queues are empty and no bucket changes, is
//! lost.

use super::{AuditRun, CHUNK, Error};
use crate::broker::QueueDepth;
use crate::domain::invariants::{BucketFacts, Checker, DETAILS_MAX, DRAIN_LIMIT_MS, Violation};
use crate::domain::{
    AuditVerdict, BucketKey, InvariantId, OrderIntent, RepairAction, RequestId, Sku,
};
use crate::stock::Stock;

/// The queued requests of one SKU.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct QueuedRequests {
    num_dead: u64,
    dead_units: u64,
    /// When the oldest request without a dead letter was accepted.
    oldest_ms: Option<i64>,
    /// The first overdue requests without an end, at most [`DETAILS_MAX`].
    overdue: Vec<RequestId>,
    num_overdue: u64,
}

impl QueuedRequests {
    /// The facts of the buckets without dead letters: these have ended, and hold units that the
    /// ledger counts as left.
    pub(super) fn without_dead_letters(&self, buckets: BucketFacts) -> BucketFacts {
        if self.num_dead == 0 {
            return buckets;
        }
        BucketFacts {
            left: buckets.left.saturating_add(self.dead_units),
            num_unsettled: buckets.num_unsettled.saturating_sub(self.num_dead),
            oldest_unsettled_ms: self.oldest_ms,
            // Not computable: a buyer may have an order beside the dead letter, or only that.
            num_buyers: None,
            ..buckets
        }
    }

    /// Whether any request is overdue without an end.
    pub(super) fn has_overdue(&self) -> bool {
        self.num_overdue > 0
    }

    /// Why stable buckets with `num_unsettled` requests are not quiescent.
    pub(super) fn why_not_quiescent(&self, num_unsettled: u64) -> String {
        match self.num_overdue {
            0 => format!(
                "the buckets have {num_unsettled} queued, and none that the ledger lacks for \
                 longer than {} s: ask again in a moment",
                DRAIN_LIMIT_MS / 1000
            ),
            num_overdue => format!(
                "{num_overdue} of {num_unsettled} queued requests waited for over {} s without a \
                 result, and may still be in the outbox or a queue: ask again when these are empty",
                DRAIN_LIMIT_MS / 1000
            ),
        }
    }

    /// Reports the overdue requests as lost. The caller has found outbox and queues empty.
    pub(super) fn report_lost(&self, sku: &Sku, checker: &mut Checker) {
        for request in &self.overdue {
            let detail = format!(
                "sku {} request {request}: queued for over 30 s, and neither in the outbox nor in \
                 a queue; no order, no failure, no dead letter",
                sku.no
            );
            let violation = Violation::new(
                InvariantId::NothingLost,
                AuditVerdict::Leak,
                RepairAction::Submit,
                detail,
            );
            checker.report(violation.of_sku(sku.no).of_request(*request));
        }
        let others = self.num_overdue - self.overdue.len() as u64;
        if others > 0 {
            let detail = format!("sku {}: {others} more requests like these", sku.no);
            let (violated, verdict) = (InvariantId::NothingLost, AuditVerdict::Leak);
            checker.report(Violation::new(violated, verdict, None, detail).of_sku(sku.no));
        }
    }

    fn add_dead(&mut self, intent: &OrderIntent) {
        self.num_dead += 1;
        self.dead_units += u64::from(intent.quantity);
    }

    /// Adds a request without a dead letter. `has_ended`: it is an order or a recorded failure that
    /// its bucket does not have yet.
    fn add(&mut self, intent: &OrderIntent, has_ended: bool, now_ms: i64) {
        let placed_at_ms = intent.placed_at_ms;
        self.oldest_ms =
            Some(self.oldest_ms.map_or(placed_at_ms, |oldest| oldest.min(placed_at_ms)));
        if !has_ended && now_ms - placed_at_ms > DRAIN_LIMIT_MS {
            self.num_overdue += 1;
            if self.overdue.len() < DETAILS_MAX {
                self.overdue.push(intent.request);
            }
        }
    }
}

impl AuditRun<'_> {
    /// Reads the queued requests of a SKU, if the buckets have any, and looks each up in the
    /// ledger.
    pub(super) async fn queued_requests(
        &self,
        sku: &Sku,
        stock: Option<&dyn Stock>,
        buckets: Option<BucketFacts>,
    ) -> Result<QueuedRequests, Error> {
        let mut queued = QueuedRequests::default();
        let has_queued = buckets.is_some_and(|buckets| buckets.num_unsettled > 0);
        let Some(stock) = stock.filter(|_| has_queued) else { return Ok(queued) };
        for key in BucketKey::all_of(sku) {
            for chunk in stock.unsettled(key).await?.chunks(CHUNK) {
                let ended = self.sources.ledger.examine(chunk.to_vec()).await?;
                let requests = chunk.iter().map(|intent| intent.request);
                let open = requests.filter(|request| !ended.has_ended(*request)).collect();
                let dead = self.sources.ledger.dead_lettered_among(open, i64::MAX).await?;
                for intent in chunk {
                    if dead.contains(&intent.request) {
                        queued.add_dead(intent);
                    } else {
                        queued.add(intent, ended.has_ended(intent.request), self.now_ms);
                    }
                }
            }
        }
        Ok(queued)
    }

    /// Whether outbox and queues could be read and hold nothing. Adds a note if the broker's queues
    /// cannot be read. False without a pipeline.
    pub(super) async fn check_pipeline_empty(&mut self, sku: &Sku) -> Result<bool, Error> {
        let Some(pipeline) = self.sources.pipeline else { return Ok(false) };
        for key in BucketKey::all_of(sku) {
            let entries = pipeline.outbox.status(key).await?;
            let is_claimed = entries.claimed.iter().any(|(_, count)| *count > 0);
            if entries.num_waiting > 0 || is_claimed {
                return Ok(false);
            }
        }
        match pipeline.subscriber.depths().await {
            Ok(depths) => {
                let mut depths = depths.iter().filter(|depth| depth.may_hold_requests());
                Ok(depths.all(QueueDepth::is_certainly_empty))
            }
            Err(error) => {
                self.note_unchecked(format!(
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
    use crate::domain::samples::intent;

    const NOW: i64 = 1_800_000_000_000 + DRAIN_LIMIT_MS + 1;

    #[test]
    fn dead_letters_have_ended_and_hold_their_units() {
        let mut queued = QueuedRequests::default();
        queued.add_dead(&OrderIntent { quantity: 3, ..intent(1) });
        queued.add(&OrderIntent { placed_at_ms: NOW - 5, ..intent(2) }, false, NOW);
        queued.add(&OrderIntent { placed_at_ms: NOW - 9, ..intent(3) }, true, NOW);
        let buckets = BucketFacts {
            left: 10,
            num_unsettled: 3,
            oldest_unsettled_ms: Some(intent(1).placed_at_ms),
            num_buyers: Some(3),
            ..BucketFacts::default()
        };
        let others = queued.without_dead_letters(buckets);
        assert_eq!((others.left, others.num_unsettled), (13, 2));
        assert_eq!((others.oldest_unsettled_ms, others.num_buyers), (Some(NOW - 9), None));
        assert_eq!(QueuedRequests::default().without_dead_letters(buckets), buckets);
        assert!(!queued.has_overdue(), "a young request may be in flight");
    }

    #[test]
    fn only_overdue_requests_without_an_end_are_counted() {
        let mut queued = QueuedRequests::default();
        queued.add(&intent(1), true, NOW);
        queued.add_dead(&intent(2));
        queued.add(&intent(3), false, NOW - 1);
        assert!(!queued.has_overdue());
        (4..300).for_each(|number| queued.add(&intent(number), false, NOW));
        assert_eq!((queued.num_overdue, queued.overdue.len()), (296, DETAILS_MAX));
    }
}
