//! The sales of the faulty ledger.

use async_trait::async_trait;
use floodgate::db::{Error, SaleStore};
use floodgate::domain::{
    ByOperator, Epoch, LoaderToken, Phase, Sale, SaleChange, SaleChanged, SaleDraft, SaleId, SkuNo,
    StockChange, StockChangeOutcome, StockChangeRequest,
};

use super::{Fault, FaultyLedger};

#[async_trait]
impl SaleStore for FaultyLedger {
    async fn create_sale(&self, draft: SaleDraft, now_ms: i64) -> Result<Option<Sale>, Error> {
        self.begin_write().await?;
        let created = self.inner.create_sale(draft, now_ms).await?;
        self.end("creating a sale").map(|()| created)
    }

    async fn set_sale_phase(
        &self,
        id: SaleId,
        epoch: Epoch,
        to: Phase,
        now_ms: i64,
        by: Option<ByOperator>,
    ) -> Result<Option<Sale>, Error> {
        self.begin_write().await?;
        self.inner.set_sale_phase(id, epoch, to, now_ms, by).await
    }

    async fn pause_above(
        &self,
        id: SaleId,
        epoch: Epoch,
        above: Epoch,
    ) -> Result<Option<Sale>, Error> {
        self.begin_write().await?;
        self.inner.pause_above(id, epoch, above).await
    }

    async fn change_sale(
        &self,
        id: SaleId,
        change: SaleChange,
        now_ms: i64,
    ) -> Result<SaleChanged, Error> {
        self.begin_write().await?;
        let changed = self.inner.change_sale(id, change, now_ms).await?;
        self.end("changing a sale").map(|()| changed)
    }

    async fn begin_load(&self, sku: SkuNo) -> Result<LoaderToken, Error> {
        self.begin_write().await?;
        self.inner.begin_load(sku).await
    }

    async fn change_stock(&self, request: StockChangeRequest) -> Result<StockChangeOutcome, Error> {
        self.begin_write().await?;
        let outcome = self.inner.change_stock(request).await?;
        self.end("changing a stock").map(|()| outcome)
    }

    async fn stock_change(&self, sku: SkuNo, id: String) -> Result<Option<StockChange>, Error> {
        self.begin().await?;
        let found = self.inner.stock_change(sku, id).await?;
        Ok(found.filter(|_| *self.fault.borrow() != Fault::HidesStockChanges))
    }

    async fn stock_changes(&self, sku: SkuNo, after: i32) -> Result<Vec<StockChange>, Error> {
        self.begin().await?;
        self.inner.stock_changes(sku, after).await
    }

    async fn phase_applied(&self, sale: &Sale, now_ms: i64) -> Result<(), Error> {
        self.begin_write().await?;
        self.inner.phase_applied(sale, now_ms).await
    }

    async fn sales(&self) -> Result<Vec<Sale>, Error> {
        self.begin().await?;
        if *self.fault.borrow() == Fault::ReadsNoSales {
            return Err(self.refuse());
        }
        let sales = self.inner.sales().await;
        self.sales_hold.pass().await;
        sales
    }

    async fn available(&self, sku: SkuNo) -> Result<u32, Error> {
        self.begin().await?;
        self.inner.available(sku).await
    }
}
