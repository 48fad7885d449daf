//! The life of orders in plain steps, without the tables of the product.

use std::collections::BTreeSet;

use floodgate::domain::{Money, OrderState, PaymentReport, Policy};

use super::play::Step;

pub const START_MS: i64 = 1_800_000_000_000;
pub const WINDOW_MS: i64 = 900_000;
pub const PAYING_MS: i64 = 300_000;
pub const EXTENSION_MS: i64 = 400_000;
pub const STOCK: u32 = 8;

/// A report of a payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Closed,
    Succeeded,
    Partly,
    Refunded,
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub policy: Policy,
    pub returns: Vec<OrderState>,
    pub ends_max: u16,
    pub bar_lapsed: bool,
    /// Attempts whose payments receive one unit of money too little, by order and number.
    pub short: Vec<(usize, u16)>,
    pub steps: Vec<Step>,
}

/// What became of an attempt and its money.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptState {
    Open,
    Closed,
    Kept,
    /// Waits for a purchase.
    Late,
    Owed,
    Returned,
    /// Has paid this order, as this attempt of it.
    Moved(usize, usize),
}

#[derive(Debug, Clone)]
pub struct ModelAttempt {
    pub state: AttemptState,
    pub received: i64,
    pub refunded: i64,
}

#[derive(Debug, Clone)]
pub struct ModelOrder {
    pub buyer: u64,
    pub quantity: u32,
    pub state: OrderState,
    pub pay_by: i64,
    pub due: i64,
    pub changes: u16,
    pub counts: bool,
    pub attempts: Vec<ModelAttempt>,
}

/// The orders of one SKU.
pub struct Model<'a> {
    pub plan: &'a Plan,
    pub now: i64,
    pub orders: Vec<ModelOrder>,
    pub barred: BTreeSet<u64>,
}

impl Model<'_> {
    pub fn free(&self) -> u32 {
        let live = self.orders.iter().filter(|order| !ended(order.state));
        STOCK - live.map(|order| order.quantity).sum::<u32>()
    }

    pub fn sells(&self, buyer: u64, quantity: u32) -> bool {
        self.has(buyer, quantity) && !self.barred.contains(&buyer)
    }

    /// Whether there are units for a buyer, barred or not: late money buys them again.
    pub fn has(&self, buyer: u64, quantity: u32) -> bool {
        let counted = self.orders.iter().filter(|order| order.counts && order.buyer == buyer);
        let counted: Vec<u32> = counted.map(|order| order.quantity).collect();
        let is_within = match self.plan.policy {
            Policy::OnePerBuyer { .. } => counted.is_empty(),
            Policy::Quota { limit, .. } => counted.iter().sum::<u32>() + quantity <= limit,
            Policy::Unlimited { .. } => true,
        };
        is_within && quantity <= self.free()
    }

    pub fn buy(&mut self, buyer: u64, quantity: u32) {
        let due = self.now + WINDOW_MS;
        self.orders.push(ModelOrder {
            buyer,
            quantity,
            state: OrderState::PendingPayment,
            pay_by: due,
            due,
            changes: 0,
            counts: true,
            attempts: Vec::new(),
        });
    }

    fn end(&mut self, at: usize, state: OrderState) {
        let buyer = self.orders[at].buyer;
        let before = self.orders.iter().filter(|it| it.buyer == buyer && ended(it.state)).count();
        let bars = state == OrderState::TimedOut && self.plan.bar_lapsed;
        if bars {
            self.barred.insert(buyer);
        }
        let returns = self.plan.returns.contains(&state);
        let order = &mut self.orders[at];
        order.state = state;
        order.changes += 1;
        if returns && before < usize::from(self.plan.ends_max) {
            order.counts = false;
        }
    }

    /// Whether the order can be paid now.
    pub fn open(&mut self, at: usize) -> bool {
        let now = self.now;
        let order = &mut self.orders[at];
        match order.state {
            OrderState::Paying => true,
            OrderState::PendingPayment if now < order.due => {
                let extended = (now + PAYING_MS).min(order.pay_by + EXTENSION_MS);
                if order.attempts.is_empty() && extended > order.pay_by {
                    order.due = extended;
                }
                order.state = OrderState::Paying;
                order.changes += 1;
                let state = AttemptState::Open;
                order.attempts.push(ModelAttempt { state, received: 0, refunded: 0 });
                true
            }
            _ => false,
        }
    }

    /// The order and the number of the attempt that a payment was made for, before late money moved
    /// it to this attempt: the provider names these in every report. Another payment under this
    /// attempt would be a second charge.
    pub fn first_of(&self, at: usize, attempt: u16) -> (usize, u16) {
        let moved = AttemptState::Moved(at, usize::from(attempt) - 1);
        let mut orders = self.orders.iter().enumerate();
        let before = orders.find_map(|(order, it)| {
            let number = it.attempts.iter().position(|attempt| attempt.state == moved)?;
            Some((order, u16::try_from(number + 1).unwrap()))
        });
        before.map_or((at, attempt), |(order, number)| self.first_of(order, number))
    }

    pub fn report(&mut self, at: usize, attempt: usize, kind: Kind, amount: i64) {
        if let AttemptState::Moved(at, attempt) = self.orders[at].attempts[attempt].state {
            return self.report(at, attempt, kind, amount);
        }
        let is_right = amount == price(self.orders[at].quantity);
        let order = &mut self.orders[at];
        let unpaid = matches!(order.state, OrderState::PendingPayment | OrderState::Paying);
        let paying = &mut order.attempts[attempt];
        if kind == Kind::Closed {
            if paying.state == AttemptState::Open {
                paying.state = AttemptState::Closed;
                if order.state == OrderState::Paying {
                    order.state = OrderState::PendingPayment;
                    order.due = order.pay_by;
                    order.changes += 1;
                }
            }
            return;
        }
        let was_open = paying.state == AttemptState::Open;
        let is_news = paying.received == 0;
        paying.received = amount;
        match kind {
            Kind::Partly => paying.refunded = paying.refunded.max(amount / 2),
            Kind::Refunded => paying.refunded = amount,
            Kind::Closed | Kind::Succeeded => {}
        }
        let is_kept = if is_news { is_right && unpaid } else { paying.state == AttemptState::Kept };
        let is_back = paying.refunded == amount;
        let was_back = paying.state == AttemptState::Returned;
        paying.state = match (is_back, is_kept) {
            (true, _) => AttemptState::Returned,
            (false, true) => AttemptState::Kept,
            (false, false) if is_news && is_right && order.state == OrderState::TimedOut => {
                AttemptState::Late
            }
            (false, false) if is_news => AttemptState::Owed,
            (false, false) => paying.state,
        };
        if is_news && paying.state == AttemptState::Owed && ended(order.state) {
            order.changes += 1;
        }
        if is_kept && is_back && !was_back {
            self.end(at, OrderState::Refunded);
        } else if is_kept && is_news {
            order.state = OrderState::Paid;
            order.changes += 1;
        } else if was_open && order.state == OrderState::Paying {
            order.state = OrderState::PendingPayment;
            order.due = order.pay_by;
            order.changes += 1;
        }
    }

    /// The money of this attempt is to be paid back after all.
    pub fn owe(&mut self, at: usize, attempt: usize) {
        let order = &mut self.orders[at];
        order.attempts[attempt].state = AttemptState::Owed;
        order.changes += 1;
    }

    /// The money of this attempt pays the last order.
    pub fn move_to_last(&mut self, at: usize, attempt: usize) {
        let last = self.orders.len() - 1;
        let moved = &mut self.orders[at].attempts[attempt];
        let paid = ModelAttempt { state: AttemptState::Kept, ..moved.clone() };
        moved.state = AttemptState::Moved(last, 0);
        let successor = &mut self.orders[last];
        successor.state = OrderState::Paid;
        successor.changes += 1;
        successor.attempts.push(paid);
    }

    pub fn cancel(&mut self, at: usize) {
        if self.orders[at].state == OrderState::PendingPayment {
            self.end(at, OrderState::Cancelled);
        }
    }

    pub fn pass(&mut self, ms: i64) {
        self.now += ms;
        for at in 0..self.orders.len() {
            let order = &self.orders[at];
            let last = match order.state {
                OrderState::PendingPayment => order.due,
                OrderState::Paying => order.due.max(order.pay_by + EXTENSION_MS),
                _ => continue,
            };
            if last <= self.now {
                self.end(at, OrderState::TimedOut);
            }
        }
    }
}

pub fn ended(state: OrderState) -> bool {
    matches!(state, OrderState::TimedOut | OrderState::Cancelled | OrderState::Refunded)
}

pub fn price(quantity: u32) -> i64 {
    250 * i64::from(quantity)
}

pub fn said(kind: Kind, amount: i64) -> PaymentReport {
    let received = Money { amount, currency: "CNY".parse().unwrap() };
    match kind {
        Kind::Closed => PaymentReport::Closed,
        Kind::Succeeded => PaymentReport::Succeeded(received),
        Kind::Partly => PaymentReport::Refunded { received, total: amount / 2 },
        Kind::Refunded => PaymentReport::Refunded { received, total: amount },
    }
}
