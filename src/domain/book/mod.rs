//! The book of one bucket: units, buyers and requests, decided one reservation at a time.
//!
//! The book is the state of the embedded gate. It has one writer at a time and no clock. Every
//! change is idempotent by request id or loan number, and every check precedes the first write.

mod loading;

use std::collections::HashMap;
use std::sync::Arc;

use super::ids::{BucketNo, BuyerId, Epoch, RequestId};
use super::loans::{Loan, Loans};
use super::order::{Order, OrderIntent, OrderState};
use super::reservation::Reservation;
use super::sale::{Phase, Sku};
use super::verdict::{Refusal, RequestStatus, Verdict};

/// Which component counts the units and the buyers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// This book (tier `memory`).
    InStock,
    /// The ledger (tier `ledger`); the book only stores requests and their results.
    InLedger,
}

/// One accepted request. Kept small: the book has one for each order of the sale.
#[derive(Debug, Clone, Copy)]
struct BookRecord {
    buyer: BuyerId,
    placed_at_ms: i64,
    quantity: u32,
    stage: BookStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BookStage {
    Queued,
    Ordered(OrderState),
    /// The reason is in `Book::failures`.
    Failed,
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
    requests: HashMap<RequestId, BookRecord>,
    failures: HashMap<RequestId, Refusal>,
    /// The units of each buyer under a quota. `one_per_buyer` does not require them: the request id
    /// is derived from the buyer, so that a second order is a repeat.
    buyers: HashMap<BuyerId, u32>,
    unsettled: HashMap<RequestId, OrderIntent>,
    loans: Loans,
}

/// The counts of a book at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BookSnapshot {
    /// Free units.
    pub available: u32,
    /// Units of open loans: lent and not yet confirmed by the borrower.
    pub lent_units: u32,
    /// Accepted requests without a result of the ledger.
    pub num_unsettled: usize,
    pub unsettled_units: u64,
    /// When the oldest unsettled request arrived, epoch milliseconds.
    pub oldest_unsettled_ms: Option<i64>,
    /// Requests with an order.
    pub num_ordered: usize,
    pub num_failed: usize,
    /// Buyers with units, under a quota.
    pub num_buyers: usize,
    /// Units given back after a refusal of the ledger, since the sale was created.
    pub released_units: u64,
}

impl Book {
    /// An empty, closed book with no units.
    #[must_use]
    pub fn new(sku: Arc<Sku>, counting: Counting) -> Self {
        Self {
            sku,
            counting,
            phase: Phase::Draft,
            epoch: Epoch(0),
            available: 0,
            released_units: 0,
            requests: HashMap::new(),
            failures: HashMap::new(),
            buyers: HashMap::new(),
            unsettled: HashMap::new(),
            loans: Loans::default(),
        }
    }

    /// Sets phase and epoch. A pair that precedes the present one is ignored (`Fenced`): calls may
    /// be late, repeated or reordered.
    pub fn set_phase(&mut self, phase: Phase, epoch: Epoch) {
        (self.epoch, self.phase) = (self.epoch, self.phase).max((epoch, phase));
    }

    /// Phase and epoch.
    #[must_use]
    pub fn stands(&self) -> (Phase, Epoch) {
        (self.phase, self.epoch)
    }

    /// Decides one reservation.
    pub fn reserve(&mut self, reservation: &Reservation) -> Verdict {
        if let Some(repeat) = self.repeat(reservation) {
            return repeat;
        }
        if reservation.epoch != self.epoch {
            return Verdict::StaleEpoch;
        }
        match self.phase {
            Phase::Open => {}
            Phase::Draft | Phase::Paused => return Verdict::Refused(Refusal::NotStarted),
            Phase::Closed => return Verdict::Refused(Refusal::Ended),
        }
        if self.counting == Counting::InStock {
            if let Some(refusal) = self.quota_refusal(reservation) {
                return Verdict::Refused(refusal);
            }
            if self.available < reservation.quantity {
                return Verdict::Short;
            }
            self.available -= reservation.quantity;
            self.add_owned(reservation.buyer, reservation.quantity);
        }
        self.requests.insert(
            reservation.request,
            BookRecord {
                buyer: reservation.buyer,
                placed_at_ms: reservation.asked_at_ms,
                quantity: reservation.quantity,
                stage: BookStage::Queued,
            },
        );
        self.unsettled.insert(reservation.request, reservation.intent(&self.sku));
        Verdict::Reserved
    }

    /// The answer to a request that was accepted before.
    fn repeat(&self, reservation: &Reservation) -> Option<Verdict> {
        let record = self.requests.get(&reservation.request)?;
        if record.buyer != reservation.buyer || record.quantity != reservation.quantity {
            return Some(Verdict::Refused(Refusal::RequestIdReused));
        }
        Some(Verdict::Repeat(self.status_of(reservation.request, record)))
    }

    fn quota_refusal(&self, reservation: &Reservation) -> Option<Refusal> {
        let limit = self.sku.policy.quota()?;
        let owned = self.buyers.get(&reservation.buyer).copied().unwrap_or(0);
        (owned.saturating_add(reservation.quantity) > limit)
            .then_some(Refusal::QuotaExceeded { owned, limit })
    }

    /// Records that the order is committed. True when the result is new. Idempotent.
    ///
    /// An order without a request in this book was committed while the book was rebuilt from the
    /// ledger: its units are subtracted.
    pub fn settle(&mut self, order: &Order) -> bool {
        let Some(record) = self.requests.get_mut(&order.request) else {
            self.load_order(order);
            if order.state.is_live() && self.counting == Counting::InStock {
                self.available = self.available.saturating_sub(order.quantity);
            }
            return true;
        };
        let is_new = record.stage == BookStage::Queued;
        if is_new {
            record.stage = BookStage::Ordered(order.state);
            self.unsettled.remove(&order.request);
        }
        is_new
    }

    /// Records that the ledger refused, and gives the units back unless the ledger is sold out.
    /// With [`Counting::InLedger`] a refusal is not recorded, and the request is removed. Only the
    /// first call changes the book (`CompensatedOnce`); it returns the units given back.
    pub fn release(&mut self, request: RequestId, reason: Refusal) -> u32 {
        let Some(intent) = self.unsettled.remove(&request) else { return 0 };
        if self.counting == Counting::InLedger {
            self.requests.remove(&request);
            return 0;
        }
        if let Some(record) = self.requests.get_mut(&request) {
            record.stage = BookStage::Failed;
        }
        self.failures.insert(request, reason);
        self.subtract_owned(intent.buyer, intent.quantity);
        if !gives_back(&reason) {
            return 0;
        }
        self.released_units += u64::from(intent.quantity);
        self.available = self.available.saturating_add(intent.quantity);
        intent.quantity
    }

    fn add_owned(&mut self, buyer: BuyerId, units: u32) {
        if self.counts_buyers() {
            let owned = self.buyers.entry(buyer).or_default();
            *owned = owned.saturating_add(units);
        }
    }

    fn counts_buyers(&self) -> bool {
        self.counting == Counting::InStock && self.sku.policy.quota().is_some()
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
    #[must_use]
    pub fn left(&self) -> u64 {
        u64::from(self.available) + u64::from(self.loans.units())
    }

    /// Whether the book has a record of this request, in any status.
    #[must_use]
    pub fn knows(&self, request: RequestId) -> bool {
        self.requests.contains_key(&request)
    }

    /// Quantity, time of the request (epoch milliseconds) and status. With an `owner`, `None` for
    /// the request of another buyer.
    #[must_use]
    pub fn status(
        &self,
        request: RequestId,
        owner: Option<BuyerId>,
    ) -> Option<(u32, i64, RequestStatus)> {
        let record = self.requests.get(&request)?;
        if owner.is_some_and(|owner| owner != record.buyer) {
            return None;
        }
        Some((record.quantity, record.placed_at_ms, self.status_of(request, record)))
    }

    fn status_of(&self, request: RequestId, record: &BookRecord) -> RequestStatus {
        match record.stage {
            BookStage::Queued => RequestStatus::Queued,
            BookStage::Ordered(state) => RequestStatus::Ordered {
                quantity: record.quantity,
                placed_at_ms: record.placed_at_ms,
                state,
            },
            BookStage::Failed => RequestStatus::Failed(
                self.failures.get(&request).copied().unwrap_or(Refusal::RequestIdReused),
            ),
        }
    }

    /// The intents without a result of the ledger.
    #[must_use]
    pub fn unsettled(&self) -> Vec<OrderIntent> {
        self.unsettled.values().copied().collect()
    }

    #[must_use]
    pub fn num_unsettled(&self) -> usize {
        self.unsettled.len()
    }

    /// The present counts. Iterates over all requests: for audits, not for the hot path.
    #[must_use]
    pub fn snapshot(&self) -> BookSnapshot {
        let ordered =
            self.requests.values().filter(|record| matches!(record.stage, BookStage::Ordered(_)));
        BookSnapshot {
            available: self.available,
            lent_units: self.loans.units(),
            num_unsettled: self.unsettled.len(),
            unsettled_units: self.unsettled.values().map(|i| u64::from(i.quantity)).sum(),
            oldest_unsettled_ms: self.unsettled.values().map(|i| i.placed_at_ms).min(),
            num_ordered: ordered.count(),
            num_failed: self.failures.len(),
            num_buyers: self.buyers.len(),
            released_units: self.released_units,
        }
    }
}

/// Whether a bucket gives the units back when the ledger refuses for this reason. Not when the
/// ledger is sold out: its stock no longer contains them.
#[must_use]
pub fn gives_back(reason: &Refusal) -> bool {
    !matches!(reason, Refusal::SoldOut)
}
