//! The archive and the purge of the test ledgers.

use async_trait::async_trait;
use floodgate::db::{Error, PurgeStep, RetentionStore};
use floodgate::domain::{
    ArchiveCursor, ArchivePage, ArchiveTable, ByOperator, OpenEnd, RetentionChange, Sale, SaleId,
    SkuNo, TableContents,
};

use super::defective_ledger::DefectiveLedger;
use super::faulty_ledger::FaultyLedger;

/// [`DefectiveLedger`] keeps every sale.
const KEEPS: Error = Error::ReadOnly { operation: "purging a sale" };

#[async_trait]
impl RetentionStore for DefectiveLedger {
    async fn set_retention(
        &self,
        _: SaleId,
        _: RetentionChange,
        _: Option<ByOperator>,
    ) -> Result<Option<Sale>, Error> {
        Err(KEEPS)
    }

    async fn contents(&self, _: &Sale) -> Result<Vec<TableContents>, Error> {
        Err(KEEPS)
    }

    async fn open_ends(
        &self,
        _: &Sale,
        _: &'static [&'static str],
    ) -> Result<Vec<(OpenEnd, u64)>, Error> {
        Err(KEEPS)
    }

    async fn archive_page(
        &self,
        _: &Sale,
        _: ArchiveTable,
        _: ArchiveCursor,
        _: u32,
    ) -> Result<ArchivePage, Error> {
        Err(KEEPS)
    }

    async fn purge_step(&self, _: SkuNo, _: u32) -> Result<PurgeStep, Error> {
        Err(KEEPS)
    }
}

#[async_trait]
impl RetentionStore for FaultyLedger {
    async fn set_retention(
        &self,
        sale: SaleId,
        change: RetentionChange,
        by: Option<ByOperator>,
    ) -> Result<Option<Sale>, Error> {
        self.begin_write().await?;
        let changed = self.inner.set_retention(sale, change, by).await?;
        self.end("set retention").map(|()| changed)
    }

    async fn contents(&self, sale: &Sale) -> Result<Vec<TableContents>, Error> {
        self.begin().await?;
        self.inner.contents(sale).await
    }

    async fn open_ends(
        &self,
        sale: &Sale,
        readers: &'static [&'static str],
    ) -> Result<Vec<(OpenEnd, u64)>, Error> {
        self.begin().await?;
        self.inner.open_ends(sale, readers).await
    }

    async fn archive_page(
        &self,
        sale: &Sale,
        table: ArchiveTable,
        after: ArchiveCursor,
        limit: u32,
    ) -> Result<ArchivePage, Error> {
        self.begin().await?;
        self.inner.archive_page(sale, table, after, limit).await
    }

    async fn purge_step(&self, sku: SkuNo, limit: u32) -> Result<PurgeStep, Error> {
        self.begin_write().await?;
        let step = self.inner.purge_step(sku, limit).await?;
        self.end("purge step").map(|()| step)
    }
}
