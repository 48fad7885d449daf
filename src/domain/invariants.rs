//! The invariants and their pure checks.
//!
//! Tests, `floodgate audit`, metrics and documents use the ids of this catalogue. The [`Checker`]
//! reads the orders of one SKU as a stream, sorted by buyer and slot (the ledger's primary key), so
//! that its memory does not grow with the number of orders.

use std::fmt;

use serde::Serialize;

use super::ids::{BuyerId, Epoch, SkuNo};
use super::order::Order;
use super::policy::Policy;

/// The catalogue of invariants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum InvariantId {
    /// Live orders never exceed the initial stock; units left plus live orders are the initial
    /// stock.
    NoOversell,
    /// At most one order has a given request id.
    OneOrderPerRequest,
    /// A buyer has at most one order that counts, or at most the quota of units.
    LimitHeld,
    /// Each accepted request is exactly one of order, recorded failure, dead letter.
    NothingLost,
    /// Without unsettled requests, the gates' free units, and those that ended orders are about to
    /// give back, equal the ledger's available units.
    StockConserved,
    /// A final status never changes; a success has an order.
    StatusMonotone,
    /// Units are given back exactly once, and never after an unknown outcome.
    CompensatedOnce,
    /// Every accepted request is settled within 30 s after the last fault ends.
    Drains,
    /// No request is accepted under an older opening than the sale's.
    Fenced,
    /// Received money is applied to one order, refunded, or due back; a paid order has exactly one
    /// applied payment.
    MoneyAccounted,
}

impl fmt::Display for InvariantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How long an accepted request may stay unsettled before `Drains` is violated, milliseconds.
pub const DRAIN_LIMIT_MS: i64 = 30_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    pub invariant: InvariantId,
    /// The contradiction, with the ids needed to look it up.
    pub detail: String,
}

/// The ledger's row of one SKU.
#[derive(Debug, Clone)]
pub struct SkuFacts {
    pub sku: SkuNo,
    pub initial: u32,
    pub available: i64,
    pub policy: Policy,
    /// The latest opening of the sale.
    pub epoch: Epoch,
    /// When that opening began, epoch milliseconds.
    pub opened_at_ms: i64,
}

/// The sums over the gates of one SKU, read while the gates did not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GateFacts {
    /// Whether the gates count units; otherwise only requests are compared.
    pub counts_units: bool,
    /// Free units, including open loans.
    pub left: u64,
    /// Requests without a result of the ledger.
    pub num_unsettled: u64,
    /// When the oldest of them arrived, epoch milliseconds.
    pub oldest_unsettled_ms: Option<i64>,
    pub num_ordered: u64,
    /// Buyers with units; `None` when the policy does not require the gates to store buyers.
    pub num_buyers: Option<u64>,
    /// Units given back after a refusal.
    pub released_units: u64,
    /// Units given back by orders that ended.
    pub returned_units: u64,
}

/// The sums over the ledger's recorded failures of one SKU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FailureFacts {
    /// Units of the failures whose refusal gives units back.
    pub given_back_units: u64,
}

/// A gate's status of a request that has an order in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateView {
    Ordered {
        /// Whether the order holds its units there: an order that has ended may still do so, until
        /// its bucket reads the change.
        is_live: bool,
    },
    Queued,
    Failed,
    /// The gate has no record of the request.
    Unknown,
}

impl GateView {
    const LIVE: Self = Self::Ordered { is_live: true };
}

/// Maximum number of violations kept with their detail; further ones are only counted.
pub const DETAILS_MAX: usize = 100;

/// Checks the invariants over a stream of rows, one SKU after the other.
#[derive(Debug, Default)]
pub struct Checker {
    violations: Vec<Violation>,
    num_violations: u64,
    num_orders: u64,
    sku: Option<SkuTotals>,
}

#[derive(Debug)]
struct SkuTotals {
    facts: SkuFacts,
    live_units: i64,
    ended_units: u64,
    /// Units of ended orders that their gates have not given back yet.
    returning_units: u64,
    /// Buyers with orders that count for their limit, as the gates know them.
    num_counted_buyers: u64,
    num_gate_ordered: u64,
    buyer: Option<BuyerTotals>,
}

#[derive(Debug)]
struct BuyerTotals {
    id: BuyerId,
    last_slot: i64,
    /// Orders that count for the limit.
    counted_orders: u64,
    counted_units: u64,
    /// Whether its gate counts an order of the buyer.
    is_counted: bool,
}

impl Checker {
    pub fn report(&mut self, invariant: InvariantId, detail: String) {
        self.num_violations += 1;
        if self.violations.len() < DETAILS_MAX {
            self.violations.push(Violation { invariant, detail });
        }
    }

    /// Begins the rows of one SKU.
    pub fn begin(&mut self, facts: SkuFacts) {
        if facts.available < 0 {
            let detail = format!("sku {}: {} units left", facts.sku, facts.available);
            self.report(InvariantId::NoOversell, detail);
        }
        self.sku = Some(SkuTotals {
            facts,
            live_units: 0,
            ended_units: 0,
            returning_units: 0,
            num_counted_buyers: 0,
            num_gate_ordered: 0,
            buyer: None,
        });
    }

    /// Checks the next order of the SKU, sorted by buyer and slot, against the status in its gate
    /// (`None`: the gates were not read).
    pub fn order(&mut self, order: &Order, gate: Option<GateView>) {
        let Some(mut sku) = self.sku.take() else { return };
        self.num_orders += 1;
        if sku.buyer.as_ref().is_none_or(|buyer| buyer.id != order.buyer) {
            self.end_buyer(&mut sku);
            sku.buyer = Some(BuyerTotals {
                id: order.buyer,
                last_slot: i64::MIN,
                counted_orders: 0,
                counted_units: 0,
                is_counted: false,
            });
        }
        if let Some(buyer) = sku.buyer.as_mut() {
            if buyer.last_slot == order.slot {
                let detail =
                    format!("sku {} buyer {}: slot {} twice", order.sku, order.buyer, order.slot);
                self.report(InvariantId::LimitHeld, detail);
            }
            buyer.last_slot = order.slot;
            let units = u64::from(order.quantity);
            let is_returning = !order.state.is_live() && gate == Some(GateView::LIVE);
            buyer.is_counted |= order.counts_for_limit || is_returning;
            if order.counts_for_limit {
                buyer.counted_orders += 1;
                buyer.counted_units += units;
            }
            if order.state.is_live() {
                sku.live_units += i64::from(order.quantity);
            } else {
                sku.ended_units += units;
                sku.returning_units += if is_returning { units } else { 0 };
            }
        }
        self.check_fence(&sku.facts, order);
        self.check_gate(&mut sku, order, gate);
        self.sku = Some(sku);
    }

    fn check_fence(&mut self, facts: &SkuFacts, order: &Order) {
        let stale = order.epoch < facts.epoch && order.placed_at_ms > facts.opened_at_ms;
        if stale || order.epoch > facts.epoch {
            let detail = format!(
                "request {}: accepted under opening {}, the sale is at {}",
                order.request, order.epoch.0, facts.epoch.0
            );
            self.report(InvariantId::Fenced, detail);
        }
    }

    fn check_gate(&mut self, sku: &mut SkuTotals, order: &Order, gate: Option<GateView>) {
        match gate {
            None | Some(GateView::Queued) => {}
            Some(GateView::Ordered { .. }) => sku.num_gate_ordered += 1,
            Some(GateView::Failed) => self.report(
                InvariantId::StatusMonotone,
                format!("request {}: an order that its gate reports as failed", order.request),
            ),
            Some(GateView::Unknown) => self.report(
                InvariantId::StockConserved,
                format!("request {}: an order without a record in its gate", order.request),
            ),
        }
    }

    /// Reports a request id with more than one order.
    pub fn duplicate_request(&mut self, request: i64, num_orders: i64) {
        let detail = format!("request {request}: {num_orders} orders");
        self.report(InvariantId::OneOrderPerRequest, detail);
    }

    /// Reports a SKU without a sale, which therefore was never on offer.
    pub fn unknown_sku(&mut self, sku: SkuNo, num_orders: u64, num_failures: u64) {
        let detail = format!(
            "sku {sku}: no sale has it, and the ledger has {num_orders} orders and {num_failures} \
             recorded failures of it"
        );
        let violated =
            if num_orders > 0 { InvariantId::NoOversell } else { InvariantId::NothingLost };
        self.report(violated, detail);
    }

    /// Reports a request id that is both an order and a failure.
    pub fn order_and_failure(&mut self, request: i64) {
        let detail = format!("request {request}: both an order and a recorded failure");
        self.report(InvariantId::NothingLost, detail);
    }

    /// Reports a quota row that differs from the units of the buyer's orders that count.
    pub fn wrong_quota(&mut self, sku: SkuNo, buyer: i64, owned: i64, counted: i64) {
        let detail =
            format!("sku {sku} buyer {buyer}: quota row says {owned}, orders say {counted}");
        self.report(InvariantId::LimitHeld, detail);
    }

    /// Reports an order whose state and money contradict each other.
    pub fn wrong_money(&mut self, sku: SkuNo, request: i64) {
        let detail = format!("sku {sku} request {request}: the order contradicts its payments");
        self.report(InvariantId::MoneyAccounted, detail);
    }

    /// Ends the rows of the SKU and compares the sums, also with those of the gates if given.
    /// `now_ms` is the time of the read, epoch milliseconds.
    pub fn end(&mut self, gates: Option<GateFacts>, failures: FailureFacts, now_ms: i64) {
        let Some(mut sku) = self.sku.take() else { return };
        self.end_buyer(&mut sku);
        let name = sku.facts.sku;
        let initial = i64::from(sku.facts.initial);
        if sku.live_units > initial || sku.facts.available + sku.live_units != initial {
            let detail = format!(
                "sku {name}: {} left + {} live != {initial} initial",
                sku.facts.available, sku.live_units
            );
            self.report(InvariantId::NoOversell, detail);
        }
        if let Some(gates) = gates {
            self.check_gates(&sku, gates, failures, now_ms);
        }
    }

    fn end_buyer(&mut self, sku: &mut SkuTotals) {
        let Some(buyer) = sku.buyer.take() else { return };
        sku.num_counted_buyers += u64::from(buyer.is_counted);
        let over = match sku.facts.policy {
            Policy::OnePerBuyer { .. } => buyer.counted_orders > 1,
            Policy::Quota { limit, .. } => buyer.counted_units > u64::from(limit),
            Policy::Unlimited { .. } => false,
        };
        if over {
            let detail = format!(
                "sku {} buyer {}: {} orders, {} units",
                sku.facts.sku, buyer.id, buyer.counted_orders, buyer.counted_units
            );
            self.report(InvariantId::LimitHeld, detail);
        }
    }

    fn check_gates(
        &mut self,
        sku: &SkuTotals,
        gates: GateFacts,
        failures: FailureFacts,
        now_ms: i64,
    ) {
        let name = sku.facts.sku;
        if gates.num_ordered > sku.num_gate_ordered {
            let detail = format!(
                "sku {name}: gates report {} orders, the ledger has {} of them",
                gates.num_ordered, sku.num_gate_ordered
            );
            self.report(InvariantId::StatusMonotone, detail.clone());
            // Each missing order was accepted and confirmed, but is not stored.
            self.report(InvariantId::NothingLost, detail);
        }
        if gates.oldest_unsettled_ms.is_some_and(|oldest| now_ms - oldest > DRAIN_LIMIT_MS) {
            let detail = format!("sku {name}: {} unsettled for over 30 s", gates.num_unsettled);
            self.report(InvariantId::Drains, detail);
        }
        if gates.num_unsettled > 0 {
            return; // The sums below agree only without unsettled requests.
        }
        if gates.released_units != failures.given_back_units {
            let detail = format!(
                "sku {name}: gates gave back {} units, the ledger's failures say {}",
                gates.released_units, failures.given_back_units
            );
            self.report(InvariantId::CompensatedOnce, detail);
        }
        let returning = sku.returning_units;
        if gates.returned_units + returning != sku.ended_units {
            let detail = format!(
                "sku {name}: of {} units of ended orders, gates gave back {} and have to give back \
                 {returning}",
                sku.ended_units, gates.returned_units
            );
            self.report(InvariantId::CompensatedOnce, detail);
        }
        let left = i64::try_from(gates.left + returning).unwrap_or(i64::MAX);
        if gates.counts_units && left != sku.facts.available {
            let detail =
                format!("sku {name}: gates hold {left} units, the ledger {}", sku.facts.available);
            self.report(InvariantId::StockConserved, detail);
        }
        let num_buyers = gates.num_buyers.filter(|_| gates.counts_units);
        if let Some(stored) = num_buyers.filter(|stored| *stored != sku.num_counted_buyers) {
            let counted = sku.num_counted_buyers;
            let detail = format!("sku {name}: gates have {stored} buyers, the ledger {counted}");
            self.report(InvariantId::StockConserved, detail);
        }
    }

    /// Adds the violations and counts of another checker.
    pub fn absorb(&mut self, other: Self) {
        self.num_orders += other.num_orders;
        self.num_violations += other.num_violations;
        let max = DETAILS_MAX.saturating_sub(self.violations.len());
        self.violations.extend(other.violations.into_iter().take(max));
    }

    pub fn num_orders(&self) -> u64 {
        self.num_orders
    }

    /// The first [`DETAILS_MAX`] violations, and the number of all.
    pub fn finish(self) -> (Vec<Violation>, u64) {
        (self.violations, self.num_violations)
    }
}
