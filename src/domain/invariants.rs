//! The invariants and their pure checks.
//!
//! Tests, `floodgate audit`, metrics and documents use the ids of this catalogue. The [`Checker`]
//! reads the orders of one SKU as a stream, sorted by buyer and slot (the ledger's primary key), so
//! that its memory does not grow with the number of orders.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

pub use super::bucket_facts::{BucketFacts, BucketView};
use super::ids::{BuyerId, SkuNo};
use super::order::Order;
pub use super::order_checks::SkuFacts;
use super::policy::Policy;
use super::repair::AuditVerdict::{Drift, Leak, OverSell};
use super::repair::RepairAction::{LoadBuckets, Record, Recount};
pub use super::violation::Violation;

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
    /// Without unsettled requests, the buckets' free units, and those that ended orders will
    /// give back, equal the ledger's available units.
    StockConserved,
    /// A final status never changes; a success has an order.
    StatusMonotone,
    /// Units are given back exactly once, and never after an unknown outcome.
    CompensatedOnce,
    /// Every accepted request is settled within 30 s after the last fault ends.
    Drains,
    /// A request is accepted only inside the sale's window, and while the sale is open under the
    /// request's opening.
    Fenced,
    /// Quantity, amount and slot of an order are those of its SKU's terms.
    TermsHeld,
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

/// Maximum number of violations kept with their detail; further ones are only counted.
pub const DETAILS_MAX: usize = 100;

/// Checks the invariants over a stream of rows, one SKU after the other.
#[derive(Debug, Default)]
pub struct Checker {
    violations: Vec<Violation>,
    without_details: BTreeMap<InvariantId, u64>,
    num_orders: u64,
    sku: Option<SkuTotals>,
}

#[derive(Debug)]
struct SkuTotals {
    facts: SkuFacts,
    live_units: i64,
    ended_units: u64,
    /// Units of ended orders that their buckets have not given back yet.
    returning_units: u64,
    /// Buyers with orders that count for their limit, as the buckets know them.
    num_counted_buyers: u64,
    num_bucket_ordered: u64,
    buyer: Option<(BuyerId, BuyerTotals)>,
}

#[derive(Debug, Default)]
struct BuyerTotals {
    last_slot: Option<i64>,
    /// Orders that count for the limit.
    counted_orders: u64,
    counted_units: u64,
    /// The largest limit among the epochs of these orders: a smaller one later takes none away.
    limit: Option<u32>,
    /// Whether its bucket counts an order of the buyer.
    is_counted: bool,
}

impl Checker {
    pub fn report(&mut self, violation: Violation) {
        if self.violations.len() < DETAILS_MAX {
            self.violations.push(violation);
        } else {
            self.count(violation.invariant, 1);
        }
    }

    fn count(&mut self, invariant: InvariantId, num: u64) {
        *self.without_details.entry(invariant).or_default() += num;
    }

    /// Begins the rows of one SKU.
    pub fn begin(&mut self, facts: SkuFacts) {
        if facts.available < 0 {
            let detail = format!("sku {}: {} units left", facts.sku, facts.available);
            let violation = Violation::new(InvariantId::NoOversell, Drift, Recount, detail);
            self.report(violation.of_sku(facts.sku).by(facts.available));
        }
        self.sku = Some(SkuTotals {
            facts,
            live_units: 0,
            ended_units: 0,
            returning_units: 0,
            num_counted_buyers: 0,
            num_bucket_ordered: 0,
            buyer: None,
        });
    }

    /// Checks the next order of the SKU, sorted by buyer and slot, against the status in its bucket
    /// (`None`: the buckets were not read).
    pub fn order(&mut self, order: &Order, bucket: Option<BucketView>) {
        let Some(mut sku) = self.sku.take() else { return };
        self.num_orders += 1;
        if sku.buyer.as_ref().is_some_and(|(id, _)| *id != order.buyer) {
            self.end_buyer(&mut sku);
        }
        let (_, buyer) = sku.buyer.get_or_insert((order.buyer, BuyerTotals::default()));
        if buyer.last_slot == Some(order.slot) {
            let detail =
                format!("sku {} buyer {}: slot {} twice", order.sku, order.buyer, order.slot);
            let violation = Violation::new(InvariantId::LimitHeld, OverSell, Record, detail);
            let violation = violation.of_sku(order.sku).of_buyer(order.buyer);
            self.report(violation.of_request(order.request));
        }
        buyer.last_slot = Some(order.slot);
        let units = u64::from(order.quantity);
        let is_live_there = bucket == Some(BucketView::Ordered { is_live: true });
        let is_returning = !order.state.is_live() && is_live_there;
        buyer.is_counted |= order.counts_for_limit || is_returning;
        if order.counts_for_limit {
            buyer.counted_orders += 1;
            buyer.counted_units += units;
            let terms = sku.facts.history.terms_in(order.epoch);
            let limit = terms.map_or(sku.facts.policy.quota(), |terms| terms.limit);
            buyer.limit = buyer.limit.max(limit);
        }
        if order.state.is_live() {
            sku.live_units += i64::from(order.quantity);
        } else {
            sku.ended_units += units;
            sku.returning_units += if is_returning { units } else { 0 };
        }
        self.check_row(&sku.facts, order);
        self.check_bucket(&mut sku, order, bucket);
        self.sku = Some(sku);
    }

    /// Checks the columns of one row.
    fn check_row(&mut self, facts: &SkuFacts, order: &Order) {
        for (invariant, fault) in [
            (InvariantId::Fenced, facts.time_fault(order)),
            (InvariantId::TermsHeld, facts.terms_fault(order)),
        ] {
            if let Some(fault) = fault {
                let detail = format!("request {}: {fault}", order.request);
                let violation = Violation::new(invariant, OverSell, Record, detail);
                self.report(violation.of_sku(order.sku).of_request(order.request));
            }
        }
    }

    fn check_bucket(&mut self, sku: &mut SkuTotals, order: &Order, bucket: Option<BucketView>) {
        let (invariant, what) = match bucket {
            None | Some(BucketView::Queued) => return,
            Some(BucketView::Ordered { .. }) => {
                sku.num_bucket_ordered += 1;
                return;
            }
            Some(BucketView::Failed) => {
                (InvariantId::StatusMonotone, "an order that its bucket reports as failed")
            }
            Some(BucketView::Unknown) => {
                (InvariantId::StockConserved, "an order without a record in its bucket")
            }
        };
        let detail = format!("request {}: {what}", order.request);
        let violation = Violation::new(invariant, Drift, LoadBuckets, detail);
        self.report(violation.of_sku(order.sku).of_request(order.request));
    }

    /// Ends the rows of the SKU and compares the sums, also with those of the buckets if given.
    /// `now_ms` is the time of the read, epoch milliseconds.
    pub fn end(&mut self, buckets: Option<BucketFacts>, now_ms: i64) {
        let Some(mut sku) = self.sku.take() else { return };
        self.end_buyer(&mut sku);
        let name = sku.facts.sku;
        let initial = i64::from(sku.facts.initial);
        let (available, live) = (sku.facts.available, sku.live_units);
        let detail = format!("sku {name}: {available} left + {live} live != {initial} initial");
        if live > initial {
            let violation =
                Violation::new(InvariantId::NoOversell, OverSell, Record, detail.clone());
            self.report(violation.of_sku(name).by(live - initial));
        }
        if available != (initial - live).max(0) {
            let violation = Violation::new(InvariantId::NoOversell, Drift, Recount, detail);
            self.report(violation.of_sku(name).by(available + live));
        }
        if let Some(buckets) = buckets {
            self.check_buckets(&sku, buckets, now_ms);
        }
    }

    fn end_buyer(&mut self, sku: &mut SkuTotals) {
        let Some((id, buyer)) = sku.buyer.take() else { return };
        sku.num_counted_buyers += u64::from(buyer.is_counted);
        let over = match sku.facts.policy {
            Policy::OnePerBuyer { .. } => buyer.counted_orders > 1,
            Policy::Quota { .. } => {
                buyer.limit.is_some_and(|limit| buyer.counted_units > limit.into())
            }
            Policy::Unlimited { .. } => false,
        };
        if over {
            let detail = format!(
                "sku {} buyer {id}: {} orders, {} units",
                sku.facts.sku, buyer.counted_orders, buyer.counted_units
            );
            let violation = Violation::new(InvariantId::LimitHeld, OverSell, Record, detail);
            let violation = violation.of_sku(sku.facts.sku).of_buyer(id);
            self.report(violation.by(buyer.counted_units));
        }
    }

    fn check_buckets(&mut self, sku: &SkuTotals, buckets: BucketFacts, now_ms: i64) {
        let name = sku.facts.sku;
        if buckets.num_ordered > sku.num_bucket_ordered {
            let detail = format!(
                "sku {name}: buckets report {} orders, the ledger has {} of them",
                buckets.num_ordered, sku.num_bucket_ordered
            );
            let missing = buckets.num_ordered - sku.num_bucket_ordered;
            // Each missing order was accepted and confirmed, but is not stored.
            for invariant in [InvariantId::StatusMonotone, InvariantId::NothingLost] {
                let violation = Violation::new(invariant, Drift, Record, detail.clone());
                self.report(violation.of_sku(name).by(missing));
            }
        }
        if buckets.oldest_unsettled_ms.is_some_and(|oldest| now_ms - oldest > DRAIN_LIMIT_MS) {
            let detail = format!("sku {name}: {} unsettled for over 30 s", buckets.num_unsettled);
            self.report(Violation::new(InvariantId::Drains, Leak, None, detail).of_sku(name));
        }
        if buckets.num_unsettled > 0 {
            return; // The sums below agree only without unsettled requests.
        }
        let (released, recorded) = (buckets.released_units, sku.facts.given_back_units);
        self.compare(InvariantId::CompensatedOnce, name, released, recorded, || {
            format!("buckets gave back {released} units, the ledger's failures say {recorded}")
        });
        let (returning, ended) = (sku.returning_units, sku.ended_units);
        let returned = buckets.returned_units + returning;
        self.compare(InvariantId::CompensatedOnce, name, returned, ended, || {
            format!(
                "of {ended} units of ended orders, buckets gave back {} and have to give back \
                 {returning}",
                buckets.returned_units
            )
        });
        if !buckets.counts_units {
            return;
        }
        // Units of a change of the stock may be on their way to the buckets.
        if buckets.change_no == sku.facts.history.change_no {
            let left = i64::try_from(buckets.left + returning).unwrap_or(i64::MAX);
            let available = sku.facts.available;
            self.compare(InvariantId::StockConserved, name, left, available, || {
                format!("buckets hold {left} units, the ledger {available}")
            });
        }
        if let Some(stored) = buckets.num_buyers {
            let counted = sku.num_counted_buyers;
            self.compare(InvariantId::StockConserved, name, stored, counted, || {
                format!("buckets have {stored} buyers, the ledger {counted}")
            });
        }
    }

    /// Reports sums of buckets and ledger that differ.
    fn compare(
        &mut self,
        invariant: InvariantId,
        sku: SkuNo,
        buckets: impl Into<i128>,
        ledger: impl Into<i128>,
        detail: impl Fn() -> String,
    ) {
        let difference = buckets.into() - ledger.into();
        if difference != 0 {
            let detail = format!("sku {sku}: {}", detail());
            let violation = Violation::new(invariant, Drift, LoadBuckets, detail);
            self.report(violation.of_sku(sku).by(difference));
        }
    }

    /// Adds the violations and counts of another checker.
    pub fn absorb(&mut self, other: Self) {
        self.num_orders += other.num_orders;
        other.violations.into_iter().for_each(|violation| self.report(violation));
        other.without_details.into_iter().for_each(|(invariant, num)| self.count(invariant, num));
    }

    pub fn num_orders(&self) -> u64 {
        self.num_orders
    }

    /// Whether a violation is of this SKU; one without details may be of any.
    pub fn may_concern(&self, sku: SkuNo) -> bool {
        let is_of_sku = |violation: &Violation| violation.subject.sku == Some(sku);
        !self.without_details.is_empty() || self.violations.iter().any(is_of_sku)
    }

    pub fn num_violations(&self) -> u64 {
        self.violations.len() as u64 + self.without_details.values().sum::<u64>()
    }

    /// The violations of one invariant.
    pub fn num_of(&self, invariant: InvariantId) -> u64 {
        let detailed = self.violations.iter().filter(|one| one.invariant == invariant).count();
        detailed as u64 + self.without_details.get(&invariant).copied().unwrap_or_default()
    }

    /// Keeps the violations that a second read found, too, and those of the second read that this
    /// one may have without details. Returns how many it drops.
    pub fn confirm(&mut self, second: &Self) -> u64 {
        let num_before = self.num_violations();
        let others = std::mem::take(&mut self.without_details);
        let is_new = |two: &&Violation| !self.violations.iter().any(|one| one.is_same(two));
        let new: Vec<Violation> = second.violations.iter().filter(is_new).cloned().collect();
        self.violations.retain(|one| second.violations.iter().any(|two| one.is_same(two)));
        // Not repaired: only the next audit can tell that they last.
        for violation in new.into_iter().filter(|new| others.contains_key(&new.invariant)) {
            self.report(Violation { action: None, ..violation });
        }
        for (invariant, num) in others {
            let num_again = second.without_details.get(&invariant).copied().unwrap_or_default();
            self.count(invariant, num.min(num_again));
        }
        self.without_details.retain(|_, num| *num > 0);
        num_before.saturating_sub(self.num_violations())
    }

    /// The first [`DETAILS_MAX`] violations.
    pub fn finish(self) -> Vec<Violation> {
        self.violations
    }
}
