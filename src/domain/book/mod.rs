//! The book of one bucket: units, buyers and requests, decided one intent at a time.
//!
//! The book is the state of the embedded gate. It has one writer at a time and no clock. Every
//! change is idempotent by request id or loan number, and every check precedes the first write.

use std::collections::HashMap;
use std::sync::Arc;

use super::ids::{BucketNo, BuyerId, Epoch, RequestId};
use super::loans::{Loan, Loans};
use super::order::{Failure, Order, OrderIntent, Refusal, Verdict};
use super::request_record::{RecordState, RequestRecord};
use super::sale::{Phase, Sku};

mod stock_changes;

/// Which component counts the units and the buyers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// This book (tier `memory`).
    InStock,
    /// The ledger (tier `ledger`); the book only stores requests and their results.
    InLedger,
}

/// Units, buyers and requests of one bucket.
#[derive(Debug, Clone)]
pub struct Book {
    sku: Arc<Sku>,
    counting: Counting,
    phase: Phase,
    epoch: Epoch,
    available: u32,
    released_units: u64,
    returned_units: u64,
    requests: HashMap<RequestId, RequestRecord>,
    /// The units of each buyer under a quota. `one_per_buyer` does not require them: the request id
    /// is derived from the buyer, so that a second order is a repeat.
    buyers: HashMap<BuyerId, u32>,
    unsettled: HashMap<RequestId, OrderIntent>,
    loans: Loans,
    /// The number of the last change of the SKU's stock in this book.
    change_no: i32,
}

/// The counts of a bucket at one instant, for audits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketSnapshot {
    pub available: u32,
    /// Units of open loans: lent and not yet confirmed by the borrower.
    pub lent_units: u32,
    /// Accepted requests without a result of the ledger.
    pub num_unsettled: usize,
    /// When the oldest unsettled request arrived, epoch milliseconds.
    pub oldest_unsettled_ms: Option<i64>,
    pub num_ordered: usize,
    pub num_failed: usize,
    /// Buyers with units, under a quota.
    pub num_buyers: usize,
    /// Units given back after a refusal of the ledger, since the sale was created.
    pub released_units: u64,
    /// Units given back by orders that ended, since the sale was created.
    pub returned_units: u64,
    /// The number of the last change of the SKU's stock in this bucket.
    pub change_no: i32,
    /// An open loan.
    pub open_loan: Option<Loan>,
}

impl Book {
    /// An empty, closed book with no units.
    pub fn new(sku: Arc<Sku>, counting: Counting) -> Self {
        Self {
            sku,
            counting,
            phase: Phase::Draft,
            epoch: Epoch(0),
            available: 0,
            released_units: 0,
            returned_units: 0,
            requests: HashMap::new(),
            buyers: HashMap::new(),
            unsettled: HashMap::new(),
            loans: Loans::default(),
            change_no: 0,
        }
    }

    /// Sets phase and epoch. A pair that precedes the present one is ignored (`Fenced`): calls may
    /// be late, repeated or reordered.
    pub fn set_phase(&mut self, phase: Phase, epoch: Epoch) {
        (self.epoch, self.phase) = (self.epoch, self.phase).max((epoch, phase));
    }

    /// The phase, and the epoch that it belongs to.
    pub fn phase_and_epoch(&self) -> (Phase, Epoch) {
        (self.phase, self.epoch)
    }

    pub fn reserve(&mut self, intent: &OrderIntent) -> Verdict {
        if let Some(repeat) = self.repeat(intent) {
            return repeat;
        }
        if intent.epoch != self.epoch {
            return Verdict::StaleEpoch;
        }
        match self.phase {
            Phase::Open => {}
            Phase::Draft | Phase::Paused => return Verdict::Refused(Refusal::NotStarted),
            Phase::Closed => return Verdict::Refused(Refusal::Ended),
        }
        if self.counting == Counting::InStock {
            if let Some(refusal) = self.quota_refusal(intent) {
                return Verdict::Refused(refusal);
            }
            if self.available < intent.quantity {
                return Verdict::Short;
            }
            self.available -= intent.quantity;
        }
        self.accept(*intent);
        Verdict::Reserved
    }

    /// Records an accepted request, and counts its units as the buyer's.
    fn accept(&mut self, intent: OrderIntent) {
        self.requests.insert(intent.request, RequestRecord::queued(&intent));
        self.unsettled.insert(intent.request, intent);
        self.add_owned(intent.buyer, intent.quantity);
    }

    /// The answer to a request that was accepted before.
    fn repeat(&self, intent: &OrderIntent) -> Option<Verdict> {
        let record = self.requests.get(&intent.request)?;
        if record.buyer != intent.buyer || record.quantity != intent.quantity {
            return Some(Verdict::Refused(Refusal::RequestIdReused));
        }
        let accepted = self.unsettled.get(&intent.request).copied();
        Some(record.verdict(accepted))
    }

    fn quota_refusal(&self, intent: &OrderIntent) -> Option<Refusal> {
        let limit = intent.quota?;
        let owned = self.owned(intent.buyer);
        (owned.saturating_add(intent.quantity) > limit)
            .then_some(Refusal::QuotaExceeded { owned, limit })
    }

    /// Records that the order is committed, and each later change of it. True when the result is
    /// new. Idempotent, in any order: a larger version replaces a smaller one.
    ///
    /// Units that an order took, and that its change no longer takes, are given back; an order that
    /// has ended moves nothing any more. An order without a request in this book was committed
    /// while the book was rebuilt from the ledger: its units are subtracted.
    pub fn settle(&mut self, order: &Order) -> bool {
        let new = RequestRecord::ordered(order);
        let Some(stored) = self.requests.get(&order.request).copied() else {
            self.load_order(order);
            if self.counting == Counting::InStock {
                self.available = self.available.saturating_sub(new.units());
            }
            return true;
        };
        if !new.replaces(&stored) {
            return false;
        }
        self.unsettled.remove(&order.request);
        self.requests.insert(order.request, new);
        if stored.units() > 0 {
            if new.units() == 0 {
                self.give_back(new.quantity);
                self.returned_units += u64::from(new.quantity);
            }
            if !order.counts_for_limit {
                self.subtract_owned(new.buyer, new.quantity);
            }
        }
        true
    }

    fn give_back(&mut self, units: u32) {
        if self.counting == Counting::InStock {
            self.available = self.available.saturating_add(units);
        }
    }

    /// Records that the ledger refused, and gives the units back unless the ledger is sold out.
    /// With [`Counting::InLedger`] a request that the ledger decided is removed: it records no
    /// refusals. Only the first call changes the book (`CompensatedOnce`); it returns the units
    /// given back.
    pub fn release(&mut self, request: RequestId, reason: Refusal) -> u32 {
        let Some(intent) = self.unsettled.remove(&request) else { return 0 };
        self.subtract_owned(intent.buyer, intent.quantity);
        if !self.keeps(&reason) {
            self.requests.remove(&request);
            return 0;
        }
        let state = RecordState::Failed(reason);
        self.requests.insert(request, RequestRecord { state, ..RequestRecord::queued(&intent) });
        if !gives_back(&reason) {
            return 0;
        }
        self.released_units += u64::from(intent.quantity);
        self.give_back(intent.quantity);
        intent.quantity
    }

    /// The units of a buyer's requests and live orders; 0 without a quota.
    pub fn owned(&self, buyer: BuyerId) -> u32 {
        self.buyers.get(&buyer).copied().unwrap_or(0)
    }

    /// Whether the ledger records a failure with this reason, so that the book keeps it, too.
    pub fn keeps(&self, reason: &Refusal) -> bool {
        self.counting == Counting::InStock || reason.is_undecided()
    }

    fn add_owned(&mut self, buyer: BuyerId, units: u32) {
        if units > 0 && self.counts_buyers() {
            let owned = self.buyers.entry(buyer).or_default();
            *owned = owned.saturating_add(units);
        }
    }

    fn counts_buyers(&self) -> bool {
        self.sku.policy.quota().is_some()
    }

    fn subtract_owned(&mut self, buyer: BuyerId, units: u32) {
        if let Some(owned) = self.buyers.get_mut(&buyer) {
            *owned = owned.saturating_sub(units);
            if *owned == 0 {
                self.buyers.remove(&buyer);
            }
        }
    }

    /// Lends units to another bucket: half of the free units, at least `min_units` if so many are
    /// free, so that a starved bucket does not ask again at once. The loan stays open until
    /// [`Self::clear_loan`]; while a loan to this borrower is open, it is returned again.
    pub fn lend(&mut self, to: BucketNo, min_units: u32) -> Option<Loan> {
        let units = min_units.max(self.available / 2).min(self.available);
        let (loan, is_new) = self.loans.lend(to, units)?;
        if is_new {
            self.available -= loan.units;
        }
        Some(loan)
    }

    /// Adds the units of a loan, once. Returns the units added.
    pub fn borrow(&mut self, from: BucketNo, loan: Loan) -> u32 {
        let units = self.loans.borrow(from, loan);
        self.available = self.available.saturating_add(units);
        units
    }

    /// Closes a loan that the borrower has confirmed.
    pub fn clear_loan(&mut self, to: BucketNo, no: u64) {
        self.loans.clear(to, no);
    }

    /// The open loans of this book, with their borrowers.
    pub fn loans(&self) -> impl Iterator<Item = (BucketNo, Loan)> + '_ {
        self.loans.open()
    }

    /// Free units plus the units of open loans.
    pub fn left(&self) -> u64 {
        u64::from(self.available) + u64::from(self.loans.units())
    }

    /// Whether the book has a record of this request, in any status.
    pub fn has_record(&self, request: RequestId) -> bool {
        self.requests.contains_key(&request)
    }

    /// The record of a request. With an `owner`, `None` for the request of another buyer.
    pub fn record(&self, request: RequestId, owner: Option<BuyerId>) -> Option<RequestRecord> {
        let record = self.requests.get(&request)?;
        let is_visible = owner.is_none_or(|owner| owner == record.buyer);
        is_visible.then_some(*record)
    }

    /// The intents without a result of the ledger.
    pub fn unsettled(&self) -> Vec<OrderIntent> {
        self.unsettled.values().copied().collect()
    }

    pub fn num_unsettled(&self) -> usize {
        self.unsettled.len()
    }

    /// The present counts. Iterates over all requests: for audits, not for the hot path.
    pub fn snapshot(&self) -> BucketSnapshot {
        let states = || self.requests.values().map(|record| record.state);
        let num_ordered = states().filter(|it| matches!(it, RecordState::Ordered { .. })).count();
        let num_failed = states().filter(|it| matches!(it, RecordState::Failed(_))).count();
        BucketSnapshot {
            available: self.available,
            lent_units: self.loans.units(),
            num_unsettled: self.unsettled.len(),
            oldest_unsettled_ms: self.unsettled.values().map(|i| i.placed_at_ms).min(),
            num_ordered,
            num_failed,
            num_buyers: self.buyers.len(),
            released_units: self.released_units,
            returned_units: self.returned_units,
            change_no: self.change_no,
            open_loan: self.loans.open().next().map(|(_, loan)| loan),
        }
    }
}

/// Rebuilds a book from the ledger, before it accepts reservations.
impl Book {
    /// Adds an order of the ledger, without moving units: those of an ended order are free already.
    /// Idempotent.
    pub fn load_order(&mut self, order: &Order) {
        let record = RequestRecord::ordered(order);
        if self.requests.insert(order.request, record).is_none() {
            if order.counts_for_limit {
                self.add_owned(record.buyer, record.quantity);
            }
            self.returned_units += u64::from(record.quantity - record.units());
        }
    }

    /// Adds a recorded failure of the ledger. Idempotent.
    pub fn load_failure(&mut self, failure: &Failure) {
        let record = RequestRecord::failed(failure);
        let is_new = self.requests.insert(failure.request, record).is_none();
        if is_new && gives_back(&failure.reason) {
            self.released_units += u64::from(failure.quantity);
        }
    }

    /// Adds a request that was accepted before the rebuild and has no result in the ledger. Returns
    /// its units, which are not free; 0 if the request is present already. Call it after all orders
    /// and failures: the request may be among them.
    pub fn load_queued(&mut self, intent: &OrderIntent) -> u32 {
        if self.requests.contains_key(&intent.request) {
            return 0;
        }
        self.accept(*intent);
        intent.quantity
    }

    /// Sets the free units, once, at the end of the rebuild.
    pub fn set_available(&mut self, units: u32) {
        self.available = units;
    }
}

/// Whether a bucket gives the units back when the ledger refuses for this reason. Not when the
/// ledger is sold out: its stock no longer contains them.
pub fn gives_back(reason: &Refusal) -> bool {
    !matches!(reason, Refusal::SoldOut)
}
