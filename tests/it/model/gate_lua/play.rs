//! A random sequence, played on two books; each step stores the expected answer of the script.

use std::collections::BTreeMap;

use floodgate::domain::{
    Book, BucketNo, BuyerId, Counting, Epoch, Loan, Order, OrderIntent, OrderState, Phase, Policy,
    RecordState, Refusal, RequestId, Verdict,
};
use floodgate::redis::scripts::{BucketLevel, OutboxArgs};
use proptest::sample::Index;

use super::operations::{FIRST_ID, Operation};
use super::steps::{Step, StepCall};
use crate::lua::harness::{Fixture, refused};
use crate::support::offers::order_of;

/// An accepted request, or an adopted order without a reservation.
#[derive(Debug, Clone)]
struct Accepted {
    reservation: OrderIntent,
    /// The versions of its order in the ledger.
    versions: Vec<Order>,
    /// The latest of them that the bucket has learned.
    learned: Option<Order>,
}

impl Accepted {
    fn new(reservation: OrderIntent) -> Self {
        Self { reservation, versions: Vec::new(), learned: None }
    }

    /// Adds a version to the ledger: an order that ended never changes.
    fn change(&mut self, mut order: Order) {
        if let Some(last) = self.versions.last() {
            order.version = last.version + 1;
            if !last.state.is_live() {
                return;
            }
        } else {
            order.state = OrderState::PendingPayment;
        }
        order.counts_for_limit |= order.state.is_live();
        self.versions.push(order);
    }
}

/// The state of a sequence on two books.
pub struct Play<'a> {
    fixture: &'a Fixture,
    pub books: Vec<Book>,
    pub steps: Vec<Step>,
    openings: [(Epoch, Phase); 2],
    accepted: [Vec<Accepted>; 2],
    /// The intents of every outbox entry, by bucket.
    pub entries: [Vec<Vec<OrderIntent>>; 2],
    loans: Vec<(usize, Loan)>,
    withdrawn: Vec<(usize, Loan)>,
    num_adopted: u64,
    /// Expected `changes` field of each bucket: its changes of the set of accepted requests.
    changes: [u64; 2],
}

impl<'a> Play<'a> {
    /// Two open books with `stock` units each.
    pub fn new(fixture: &'a Fixture, stock: u32) -> Self {
        let book = |_| {
            let mut book = Book::new(fixture.sku.clone(), Counting::InStock);
            book.set_available(stock);
            book.set_phase(Phase::Open, Epoch(1));
            book
        };
        Self {
            fixture,
            books: (0..2).map(book).collect(),
            steps: Vec::new(),
            openings: [(Epoch(1), Phase::Open); 2],
            accepted: [Vec::new(), Vec::new()],
            entries: [Vec::new(), Vec::new()],
            loans: Vec::new(),
            withdrawn: Vec::new(),
            num_adopted: 0,
            changes: [0; 2],
        }
    }

    pub fn play(&mut self, operation: &Operation) {
        match operation {
            Operation::Reserve { bucket, batch, shift } => self.reserve(*bucket, batch, *shift),
            Operation::Change { bucket, pick, state, counts_for_limit } => {
                self.change(*bucket, *pick, *state, *counts_for_limit);
            }
            Operation::Settle { bucket, picks } => self.settle_picked(*bucket, picks),
            Operation::Adopt { bucket, buyer, quantity, state } => {
                self.adopt(*bucket, *buyer, *quantity, *state);
            }
            Operation::Release { bucket, picks, reason } => self.release(*bucket, picks, *reason),
            Operation::Lend { from, want } => self.lend(*from, *want),
            Operation::Borrow { pick, clears } => self.borrow(*pick, *clears),
            Operation::Withdraw { bucket, units } => self.withdraw(*bucket, *units),
            Operation::EndWithdrawal { pick, is_recorded } => {
                self.end_withdrawal(*pick, *is_recorded);
            }
            Operation::ChangeStock { bucket, after, units } => {
                self.change_stock(*bucket, *after, *units);
            }
            Operation::SetPhase { bucket, phase, shift } => self.set_phase(*bucket, *phase, *shift),
        }
    }

    fn step(&mut self, bucket: usize, call: StepCall) {
        let counts = self.books[bucket].snapshot();
        let changes = self.changes[bucket];
        let left = BucketLevel { stock: counts.available, lent: counts.lent_units, changes };
        self.steps.push(Step { bucket, call, left });
    }

    /// Under `one_per_buyer` the request id is derived from the buyer.
    fn reservation(&self, (buyer, request, quantity): (u64, u64, u32)) -> OrderIntent {
        let derives = self.fixture.sku.policy.derives_request_id();
        let request = if derives { buyer } else { request };
        let mut reservation =
            self.fixture.reservation(FIRST_ID + request, FIRST_ID + buyer, quantity);
        reservation.placed_at_ms += i64::try_from(self.steps.len()).unwrap();
        reservation
    }

    fn reserve(&mut self, bucket: usize, batch: &[(u64, u64, u32)], shift: i64) {
        let mut batch: Vec<_> = batch.iter().map(|purchase| self.reservation(*purchase)).collect();
        let (mut verdicts, mut intents) = (Vec::new(), Vec::new());
        let (envelope_max, room) = self.room(bucket);
        for reservation in &mut batch {
            reservation.epoch = Epoch(self.openings[bucket].0.0 + shift);
            reservation.bucket = BucketNo(u16::try_from(bucket).unwrap());
            // A book has no outbox: a reservation without room is rolled back here.
            let full = (intents.len() >= room).then(|| self.books[bucket].clone());
            let mut verdict = self.books[bucket].reserve(reservation);
            if let (Verdict::Reserved, Some(before)) = (verdict, full) {
                self.books[bucket] = before;
                verdict = Verdict::Full;
            }
            if verdict == Verdict::Reserved {
                self.accepted[bucket].push(Accepted::new(*reservation));
                intents.push(*reservation);
            }
            verdicts.push(verdict);
        }
        self.changes[bucket] += u64::from(!intents.is_empty());
        self.entries[bucket].extend(intents.chunks(envelope_max).map(<[OrderIntent]>::to_vec));
        self.step(bucket, StepCall::Reserve(batch, verdicts));
    }

    /// Intents per entry, and how many more intents fit into the outbox.
    fn room(&self, bucket: usize) -> (usize, usize) {
        match self.fixture.outbox {
            OutboxArgs::None => (1, usize::MAX),
            OutboxArgs::List(entries) | OutboxArgs::Stream(entries) => {
                let max = usize::try_from(entries.entries_max).unwrap();
                let free = max - self.entries[bucket].len();
                (entries.envelope_max, free * entries.envelope_max)
            }
        }
    }

    fn picked(&self, bucket: usize, picks: &[Index]) -> Vec<OrderIntent> {
        let accepted = &self.accepted[bucket];
        let picks = picks.iter().filter(|_| !accepted.is_empty());
        picks.map(|pick| pick.get(accepted).reservation).collect()
    }

    fn change(&mut self, bucket: usize, pick: Index, state: OrderState, counts_for_limit: bool) {
        if self.accepted[bucket].is_empty() {
            return;
        }
        let accepted = &mut self.accepted[bucket];
        let at = pick.index(accepted.len());
        let order = order_of(&accepted[at].reservation);
        accepted[at].change(Order { state, counts_for_limit, ..order });
    }

    fn settle_picked(&mut self, bucket: usize, picks: &[(Index, Index)]) {
        let accepted = &self.accepted[bucket];
        let picks = picks.iter().filter(|_| !accepted.is_empty());
        let orders = picks.filter_map(|(request, version)| {
            let versions = &request.get(accepted).versions;
            (!versions.is_empty()).then(|| *version.get(versions))
        });
        self.settle(bucket, orders.collect());
    }

    fn settle(&mut self, bucket: usize, orders: Vec<Order>) {
        let book = &mut self.books[bucket];
        let returned_units = book.snapshot().returned_units;
        let is_adopted = orders.iter().any(|order| !book.has_record(order.request));
        let is_new = orders.iter().map(|order| book.settle(order)).collect();
        let is_returned = book.snapshot().returned_units > returned_units;
        self.changes[bucket] += u64::from(is_adopted || is_returned);
        for order in &orders {
            let accepted = self.accepted[bucket].iter_mut();
            for accepted in accepted.filter(|one| one.reservation.request == order.request) {
                let learned = accepted.learned.filter(|learned| learned.version >= order.version);
                accepted.learned = Some(learned.unwrap_or(*order));
            }
        }
        self.step(bucket, StepCall::Settle(orders, is_new));
    }

    /// Settles an order without a reservation, if the policy lets the ledger place it.
    fn adopt(&mut self, bucket: usize, buyer: u64, quantity: u32, state: OrderState) {
        let mut reservation = self.reservation((buyer, 500 + self.num_adopted, quantity));
        reservation.bucket = BucketNo(u16::try_from(bucket).unwrap());
        let held = self.buyers(bucket).get(&reservation.buyer.get()).copied().unwrap_or(0);
        let fits = match self.fixture.sku.policy {
            Policy::OnePerBuyer { .. } => !self.books[bucket].has_record(reservation.request),
            Policy::Quota { limit, .. } => held + u64::from(quantity) <= limit.into(),
            Policy::Unlimited { .. } => true,
        };
        if fits {
            self.num_adopted += 1;
            let mut accepted = Accepted::new(reservation);
            let order = order_of(&reservation);
            accepted.change(order);
            if !state.is_live() {
                accepted.change(Order { state, counts_for_limit: false, ..order });
            }
            let orders = accepted.versions.last().copied().into_iter().collect();
            self.accepted[bucket].push(accepted);
            self.settle(bucket, orders);
        }
    }

    fn release(&mut self, bucket: usize, picks: &[Index], reason: Refusal) {
        let mut is_new = Vec::new();
        let reservations = self.picked(bucket, picks);
        for reservation in &reservations {
            let book = &mut self.books[bucket];
            let record = book.record(reservation.request, None);
            let state = record.map(|record| record.state);
            is_new.push(matches!(state, Some(RecordState::Queued { .. })));
            book.release(reservation.request, reason);
        }
        self.changes[bucket] += u64::from(is_new.contains(&true));
        let refused = reservations.iter().map(|reservation| refused(reservation, reason)).collect();
        self.step(bucket, StepCall::Release(refused, is_new));
    }

    fn lend(&mut self, from: usize, want: u32) {
        let to = BucketNo(u16::try_from(1 - from).unwrap());
        let loan = self.books[from].lend(to, want);
        self.loans.extend(loan.map(|loan| (from, loan)));
        self.step(from, StepCall::Lend(want, loan));
    }

    /// Adds any earlier loan to its borrower; with `clears` the lender then clears it.
    fn borrow(&mut self, pick: Index, clears: bool) {
        if self.loans.is_empty() {
            return;
        }
        let (from, loan) = *pick.get(&self.loans);
        let (lender, to) = (BucketNo(u16::try_from(from).unwrap()), 1 - from);
        let added = self.books[to].borrow(lender, loan);
        self.step(to, StepCall::Borrow(loan, added));
        if clears {
            self.books[from].clear_loan(BucketNo(u16::try_from(to).unwrap()), loan.no);
            self.step(from, StepCall::ClearLoan(loan));
        }
    }

    fn withdraw(&mut self, bucket: usize, units: u32) {
        let loan = self.books[bucket].withdraw(units);
        self.withdrawn.extend(loan.map(|loan| (bucket, loan)));
        self.step(bucket, StepCall::Withdraw(units, loan));
    }

    /// Ends any earlier withdrawal, perhaps again.
    fn end_withdrawal(&mut self, pick: Index, is_recorded: bool) {
        if self.withdrawn.is_empty() {
            return;
        }
        let (bucket, loan) = *pick.get(&self.withdrawn);
        self.books[bucket].end_withdrawal(loan, is_recorded);
        self.step(bucket, StepCall::EndWithdrawal(loan, is_recorded));
    }

    /// A change of the stock that comes `after` the bucket's last one; 1 is the next.
    fn change_stock(&mut self, bucket: usize, after: i32, units: u32) {
        let no = self.books[bucket].change_no() + after;
        if no < 1 {
            return;
        }
        self.books[bucket].change_stock(no, units);
        self.changes[bucket] += u64::from(after == 1 && units > 0);
        self.step(bucket, StepCall::ChangeStock(no, units, after <= 1));
    }

    fn set_phase(&mut self, bucket: usize, phase: Phase, shift: i64) {
        let current = self.openings[bucket];
        let pair = (Epoch(current.0.0 + shift), phase);
        self.books[bucket].set_phase(phase, pair.0);
        self.openings[bucket] = current.max(pair);
        self.step(bucket, StepCall::SetPhase(phase, pair.0, pair >= current));
    }

    pub fn epoch_and_phase(&self, bucket: usize) -> (Epoch, Phase) {
        self.openings[bucket]
    }

    /// Orders and queued requests that count for their buyers' limits as far as the bucket knows,
    /// in the order of acceptance.
    pub fn counted(&self, bucket: usize) -> impl Iterator<Item = (RequestId, BuyerId, u32)> + '_ {
        let book = &self.books[bucket];
        let is_counted = move |accepted: &&Accepted| {
            let record = book.record(accepted.reservation.request, None);
            accepted.learned.is_none_or(|order| order.counts_for_limit)
                && !record.is_some_and(|record| matches!(record.state, RecordState::Failed(_)))
        };
        self.accepted[bucket].iter().filter(is_counted).map(|accepted| {
            (
                accepted.reservation.request,
                accepted.reservation.buyer,
                accepted.reservation.quantity,
            )
        })
    }

    /// The expected buyer rows: units per buyer under a quota, none under other policies.
    pub fn buyers(&self, bucket: usize) -> BTreeMap<u64, u64> {
        let mut rows = BTreeMap::new();
        for (_, buyer, quantity) in self.counted(bucket) {
            match self.fixture.sku.policy {
                Policy::Quota { .. } => {
                    *rows.entry(buyer.get()).or_insert(0) += u64::from(quantity);
                }
                Policy::OnePerBuyer { .. } | Policy::Unlimited { .. } => {}
            }
        }
        rows
    }
}
