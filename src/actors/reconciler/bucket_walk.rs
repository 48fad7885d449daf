//! The walk over the records of one bucket, and the rule by which a request is lost. Pure.
//!
//! A request without a result in the ledger is in the outbox, in its order queue, unacknowledged at
//! a consumer, a dead letter, or lost. (A dead letter that the ledger does not have yet counts as
//! lost: the ledger decides it, and its replay is a repeat.) A *checkpoint* decides: at time T,
//! when the checkpoint was taken, the oldest entry of the bucket's outbox, waiting or claimed, had
//! been accepted at F. Requests accepted before F had left the outbox, so they had been published
//! before T. Once the watermark of the order queue is past T, the consumers have processed all of
//! them; requests that still have no result are lost, and the walk that begins then submits them to
//! the ledger.
//!
//! A walk reads each record once, and the next checkpoint is taken after the walk: a request that
//! the ledger did not write is submitted again once the consumers have passed that checkpoint.

/// The state of a bucket's outbox at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Checkpoint {
    taken_at_ms: i64,
    /// Requests accepted before this time had left the outbox.
    left_before_ms: i64,
}

/// Time that a watermark may stay behind a checkpoint before the bucket is reported as blocked,
/// milliseconds.
const BEHIND_AFTER_MS: i64 = 30_000;

/// The oldest queued request of a page or a walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OldestQueued {
    /// No request has been queued for `reconciler.after_ms`.
    #[default]
    Recent,
    /// A request has been queued for longer, and the consumers have not reached it yet.
    Waiting,
    /// A request has been queued for longer, and the consumers may have passed it.
    Due,
}

/// The progress of the reconciler in one bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BucketWalk {
    /// The next page; between walks the first one.
    page: u16,
    checkpoint: Option<Checkpoint>,
    /// The checkpoint that the consumers passed before the present walk, which submits lost
    /// requests.
    passed: Option<Checkpoint>,
    /// The oldest queued request of the present walk.
    oldest: OldestQueued,
    /// Earliest start of the next walk.
    begins_at_ms: i64,
}

impl BucketWalk {
    /// The page to read next; 0 begins a walk.
    pub(super) fn page(&self) -> u16 {
        self.page
    }

    /// Whether a walk is under way or may begin.
    pub(super) fn is_due(&self, now_ms: i64) -> bool {
        self.page > 0 || now_ms >= self.begins_at_ms
    }

    /// Begins a walk with the present watermark of the order queue. Returns whether a new
    /// checkpoint must be taken.
    pub(super) fn begin(&mut self, watermark_ms: Option<i64>) -> bool {
        self.oldest = OldestQueued::Recent;
        let is_passed = |at: &Checkpoint| watermark_ms.is_some_and(|mark| mark > at.taken_at_ms);
        self.passed = self.checkpoint.filter(is_passed);
        if self.passed.is_some() {
            self.checkpoint = None;
        }
        self.checkpoint.is_none() && self.passed.is_none()
    }

    /// Takes a checkpoint: `now_ms` is a time after the outbox was read, `oldest_ms` the acceptance
    /// time of its oldest entry. A request accepted less than `after_ms` ago may not have reached
    /// the outbox yet.
    pub(super) fn take_checkpoint(&mut self, now_ms: i64, oldest_ms: Option<i64>, after_ms: i64) {
        let aged_ms = now_ms.saturating_sub(after_ms);
        let left_before_ms = oldest_ms.map_or(aged_ms, |oldest| oldest.min(aged_ms));
        self.checkpoint = Some(Checkpoint { taken_at_ms: now_ms, left_before_ms });
    }

    /// Whether a request without a result in the ledger, accepted at this time, is lost.
    pub(super) fn is_lost(&self, placed_at_ms: i64) -> bool {
        self.passed.is_some_and(|at| placed_at_ms < at.left_before_ms)
    }

    /// The time of the checkpoint by which this walk finds requests lost. What was published after
    /// it may still be on its way.
    pub(super) fn passed_at_ms(&self) -> Option<i64> {
        self.passed.map(|at| at.taken_at_ms)
    }

    /// Whether the walk could decide every request that it has read.
    pub(super) fn is_conclusive(&self) -> bool {
        self.passed.is_some() || self.oldest < OldestQueued::Due
    }

    /// Whether the watermark has been behind the checkpoint for more than 30 seconds.
    pub(super) fn is_behind(&self, now_ms: i64) -> bool {
        let is_late = |at: Checkpoint| now_ms.saturating_sub(at.taken_at_ms) > BEHIND_AFTER_MS;
        self.checkpoint.is_some_and(is_late)
    }

    /// Records the oldest queued request of a page.
    pub(super) fn record_oldest(&mut self, of_page: OldestQueued) {
        self.oldest = self.oldest.max(of_page);
    }

    /// Moves on to the next page, or ends the walk. The next walk begins at once if this one found
    /// a request that is due, else after `after_ms`.
    pub(super) fn advance(&mut self, next: Option<u16>, now_ms: i64, after_ms: i64) {
        if let Some(page) = next {
            self.page = page;
            return;
        }
        // Without an old request, the checkpoint says nothing about requests accepted later.
        let checkpoint = self.checkpoint.filter(|_| self.oldest > OldestQueued::Recent);
        let later_ms = now_ms.saturating_add(after_ms);
        let begins_at_ms = if self.oldest == OldestQueued::Due { 0 } else { later_ms };
        *self = Self { checkpoint, begins_at_ms, ..Self::default() };
    }
}

#[cfg(test)]
#[path = "bucket_walk_tests.rs"]
mod tests;
