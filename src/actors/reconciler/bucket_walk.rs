//! The walk over the records of one bucket, and when a request is lost. Pure.
//!
//! A request that the ledger does not know is in the outbox, in its order queue, in the hand of a
//! consumer, or lost. A *checkpoint* tells these apart: at the time T when it was taken, the oldest
//! entry of the bucket's outbox, waiting or claimed, had been accepted at F. Whatever was accepted
//! before F had left the outbox, so it had been published before T. Once the watermark of the order
//! queue is past T, the consumers have all of that behind them; what the ledger then does not know
//! is lost, and the walk that begins there publishes it again.
//!
//! A walk sees each record once, and the checkpoint for the next one is taken after it: so the
//! copies that it published must have passed the consumers before anything is published again.

/// Where the outbox of a bucket was at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Checkpoint {
    taken_at_ms: i64,
    /// What was accepted before this time had left the outbox.
    left_before_ms: i64,
}

/// How long a watermark may stay behind a checkpoint before an operator should know, milliseconds.
const BEHIND_AFTER_MS: i64 = 30_000;

/// The oldest that a page holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OldestQueued {
    /// Nothing has been queued for long.
    #[default]
    Young,
    /// Something has been queued for long, and is still to come to a consumer.
    Waiting,
    /// Something has been queued for long, and consumers may have it behind them.
    Due,
}

/// Where the reconciler is in one bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BucketWalk {
    /// The page that is next; between walks the first one.
    page: u16,
    checkpoint: Option<Checkpoint>,
    /// What was accepted before this time is published again by the present walk.
    lost_before_ms: Option<i64>,
    /// The oldest that the present walk has met.
    found: OldestQueued,
    /// When the next walk may begin.
    begins_at_ms: i64,
}

impl BucketWalk {
    /// The page to read next.
    #[must_use]
    pub fn page(&self) -> u16 {
        self.page
    }

    /// Whether there is anything to do by now.
    #[must_use]
    pub fn is_due(&self, now_ms: i64) -> bool {
        self.page > 0 || now_ms >= self.begins_at_ms
    }

    /// Whether the next page is the first of a walk.
    #[must_use]
    pub fn is_at_start(&self) -> bool {
        self.page == 0
    }

    /// Begins a walk while the order queue has this watermark. True: the outbox must be asked for a
    /// new checkpoint.
    pub fn begin(&mut self, watermark_ms: Option<i64>) -> bool {
        self.found = OldestQueued::Young;
        let passed = |at: &Checkpoint| watermark_ms.is_some_and(|passed| passed > at.taken_at_ms);
        self.lost_before_ms = self.checkpoint.filter(passed).map(|at| at.left_before_ms);
        if self.lost_before_ms.is_some() {
            self.checkpoint = None;
        }
        self.checkpoint.is_none() && self.lost_before_ms.is_none()
    }

    /// Takes a checkpoint: `now_ms` is a time after the outbox was read, `oldest_ms` when its
    /// oldest entry was accepted. What was accepted less than `after_ms` ago may be on its way into
    /// the outbox.
    pub fn take_checkpoint(&mut self, now_ms: i64, oldest_ms: Option<i64>, after_ms: i64) {
        let aged_ms = now_ms.saturating_sub(after_ms);
        let left_before_ms = oldest_ms.map_or(aged_ms, |oldest| oldest.min(aged_ms));
        self.checkpoint = Some(Checkpoint { taken_at_ms: now_ms, left_before_ms });
    }

    /// Whether a request that was accepted then, and that the ledger does not know, is lost.
    #[must_use]
    pub fn is_lost(&self, accepted_at_ms: i64) -> bool {
        self.lost_before_ms.is_some_and(|before_ms| accepted_at_ms < before_ms)
    }

    /// Whether the present walk brings everything that is due to an end, as far as it read.
    #[must_use]
    pub fn decides(&self) -> bool {
        self.lost_before_ms.is_some() || self.found < OldestQueued::Due
    }

    /// Whether the consumers have not come past the checkpoint for too long.
    #[must_use]
    pub fn is_behind(&self, now_ms: i64) -> bool {
        let late = |at: Checkpoint| now_ms.saturating_sub(at.taken_at_ms) > BEHIND_AFTER_MS;
        self.checkpoint.is_some_and(late)
    }

    /// A page was read.
    pub fn find(&mut self, found: OldestQueued) {
        self.found = self.found.max(found);
    }

    /// Goes on to the next page, or ends the walk. The next walk begins at once if this one met
    /// something that is due, else after `after_ms`.
    pub fn go_on(&mut self, next: Option<u16>, now_ms: i64, after_ms: i64) {
        let later_ms = now_ms.saturating_add(after_ms);
        match (next, self.found) {
            (Some(page), _) => self.page = page,
            (None, OldestQueued::Due) => {
                *self = Self { checkpoint: self.checkpoint, ..Self::default() }
            }
            (None, OldestQueued::Waiting) => {
                *self =
                    Self { checkpoint: self.checkpoint, begins_at_ms: later_ms, ..Self::default() };
            }
            // An old checkpoint tells nothing of what comes.
            (None, OldestQueued::Young) => {
                *self = Self { begins_at_ms: later_ms, ..Self::default() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER_MS: i64 = 5_000;

    /// A walk that has a checkpoint of time 20,000, when the outbox held something accepted at
    /// `oldest`.
    fn marked(oldest: Option<i64>) -> BucketWalk {
        let mut walk = BucketWalk::default();
        assert!(walk.begin(Some(i64::MAX)), "no checkpoint yet");
        walk.take_checkpoint(20_000, oldest, AFTER_MS);
        assert!(!walk.is_lost(0), "the consumers have not come past the checkpoint");
        walk.find(OldestQueued::Due);
        walk.go_on(None, 20_000, AFTER_MS);
        walk
    }

    #[test]
    fn nothing_is_lost_before_the_consumers_are_past_the_checkpoint() {
        for watermark in [None, Some(0), Some(20_000)] {
            let mut walk = marked(None);
            assert!(!walk.begin(watermark), "the checkpoint stays");
            assert!(!walk.is_lost(0), "{watermark:?}");
        }
        let mut walk = marked(None);
        assert!(!walk.begin(Some(20_001)));
        assert!(walk.is_lost(14_999));
        assert!(!walk.is_lost(15_000), "it may have been on its way into the outbox");
    }

    #[test]
    fn what_was_in_the_outbox_at_the_checkpoint_is_not_lost() {
        let mut walk = marked(Some(7_000));
        walk.begin(Some(20_001));
        assert!(walk.is_lost(6_999));
        assert!(!walk.is_lost(7_000));
    }

    #[test]
    fn copies_must_have_passed_before_anything_is_published_again() {
        let mut walk = marked(None);
        walk.begin(Some(20_001));
        walk.find(OldestQueued::Due);
        walk.go_on(Some(64), 30_000, AFTER_MS);
        assert!(walk.is_due(30_000) && walk.is_lost(14_999), "the same walk, a later page");
        walk.go_on(None, 30_500, AFTER_MS);
        assert!(!walk.is_lost(14_999));
        assert!(walk.begin(Some(31_000)), "a new checkpoint, after the copies were published");
        assert!(!walk.is_lost(14_999));
        walk.take_checkpoint(31_500, None, AFTER_MS);
        walk.find(OldestQueued::Due);
        walk.go_on(None, 31_500, AFTER_MS);
        walk.begin(Some(31_000));
        assert!(!walk.is_lost(14_999), "a copy may wait in the queue");
        walk.go_on(None, 31_500, AFTER_MS);
    }

    #[test]
    fn a_bucket_with_nothing_old_is_left_alone_for_a_while() {
        let mut walk = BucketWalk::default();
        walk.begin(None);
        walk.take_checkpoint(20_000, None, AFTER_MS);
        walk.go_on(None, 20_000, AFTER_MS);
        assert!(!walk.is_due(24_999) && walk.is_due(25_000));
        assert!(walk.begin(Some(24_000)), "an old checkpoint tells nothing of what came since");
    }

    #[test]
    fn a_checkpoint_that_the_consumers_do_not_pass_is_told() {
        let mut walk = marked(None);
        assert!(!walk.is_behind(20_000 + BEHIND_AFTER_MS));
        assert!(walk.is_behind(20_001 + BEHIND_AFTER_MS));
        assert!(!BucketWalk::default().is_behind(i64::MAX));
        assert!(!walk.begin(Some(20_000)));
        walk.find(OldestQueued::Waiting);
        walk.go_on(None, 21_000, AFTER_MS);
        assert!(!walk.is_due(25_999) && walk.is_due(26_000));
        assert!(walk.is_behind(20_001 + BEHIND_AFTER_MS), "the checkpoint stays");
    }
}
