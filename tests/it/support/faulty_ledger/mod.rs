//! A ledger with injected faults.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use floodgate::db::{
    AuditRow, Error, ErrorClass, Ledger, LedgerSize, OrderCursor, OrderReader, OrderWriter, Visitor,
};
use floodgate::domain::invariants::Violation;
use floodgate::domain::{
    BuyerId, Examination, Failure, Order, OrderIntent, OrderKey, OrderTimeline, Payment, Refusal,
    RequestId, SkuNo,
};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

mod dead_letters;
mod sales;

/// How the ledger fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The ledger is unreachable; nothing is written.
    Down,
    /// Calls wait until the fault ends.
    Frozen,
    /// The write commits, its answer is lost.
    AnswerLost,
    /// The write commits, its answer is lost, and the ledger is down afterwards.
    AnswerLostThenDown,
    /// A batch with this request is not written; the outcome is reported as unknown.
    NeverAnswers(RequestId),
    /// A batch with this request is refused with an error that does not name the request.
    Refuses(RequestId),
    /// A batch with this request waits for a lock that another session holds, and gives up.
    Contended(RequestId),
    /// A batch with this request is refused, and so is the canary.
    CommitsNothing(RequestId),
    /// The next batches, so many, are refused with an error that names no request.
    RefusesBatches(usize),
    /// Reads work; every write is refused with an error of this class.
    RefusesAll(ErrorClass),
    /// `place` panics on a batch with this request.
    Kills(RequestId),
    /// A payment event whose id begins so is refused.
    RefusesEvents(&'static str),
    /// A batch is examined before another writer places its orders: none is found, no unit is left.
    ExaminesBeforeOthers,
    /// Orders are written, failures are not.
    RecordsNothing,
    /// `place` writes a batch with this request, then panics.
    WritesAndPanics(RequestId),
    /// A dead letter with this request is refused, as by a table that was altered manually.
    RefusesDeadLetter(RequestId),
    /// Changes of stocks are recorded after they are looked up: none is found.
    HidesStockChanges,
    /// The sales cannot be read.
    ReadsNoSales,
}

/// Holds the answer of one call.
#[derive(Default)]
pub(super) struct Hold(Mutex<Option<oneshot::Receiver<()>>>);

impl Hold {
    /// Holds the next answer until the sender is used or dropped.
    fn next(&self) -> oneshot::Sender<()> {
        let (release, hold) = oneshot::channel();
        self.0.lock().replace(hold);
        release
    }

    fn has_begun(&self) -> bool {
        self.0.lock().is_none()
    }

    pub(super) async fn pass(&self) {
        let hold = self.0.lock().take();
        if let Some(hold) = hold {
            hold.await.ok();
        }
    }
}

/// Wraps a ledger and applies the current [`Fault`].
pub struct FaultyLedger {
    pub(super) inner: Arc<dyn Ledger>,
    fault: watch::Sender<Fault>,
    batches: Mutex<Vec<Vec<u64>>>,
    num_refused: AtomicUsize,
    sales_hold: Hold,
    audit_hold: Hold,
    /// Commits after the next scan of failures, then the ledger is down.
    last_order: Mutex<Option<OrderIntent>>,
}

impl FaultyLedger {
    pub fn new(inner: Arc<dyn Ledger>) -> Self {
        Self {
            inner,
            fault: watch::Sender::new(Fault::None),
            batches: Mutex::default(),
            num_refused: AtomicUsize::new(0),
            sales_hold: Hold::default(),
            audit_hold: Hold::default(),
            last_order: Mutex::default(),
        }
    }

    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Holds the answer of the next read of the sales until the sender is used or dropped.
    pub fn hold_next_sales(&self) -> oneshot::Sender<()> {
        self.sales_hold.next()
    }

    /// Whether the read of the sales whose answer is held has begun.
    pub fn holds_sales(&self) -> bool {
        self.sales_hold.has_begun()
    }

    /// Holds an audit that has read the orders of a SKU until the sender is used or dropped.
    pub fn hold_next_audit(&self) -> oneshot::Sender<()> {
        self.audit_hold.next()
    }

    /// Whether the audit is held.
    pub fn holds_audit(&self) -> bool {
        self.audit_hold.has_begun()
    }

    /// Commits this order after the next scan of failures, and is down from then on.
    pub fn commit_after_scan(&self, intent: OrderIntent) {
        self.last_order.lock().replace(intent);
    }

    /// The requests of every batch passed to `place`.
    pub fn batches(&self) -> Vec<Vec<u64>> {
        self.batches.lock().clone()
    }

    /// Number of calls that were refused as unreachable, or by [`Fault::RefusesAll`].
    pub fn num_refused(&self) -> usize {
        self.num_refused.load(Ordering::SeqCst)
    }

    /// Runs before every call.
    pub(super) async fn begin(&self) -> Result<(), Error> {
        let mut fault = self.fault.subscribe();
        drop(fault.wait_for(|fault| *fault != Fault::Frozen).await);
        let fault = *fault.borrow();
        if fault == Fault::Down { Err(self.refuse()) } else { Ok(()) }
    }

    /// Runs before a payment event is recorded.
    pub(super) fn begin_event(&self, id: &str) -> Result<(), Error> {
        match *self.fault.borrow() {
            Fault::RefusesEvents(prefix) if id.starts_with(prefix) => {
                Err(Error::Unstorable { what: "a payment event, on purpose".to_owned() })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn refuse(&self) -> Error {
        self.num_refused.fetch_add(1, Ordering::SeqCst);
        Error::NoConnection { reason: "down on purpose".to_owned() }
    }

    /// Runs before every write.
    pub(super) async fn begin_write(&self) -> Result<(), Error> {
        self.begin().await?;
        let Fault::RefusesAll(class) = *self.fault.borrow() else { return Ok(()) };
        self.num_refused.fetch_add(1, Ordering::SeqCst);
        Err(match class {
            ErrorClass::Retry => Error::Full,
            ErrorClass::Down => Error::NoConnection { reason: "no write, on purpose".to_owned() },
            ErrorClass::Unknown => Error::TimedOut { operation: "anything" },
            ErrorClass::Bug => Error::Unstorable { what: "anything, on purpose".to_owned() },
        })
    }

    /// Runs after a committed write.
    pub(super) fn end(&self, operation: &'static str) -> Result<(), Error> {
        let fault = *self.fault.borrow();
        match fault {
            Fault::AnswerLost => Err(Error::TimedOut { operation }),
            Fault::AnswerLostThenDown => {
                self.set(Fault::Down);
                Err(Error::TimedOut { operation })
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl OrderWriter for FaultyLedger {
    async fn place(&self, batch: Vec<OrderIntent>) -> Result<Option<i64>, Error> {
        self.begin_write().await?;
        let fault = *self.fault.borrow();
        self.batches.lock().push(batch.iter().map(|intent| intent.request.get()).collect());
        let holds = |request| batch.iter().any(|intent| intent.request == request);
        match fault {
            Fault::NeverAnswers(request) if holds(request) => {
                return Err(Error::TimedOut { operation: "place" });
            }
            Fault::RefusesBatches(left @ 1..) => {
                self.set(Fault::RefusesBatches(left - 1));
                return Err(Error::Unstorable { what: "a batch, on purpose".to_owned() });
            }
            Fault::Refuses(request) | Fault::CommitsNothing(request) if holds(request) => {
                return Err(Error::Unstorable { what: "an order, on purpose".to_owned() });
            }
            Fault::Contended(request) if holds(request) => return Err(Error::Full),
            Fault::Kills(request) if holds(request) => {
                panic!("a panic on purpose, before the write")
            }
            _ => {}
        }
        let panics = matches!(fault, Fault::WritesAndPanics(request) if holds(request));
        let inserted = self.inner.place(batch).await?;
        assert!(!panics, "a panic on purpose, after the write");
        self.end("place").map(|()| inserted)
    }

    async fn examine(&self, batch: Vec<OrderIntent>) -> Result<Examination, Error> {
        self.begin().await?;
        if *self.fault.borrow() == Fault::ExaminesBeforeOthers {
            return Ok(Examination::default());
        }
        let examination = self.inner.examine(batch).await?;
        self.end("examine").map(|()| examination)
    }

    async fn record_failures(
        &self,
        failures: Vec<Failure>,
    ) -> Result<HashMap<RequestId, Refusal>, Error> {
        self.begin_write().await?;
        if *self.fault.borrow() == Fault::RecordsNothing {
            return Err(self.refuse());
        }
        let recorded = self.inner.record_failures(failures).await?;
        self.end("record failures").map(|()| recorded)
    }
}

#[async_trait]
impl OrderReader for FaultyLedger {
    async fn ledger_size(&self, sku: SkuNo) -> Result<LedgerSize, Error> {
        self.begin().await?;
        self.inner.ledger_size(sku).await
    }

    async fn scan_orders(&self, sku: SkuNo, visit: Visitor<Order>) -> Result<(), Error> {
        self.begin().await?;
        self.inner.scan_orders(sku, visit).await
    }

    async fn scan_failures(&self, sku: SkuNo, visit: Visitor<Failure>) -> Result<(), Error> {
        self.begin().await?;
        self.inner.scan_failures(sku, visit).await?;
        let last_order = self.last_order.lock().take();
        if let Some(intent) = last_order {
            self.inner.place(vec![intent]).await?;
            self.set(Fault::Down);
        }
        Ok(())
    }

    async fn order_timeline(&self, request: RequestId) -> Result<Option<OrderTimeline>, Error> {
        self.begin().await?;
        self.inner.order_timeline(request).await
    }

    async fn order(&self, key: OrderKey) -> Result<Option<Order>, Error> {
        self.begin().await?;
        self.inner.order(key).await
    }

    async fn failure(&self, request: RequestId) -> Result<Option<Failure>, Error> {
        self.begin().await?;
        self.inner.failure(request).await
    }

    async fn orders_of(
        &self,
        buyer: BuyerId,
        cursor: Option<OrderCursor>,
        limit: u32,
    ) -> Result<Vec<Order>, Error> {
        self.begin().await?;
        self.inner.orders_of(buyer, cursor, limit).await
    }

    async fn barred(&self, sku: SkuNo, since_ms: i64) -> Result<Vec<BuyerId>, Error> {
        self.begin().await?;
        self.inner.barred(sku, since_ms).await
    }

    async fn payments_of(&self, orders: Vec<OrderKey>) -> Result<Vec<Payment>, Error> {
        self.inner.payments_of(orders).await
    }

    async fn scan_audit(&self, sku: SkuNo, visit: Visitor<AuditRow>) -> Result<(), Error> {
        self.begin().await?;
        self.inner.scan_audit(sku, visit).await
    }

    async fn anomalies(&self, sku: SkuNo) -> Result<Vec<Violation>, Error> {
        self.begin().await?;
        self.audit_hold.pass().await;
        self.inner.anomalies(sku).await
    }

    async fn anomalies_across_skus(&self) -> Result<Vec<Violation>, Error> {
        self.begin().await?;
        self.inner.anomalies_across_skus().await
    }
}

#[async_trait]
impl Ledger for FaultyLedger {
    async fn secret(&self, name: &'static str) -> Result<Vec<u8>, Error> {
        self.begin().await?;
        self.inner.secret(name).await
    }

    async fn next_token(&self, name: &'static str) -> Result<i64, Error> {
        self.begin_write().await?;
        self.inner.next_token(name).await
    }

    async fn commit_canary(&self) -> Result<(), Error> {
        self.begin_write().await?;
        if matches!(*self.fault.borrow(), Fault::CommitsNothing(_)) {
            return Err(self.refuse());
        }
        self.inner.commit_canary().await
    }

    async fn time_ms(&self) -> Result<i64, Error> {
        self.begin().await?;
        self.inner.time_ms().await
    }

    async fn ping(&self) -> Result<(), Error> {
        self.begin().await?;
        self.inner.ping().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
