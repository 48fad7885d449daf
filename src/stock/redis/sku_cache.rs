//! What this process remembers of buckets that others write, too: enough to refuse without asking.
//!
//! Everything here may be a little old, in one direction only: units that other processes gave back
//! are seen at the next look. Which requests were accepted is believed for as long as no bucket has
//! counted a change since, and a change that this process hears of ends it at once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;

use super::super::Error;
use crate::domain::{BucketNo, Loan, RequestId, Sku, SkuNo};
use crate::redis::scripts;
use crate::redis::scripts::snapshot::BucketCounts;
use crate::redis::scripts::{BucketKeys, BucketLevel, OutboxArgs};

/// A transfer takes milliseconds.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// All SKUs that this process knows; read without a lock.
#[derive(Debug, Default)]
pub(super) struct SkuCaches {
    by_sku: ArcSwap<HashMap<SkuNo, Arc<SkuCache>>>,
}

impl SkuCaches {
    pub(super) fn get(&self, sku: SkuNo) -> Option<Arc<SkuCache>> {
        self.by_sku.load().get(&sku).cloned()
    }

    /// What was seen of the buckets is believed no longer.
    pub(super) fn forget_looks(&self) {
        self.by_sku.load().values().for_each(|shelf| shelf.forget_looks());
    }

    pub(super) fn know(&self, sku: SkuNo, shelf: impl Fn() -> SkuCache) -> Arc<SkuCache> {
        if let Some(known) = self.get(sku) {
            return known;
        }
        self.by_sku.rcu(|old| {
            let mut new = HashMap::clone(old);
            new.entry(sku).or_insert_with(|| Arc::new(shelf()));
            new
        });
        self.get(sku).unwrap_or_else(|| Arc::new(shelf()))
    }
}

/// What was seen at one look at all buckets.
#[derive(Debug)]
pub(super) struct StockPoll {
    pub(super) at: Instant,
    pub(super) counts: Vec<BucketCounts>,
}

/// Every request that was accepted, as long as each bucket has counted so many changes.
#[derive(Debug)]
pub(super) struct AcceptedRequests {
    pub(super) requests: HashSet<RequestId>,
    pub(super) changes: Vec<Option<u64>>,
    /// Whether nothing was left then.
    pub(super) is_sold_out: bool,
}

/// One SKU.
#[derive(Debug)]
pub(super) struct SkuCache {
    pub(super) sku: Arc<Sku>,
    /// One for each bucket.
    pub(super) keys: Vec<BucketKeys>,
    /// Where accepted intents wait.
    pub(super) outbox: OutboxArgs,
    /// Units free and lent out, by bucket, as of the last answer.
    left: Vec<AtomicU64>,
    /// The largest number of changes that each bucket has told.
    changes: Vec<AtomicU64>,
    known: ArcSwapOption<AcceptedRequests>,
    /// When the numbers of changes were last asked for.
    seen: Mutex<Option<Instant>>,
    look: Mutex<Option<Arc<StockPoll>>>,
    /// Open loans by lender and borrower: their numbers, and when they were seen first.
    loans: Mutex<HashMap<(BucketNo, BucketNo), (u64, Instant)>>,
}

impl SkuCache {
    pub(super) fn new(sku: Arc<Sku>, keys: Vec<BucketKeys>, outbox: OutboxArgs) -> Self {
        let left = (0..).zip(&keys).map(|(bucket, _)| sku.share(sku.initial, bucket));
        Self {
            left: left.map(|units| AtomicU64::new(u64::from(units))).collect(),
            changes: keys.iter().map(|_| AtomicU64::new(0)).collect(),
            sku,
            keys,
            outbox,
            known: ArcSwapOption::empty(),
            seen: Mutex::new(None),
            look: Mutex::new(None),
            loans: Mutex::default(),
        }
    }

    pub(super) fn keys(&self, bucket: BucketNo) -> Result<&BucketKeys, Error> {
        self.keys.get(usize::from(bucket.0)).ok_or(Error::NotLoaded(self.sku.no))
    }

    /// What a script's refusal of the bucket with this key means. What was seen before is not
    /// believed any more.
    pub(super) fn told(&self, key: &str, error: scripts::Error) -> Error {
        self.forget_looks();
        self.doubt_known();
        let sku = self.sku.no;
        match error {
            scripts::Error::NotReady => Error::NotLoaded(sku),
            scripts::Error::Fenced | scripts::Error::OldLoader => {
                Error::Fenced { sku, reason: format!("{key}: {error}") }
            }
            scripts::Error::Foreign => {
                let remedy = "set another `namespace`, or use another Redis";
                Error::Fenced { sku, reason: format!("{key}: {error}; {remedy}") }
            }
            scripts::Error::Corrupt { .. } | scripts::Error::TooMany => {
                Error::Damaged { what: format!("{key}: {error}") }
            }
            // The script did its work; one of its answers cannot be read.
            scripts::Error::Unexpected { .. } => {
                Error::Unknown { doing: "reading an answer", reason: format!("{key}: {error}") }
            }
        }
    }

    /// Notes what a bucket has after a call. Answers may come in another order than they were made.
    pub(super) fn note(&self, bucket: BucketNo, left: BucketLevel) {
        let at = usize::from(bucket.0);
        let units = u64::from(left.stock) + u64::from(left.lent);
        if let (Some(place), Some(changes)) = (self.left.get(at), self.changes.get(at)) {
            place.store(units, Ordering::SeqCst);
            changes.fetch_max(left.changes, Ordering::SeqCst);
        }
        if self.known.load().as_ref().is_some_and(|known| !self.is_certain(known)) {
            self.doubt_known();
        }
    }

    /// Whether no bucket has told of a change since.
    fn is_certain(&self, known: &AcceptedRequests) -> bool {
        let told = self.changes.iter().map(|changes| changes.load(Ordering::SeqCst));
        known.changes.iter().copied().eq(told.map(Some))
    }

    pub(super) fn left(&self) -> u32 {
        let sum = self.left.iter().map(|units| units.load(Ordering::SeqCst)).sum::<u64>();
        u32::try_from(sum).unwrap_or(u32::MAX)
    }

    pub(super) fn is_sold_out(&self) -> bool {
        self.known.load().as_ref().is_some_and(|known| known.is_sold_out)
    }

    /// From here on this process refuses by itself, unless something has changed since.
    pub(super) fn know(&self, known: AcceptedRequests) {
        let known = Arc::new(known);
        self.known.store(Some(Arc::clone(&known)));
        // Whoever notes a change looks for what is known, and whoever knows for changes.
        if !self.is_certain(&known) {
            self.doubt_known();
        }
    }

    /// Every request that was accepted, where that is certain.
    pub(super) fn known(&self) -> Option<Arc<AcceptedRequests>> {
        self.known.load_full()
    }

    /// Which requests were accepted may have changed: look again before refusing one.
    pub(super) fn doubt_known(&self) {
        self.known.store(None);
    }

    pub(super) fn may_know(&self, request: RequestId) -> bool {
        self.known.load().as_ref().is_none_or(|known| known.requests.contains(&request))
    }

    /// The buckets were asked for changes.
    pub(super) fn see(&self, now: Instant) {
        *self.seen.lock() = Some(now);
    }

    /// Whether that is no longer ago.
    pub(super) fn is_seen_since(&self, now: Instant, age: Duration) -> bool {
        self.seen.lock().is_some_and(|at| now.duration_since(at) < age)
    }

    pub(super) fn look(&self) -> Option<Arc<StockPoll>> {
        self.look.lock().clone()
    }

    /// Keeps a look, and returns the loans that have been open for so long that whoever moved them
    /// has died or given up.
    pub(super) fn keep_look(&self, look: Arc<StockPoll>) -> Vec<(BucketNo, BucketNo, Loan)> {
        let at = look.at;
        let lenders = (0..).map(BucketNo).zip(&look.counts);
        let open = lenders.flat_map(|(from, counts)| {
            counts.loans.iter().map(move |(to, loan)| ((from, *to), loan))
        });
        let mut seen = self.loans.lock();
        let mut still = HashMap::new();
        let mut stuck = Vec::new();
        for ((from, to), loan) in open {
            let before = seen.get(&(from, to)).filter(|(no, _)| *no == loan.no);
            let since = before.map_or(at, |(_, since)| *since);
            if at.duration_since(since) >= STUCK_AFTER {
                stuck.push((from, to, *loan));
            }
            still.insert((from, to), (loan.no, since));
        }
        *seen = still;
        *self.look.lock() = Some(look);
        stuck
    }

    pub(super) fn forget_looks(&self) {
        *self.look.lock() = None;
    }
}
