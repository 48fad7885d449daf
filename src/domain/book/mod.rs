//! The book of one bucket: units, buyers and requests, decided one reservation at a time.
//!
//! A book is what the embedded gate counts in. It has one writer at a time and no clock. Every
//! change is repeat-safe by request id or loan number, and every check stands before the first
//! write.

mod loading;

use std::collections::HashMap;
use std::sync::Arc;

use super::ids::{BucketNo, BuyerId, Epoch, RequestId};
use super::loans::{Loan, Loans};
use super::order::{Order, OrderIntent, OrderState};
use super::reservation::Reservation;
use super::sale::{Phase, Sku};
use super::verdict::{Refusal, RequestStatus, Verdict};

/// Who counts the units and the buyers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// This book does (tier `memory`).
    Here,
    /// The ledger does (tier `ledger`); the book only remembers requests and their results.
    InLedger,
}

/// One accepted request. Kept small: there is one for each order of the sale.
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
    /// The units of each buyer, under a quota. Where each may order once the request follows from
    /// the buyer: whoever comes again is a repeat.
    buyers: HashMap<BuyerId, u32>,
    unsettled: HashMap<RequestId, OrderIntent>,
    loans: Loans,
}

/// The counts of a book at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BookSnapshot {
    /// Free units.
    pub available: u32,
    /// Units lent out and not yet confirmed by the borrower.
    pub lent_units: u32,
    /// Requests whose units are taken and which the ledger has not answered.
    pub num_unsettled: usize,
    /// Their units.
    pub unsettled_units: u64,
    /// When the oldest of them was asked, epoch milliseconds.
    pub oldest_unsettled_ms: Option<i64>,
    /// Requests that are orders.
    pub num_ordered: usize,
    /// Requests that failed.
    pub num_failed: usize,
    /// Buyers who hold units, under a quota.
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

    /// Moves the book on to a phase of an opening. A pair that comes before the book's own is
    /// ignored (`Fenced`): writes may be late, repeated and crossed.
    pub fn turn(&mut self, phase: Phase, epoch: Epoch) {
        (self.epoch, self.phase) = (self.epoch, self.phase).max((epoch, phase));
    }

    /// The phase and the opening of the book.
    #[must_use]
    pub fn stands(&self) -> (Phase, Epoch) {
        (self.phase, self.epoch)
    }

    /// Decides one reservation.
    pub fn reserve(&mut self, ask: &Reservation) -> Verdict {
        if let Some(repeat) = self.repeat(ask) {
            return repeat;
        }
        if ask.epoch != self.epoch {
            return Verdict::StaleEpoch;
        }
        match self.phase {
            Phase::Open => {}
            Phase::Draft | Phase::Paused => return Verdict::Refused(Refusal::NotStarted),
            Phase::Closed => return Verdict::Refused(Refusal::Ended),
        }
        if self.counting == Counting::Here {
            if let Some(refusal) = self.over_limit(ask) {
                return Verdict::Refused(refusal);
            }
            if self.available < ask.quantity {
                return Verdict::Short;
            }
            self.available -= ask.quantity;
            self.hold(ask.buyer, ask.quantity);
        }
        self.requests.insert(
            ask.request,
            BookRecord {
                buyer: ask.buyer,
                placed_at_ms: ask.asked_at_ms,
                quantity: ask.quantity,
                stage: BookStage::Queued,
            },
        );
        self.unsettled.insert(ask.request, ask.intent(&self.sku));
        Verdict::Reserved
    }

    /// The answer to a request that was accepted before.
    fn repeat(&self, ask: &Reservation) -> Option<Verdict> {
        let record = self.requests.get(&ask.request)?;
        if record.buyer != ask.buyer || record.quantity != ask.quantity {
            return Some(Verdict::Refused(Refusal::RequestIdReused));
        }
        Some(Verdict::Repeat(self.standing_of(ask.request, record)))
    }

    fn over_limit(&self, ask: &Reservation) -> Option<Refusal> {
        let limit = self.sku.policy.quota()?;
        let owned = self.buyers.get(&ask.buyer).copied().unwrap_or(0);
        (owned.saturating_add(ask.quantity) > limit)
            .then_some(Refusal::QuotaExceeded { owned, limit })
    }

    /// Records that the ledger has the order. True when that was news. Repeat-safe.
    ///
    /// An order that this book never accepted was on its way to the ledger while the book was built
    /// from it: its units are not free any more.
    pub fn settle(&mut self, order: &Order) -> bool {
        let Some(record) = self.requests.get_mut(&order.request) else {
            self.load_order(order);
            if order.state.is_live() && self.counting == Counting::Here {
                self.available = self.available.saturating_sub(order.quantity);
            }
            return true;
        };
        let news = record.stage == BookStage::Queued;
        if news {
            record.stage = BookStage::Ordered(order.state);
            self.unsettled.remove(&order.request);
        }
        news
    }

    /// Records that the ledger refused, and gives the units back where the ledger still has them.
    /// Where the ledger counts, its refusal leaves no record, and the request is forgotten. Only
    /// the first call does anything (`CompensatedOnce`); it returns the units given back.
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
        self.let_go(intent.buyer, intent.quantity);
        if !gives_back(&reason) {
            return 0;
        }
        self.released_units += u64::from(intent.quantity);
        self.available = self.available.saturating_add(intent.quantity);
        intent.quantity
    }

    fn hold(&mut self, buyer: BuyerId, units: u32) {
        if self.counts_buyers() {
            let held = self.buyers.entry(buyer).or_default();
            *held = held.saturating_add(units);
        }
    }

    fn counts_buyers(&self) -> bool {
        self.counting == Counting::Here && self.sku.policy.quota().is_some()
    }

    fn let_go(&mut self, buyer: BuyerId, units: u32) {
        if let Some(held) = self.buyers.get_mut(&buyer) {
            *held = held.saturating_sub(units);
            if *held == 0 {
                self.buyers.remove(&buyer);
            }
        }
    }

    /// Takes units out for another bucket: at least `want` where there are so many, and up to half
    /// of what is free, so that a dry bucket does not come back at once. The loan stays recorded
    /// until [`Self::clear_loan`]; while one to this borrower is open, it is the answer again.
    pub fn lend(&mut self, to: BucketNo, want: u32) -> Option<Loan> {
        let units = want.max(self.available / 2).min(self.available);
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

    /// Forgets a loan that the borrower has.
    pub fn clear_loan(&mut self, to: BucketNo, no: u64) {
        self.loans.clear(to, no);
    }

    /// The open loans of this book, with their borrowers.
    pub fn loans(&self) -> impl Iterator<Item = (BucketNo, Loan)> + '_ {
        self.loans.open()
    }

    /// Free units, and units lent and not yet confirmed.
    #[must_use]
    pub fn left(&self) -> u64 {
        u64::from(self.available) + u64::from(self.loans.units())
    }

    /// Whether this request was accepted here at any time.
    #[must_use]
    pub fn knows(&self, request: RequestId) -> bool {
        self.requests.contains_key(&request)
    }

    /// Where a request stands: units, when it was asked, standing. With an `owner`, only if the
    /// request is that buyer's.
    #[must_use]
    pub fn standing(
        &self,
        request: RequestId,
        owner: Option<BuyerId>,
    ) -> Option<(u32, i64, RequestStatus)> {
        let record = self.requests.get(&request)?;
        if owner.is_some_and(|owner| owner != record.buyer) {
            return None;
        }
        Some((record.quantity, record.placed_at_ms, self.standing_of(request, record)))
    }

    fn standing_of(&self, request: RequestId, record: &BookRecord) -> RequestStatus {
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

    /// The intents whose answer from the ledger is not known here.
    #[must_use]
    pub fn unsettled(&self) -> Vec<OrderIntent> {
        self.unsettled.values().copied().collect()
    }

    /// How many they are.
    #[must_use]
    pub fn num_unsettled(&self) -> usize {
        self.unsettled.len()
    }

    /// The counts at this instant. Walks over all requests: for audits, not for requests.
    #[must_use]
    pub fn snapshot(&self) -> BookSnapshot {
        let count = |wanted: fn(&BookStage) -> bool| {
            self.requests.values().filter(|record| wanted(&record.stage)).count()
        };
        BookSnapshot {
            available: self.available,
            lent_units: self.loans.units(),
            num_unsettled: self.unsettled.len(),
            unsettled_units: self.unsettled.values().map(|i| u64::from(i.quantity)).sum(),
            oldest_unsettled_ms: self.unsettled.values().map(|i| i.placed_at_ms).min(),
            num_ordered: count(|stage| matches!(stage, BookStage::Ordered(_))),
            num_failed: self.failures.len(),
            num_buyers: self.buyers.len(),
            released_units: self.released_units,
        }
    }
}

/// Whether the units of an intent refused for this reason are still in the ledger's stock. A ledger
/// that is sold out has none to give back.
#[must_use]
pub fn gives_back(reason: &Refusal) -> bool {
    !matches!(reason, Refusal::SoldOut)
}
