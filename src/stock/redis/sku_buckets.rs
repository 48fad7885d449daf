//! The buckets of one SKU: the calls to them, and this process's cache of what other processes
//! write, too: enough to refuse requests without a call.
//!
//! The cache may be stale in one direction only: units that other processes gave back appear with
//! the next poll. The set of accepted requests is valid while no bucket has counted a change since;
//! a change that this process observes discards the set at once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;

use super::super::Error;
use crate::domain::{BucketNo, Loan, RequestId, Sku};
use crate::redis::executor::{CallError, ScriptExecutor};
use crate::redis::scripts::intent::IntentKey;
use crate::redis::scripts::snapshot::BucketCounts;
use crate::redis::scripts::{BucketKeys, BucketLevel, Leveled, OutboxArgs, Pages, ScriptCall};
use crate::runtime::clock::now_monotonic;

/// A transfer takes milliseconds; one that is open for longer was interrupted.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// A withdrawal waits for one transaction of the ledger. A slower one finds in the ledger that the
/// buckets were loaded meanwhile.
const WITHDRAWN_AFTER: Duration = Duration::from_secs(5);

/// The counts of all buckets at one poll.
#[derive(Debug)]
pub(super) struct StockPoll {
    /// When the poll began.
    pub(super) at: Instant,
    pub(super) counts: Vec<BucketCounts>,
}

/// The last poll. A poll that was in progress when the polls were forgotten is not stored.
#[derive(Debug, Default)]
pub(super) struct LastPoll {
    poll: Option<Arc<StockPoll>>,
    forgotten_at: Option<Instant>,
}

impl LastPoll {
    fn store(&mut self, poll: Arc<StockPoll>) {
        if self.forgotten_at.is_none_or(|at| at < poll.at) {
            self.poll = Some(poll);
        }
    }

    fn forget(&mut self) {
        *self = Self { poll: None, forgotten_at: Some(now_monotonic()) };
    }
}

/// All accepted requests; valid while each bucket's change count is `changes`, and none was
/// forgotten since the read began.
#[derive(Debug)]
pub(super) struct AcceptedRequests {
    pub(super) requests: HashSet<RequestId>,
    pub(super) changes: Vec<Option<u64>>,
    pub(super) num_forgotten: u64,
    pub(super) is_sold_out: bool,
}

/// One SKU.
#[derive(Debug)]
pub(super) struct SkuBuckets {
    pub(super) executor: ScriptExecutor,
    /// The SKU as this process registered it, for what never changes, such as policy and pages.
    pub(super) sku: Arc<Sku>,
    /// The SKU with its latest terms.
    pub(super) latest: ArcSwap<Sku>,
    /// One for each bucket.
    pub(super) keys: Vec<BucketKeys>,
    /// Where accepted intents are stored.
    pub(super) outbox: OutboxArgs,
    /// Verifies stored intents.
    pub(super) intents: IntentKey,
    /// Units free and lent out, by bucket, from the last answer.
    left: Vec<AtomicU64>,
    /// Each bucket's largest observed change count.
    changes: Vec<AtomicU64>,
    /// All accepted requests; `None` if they may have changed since they were read.
    pub(super) accepted: ArcSwapOption<AcceptedRequests>,
    /// How often the accepted requests were forgotten: a read that began before is not kept.
    num_forgotten: AtomicU64,
    /// When the change counts were last read.
    pub(super) polled_at: Mutex<Option<Instant>>,
    last_poll: Mutex<LastPoll>,
    /// Open loans by lender and borrower: their numbers, and when they were observed first.
    loans: Mutex<HashMap<(BucketNo, BucketNo), (u64, Instant)>>,
}

impl SkuBuckets {
    pub(super) fn new(
        executor: ScriptExecutor,
        sku: Arc<Sku>,
        outbox: OutboxArgs,
        intents: IntentKey,
    ) -> Self {
        let buckets = 0..sku.buckets.max(1);
        let left = |bucket| AtomicU64::new(u64::from(sku.share(sku.initial, bucket)));
        Self {
            keys: buckets.clone().map(|bucket| executor.keys(sku.no, BucketNo(bucket))).collect(),
            left: buckets.clone().map(left).collect(),
            changes: buckets.map(|_| AtomicU64::new(0)).collect(),
            executor,
            latest: ArcSwap::new(Arc::clone(&sku)),
            sku,
            outbox,
            intents,
            accepted: ArcSwapOption::empty(),
            num_forgotten: AtomicU64::new(0),
            polled_at: Mutex::new(None),
            last_poll: Mutex::default(),
            loans: Mutex::default(),
        }
    }

    pub(super) fn keys(&self, bucket: BucketNo) -> Result<&BucketKeys, Error> {
        self.keys.get(usize::from(bucket.0)).ok_or(Error::NotLoaded(self.sku.no))
    }

    pub(super) fn set_latest(&self, sku: &Arc<Sku>) {
        // Terms are only added.
        if self.latest.load().history.terms.len() < sku.history.terms.len() {
            self.latest.store(Arc::clone(sku));
        }
    }

    pub(super) fn pages(&self) -> Pages {
        Pages::of_sku(&self.sku)
    }

    /// Calls a script on one bucket.
    pub(super) async fn run<A>(
        &self,
        call: ScriptCall<A>,
        operation: &'static str,
    ) -> Result<A, Error> {
        self.executor.run(&call, operation).await.map_err(|error| self.error(error))
    }

    /// [`Self::run`] of a call that returns the bucket's level, which it stores.
    pub(super) async fn run_leveled<T>(
        &self,
        bucket: BucketNo,
        call: ScriptCall<Leveled<T>>,
        operation: &'static str,
    ) -> Result<T, Error> {
        let (answer, level) = self.run(call, operation).await?;
        self.record_level(bucket, level);
        Ok(answer)
    }

    /// Maps a failed call. If a script rejected the bucket, discards the cached poll and the
    /// accepted requests.
    pub(super) fn error(&self, error: CallError) -> Error {
        if matches!(error, CallError::Rejected { .. }) {
            self.forget_polls();
            self.forget_accepted();
        }
        error.into()
    }

    /// Stores a bucket's level after a call. Answers may arrive out of order.
    pub(super) fn record_level(&self, bucket: BucketNo, level: BucketLevel) {
        let at = usize::from(bucket.0);
        let units = u64::from(level.stock) + u64::from(level.lent);
        if let (Some(left), Some(changes)) = (self.left.get(at), self.changes.get(at)) {
            left.store(units, Ordering::SeqCst);
            changes.fetch_max(level.changes, Ordering::SeqCst);
        }
        if self.accepted.load().as_ref().is_some_and(|accepted| !self.is_current(accepted)) {
            self.accepted.store(None);
        }
    }

    /// Whether since the read began no bucket has reported a change, and nothing was forgotten.
    fn is_current(&self, accepted: &AcceptedRequests) -> bool {
        let observed = self.changes.iter().map(|changes| changes.load(Ordering::SeqCst));
        accepted.num_forgotten == self.num_forgotten()
            && accepted.changes.iter().copied().eq(observed.map(Some))
    }

    pub(super) fn num_forgotten(&self) -> u64 {
        self.num_forgotten.load(Ordering::SeqCst)
    }

    pub(super) fn left(&self) -> u32 {
        let sum = self.left.iter().map(|units| units.load(Ordering::SeqCst)).sum::<u64>();
        u32::try_from(sum).unwrap_or(u32::MAX)
    }

    pub(super) fn is_sold_out(&self) -> bool {
        self.accepted.load().as_ref().is_some_and(|accepted| accepted.is_sold_out)
    }

    /// Stores the accepted requests; from here on this process refuses on its own, unless a bucket
    /// has changed since.
    pub(super) fn set_accepted(&self, accepted: AcceptedRequests) {
        let accepted = Arc::new(accepted);
        self.accepted.store(Some(Arc::clone(&accepted)));
        // `record_level` and `forget_accepted` change the counts before they look at the set; this
        // checks the counts after it stores the set: one of the two detects the conflict.
        if !self.is_current(&accepted) {
            self.accepted.store(None);
        }
    }

    /// The accepted requests may have changed: they are read again before a request is refused,
    /// also if they are being read.
    pub(super) fn forget_accepted(&self) {
        self.num_forgotten.fetch_add(1, Ordering::SeqCst);
        self.accepted.store(None);
    }

    pub(super) fn may_have_accepted(&self, request: RequestId) -> bool {
        self.accepted.load().as_ref().is_none_or(|accepted| accepted.requests.contains(&request))
    }

    /// Stores a poll. Returns the stuck loans: open for at least [`STUCK_AFTER`], because the
    /// transferring process has crashed or given up.
    pub(super) fn store_poll(&self, poll: Arc<StockPoll>) -> Vec<(BucketNo, BucketNo, Loan)> {
        let at = poll.at;
        let lenders = (0..).map(BucketNo).zip(&poll.counts);
        let open = lenders.flat_map(|(from, counts)| {
            counts.loans.iter().map(move |(to, loan)| ((from, *to), loan))
        });
        let mut observed = self.loans.lock();
        let mut open_loans = HashMap::new();
        let mut stuck = Vec::new();
        for ((from, to), loan) in open {
            let before = observed.get(&(from, to)).filter(|(no, _)| *no == loan.no);
            let since = before.map_or(at, |(_, since)| *since);
            if at.duration_since(since) >= STUCK_AFTER {
                stuck.push((from, to, *loan));
            }
            open_loans.insert((from, to), (loan.no, since));
        }
        *observed = open_loans;
        self.last_poll.lock().store(poll);
        stuck
    }

    /// Whether a withdrawal was observed for so long that its process has crashed or given up.
    pub(super) fn has_stuck_withdrawal(&self, now: Instant) -> bool {
        let observed = self.loans.lock();
        let mut withdrawn = observed.iter().filter(|((_, to), _)| *to == BucketNo::LEDGER);
        withdrawn.any(|(_, (_, since))| now.duration_since(*since) >= WITHDRAWN_AFTER)
    }

    pub(super) fn last_poll(&self) -> Option<Arc<StockPoll>> {
        self.last_poll.lock().poll.clone()
    }

    pub(super) fn forget_polls(&self) {
        self.last_poll.lock().forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_in_progress_when_the_polls_are_forgotten_is_not_stored() {
        let (mut last, at) = (LastPoll::default(), now_monotonic());
        last.forget();
        let of = |at| Arc::new(StockPoll { at, counts: Vec::new() });
        last.store(of(at));
        assert!(last.poll.is_none());
        last.store(of(at + Duration::from_secs(60)));
        assert!(last.poll.is_some());
    }
}
