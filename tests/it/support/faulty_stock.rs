//! A stock that does not hear of results for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use floodgate::domain::book::BookSnapshot;
use floodgate::domain::invariants::GateFacts;
use floodgate::domain::{
    BucketNo, BuyerId, Epoch, Failure, Loan, Order, OrderIntent, Phase, RequestId, Reservation,
    Sku, SkuNo, Standing, Verdict,
};
use floodgate::stock::{BucketKey, Condition, Error, LoaderToken, Loading, RequestStanding, Stock};

/// A stock in front of another, with a switch.
pub struct FaultyStock {
    inner: Arc<dyn Stock>,
    is_deaf: AtomicBool,
}

impl FaultyStock {
    pub fn new(inner: Arc<dyn Stock>) -> Self {
        Self { inner, is_deaf: AtomicBool::new(false) }
    }

    /// Does not take results, or does.
    pub fn set_deaf(&self, deaf: bool) {
        self.is_deaf.store(deaf, Ordering::SeqCst);
    }

    fn listen(&self) -> Result<(), Error> {
        if self.is_deaf.load(Ordering::SeqCst) {
            return Err(Error::Unavailable { reason: "deaf on purpose".to_owned() });
        }
        Ok(())
    }
}

#[async_trait]
impl Stock for FaultyStock {
    async fn settle(&self, orders: Vec<(BucketNo, Order)>) -> Result<(), Error> {
        self.listen()?;
        self.inner.settle(orders).await
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
        self.inner.load(sku, num_orders, loader).await
    }

    async fn condition(
        &self,
        sku: &Arc<Sku>,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<Condition, Error> {
        self.inner.condition(sku, phase, epoch).await
    }

    async fn turn(&self, sku: SkuNo, phase: Phase, epoch: Epoch) -> Result<(), Error> {
        self.inner.turn(sku, phase, epoch).await
    }

    async fn reserve(
        &self,
        bucket: BucketKey,
        batch: Vec<Reservation>,
    ) -> Result<Vec<Verdict>, Error> {
        self.inner.reserve(bucket, batch).await
    }

    async fn withdraw(&self, bucket: BucketKey, requests: Vec<RequestId>) -> Result<bool, Error> {
        self.inner.withdraw(bucket, requests).await
    }

    async fn unsettled(
        &self,
        bucket: BucketKey,
        before_ms: i64,
    ) -> Result<Vec<OrderIntent>, Error> {
        self.inner.unsettled(bucket, before_ms).await
    }

    async fn lend(&self, from: BucketKey, to: BucketNo, want: u32) -> Result<Option<Loan>, Error> {
        self.inner.lend(from, to, want).await
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
    ) -> Result<Option<RequestStanding>, Error> {
        self.inner.standing(bucket, request, buyer).await
    }

    async fn find(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<RequestStanding>, Error> {
        self.inner.find(bucket, request).await
    }

    async fn standings(
        &self,
        sku: SkuNo,
        asked: Vec<(RequestId, BuyerId)>,
    ) -> Result<Vec<Option<Standing>>, Error> {
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
        self.inner.facts(sku).await
    }
}
