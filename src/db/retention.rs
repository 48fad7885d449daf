//! The archive and the purge of finished sales.

use std::time::Duration;

use async_trait::async_trait;

use super::Error;
use crate::domain::{
    ArchiveCursor, ArchivePage, ArchiveTable, ByOperator, OpenEnd, RetentionChange, Sale, SaleId,
    SkuNo, TableContents,
};

/// Rows that one transaction deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeStep {
    /// Orders, or other rows once there are no orders; 0: the SKU has no rows any more.
    pub num_rows: u64,
    /// From BEGIN until COMMIT: at most so long it held a lock.
    pub took: Duration,
}

/// See the module.
#[async_trait]
pub trait RetentionStore: Send + Sync {
    /// Makes a change of [`RetentionChange`]. Once a sale is sealed, no order of it changes: every
    /// transaction that began before has ended. A purge begins only if nothing was placed or
    /// refused since the archive. Returns the sale after the change; `Ok(None)`: unknown sale, not
    /// closed, or a change that its state or its contents do not allow. The operator of an archive
    /// and of a purge is recorded.
    async fn set_retention(
        &self,
        sale: SaleId,
        change: RetentionChange,
        by: Option<ByOperator>,
    ) -> Result<Option<Sale>, Error>;

    /// What each table of the archive has of a sale.
    async fn contents(&self, sale: &Sale) -> Result<Vec<TableContents>, Error>;

    /// What keeps the orders of a sale from being final, with the number of rows: due orders,
    /// payments in flight, and events that one of these readers of the feed has not read.
    async fn open_ends(
        &self,
        sale: &Sale,
        readers: &'static [&'static str],
    ) -> Result<Vec<(OpenEnd, u64)>, Error>;

    /// Rows of a table by their key, or by that of their request: those after a position. At most
    /// `limit` rows or requests, 500 at most; the rows of one SKU.
    async fn archive_page(
        &self,
        sale: &Sale,
        table: ArchiveTable,
        after: ArchiveCursor,
        limit: u32,
    ) -> Result<ArchivePage, Error>;

    /// Deletes at most `limit` orders of a SKU, 500 at most, with all that belongs to them, in one
    /// transaction; once there are none, other rows of the SKU. Deletes nothing unless the sale is
    /// being purged.
    async fn purge_step(&self, sku: SkuNo, limit: u32) -> Result<PurgeStep, Error>;
}
