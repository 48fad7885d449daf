//! The archive and the purge of a finished sale.
//!
//! A purge seals the sale, compares its archive with the ledger, and only then deletes: the
//! buckets, then the rows in many short transactions. On crash: the next purge continues. May
//! repeat: everything, also after the end.

use std::time::Duration;

use super::{SalesError, SalesService};
use crate::db::{ErrorClass, PurgeStep};
use crate::domain::{
    ArchiveCursor, ArchiveDigest, ArchivePage, ArchiveTable, ByOperator, OpenEnd, Phase,
    RetentionChange, RetentionState, Sale, SaleId, TableContents,
};
use crate::services::order_feed::NUMBERED_MAX;

/// How long one call deletes rows. Its caller calls again.
const DELETES_FOR: Duration = Duration::from_secs(5);

/// How long a transaction should take: other writers may wait for its locks, and the longest one
/// takes several times as long.
const STEP_TARGET: Duration = Duration::from_millis(12);

/// Orders that the first transaction of a call deletes.
const ORDERS_FIRST: u32 = 20;

/// The range of orders that one transaction deletes.
const ORDERS_MIN: u32 = 10;
const ORDERS_MAX: u32 = 500;

/// Pause after a transaction that concurrent writers interfered with.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// How far a purge is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeProgress {
    /// `purging`: call again. `purged`: nothing is left.
    pub state: RetentionState,
    /// Rows that this call deleted, each order with all that belongs to it as one.
    pub num_rows: u64,
    /// The longest transaction of this call, milliseconds.
    pub longest_ms: u64,
}

/// The archive that an operator has of a sale.
#[derive(Debug, Clone)]
pub struct SaleArchive {
    pub digest: ArchiveDigest,
    pub tables: Vec<TableContents>,
    pub by: Option<ByOperator>,
}

impl SalesService {
    /// What a sale waits for before it can be archived, with the number of each; empty: nothing.
    pub async fn open_ends(&self, id: &SaleId) -> Result<Vec<(OpenEnd, u64)>, SalesError> {
        self.open_ends_of(&self.unpurged(id).await?).await
    }

    /// A page of the rows of a closed sale.
    pub async fn archive_page(
        &self,
        id: &SaleId,
        table: ArchiveTable,
        after: ArchiveCursor,
        limit: u32,
    ) -> Result<ArchivePage, SalesError> {
        let sale = self.unpurged(id).await?;
        if sale.phase != Phase::Closed {
            return Err(SalesError::Unfinished(vec![(OpenEnd::NotClosed, 1)]));
        }
        Ok(self.backends.ledger.archive_page(&sale, table, after, limit).await?)
    }

    /// Records that a finished sale has an archive with these contents. Idempotent.
    pub async fn record_archive(
        &self,
        id: &SaleId,
        archive: &SaleArchive,
    ) -> Result<Sale, SalesError> {
        let sale = self.unpurged(id).await?;
        self.compare(&sale, &archive.tables).await?;
        let (digest, by) = (archive.digest, archive.by.clone());
        let sale = self.retain(id, RetentionChange::Archive(digest), by).await?;
        tracing::info!(sale = %id, %digest, "sale: archived");
        Ok(sale)
    }

    /// Deletes the rows and the buckets of a sale that has this archive, for some seconds.
    /// Idempotent; calls again until the state is `purged`.
    pub async fn purge(
        &self,
        id: &SaleId,
        archive: &SaleArchive,
    ) -> Result<PurgeProgress, SalesError> {
        let (mut sale, digest) = (self.sale_in_ledger(id).await?, archive.digest);
        if !sale.retention.is_purged() {
            sale = self.begin_purge(&sale, archive).await?;
            tracing::warn!(sale = %id, %digest, "sale: purge begun");
        } else if sale.retention.digest != Some(digest) {
            return Err(SalesError::ArchiveDiffers("the sale is purged by another".to_owned()));
        }
        // Crash here [purge_begun]: buckets and rows are still there, or some of them; buyers read
        // that the sale has ended, and the next purge deletes the rest.
        self.delete_buckets(&sale).await?;
        let mut progress = self.delete_rows(&sale).await?;
        if progress.state == RetentionState::Purged {
            // A call that was under way may have written to a bucket meanwhile.
            self.delete_buckets(&sale).await?;
            // Crash here [rows_purged]: nothing is left to delete; the next purge finds that.
            let sale = self.retain(id, RetentionChange::EndPurge, None).await?;
            progress.state = sale.retention.state;
            tracing::warn!(sale = %id, %digest, "sale: purged");
        }
        Ok(progress)
    }

    /// Seals the sale, compares its archive, and releases its rows.
    async fn begin_purge(&self, sale: &Sale, archive: &SaleArchive) -> Result<Sale, SalesError> {
        let sealed = self.retain(&sale.id, RetentionChange::Seal(archive.digest), None).await;
        // Crash here [sale_sealed]: no order changes, and nothing is deleted; the next purge
        // compares the archive again.
        let begun = match sealed {
            Ok(_) => self.purge_sealed(sale, archive).await,
            // It may be sealed.
            Err(SalesError::Ledger(error)) if error.class() == ErrorClass::Unknown => {
                Err(error.into())
            }
            Err(refused) => return Err(refused),
        };
        if begun.is_err() {
            self.unseal(&sale.id).await;
        }
        begun
    }

    async fn purge_sealed(&self, sale: &Sale, archive: &SaleArchive) -> Result<Sale, SalesError> {
        self.compare(sale, &archive.tables).await?;
        // Counting the rows takes long; a loader may have held the buckets meanwhile.
        let queued = self.num_queued(sale).await?;
        if queued > 0 {
            return Err(SalesError::Unfinished(vec![(OpenEnd::Queued, queued)]));
        }
        let begin = RetentionChange::BeginPurge(archive.tables.clone());
        self.retain(&sale.id, begin, archive.by.clone()).await
    }

    /// Keeps a sealed sale again. Changes nothing if another call has begun its purge.
    async fn unseal(&self, id: &SaleId) {
        match self.backends.ledger.set_retention(id.clone(), RetentionChange::Unseal, None).await {
            Ok(Some(sale)) => self.enter_in_catalog(&sale),
            Ok(None) => {}
            // The next purge seals it again.
            Err(error) => tracing::warn!(sale = %id, %error, "sale: still sealed"),
        }
    }

    async fn unpurged(&self, id: &SaleId) -> Result<Sale, SalesError> {
        let sale = self.sale_in_ledger(id).await?;
        match sale.retention.digest {
            Some(digest) if sale.retention.is_purged() => Err(SalesError::Purged(digest)),
            _ => Ok(sale),
        }
    }

    async fn retain(
        &self,
        id: &SaleId,
        change: RetentionChange,
        by: Option<ByOperator>,
    ) -> Result<Sale, SalesError> {
        let changed = self.backends.ledger.set_retention(id.clone(), change, by).await?;
        let sale = changed.ok_or_else(|| {
            let differs = "the sale has another one, or none, or changed since";
            SalesError::ArchiveDiffers(differs.to_owned())
        })?;
        self.enter_in_catalog(&sale);
        Ok(sale)
    }

    async fn open_ends_of(&self, sale: &Sale) -> Result<Vec<(OpenEnd, u64)>, SalesError> {
        if sale.phase != Phase::Closed {
            return Ok(vec![(OpenEnd::NotClosed, 1)]);
        }
        let ledger = &self.backends.ledger;
        let (queued, mut in_dead_letters) = (self.num_queued(sale).await?, 0);
        for sku in &sale.skus {
            in_dead_letters += self.queued_in_dead_letters(sku).await?.len() as u64;
        }
        while ledger.number_events(NUMBERED_MAX).await? >= NUMBERED_MAX {}
        let mut open = vec![(OpenEnd::Queued, queued), (OpenEnd::DeadLetters, in_dead_letters)];
        open.retain(|(_, num)| *num > 0);
        open.extend(ledger.open_ends(sale, self.feed_readers).await?);
        Ok(open)
    }

    /// Accepted requests without a decision of the ledger. Buckets that are held or fenced count,
    /// too: those of a dormant sale are loaded some time later.
    async fn num_queued(&self, sale: &Sale) -> Result<u64, SalesError> {
        let stock = &self.backends.stock;
        let mut queued = 0;
        for sku in &sale.skus {
            // Registers buckets that this process has not needed before.
            stock.health(sku, sale.phase, sale.epoch).await?;
            queued += stock.num_unsettled_in_any_state(sku.no).await?;
        }
        Ok(queued)
    }

    async fn compare(&self, sale: &Sale, archived: &[TableContents]) -> Result<(), SalesError> {
        let open = self.open_ends_of(sale).await?;
        if !open.is_empty() {
            return Err(SalesError::Unfinished(open));
        }
        for found in self.backends.ledger.contents(sale).await? {
            if !archived.contains(&found) {
                let TableContents { table, rows, .. } = &found;
                let differs = format!("{} has {rows} rows in the ledger", table.name());
                return Err(SalesError::ArchiveDiffers(differs));
            }
        }
        Ok(())
    }

    async fn delete_buckets(&self, sale: &Sale) -> Result<(), SalesError> {
        for sku in &sale.skus {
            self.backends.stock.purge(sku).await?;
        }
        Ok(())
    }

    /// Deletes rows until there are none, or the time is over.
    async fn delete_rows(&self, sale: &Sale) -> Result<PurgeProgress, SalesError> {
        let until = self.clock.now() + DELETES_FOR;
        let mut progress =
            PurgeProgress { state: RetentionState::Purging, num_rows: 0, longest_ms: 0 };
        let mut limit = ORDERS_FIRST;
        for sku in &sale.skus {
            loop {
                if self.clock.now() >= until {
                    return Ok(progress);
                }
                let PurgeStep { num_rows, took } =
                    match self.backends.ledger.purge_step(sku.no, limit).await {
                        Err(error) if error.class() == ErrorClass::Retry => {
                            tokio::time::sleep(RETRY_AFTER).await;
                            continue;
                        }
                        step => step?,
                    };
                // Crash here [rows_partly_purged]: the next purge deletes the rest.
                if num_rows == 0 {
                    break;
                }
                progress.num_rows += num_rows;
                let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                progress.longest_ms = progress.longest_ms.max(took_ms);
                limit = next_limit(limit, took);
                // Half of the time is left to others.
                tokio::time::sleep(took).await;
            }
        }
        Ok(PurgeProgress { state: RetentionState::Purged, ..progress })
    }
}

/// Orders of the next transaction after one that took so long: in proportion, at most a quarter
/// more, at least half as many. One transaction may have waited for a busy disk.
fn next_limit(limit: u32, took: Duration) -> u32 {
    let in_proportion = u128::from(limit) * STEP_TARGET.as_micros() / took.as_micros().max(1);
    let next = u32::try_from(in_proportion).unwrap_or(u32::MAX);
    next.clamp(limit / 2, limit + limit / 4).clamp(ORDERS_MIN, ORDERS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_shrink_when_they_are_slow_and_grow_when_they_are_fast() {
        let ms = Duration::from_millis;
        let table = [
            ((100, ms(40)), 50),
            ((100, ms(15)), 80),
            ((100, ms(12)), 100),
            ((100, ms(10)), 120),
            ((100, ms(5)), 125),
            ((12, ms(900)), ORDERS_MIN),
            ((480, ms(1)), ORDERS_MAX),
        ];
        for ((limit, took), expected) in table {
            assert_eq!(next_limit(limit, took), expected, "{limit} in {took:?}");
        }
    }
}
