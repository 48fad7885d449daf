//! A ledger that fails for a while.

use std::sync::Arc;

use async_trait::async_trait;
use floodgate::db::{Anomalies, AuditRow, Error, Ledger, OrderCursor, Placing, Tally, Visit};
use floodgate::domain::{
    BuyerId, Examination, Failure, Order, OrderIntent, Phase, RequestId, Sale, SaleDraft, SaleId,
    SkuNo,
};
use tokio::sync::watch;

/// How it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// It cannot be reached; nothing is written.
    Down,
    /// It answers when the fault is over.
    Frozen,
    /// It writes, and its answer is lost.
    Mute,
    /// It never says what became of this one request.
    NeverSays(RequestId),
}

/// A ledger in front of another, with a switch.
pub struct FaultyLedger {
    inner: Arc<dyn Ledger>,
    fault: watch::Sender<Fault>,
}

impl FaultyLedger {
    pub fn new(inner: Arc<dyn Ledger>) -> Self {
        Self { inner, fault: watch::Sender::new(Fault::None) }
    }

    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Before a call.
    async fn begin(&self) -> Result<(), Error> {
        let mut fault = self.fault.subscribe();
        drop(fault.wait_for(|fault| *fault != Fault::Frozen).await);
        let fault = *fault.borrow();
        if fault == Fault::Down {
            return Err(Error::NoConnection { reason: "it is down on purpose".to_owned() });
        }
        Ok(())
    }

    /// After a call that wrote.
    fn end(&self, doing: &'static str) -> Result<(), Error> {
        if *self.fault.borrow() == Fault::Mute {
            return Err(Error::TimedOut { doing });
        }
        Ok(())
    }
}

#[async_trait]
impl Ledger for FaultyLedger {
    async fn place(&self, batch: Vec<OrderIntent>) -> Result<Placing, Error> {
        self.begin().await?;
        if let Fault::NeverSays(request) = *self.fault.borrow()
            && batch.iter().any(|intent| intent.request == request)
        {
            return Err(Error::TimedOut { doing: "place" });
        }
        let placing = self.inner.place(batch).await?;
        self.end("place").map(|()| placing)
    }

    async fn examine(&self, batch: Vec<OrderIntent>) -> Result<Examination, Error> {
        self.begin().await?;
        let seen = self.inner.examine(batch).await?;
        self.end("examine").map(|()| seen)
    }

    async fn record_failures(&self, failures: Vec<Failure>) -> Result<(), Error> {
        self.begin().await?;
        self.inner.record_failures(failures).await?;
        self.end("record failures")
    }

    async fn create_sale(&self, draft: SaleDraft, now_ms: i64) -> Result<Option<Sale>, Error> {
        self.begin().await?;
        self.inner.create_sale(draft, now_ms).await
    }

    async fn turn_sale(&self, id: SaleId, to: Phase, now_ms: i64) -> Result<Option<Sale>, Error> {
        self.begin().await?;
        self.inner.turn_sale(id, to, now_ms).await
    }

    async fn sales(&self) -> Result<Vec<Sale>, Error> {
        self.begin().await?;
        self.inner.sales().await
    }

    async fn tally(&self, sku: SkuNo) -> Result<Tally, Error> {
        self.begin().await?;
        self.inner.tally(sku).await
    }

    async fn available(&self, sku: SkuNo) -> Result<u32, Error> {
        self.begin().await?;
        self.inner.available(sku).await
    }

    async fn scan_orders(&self, sku: SkuNo, visit: Visit<Order>) -> Result<(), Error> {
        self.begin().await?;
        self.inner.scan_orders(sku, visit).await
    }

    async fn scan_failures(&self, sku: SkuNo, visit: Visit<Failure>) -> Result<(), Error> {
        self.begin().await?;
        self.inner.scan_failures(sku, visit).await
    }

    async fn scan_audit(&self, sku: SkuNo, visit: Visit<AuditRow>) -> Result<(), Error> {
        self.begin().await?;
        self.inner.scan_audit(sku, visit).await
    }

    async fn order(&self, request: RequestId) -> Result<Option<Order>, Error> {
        self.begin().await?;
        self.inner.order(request).await
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

    async fn anomalies(&self, sku: SkuNo) -> Result<Anomalies, Error> {
        self.begin().await?;
        self.inner.anomalies(sku).await
    }

    async fn secret(&self, name: &'static str) -> Result<Vec<u8>, Error> {
        self.begin().await?;
        self.inner.secret(name).await
    }

    async fn next_token(&self, name: &'static str) -> Result<i64, Error> {
        self.begin().await?;
        self.inner.next_token(name).await
    }

    async fn ping(&self) -> Result<(), Error> {
        self.begin().await?;
        self.inner.ping().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
