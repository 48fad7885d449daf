//! What this process remembers of buckets that others write, too: enough to refuse without asking.
//!
//! Everything here may be a little old, in one direction only: units that other processes gave back
//! are seen at the next look, a request is never denied that this process could know of.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;

use super::super::Error;
use crate::domain::{BucketNo, Loan, Order, RequestId, Sku, SkuNo};
use crate::scripts::snapshot::Counts;
use crate::scripts::{self, BucketKeys, Left, Outbox};

/// A transfer takes milliseconds.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// All SKUs that this process knows; read without a lock.
#[derive(Debug, Default)]
pub(super) struct Shelves {
    by_sku: ArcSwap<HashMap<SkuNo, Arc<Shelf>>>,
}

impl Shelves {
    pub(super) fn get(&self, sku: SkuNo) -> Option<Arc<Shelf>> {
        self.by_sku.load().get(&sku).cloned()
    }

    pub(super) fn know(&self, sku: SkuNo, shelf: impl Fn() -> Shelf) -> Arc<Shelf> {
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
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) counts: Vec<Counts>,
}

/// One SKU.
#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) sku: Arc<Sku>,
    /// One for each bucket.
    pub(super) keys: Vec<BucketKeys>,
    /// Where accepted intents wait.
    pub(super) outbox: Outbox,
    /// Units free and lent out, by bucket, as of the last answer.
    left: Vec<AtomicU64>,
    sold_out: AtomicBool,
    /// Every request that was accepted, where that is certain.
    known: ArcSwapOption<HashSet<RequestId>>,
    untouched: AtomicBool,
    version: AtomicU64,
    look: Mutex<Option<Arc<Look>>>,
    /// The look at which nothing was left.
    end: Mutex<Option<Arc<Look>>>,
    /// Open loans by lender and borrower: their numbers, and when they were seen first.
    loans: Mutex<HashMap<(BucketNo, BucketNo), (u64, Instant)>>,
    /// Orders of the ledger that their bucket could not take yet.
    late: Mutex<BTreeMap<(BucketNo, RequestId), Order>>,
    /// When a sold-out SKU was last looked at.
    glanced: Mutex<Option<Instant>>,
}

impl Shelf {
    pub(super) fn new(sku: Arc<Sku>, keys: Vec<BucketKeys>, outbox: Outbox) -> Self {
        let left = (0..).zip(&keys).map(|(bucket, _)| sku.share(sku.initial, bucket));
        Self {
            left: left.map(|units| AtomicU64::new(u64::from(units))).collect(),
            sku,
            keys,
            outbox,
            sold_out: AtomicBool::new(false),
            known: ArcSwapOption::empty(),
            untouched: AtomicBool::new(true),
            version: AtomicU64::new(0),
            look: Mutex::new(None),
            end: Mutex::new(None),
            loans: Mutex::default(),
            late: Mutex::default(),
            glanced: Mutex::new(None),
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
            scripts::Error::Unexpected { .. }
            | scripts::Error::Replaced
            | scripts::Error::Changed => {
                Error::Unknown { doing: "reading an answer", reason: format!("{key}: {error}") }
            }
        }
    }

    /// Notes what a bucket has after a call.
    pub(super) fn note(&self, bucket: BucketNo, left: Left) {
        let units = u64::from(left.stock) + u64::from(left.lent);
        if let Some(place) = self.left.get(usize::from(bucket.0)) {
            place.store(units, Ordering::SeqCst);
        }
        if units > 0 && self.sold_out.swap(false, Ordering::SeqCst) {
            self.forget_known();
        }
    }

    pub(super) fn left(&self) -> u32 {
        let sum = self.left.iter().map(|units| units.load(Ordering::SeqCst)).sum::<u64>();
        u32::try_from(sum).unwrap_or(u32::MAX)
    }

    pub(super) fn is_sold_out(&self) -> bool {
        self.sold_out.load(Ordering::SeqCst)
    }

    /// How often [`Self::doubt_known`] was called: taken before a look, and given back with what
    /// the look found.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// From here on this process refuses by itself, because it knows every accepted request; as of
    /// that look.
    pub(super) fn sell_out(&self, known: Arc<HashSet<RequestId>>, look: &Arc<Look>, version: u64) {
        *self.end.lock() = Some(Arc::clone(look));
        if !self.know(known, version) {
            return;
        }
        self.sold_out.store(true, Ordering::SeqCst);
        // Units may have come back since the look.
        if self.left() > 0 {
            self.sold_out.store(false, Ordering::SeqCst);
        }
    }

    /// The look at which this process last knew that it was sold out, and to whom. `None` when it
    /// does not know any more.
    pub(super) fn end(&self) -> Option<Arc<Look>> {
        self.known()?;
        self.end.lock().clone()
    }

    /// These requests were accepted, and no others; false when that is not certain any more.
    pub(super) fn know(&self, known: Arc<HashSet<RequestId>>, version: u64) -> bool {
        self.known.store(Some(known));
        let certain = self.version() == version;
        if !certain {
            self.known.store(None);
        }
        certain
    }

    /// Every request that was accepted, where that is certain.
    pub(super) fn known(&self) -> Option<Arc<HashSet<RequestId>>> {
        self.known.load_full()
    }

    /// Whether no request was accepted as far as this process has seen.
    pub(super) fn is_untouched(&self) -> bool {
        self.untouched.load(Ordering::SeqCst)
    }

    /// A request was accepted: which ones were is not certain any more.
    pub(super) fn forget_known(&self) {
        self.untouched.store(false, Ordering::SeqCst);
        self.doubt_known();
    }

    /// Others may have changed which requests were accepted: look again before refusing one.
    pub(super) fn doubt_known(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
        if self.known.load().is_some() {
            self.known.store(None);
        }
    }

    pub(super) fn may_know(&self, request: RequestId) -> bool {
        self.known.load().as_ref().is_none_or(|known| known.contains(&request))
    }

    pub(super) fn look(&self) -> Option<Arc<Look>> {
        self.look.lock().clone()
    }

    /// Keeps a look, and returns the loans that have been open for so long that whoever moved them
    /// has died or given up.
    pub(super) fn keep_look(&self, look: Arc<Look>) -> Vec<(BucketNo, BucketNo, Loan)> {
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

    /// Whether a sold-out SKU has to be looked at now; then it counts as looked at.
    pub(super) fn is_glance_due(&self, now: Instant, every: Duration) -> bool {
        let mut glanced = self.glanced.lock();
        let due = glanced.is_none_or(|at| now.duration_since(at) >= every);
        if due {
            *glanced = Some(now);
        }
        due
    }

    /// Notes orders that their bucket could not take, or has taken now. There are never more than
    /// the SKU had units.
    pub(super) fn note_late(&self, bucket: BucketNo, orders: &[Order], are_late: bool) {
        let mut late = self.late.lock();
        for order in orders {
            if are_late {
                late.insert((bucket, order.request), *order);
            } else if !late.is_empty() {
                late.remove(&(bucket, order.request));
            }
        }
    }

    /// Orders that the bucket could not take yet.
    pub(super) fn late(&self, bucket: BucketNo) -> Vec<Order> {
        let late = self.late.lock();
        let own = late.iter().filter(|((of, _), _)| *of == bucket);
        own.map(|(_, order)| *order).collect()
    }

    pub(super) fn forget_looks(&self) {
        *self.look.lock() = None;
        *self.end.lock() = None;
        *self.glanced.lock() = None;
    }

    /// Whether a bucket had nothing unsettled at the last look. False where there was none.
    pub(super) fn is_settled(&self, bucket: BucketNo) -> bool {
        let look = self.look();
        let counts = look.as_ref().and_then(|look| look.counts.get(usize::from(bucket.0)));
        counts.is_some_and(|counts| counts.num_unsettled() == 0)
    }
}
