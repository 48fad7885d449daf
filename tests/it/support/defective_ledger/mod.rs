//! An in-memory ledger with a selectable defect: each defect breaks one promise of [`Ledger`], so
//! that a test can show that the checker finds it. It shares no code with the other ledgers.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use floodgate::db::{
    AuditRow, Error, Ledger, LedgerSize, OrderCursor, OrderReader, OrderWriter, Visitor,
};
use floodgate::domain::book::gives_back;
use floodgate::domain::invariants::{SkuFacts, Violation};
use floodgate::domain::{
    BuyerId, Epoch, Examination, Failure, Order, OrderIntent, OrderKey, OrderTimeline, Payment,
    PhaseChange, PhaseHistory, Refusal, Repair, RequestId, Sale, Sku, SkuNo, TraceId,
};
use floodgate::runtime::clock::{SharedClock, wall_ms};
use parking_lot::Mutex;

use super::dead_letters::MemoryDeadLetters;

mod sales;

/// The promise of [`Ledger`] to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerDefect {
    /// No defect.
    None,
    /// Sells more units than the stock.
    IgnoresStock,
    /// Writes a second order for the same request.
    IgnoresRequests,
    /// Writes a second order for the same buyer.
    IgnoresLimit,
    /// Confirms orders without writing them.
    ForgetsOrders,
    /// Records a failure next to the order.
    RecordsBoth,
    /// Takes units from the stock without an order.
    LosesStock,
    /// Refuses accepted requests without recording the failure.
    RefusesSilently,
    /// Writes orders with the epoch of a past opening.
    StampsOldEpoch,
    /// Writes orders with another amount.
    ChangesAmounts,
    /// `place` never returns.
    Hangs,
    /// `place` never returns; dead letters are confirmed and not stored.
    ForgetsDeadLetters,
}

#[derive(Debug, Default)]
pub(super) struct Rows {
    sales: Vec<Sale>,
    phases: Vec<(i32, PhaseChange)>,
    available: HashMap<SkuNo, i64>,
    orders: Vec<Order>,
    failures: Vec<Failure>,
    pub(super) repairs: Vec<Repair>,
    pub(super) dead_letters: MemoryDeadLetters,
}

/// See the module.
#[derive(Debug)]
pub struct DefectiveLedger {
    pub(super) defect: LedgerDefect,
    pub(super) rows: Mutex<Rows>,
    tokens: AtomicI64,
    /// Replaces the wall clock.
    clock: OnceLock<SharedClock>,
    /// A batch with this request cannot be examined.
    unreadable: OnceLock<RequestId>,
}

impl DefectiveLedger {
    pub fn new(defect: LedgerDefect) -> Self {
        Self {
            defect,
            rows: Mutex::default(),
            tokens: AtomicI64::new(0),
            clock: OnceLock::new(),
            unreadable: OnceLock::new(),
        }
    }

    /// The order of this request cannot be read from now on.
    pub fn damage(&self, request: RequestId) {
        self.unreadable.set(request).unwrap();
    }

    /// Has units of a SKU, without its sale.
    pub fn put_units(&self, sku: SkuNo, units: u32) {
        self.rows.lock().available.insert(sku, units.into());
    }

    /// The ledger's time is that of this clock from now on.
    pub fn follow(&self, clock: SharedClock) {
        let _follows_another = self.clock.set(clock);
    }
}

impl Rows {
    fn sku(&self, no: SkuNo) -> Option<(&Sale, &Arc<Sku>)> {
        self.sales.iter().find_map(|sale| Some((sale, sale.skus.iter().find(|s| s.no == no)?)))
    }

    fn examine(&self, batch: &[OrderIntent], defect: LedgerDefect) -> Examination {
        let mut examination = Examination::default();
        for intent in batch {
            for order in &self.orders {
                if order.request == intent.request && defect != LedgerDefect::IgnoresRequests {
                    examination.orders.insert(order.request, *order);
                }
                let same = order.sku == intent.sku && order.buyer == intent.buyer;
                if same && order.slot == 0 && defect != LedgerDefect::IgnoresLimit {
                    examination.first_requests.insert((order.sku, order.buyer), order.request);
                }
            }
            for failure in self.failures.iter().filter(|f| f.request == intent.request) {
                examination.failures.insert(failure.request, failure.reason);
            }
            let key = (intent.sku, intent.buyer);
            if defect == LedgerDefect::RefusesSilently {
                examination.first_requests.insert(key, RequestId::new(1).unwrap());
            }
            let owned = self.orders.iter().filter(|o| (o.sku, o.buyer) == key);
            examination.owned.insert(
                key,
                match defect {
                    LedgerDefect::IgnoresLimit => 0,
                    _ => owned.map(|o| o.quantity).sum(),
                },
            );
            let left = match defect {
                LedgerDefect::IgnoresStock => u32::MAX,
                _ => u32::try_from(self.available.get(&intent.sku).copied().unwrap_or(0)).unwrap(),
            };
            examination.available.insert(intent.sku, left);
        }
        examination
    }

    fn write(&mut self, batch: &[OrderIntent], defect: LedgerDefect) {
        for intent in batch {
            let mut order = intent.order(intent.placed_at_ms);
            if defect == LedgerDefect::StampsOldEpoch {
                order.epoch = Epoch(order.epoch.0 - 1);
            }
            order.amount += i64::from(defect == LedgerDefect::ChangesAmounts);
            *self.available.get_mut(&intent.sku).unwrap() -= i64::from(intent.quantity);
            match defect {
                LedgerDefect::ForgetsOrders => continue,
                LedgerDefect::LosesStock => *self.available.get_mut(&intent.sku).unwrap() -= 1,
                LedgerDefect::RecordsBoth => self.failures.push(Failure {
                    request: intent.request,
                    sku: intent.sku,
                    buyer: intent.buyer,
                    quantity: intent.quantity,
                    reason: Refusal::SoldOut,
                    recorded_at_ms: intent.placed_at_ms,
                }),
                LedgerDefect::IgnoresRequests => self.orders.push(order),
                _ => {}
            }
            self.orders.push(order);
        }
    }

    fn orders_of_sku(&self, no: SkuNo) -> Vec<Order> {
        self.orders.iter().filter(|order| order.sku == no).copied().collect()
    }

    fn facts(&self, no: SkuNo) -> SkuFacts {
        let (sale, sku) = self.sku(no).unwrap();
        let given_back = self.failures.iter().filter(|f| f.sku == no && gives_back(&f.reason));
        let of_sale = self.phases.iter().filter(|(no, _)| *no == sale.no);
        SkuFacts {
            sku: no,
            initial: sku.initial,
            available: self.available[&no],
            policy: sku.policy,
            history: sku.history.clone(),
            price: sku.price,
            starts_at_ms: sale.starts_at_ms,
            ends_at_ms: sale.ends_at_ms,
            phases: PhaseHistory::new(of_sale.map(|(_, change)| *change).collect()),
            given_back_units: given_back.map(|f| u64::from(f.quantity)).sum(),
        }
    }
}

#[async_trait]
impl OrderWriter for DefectiveLedger {
    async fn place(&self, batch: Vec<OrderIntent>) -> Result<Option<i64>, Error> {
        if matches!(self.defect, LedgerDefect::Hangs | LedgerDefect::ForgetsDeadLetters) {
            std::future::pending::<()>().await;
        }
        let mut rows = self.rows.lock();
        let mut examination = rows.examine(&batch, self.defect);
        if batch.iter().any(|intent| examination.admit(intent).is_some()) {
            return Ok(None);
        }
        rows.write(&batch, self.defect);
        Ok(Some(batch.first().map_or(0, |intent| intent.placed_at_ms)))
    }

    async fn examine(&self, batch: Vec<OrderIntent>) -> Result<Examination, Error> {
        if batch.iter().any(|intent| self.unreadable.get() == Some(&intent.request)) {
            return Err(Error::Unreadable { what: "an order, on purpose".to_owned() });
        }
        Ok(self.rows.lock().examine(&batch, self.defect))
    }

    async fn record_failures(
        &self,
        failures: Vec<Failure>,
    ) -> Result<HashMap<RequestId, Refusal>, Error> {
        let of = |failure: &Failure| (failure.request, failure.reason);
        if self.defect == LedgerDefect::RefusesSilently {
            return Ok(failures.iter().map(of).collect());
        }
        let mut rows = self.rows.lock();
        let mut recorded = HashMap::new();
        for failure in failures {
            if rows.orders.iter().any(|order| order.request == failure.request) {
                continue;
            }
            let mut known = rows.failures.iter().filter(|other| other.request == failure.request);
            let earlier = known.next().copied();
            if earlier.is_none() {
                rows.failures.push(failure);
            }
            recorded.extend([of(&earlier.unwrap_or(failure))]);
        }
        Ok(recorded)
    }
}

#[async_trait]
impl OrderReader for DefectiveLedger {
    async fn ledger_size(&self, sku: SkuNo) -> Result<LedgerSize, Error> {
        let rows = self.rows.lock();
        Ok(LedgerSize {
            num_orders: rows.orders_of_sku(sku).len() as u64,
            num_failures: rows.failures.iter().filter(|f| f.sku == sku).count() as u64,
            available: u32::try_from(rows.available[&sku].max(0)).unwrap(),
        })
    }

    async fn scan_orders(&self, sku: SkuNo, mut visit: Visitor<Order>) -> Result<(), Error> {
        let rows = self.rows.lock().orders_of_sku(sku);
        visit_on_thread(move || rows.into_iter().all(&mut visit)).await;
        Ok(())
    }

    async fn scan_failures(&self, sku: SkuNo, mut visit: Visitor<Failure>) -> Result<(), Error> {
        let rows: Vec<_> =
            self.rows.lock().failures.iter().filter(|f| f.sku == sku).copied().collect();
        visit_on_thread(move || rows.into_iter().all(&mut visit)).await;
        Ok(())
    }

    /// As if recorded when it was placed, without a broker.
    async fn order_timeline(&self, request: RequestId) -> Result<Option<OrderTimeline>, Error> {
        let timeline = |order: Order| OrderTimeline {
            order,
            trace: TraceId(0),
            published_at_ms: None,
            recorded_at_ms: order.placed_at_ms,
        };
        Ok(self.rows.lock().orders.iter().find(|o| o.request == request).copied().map(timeline))
    }

    async fn order(&self, key: OrderKey) -> Result<Option<Order>, Error> {
        Ok(self.rows.lock().orders.iter().find(|order| order.key() == key).copied())
    }

    async fn failure(&self, request: RequestId) -> Result<Option<Failure>, Error> {
        Ok(self.rows.lock().failures.iter().find(|f| f.request == request).copied())
    }

    async fn orders_of(
        &self,
        buyer: BuyerId,
        _: Option<OrderCursor>,
        limit: u32,
    ) -> Result<Vec<Order>, Error> {
        let rows = self.rows.lock();
        let own = rows.orders.iter().rev().filter(|o| o.buyer == buyer);
        Ok(own.take(limit as usize).copied().collect())
    }

    async fn barred(&self, _: SkuNo, _: i64) -> Result<Vec<BuyerId>, Error> {
        Ok(Vec::new())
    }

    /// Orders are placed here and never paid.
    async fn payments_of(&self, _: Vec<OrderKey>) -> Result<Vec<Payment>, Error> {
        Ok(Vec::new())
    }

    async fn scan_audit(&self, sku: SkuNo, mut visit: Visitor<AuditRow>) -> Result<(), Error> {
        let (facts, mut orders) = {
            let rows = self.rows.lock();
            (rows.facts(sku), rows.orders_of_sku(sku))
        };
        orders.sort_by_key(|order| (order.buyer, order.slot));
        let facts = [AuditRow::Sku(facts)].into_iter();
        let mut rows = facts.chain(orders.into_iter().map(AuditRow::Order));
        visit_on_thread(move || rows.all(&mut visit)).await;
        Ok(())
    }

    async fn anomalies(&self, sku: SkuNo) -> Result<Vec<Violation>, Error> {
        let rows = self.rows.lock();
        let orders = rows.orders_of_sku(sku).into_iter();
        let requests: HashSet<i64> = orders.map(|order| order.request.to_db()).collect();
        let both = rows.failures.iter().map(|f| f.request.to_db());
        let both = both.filter(|request| requests.contains(request));
        Ok(both.map(|request| Violation::order_and_failure(sku, request)).collect())
    }

    async fn anomalies_across_skus(&self) -> Result<Vec<Violation>, Error> {
        let mut per_request: HashMap<i64, i64> = HashMap::new();
        for order in &self.rows.lock().orders {
            *per_request.entry(order.request.to_db()).or_default() += 1;
        }
        let repeated = per_request.into_iter().filter(|(_, n)| *n > 1);
        Ok(repeated.map(|(request, n)| Violation::duplicate_request(request, n)).collect())
    }
}

#[async_trait]
impl Ledger for DefectiveLedger {
    async fn secret(&self, _: &'static str) -> Result<Vec<u8>, Error> {
        Ok(vec![7; 32])
    }

    async fn next_token(&self, _: &'static str) -> Result<i64, Error> {
        Ok(self.tokens.fetch_add(1, Ordering::Relaxed) + 1)
    }

    async fn commit_canary(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn time_ms(&self) -> Result<i64, Error> {
        Ok(self.clock.get().map_or_else(wall_ms, |clock| clock.wall_ms()))
    }

    async fn ping(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn close(&self) {}
}

/// Visits the rows on another thread, because this thread receives them.
async fn visit_on_thread(visit_rows: impl FnOnce() -> bool + Send + 'static) {
    let visiting = std::thread::spawn(visit_rows);
    while !visiting.is_finished() {
        tokio::task::yield_now().await;
    }
    visiting.join().unwrap();
}
