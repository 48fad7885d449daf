//! A stock with injected faults.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use floodgate::domain::book::BucketSnapshot;
use floodgate::domain::invariants::BucketFacts;
use floodgate::domain::{
    BucketKey, BucketNo, BuyerId, Epoch, Failure, LoaderToken, Loan, Order, OrderIntent, Phase,
    RequestId, RequestRecord, Sku, SkuNo, StockChange, Verdict, Withdrawal,
};
use floodgate::stock::{BucketHealth, Error, Loading, QueuedPage, Stock};
use futures_util::future::BoxFuture;
use tokio::sync::watch;

/// How the stock fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StockFault {
    None,
    /// `settle`, `release` and `set_phase` fail.
    RefusesResults,
    /// Reservations are executed; their answers wait until the fault ends.
    Held,
    /// `reserve` executes the batch and panics; afterwards the fault is `ReserveFails`.
    PanicsThenUnavailable,
    /// `reserve` executes the batch and its answer is lost; afterwards the fault is `ReserveFails`.
    AnswerLostThenUnavailable,
    /// `reserve` fails.
    ReserveFails,
    /// Results are written; their answers wait until the fault ends.
    ResultsWait,
    /// Units are lent, and the answer is lost.
    LendAnswerLost,
    /// `num_unsettled` fails.
    CountFails,
    /// A page of queued requests counts as more pages than one pass may read.
    PagesAreLarge,
    /// `settle` fails with orders of this bucket: its server is away.
    Away(BucketNo),
    /// An order of this request cannot be written: it is on a damaged page.
    Damaged(RequestId),
    /// `facts` fails as fenced.
    Fenced,
    /// `records` fails.
    LookupFails,
    /// `record` fails.
    RecordFails,
    /// `health` waits until the fault ends.
    Hangs,
    /// `load` of this SKU waits until the fault ends.
    LoadWaits(SkuNo),
}

/// A concurrent change of the stock.
type StockAction = dyn Fn() -> BoxFuture<'static, ()> + Send + Sync;

/// Wraps a stock and applies the current [`StockFault`].
pub struct FaultyStock {
    inner: Arc<dyn Stock>,
    fault: watch::Sender<StockFault>,
    waiting: Arc<()>,
    num_lookups: AtomicUsize,
    num_failed_reserves: AtomicUsize,
    loads: Mutex<Vec<SkuNo>>,
    before_facts: OnceLock<Box<StockAction>>,
}

impl FaultyStock {
    pub fn new(inner: Arc<dyn Stock>) -> Self {
        let fault = watch::Sender::new(StockFault::None);
        Self {
            inner,
            fault,
            waiting: Arc::default(),
            num_lookups: AtomicUsize::new(0),
            num_failed_reserves: AtomicUsize::new(0),
            loads: Mutex::default(),
            before_facts: OnceLock::new(),
        }
    }

    /// Number of calls that wait for the fault to end.
    pub fn num_waiting(&self) -> usize {
        Arc::strong_count(&self.waiting) - 1
    }

    /// Calls of `records` so far.
    pub fn num_lookups(&self) -> usize {
        self.num_lookups.load(Ordering::SeqCst)
    }

    /// Calls of `reserve` that have failed.
    pub fn num_failed_reserves(&self) -> usize {
        self.num_failed_reserves.load(Ordering::SeqCst)
    }

    /// The SKUs of all calls of `load`, in order.
    pub fn loads(&self) -> Vec<SkuNo> {
        self.loads.lock().unwrap().clone()
    }

    pub fn set(&self, fault: StockFault) {
        self.fault.send_replace(fault);
    }

    /// Runs this action before each answer of `facts`.
    pub fn set_before_facts(
        &self,
        action: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) {
        assert!(self.before_facts.set(Box::new(action)).is_ok(), "set once");
    }

    /// Sets or clears [`StockFault::RefusesResults`].
    pub fn set_refusing(&self, deaf: bool) {
        self.set(if deaf { StockFault::RefusesResults } else { StockFault::None });
    }

    fn is(&self, fault: StockFault) -> bool {
        *self.fault.borrow() == fault
    }

    fn check_write(&self) -> Result<(), Error> {
        if self.is(StockFault::RefusesResults) {
            return Err(Error::Unavailable { reason: "no write, on purpose".to_owned() });
        }
        Ok(())
    }

    fn check_read(&self) -> Result<(), Error> {
        if self.is(StockFault::LookupFails) {
            return Err(Error::Unavailable { reason: "no lookup, on purpose".to_owned() });
        }
        Ok(())
    }

    async fn until_not(&self, held: StockFault) {
        let (_waiting, mut fault) = (Arc::clone(&self.waiting), self.fault.subscribe());
        drop(fault.wait_for(|fault| *fault != held).await);
    }
}

#[async_trait]
impl Stock for FaultyStock {
    fn register(&self, sku: &Arc<Sku>) {
        self.inner.register(sku);
    }

    fn forget(&self, sku: SkuNo) {
        self.inner.forget(sku);
    }

    async fn settle(&self, orders: Vec<(BucketNo, Order)>) -> Result<(), Error> {
        self.check_write()?;
        if orders.iter().any(|(bucket, _)| self.is(StockFault::Away(*bucket))) {
            return Err(Error::Unavailable { reason: "a server is away, on purpose".to_owned() });
        }
        if orders.iter().any(|(_, order)| self.is(StockFault::Damaged(order.request))) {
            return Err(Error::Damaged { what: "a page, on purpose".to_owned() });
        }
        let settled = self.inner.settle(orders).await;
        self.until_not(StockFault::ResultsWait).await;
        settled
    }

    async fn release(&self, bucket: BucketKey, refused: Vec<Failure>) -> Result<(), Error> {
        self.check_write()?;
        self.inner.release(bucket, refused).await
    }

    async fn load(&self, sku: Arc<Sku>, loader: LoaderToken) -> Result<Box<dyn Loading>, Error> {
        self.loads.lock().unwrap().push(sku.no);
        self.until_not(StockFault::LoadWaits(sku.no)).await;
        self.inner.load(sku, loader).await
    }

    async fn health(
        &self,
        sku: &Arc<Sku>,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<BucketHealth, Error> {
        self.until_not(StockFault::Hangs).await;
        self.inner.health(sku, phase, epoch).await
    }

    async fn set_phase(&self, sku: &Arc<Sku>, phase: Phase, epoch: Epoch) -> Result<(), Error> {
        self.check_write()?;
        self.inner.set_phase(sku, phase, epoch).await
    }

    async fn purge(&self, sku: &Arc<Sku>) -> Result<(), Error> {
        self.check_write()?;
        self.inner.purge(sku).await
    }

    async fn change_stock(&self, sku: &Arc<Sku>, change: StockChange) -> Result<(), Error> {
        self.check_write()?;
        self.inner.change_stock(sku, change).await
    }

    async fn withdraw(&self, sku: SkuNo, units: u32) -> Result<Withdrawal, Error> {
        self.check_write()?;
        self.inner.withdraw(sku, units).await
    }

    async fn end_withdrawal(
        &self,
        sku: SkuNo,
        withdrawal: &Withdrawal,
        is_recorded: bool,
    ) -> Result<(), Error> {
        self.check_write()?;
        self.inner.end_withdrawal(sku, withdrawal, is_recorded).await
    }

    async fn reserve(
        &self,
        bucket: BucketKey,
        batch: Vec<OrderIntent>,
    ) -> Result<Vec<Verdict>, Error> {
        if self.is(StockFault::ReserveFails) {
            self.num_failed_reserves.fetch_add(1, Ordering::SeqCst);
            return Err(Error::Unavailable { reason: "down on purpose".to_owned() });
        }
        let verdicts = self.inner.reserve(bucket, batch).await;
        self.until_not(StockFault::Held).await;
        if self.is(StockFault::PanicsThenUnavailable) {
            self.set(StockFault::ReserveFails);
            panic!("a panic on purpose, after the reservation");
        }
        if self.is(StockFault::AnswerLostThenUnavailable) {
            self.set(StockFault::ReserveFails);
            let reason = "lost on purpose".to_owned();
            return Err(Error::Unknown { operation: "reserving", reason });
        }
        verdicts
    }

    async fn unsettled(&self, bucket: BucketKey) -> Result<Vec<OrderIntent>, Error> {
        self.inner.unsettled(bucket).await
    }

    async fn queued(&self, bucket: BucketKey, page: u16) -> Result<QueuedPage, Error> {
        let mut queued = self.inner.queued(bucket, page).await?;
        if self.is(StockFault::PagesAreLarge) {
            queued.num_pages = u16::MAX;
        }
        Ok(queued)
    }

    async fn lend(&self, from: BucketKey, to: BucketNo, want: u32) -> Result<Option<Loan>, Error> {
        let loan = self.inner.lend(from, to, want).await?;
        if self.is(StockFault::LendAnswerLost) {
            let reason = "lost on purpose".to_owned();
            return Err(Error::Unknown { operation: "lending units", reason });
        }
        Ok(loan)
    }

    async fn borrow(&self, from: BucketKey, to: BucketNo, loan: Loan) -> Result<u32, Error> {
        self.inner.borrow(from, to, loan).await
    }

    async fn finish_transfers(&self, to: BucketKey) -> Result<u32, Error> {
        self.inner.finish_transfers(to).await
    }

    async fn record(
        &self,
        bucket: BucketKey,
        request: RequestId,
        buyer: Option<BuyerId>,
    ) -> Result<Option<RequestRecord>, Error> {
        if self.is(StockFault::RecordFails) {
            return Err(Error::Unavailable { reason: "no record, on purpose".to_owned() });
        }
        self.inner.record(bucket, request, buyer).await
    }

    async fn owned(&self, bucket: BucketKey, buyer: BuyerId) -> Result<u32, Error> {
        self.inner.owned(bucket, buyer).await
    }

    async fn records(
        &self,
        sku: SkuNo,
        requests: Vec<(RequestId, BuyerId)>,
    ) -> Result<Vec<Option<RequestRecord>>, Error> {
        self.num_lookups.fetch_add(1, Ordering::SeqCst);
        self.check_read()?;
        self.inner.records(sku, requests).await
    }

    fn may_have_accepted(&self, bucket: BucketKey, request: RequestId) -> bool {
        self.inner.may_have_accepted(bucket, request)
    }

    fn left(&self, sku: SkuNo) -> u32 {
        self.inner.left(sku)
    }

    fn is_sold_out(&self, sku: SkuNo) -> bool {
        self.inner.is_sold_out(sku)
    }

    fn cache_left(&self, sku: SkuNo, left: u32) {
        self.inner.cache_left(sku, left);
    }

    async fn refresh(&self, sku: SkuNo) -> Result<(), Error> {
        self.inner.refresh(sku).await
    }

    async fn ping(&self) -> Result<(), Error> {
        self.inner.ping().await
    }

    async fn snapshot(&self, bucket: BucketKey) -> Result<BucketSnapshot, Error> {
        self.inner.snapshot(bucket).await
    }

    async fn num_unsettled(&self, sku: SkuNo) -> Result<u64, Error> {
        if self.is(StockFault::CountFails) {
            return Err(Error::Unavailable { reason: "no count, on purpose".to_owned() });
        }
        self.inner.num_unsettled(sku).await
    }

    async fn num_unsettled_in_any_state(&self, sku: SkuNo) -> Result<u64, Error> {
        self.inner.num_unsettled_in_any_state(sku).await
    }

    async fn facts(&self, sku: SkuNo) -> Result<BucketFacts, Error> {
        if self.is(StockFault::Fenced) {
            return Err(Error::Fenced { sku, reason: "fenced on purpose".to_owned() });
        }
        if let Some(action) = self.before_facts.get() {
            action().await;
        }
        self.inner.facts(sku).await
    }
}
