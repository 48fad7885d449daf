//! A ledger in memory whose guards can be taken out one by one: each lie breaks one promise of
//! [`Ledger`], so that a test can show that the checker sees it. It shares no code with the others.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use floodgate::db::{
    Anomalies, AnomaliesOverAll, AuditRow, BlindInsert, Error, Ledger, LedgerSize, OrderCursor,
    Visitor,
};
use floodgate::domain::book::gives_back;
use floodgate::domain::invariants::{FailureFacts, SkuFacts};
use floodgate::domain::{
    BuyerId, DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterTransition, Epoch, Examination, Failure, KeepOutcome, NewDeadLetter, Order,
    OrderIntent, OrderTimeline, Phase, RequestId, Sale, SaleDraft, SaleId, Sku, SkuNo, TraceId,
};
use parking_lot::Mutex;

use super::letters::MemoryLetters;

/// A guard to take out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// None: every promise is kept.
    Honest,
    /// Sells what is not there.
    IgnoresStock,
    /// Writes a second order for the same request.
    IgnoresRequests,
    /// Writes a second order for the same buyer.
    IgnoresLimit,
    /// Says that it wrote and did not.
    ForgetsOrders,
    /// Records a failure next to the order.
    RecordsBoth,
    /// Takes units from the stock without an order.
    LosesStock,
    /// Refuses after the gate accepted, and does not record it.
    RefusesSilently,
    /// Writes orders under an opening that is over.
    StampsOldEpoch,
    /// Never answers.
    Hangs,
    /// Never answers, and says that it keeps dead letters, which it does not.
    ForgetsLetters,
}

#[derive(Debug, Default)]
struct Rows {
    sales: Vec<Sale>,
    opened_at_ms: HashMap<i32, i64>,
    available: HashMap<SkuNo, i64>,
    orders: Vec<Order>,
    failures: Vec<Failure>,
    letters: MemoryLetters,
}

/// See the module.
#[derive(Debug)]
pub struct LyingLedger {
    lie: Lie,
    rows: Mutex<Rows>,
    tokens: AtomicI64,
}

impl LyingLedger {
    /// A ledger with one guard taken out.
    pub fn new(lie: Lie) -> Self {
        Self { lie, rows: Mutex::default(), tokens: AtomicI64::new(0) }
    }

    fn refuses(&self) -> bool {
        self.lie == Lie::RefusesSilently
    }
}

impl Rows {
    fn sku(&self, no: SkuNo) -> Option<(&Sale, &Sku)> {
        self.sales.iter().find_map(|sale| Some((sale, sale.skus.iter().find(|s| s.no == no)?)))
    }

    fn examine(&self, batch: &[OrderIntent], lie: Lie) -> Examination {
        let mut seen = Examination::default();
        for intent in batch {
            for order in &self.orders {
                if order.request == intent.request && lie != Lie::IgnoresRequests {
                    seen.orders.insert(order.request, *order);
                }
                let same = order.sku == intent.sku && order.buyer == intent.buyer;
                if same && order.slot == 0 && lie != Lie::IgnoresLimit {
                    seen.firsts.insert((order.sku, order.buyer), order.request);
                }
            }
            for failure in self.failures.iter().filter(|f| f.request == intent.request) {
                seen.failures.insert(failure.request, failure.reason);
            }
            let key = (intent.sku, intent.buyer);
            if lie == Lie::RefusesSilently {
                seen.firsts.insert(key, RequestId::new(1).unwrap());
            }
            let owned = self.orders.iter().filter(|o| (o.sku, o.buyer) == key);
            seen.owned.insert(
                key,
                match lie {
                    Lie::IgnoresLimit => 0,
                    _ => owned.map(|o| o.quantity).sum(),
                },
            );
            let left = match lie {
                Lie::IgnoresStock => u32::MAX,
                _ => u32::try_from(self.available.get(&intent.sku).copied().unwrap_or(0)).unwrap(),
            };
            seen.available.insert(intent.sku, left);
        }
        seen
    }

    fn write(&mut self, batch: &[OrderIntent], lie: Lie) {
        for intent in batch {
            let mut order = intent.order();
            if lie == Lie::StampsOldEpoch {
                order.epoch = Epoch(order.epoch.0 - 1);
                order.placed_at_ms = i64::MAX;
            }
            *self.available.get_mut(&intent.sku).unwrap() -= i64::from(intent.quantity);
            match lie {
                Lie::ForgetsOrders => continue,
                Lie::LosesStock => *self.available.get_mut(&intent.sku).unwrap() -= 1,
                Lie::RecordsBoth => self.failures.push(Failure {
                    request: intent.request,
                    sku: intent.sku,
                    buyer: intent.buyer,
                    quantity: intent.quantity,
                    reason: floodgate::domain::Refusal::SoldOut,
                    recorded_at_ms: intent.placed_at_ms,
                }),
                Lie::IgnoresRequests => self.orders.push(order),
                _ => {}
            }
            self.orders.push(order);
        }
    }

    fn facts(&self, no: SkuNo) -> (SkuFacts, FailureFacts) {
        let (sale, sku) = self.sku(no).unwrap();
        let given_back = self.failures.iter().filter(|f| f.sku == no && gives_back(&f.reason));
        let facts = SkuFacts {
            sku: no,
            initial: sku.initial,
            available: self.available[&no],
            policy: sku.policy,
            epoch: sale.epoch,
            opened_at_ms: self.opened_at_ms.get(&sale.no).copied().unwrap_or(0),
        };
        (facts, FailureFacts { given_back_units: given_back.map(|f| u64::from(f.quantity)).sum() })
    }
}

#[async_trait]
impl Ledger for LyingLedger {
    async fn place(&self, batch: Vec<OrderIntent>) -> Result<BlindInsert, Error> {
        if matches!(self.lie, Lie::Hangs | Lie::ForgetsLetters) {
            std::future::pending::<()>().await;
        }
        let mut rows = self.rows.lock();
        let mut seen = rows.examine(&batch, self.lie);
        if batch.iter().any(|intent| seen.admit(intent).is_some()) {
            return Ok(BlindInsert::Conflict);
        }
        rows.write(&batch, self.lie);
        Ok(BlindInsert::All)
    }

    async fn examine(&self, batch: Vec<OrderIntent>) -> Result<Examination, Error> {
        Ok(self.rows.lock().examine(&batch, self.lie))
    }

    async fn record_failures(&self, failures: Vec<Failure>) -> Result<(), Error> {
        if self.refuses() {
            return Ok(());
        }
        let mut rows = self.rows.lock();
        for failure in failures {
            let is_order = rows.orders.iter().any(|order| order.request == failure.request);
            let is_known = rows.failures.iter().any(|known| known.request == failure.request);
            if !is_order && !is_known {
                rows.failures.push(failure);
            }
        }
        Ok(())
    }

    async fn create_sale(&self, draft: SaleDraft, _: i64) -> Result<Option<Sale>, Error> {
        let mut rows = self.rows.lock();
        let no = i32::try_from(rows.sales.len()).unwrap() + 1;
        let skus = draft.skus.iter().zip(0..).map(|(sku, index)| Sku {
            no: SkuNo(no * 1000 + index),
            id: sku.id.clone(),
            title: sku.title.clone(),
            price: sku.price,
            initial: sku.initial,
            policy: sku.policy,
            buckets: sku.buckets,
            payment_window_s: sku.payment_window_s,
            bar_lapsed: sku.bar_lapsed,
        });
        let sale = Sale {
            no,
            id: draft.id,
            title: draft.title,
            starts_at_ms: draft.starts_at_ms,
            ends_at_ms: draft.ends_at_ms,
            phase: Phase::Draft,
            epoch: Epoch(0),
            skus: skus.collect(),
        };
        for sku in &sale.skus {
            rows.available.insert(sku.no, i64::from(sku.initial));
        }
        rows.sales.push(sale.clone());
        Ok(Some(sale))
    }

    async fn turn_sale(
        &self,
        id: SaleId,
        epoch: Epoch,
        next: Phase,
        now: i64,
    ) -> Result<Option<Sale>, Error> {
        let mut rows = self.rows.lock();
        let at = |sale: &&mut Sale| sale.id == id && sale.epoch == epoch;
        let Some(sale) = rows.sales.iter_mut().find(at) else { return Ok(None) };
        sale.phase = next;
        if next == Phase::Open {
            sale.epoch = Epoch(sale.epoch.0 + 1);
        }
        let sale = sale.clone();
        if next == Phase::Open {
            rows.opened_at_ms.insert(sale.no, now);
        }
        Ok(Some(sale))
    }

    async fn sales(&self) -> Result<Vec<Sale>, Error> {
        Ok(self.rows.lock().sales.clone())
    }

    async fn tally(&self, sku: SkuNo) -> Result<LedgerSize, Error> {
        let rows = self.rows.lock();
        Ok(LedgerSize {
            num_orders: rows.orders.iter().filter(|o| o.sku == sku).count() as u64,
            num_failures: rows.failures.iter().filter(|f| f.sku == sku).count() as u64,
            available: u32::try_from(rows.available[&sku].max(0)).unwrap(),
            epoch: rows.sku(sku).map(|(sale, _)| sale.epoch),
        })
    }

    async fn available(&self, sku: SkuNo) -> Result<u32, Error> {
        Ok(self.tally(sku).await?.available)
    }

    async fn scan_orders(&self, sku: SkuNo, mut visit: Visitor<Order>) -> Result<(), Error> {
        let rows: Vec<_> =
            self.rows.lock().orders.iter().filter(|o| o.sku == sku).copied().collect();
        hand_over(move || rows.into_iter().all(&mut visit)).await;
        Ok(())
    }

    async fn scan_failures(&self, sku: SkuNo, mut visit: Visitor<Failure>) -> Result<(), Error> {
        let rows: Vec<_> =
            self.rows.lock().failures.iter().filter(|f| f.sku == sku).copied().collect();
        hand_over(move || rows.into_iter().all(&mut visit)).await;
        Ok(())
    }

    async fn scan_audit(&self, sku: SkuNo, mut visit: Visitor<AuditRow>) -> Result<(), Error> {
        let (facts, mut orders) = {
            let rows = self.rows.lock();
            let orders: Vec<_> = rows.orders.iter().filter(|o| o.sku == sku).copied().collect();
            (rows.facts(sku), orders)
        };
        orders.sort_by_key(|order| (order.buyer, order.slot));
        hand_over(move || {
            visit(AuditRow::Sku(facts.0, facts.1))
                && orders.into_iter().all(|order| visit(AuditRow::Order(order)))
        })
        .await;
        Ok(())
    }

    /// As an older version wrote it: nobody who judges orders looks at their way.
    async fn journey(&self, request: RequestId) -> Result<Option<OrderTimeline>, Error> {
        let (trace, published_at_ms, recorded_at_ms) = (TraceId(0), None, None);
        let told = |order| OrderTimeline { order, trace, published_at_ms, recorded_at_ms };
        Ok(self.rows.lock().orders.iter().find(|o| o.request == request).copied().map(told))
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

    async fn anomalies(&self, sku: SkuNo) -> Result<Anomalies, Error> {
        let rows = self.rows.lock();
        let orders = rows.orders.iter().filter(|order| order.sku == sku);
        let requests: HashSet<i64> = orders.map(|order| order.request.to_db()).collect();
        let both = rows.failures.iter().map(|f| f.request.to_db());
        let orders_and_failures = both.filter(|request| requests.contains(request)).collect();
        Ok(Anomalies { orders_and_failures, wrong_quotas: Vec::new() })
    }

    async fn anomalies_over_all(&self) -> Result<AnomaliesOverAll, Error> {
        let mut per_request: HashMap<i64, i64> = HashMap::new();
        for order in &self.rows.lock().orders {
            *per_request.entry(order.request.to_db()).or_default() += 1;
        }
        let duplicate_requests = per_request.into_iter().filter(|(_, n)| *n > 1).collect();
        Ok(AnomaliesOverAll { duplicate_requests, unknown_skus: Vec::new() })
    }

    async fn keep_dead_letters(
        &self,
        letters: Vec<NewDeadLetter>,
        now_ms: i64,
    ) -> Result<Vec<KeepOutcome>, Error> {
        if self.lie == Lie::ForgetsLetters {
            return Ok(vec![KeepOutcome::New; letters.len()]);
        }
        let kept = &mut self.rows.lock().letters;
        Ok(letters.into_iter().map(|letter| kept.keep(letter, now_ms)).collect())
    }

    async fn dead_letters(
        &self,
        of: DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Error> {
        Ok(self.rows.lock().letters.page(of, limit))
    }

    async fn dead_letter(&self, no: DeadLetterNo) -> Result<Option<DeadLetterContent>, Error> {
        Ok(self.rows.lock().letters.whole(no))
    }

    async fn turn_dead_letter(&self, turn: DeadLetterTransition) -> Result<bool, Error> {
        Ok(self.rows.lock().letters.turn(turn))
    }

    async fn ending_letters(
        &self,
        after: DeadLetterNo,
        limit: u32,
    ) -> Result<Vec<(DeadLetter, Vec<u8>)>, Error> {
        Ok(self.rows.lock().letters.ending(after, limit))
    }

    async fn count_dead_letters(&self) -> Result<DeadLetterCounts, Error> {
        Ok(self.rows.lock().letters.counts())
    }

    async fn dead_among(&self, requests: Vec<RequestId>) -> Result<Vec<RequestId>, Error> {
        Ok(self.rows.lock().letters.dead_among(requests))
    }

    async fn secret(&self, _: &'static str) -> Result<Vec<u8>, Error> {
        Ok(vec![7; 32])
    }

    async fn next_token(&self, _: &'static str) -> Result<i64, Error> {
        Ok(self.tokens.fetch_add(1, Ordering::Relaxed) + 1)
    }

    async fn ping(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn close(&self) {}
}

/// The receiver of the rows is on this thread: they are handed over from another one.
async fn hand_over(rows: impl FnOnce() -> bool + Send + 'static) {
    let handing = std::thread::spawn(rows);
    while !handing.is_finished() {
        tokio::task::yield_now().await;
    }
}
