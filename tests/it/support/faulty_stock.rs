//! A stock that fails for a while.

use std::sync::Arc;

use async_trait::async_trait;
use floodgate::domain::book::BookSnapshot;
use floodgate::domain::invariants::GateFacts;
use floodgate::domain::{
    BucketNo, BuyerId, Epoch, Failure, Loan, Order, OrderIntent, Phase, RequestId, RequestStatus,
    Reservation, Sku, SkuNo, Verdict,
};
use floodgate::stock::{
    BucketHealth, BucketKey, Error, LoaderToken, Loading, QueuedPage, Stock, StoredRequest,
};
use tokio::sync::watch;

/// How it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StockFault {
    None,
    /// It does not take results.
    Deaf,
    /// It carries out reservations, and answers when the fault is over.
    Held,
    /// It carries out reservations, whoever asked for them panics, and then it is away.
    KillsAndLeaves,
    /// It takes no reservations.
    Away,
    /// It takes results, and answers when the fault is over.
    ResultsWait,
    /// It lends, and the answer is lost.
    MuteLender,
    /// It does not tell its counts.
    Fenced,
    /// It does not say in which condition it is until the fault is over.
    Hangs,
    /// It does not begin to load this SKU before the fault is over.
    LoadWaits(SkuNo),
}

/// A stock in front of another, with a switch.
pub struct FaultyStock {
    inner: Arc<dyn Stock>,
    fault: watch::Sender<StockFault>,
    waiting: Arc<()>,
}

impl FaultyStock {
    pub fn new(inner: Arc<dyn Stock>) -> Self {
        Self { inner, fault: watch::Sender::new(StockFault::None), waiting: Arc::default() }
    }

    /// How many callers wait for the fault to be over.
    pub fn num_waiting(&self) -> usize {
        Arc::strong_count(&self.waiting) - 1
    }

    pub fn set(&self, fault: StockFault) {
        self.fault.send_replace(fault);
    }

    /// Takes neither results nor verbs, or does.
    pub fn set_deaf(&self, deaf: bool) {
        self.set(if deaf { StockFault::Deaf } else { StockFault::None });
    }

    fn is(&self, fault: StockFault) -> bool {
        *self.fault.borrow() == fault
    }

    fn listen(&self) -> Result<(), Error> {
        if self.is(StockFault::Deaf) {
            return Err(Error::Unavailable { reason: "deaf on purpose".to_owned() });
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
    async fn settle(&self, orders: Vec<(BucketNo, Order)>) -> Result<(), Error> {
        self.listen()?;
        let settled = self.inner.settle(orders).await;
        self.until_not(StockFault::ResultsWait).await;
        settled
    }

    async fn release(&self, bucket: BucketKey, refused: Vec<Failure>) -> Result<(), Error> {
        self.listen()?;
        self.inner.release(bucket, refused).await
    }

    async fn load(
        &self,
        sku: Arc<Sku>,
        num_orders: u64,
        loader: LoaderToken,
    ) -> Result<Box<dyn Loading>, Error> {
        self.until_not(StockFault::LoadWaits(sku.no)).await;
        self.inner.load(sku, num_orders, loader).await
    }

    async fn condition(
        &self,
        sku: &Arc<Sku>,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<BucketHealth, Error> {
        self.until_not(StockFault::Hangs).await;
        self.inner.condition(sku, phase, epoch).await
    }

    async fn turn(&self, sku: &Arc<Sku>, phase: Phase, epoch: Epoch) -> Result<(), Error> {
        self.listen()?;
        self.inner.turn(sku, phase, epoch).await
    }

    async fn reserve(
        &self,
        bucket: BucketKey,
        batch: Vec<Reservation>,
    ) -> Result<Vec<Verdict>, Error> {
        if self.is(StockFault::Away) {
            return Err(Error::Unavailable { reason: "away on purpose".to_owned() });
        }
        let verdicts = self.inner.reserve(bucket, batch).await;
        self.until_not(StockFault::Held).await;
        if self.is(StockFault::KillsAndLeaves) {
            self.set(StockFault::Away);
            panic!("this batch kills, on purpose");
        }
        verdicts
    }

    async fn unsettled(
        &self,
        bucket: BucketKey,
        before_ms: i64,
    ) -> Result<Vec<OrderIntent>, Error> {
        self.inner.unsettled(bucket, before_ms).await
    }

    async fn queued(&self, bucket: BucketKey, page: u16) -> Result<QueuedPage, Error> {
        self.inner.queued(bucket, page).await
    }

    async fn lend(&self, from: BucketKey, to: BucketNo, want: u32) -> Result<Option<Loan>, Error> {
        let loan = self.inner.lend(from, to, want).await?;
        if self.is(StockFault::MuteLender) {
            let reason = "lost on purpose".to_owned();
            return Err(Error::Unknown { doing: "lending units", reason });
        }
        Ok(loan)
    }

    async fn borrow(&self, from: BucketKey, to: BucketNo, loan: Loan) -> Result<u32, Error> {
        self.inner.borrow(from, to, loan).await
    }

    async fn finish_transfers(&self, to: BucketKey) -> Result<u32, Error> {
        self.inner.finish_transfers(to).await
    }

    async fn standing(
        &self,
        bucket: BucketKey,
        request: RequestId,
        buyer: BuyerId,
    ) -> Result<Option<StoredRequest>, Error> {
        self.inner.standing(bucket, request, buyer).await
    }

    async fn find(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<StoredRequest>, Error> {
        self.inner.find(bucket, request).await
    }

    async fn standings(
        &self,
        sku: SkuNo,
        asked: Vec<(RequestId, BuyerId)>,
    ) -> Result<Vec<Option<RequestStatus>>, Error> {
        self.inner.standings(sku, asked).await
    }

    fn may_know(&self, bucket: BucketKey, request: RequestId) -> bool {
        self.inner.may_know(bucket, request)
    }

    fn left(&self, sku: SkuNo) -> u32 {
        self.inner.left(sku)
    }

    fn is_sold_out(&self, sku: SkuNo) -> bool {
        self.inner.is_sold_out(sku)
    }

    fn note_left(&self, sku: SkuNo, left: u32) {
        self.inner.note_left(sku, left);
    }

    async fn refresh(&self, sku: SkuNo) -> Result<(), Error> {
        self.inner.refresh(sku).await
    }

    async fn ping(&self) -> Result<(), Error> {
        self.inner.ping().await
    }

    async fn snapshot(&self, bucket: BucketKey) -> Result<BookSnapshot, Error> {
        self.inner.snapshot(bucket).await
    }

    async fn num_unsettled(&self, sku: SkuNo) -> Result<u64, Error> {
        self.inner.num_unsettled(sku).await
    }

    async fn facts(&self, sku: SkuNo) -> Result<Option<GateFacts>, Error> {
        if self.is(StockFault::Fenced) {
            return Err(Error::Fenced { sku, reason: "fenced on purpose".to_owned() });
        }
        self.inner.facts(sku).await
    }
}
