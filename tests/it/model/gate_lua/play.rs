//! A random sequence, played on two books; each step keeps what the scripts must answer.

use std::collections::BTreeMap;

use floodgate::domain::{
    Book, BucketNo, BuyerId, Counting, Epoch, Loan, Order, OrderIntent, OrderState, Phase, Policy,
    Refusal, RequestId, RequestStatus, Reservation, Verdict,
};
use floodgate::redis::scripts::{BucketLevel, OutboxArgs};
use proptest::sample::Index;

use super::operations::{FIRST_ID, Operation};
use super::steps::{Asked, Step};
use crate::lua::rig::{Shop, refused};

/// An accepted request, or an order that was never reserved.
#[derive(Debug, Clone, Copy)]
struct Accepted {
    ask: Reservation,
    holds: bool,
}

/// Two books in play.
pub struct Play<'a> {
    shop: &'a Shop,
    pub books: Vec<Book>,
    pub steps: Vec<Step>,
    openings: [(Epoch, Phase); 2],
    accepted: [Vec<Accepted>; 2],
    /// What the outbox of each bucket holds, entry by entry.
    pub entries: [Vec<Vec<OrderIntent>>; 2],
    loans: Vec<(usize, Loan)>,
    num_adopted: u64,
    /// How often each bucket has changed which requests it has accepted.
    changes: [u64; 2],
}

impl<'a> Play<'a> {
    /// Two open books with so many units each.
    pub fn new(shop: &'a Shop, stock: u32) -> Self {
        let book = |_| {
            let mut book = Book::new(shop.sku.clone(), Counting::Here);
            book.stock(stock);
            book.turn(Phase::Open, Epoch(1));
            book
        };
        Self {
            shop,
            books: (0..2).map(book).collect(),
            steps: Vec::new(),
            openings: [(Epoch(1), Phase::Open); 2],
            accepted: [Vec::new(), Vec::new()],
            entries: [Vec::new(), Vec::new()],
            loans: Vec::new(),
            num_adopted: 0,
            changes: [0; 2],
        }
    }

    pub fn play(&mut self, operation: &Operation) {
        match operation {
            Operation::Reserve { bucket, batch, shift } => self.reserve(*bucket, batch, *shift),
            Operation::Settle { bucket, picks, state } => {
                let orders = self.picked(*bucket, picks);
                let orders =
                    orders.iter().map(|ask| Order { state: *state, ..self.shop.order(ask) });
                self.settle(*bucket, orders.collect());
            }
            Operation::Adopt { bucket, buyer, quantity, state } => {
                self.adopt(*bucket, *buyer, *quantity, *state);
            }
            Operation::Release { bucket, picks, reason } => self.release(*bucket, picks, *reason),
            Operation::Lend { from, want } => self.lend(*from, *want),
            Operation::Borrow { pick, clears } => self.borrow(*pick, *clears),
            Operation::Turn { bucket, phase, shift } => self.turn(*bucket, *phase, *shift),
        }
    }

    fn step(&mut self, bucket: usize, asked: Asked) {
        let counts = self.books[bucket].snapshot();
        let changes = self.changes[bucket];
        let left = BucketLevel { stock: counts.available, lent: counts.lent_units, changes };
        self.steps.push(Step { bucket, asked, left });
    }

    /// Where each may order once a buyer has one request only.
    fn ask(&self, (buyer, request, quantity): (u64, u64, u32)) -> Reservation {
        let derives = self.shop.sku.policy.derives_request_id();
        let request = if derives { buyer } else { request };
        let mut ask = self.shop.ask(FIRST_ID + request, FIRST_ID + buyer, quantity);
        ask.asked_at_ms += i64::try_from(self.steps.len()).unwrap();
        ask
    }

    fn reserve(&mut self, bucket: usize, batch: &[(u64, u64, u32)], shift: i64) {
        let mut batch: Vec<_> = batch.iter().map(|wish| self.ask(*wish)).collect();
        let (mut verdicts, mut intents) = (Vec::new(), Vec::new());
        let (envelope_max, room) = self.room(bucket);
        for ask in &mut batch {
            ask.epoch = Epoch(self.openings[bucket].0.0 + shift);
            ask.bucket = BucketNo(u16::try_from(bucket).unwrap());
            // A book knows no outbox.
            let full = (intents.len() >= room).then(|| self.books[bucket].clone());
            let mut verdict = self.books[bucket].reserve(ask);
            if let (Verdict::Reserved, Some(before)) = (verdict, full) {
                self.books[bucket] = before;
                verdict = Verdict::Full;
            }
            if verdict == Verdict::Reserved {
                self.accepted[bucket].push(Accepted { ask: *ask, holds: true });
                intents.push(ask.intent(&self.shop.sku));
            }
            verdicts.push(verdict);
        }
        self.changes[bucket] += u64::from(!intents.is_empty());
        self.entries[bucket].extend(intents.chunks(envelope_max).map(<[OrderIntent]>::to_vec));
        self.step(bucket, Asked::ReserveBatch(batch, verdicts));
    }

    /// Intents of one entry, and how many more may wait.
    fn room(&self, bucket: usize) -> (usize, usize) {
        match self.shop.outbox {
            OutboxArgs::None => (1, usize::MAX),
            OutboxArgs::List(entries) | OutboxArgs::Stream(entries) => {
                let most = usize::try_from(entries.entries_max).unwrap();
                let free = most - self.entries[bucket].len();
                (entries.envelope_max, free * entries.envelope_max)
            }
        }
    }

    fn picked(&self, bucket: usize, picks: &[Index]) -> Vec<Reservation> {
        let accepted = &self.accepted[bucket];
        let picks = picks.iter().filter(|_| !accepted.is_empty());
        picks.map(|pick| pick.get(accepted).ask).collect()
    }

    fn settle(&mut self, bucket: usize, orders: Vec<Order>) {
        let book = &mut self.books[bucket];
        self.changes[bucket] += u64::from(orders.iter().any(|order| !book.knows(order.request)));
        let news = orders.iter().map(|order| book.settle(order)).collect();
        self.step(bucket, Asked::Settle(orders, news));
    }

    /// An order that was never reserved here, as far as the ledger would have placed it.
    fn adopt(&mut self, bucket: usize, buyer: u64, quantity: u32, state: OrderState) {
        let mut ask = self.ask((buyer, 500 + self.num_adopted, quantity));
        ask.bucket = BucketNo(u16::try_from(bucket).unwrap());
        let held = self.buyers(bucket).get(&ask.buyer.get()).copied().unwrap_or(0);
        let fits = match self.shop.sku.policy {
            Policy::OnePerBuyer { .. } => !self.books[bucket].knows(ask.request),
            Policy::Quota { limit, .. } => held + u64::from(quantity) <= limit.into(),
            Policy::Unlimited { .. } => true,
        };
        if fits {
            self.num_adopted += 1;
            self.accepted[bucket].push(Accepted { ask, holds: state.is_live() });
            self.settle(bucket, vec![Order { state, ..self.shop.order(&ask) }]);
        }
    }

    fn release(&mut self, bucket: usize, picks: &[Index], reason: Refusal) {
        let mut news = Vec::new();
        let asks = self.picked(bucket, picks);
        for ask in &asks {
            let book = &mut self.books[bucket];
            let standing = book.standing(ask.request, None).map(|(.., standing)| standing);
            news.push(standing == Some(RequestStatus::Queued));
            book.release(ask.request, reason);
        }
        self.changes[bucket] += u64::from(news.contains(&true));
        let refused = asks.iter().map(|ask| refused(ask, reason)).collect();
        self.step(bucket, Asked::Release(refused, news));
    }

    fn lend(&mut self, from: usize, want: u32) {
        let to = BucketNo(u16::try_from(1 - from).unwrap());
        let loan = self.books[from].lend(to, want);
        self.loans.extend(loan.map(|loan| (from, loan)));
        self.step(from, Asked::Lend(want, loan));
    }

    /// Adds a loan of any time to its borrower, and lets the lender forget it.
    fn borrow(&mut self, pick: Index, clears: bool) {
        if self.loans.is_empty() {
            return;
        }
        let (from, loan) = *pick.get(&self.loans);
        let (lender, to) = (BucketNo(u16::try_from(from).unwrap()), 1 - from);
        let added = self.books[to].borrow(lender, loan);
        self.step(to, Asked::Borrow(loan, added));
        if clears {
            self.books[from].clear_loan(BucketNo(u16::try_from(to).unwrap()), loan.no);
            self.step(from, Asked::ClearLoan(loan));
        }
    }

    fn turn(&mut self, bucket: usize, phase: Phase, shift: i64) {
        let current = self.openings[bucket];
        let pair = (Epoch(current.0.0 + shift), phase);
        self.books[bucket].turn(phase, pair.0);
        self.openings[bucket] = current.max(pair);
        self.step(bucket, Asked::SetPhase(phase, pair.0, pair >= current));
    }

    /// The opening and phase that a bucket is at.
    pub fn opening(&self, bucket: usize) -> (Epoch, Phase) {
        self.openings[bucket]
    }

    /// What became an order or is to become one, in the order of acceptance.
    pub fn live(&self, bucket: usize) -> impl Iterator<Item = (RequestId, BuyerId, u32)> + '_ {
        let book = &self.books[bucket];
        let is_live = move |accepted: &&Accepted| {
            let standing = book.standing(accepted.ask.request, None);
            accepted.holds && !matches!(standing, Some((.., RequestStatus::Failed(_))))
        };
        self.accepted[bucket]
            .iter()
            .filter(is_live)
            .map(|accepted| (accepted.ask.request, accepted.ask.buyer, accepted.ask.quantity))
    }

    /// The buyers' rows as the policy has them.
    pub fn buyers(&self, bucket: usize) -> BTreeMap<u64, u64> {
        let mut rows = BTreeMap::new();
        for (_, buyer, quantity) in self.live(bucket) {
            match self.shop.sku.policy {
                Policy::Quota { .. } => {
                    *rows.entry(buyer.get()).or_insert(0) += u64::from(quantity);
                }
                Policy::OnePerBuyer { .. } | Policy::Unlimited { .. } => {}
            }
        }
        rows
    }
}
