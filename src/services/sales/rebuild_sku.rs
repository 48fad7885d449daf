//! Rebuild on an operator's request, while the sale runs: the buckets are held, and the process
//! with the loader lease loads them as it loads lost buckets.

use std::sync::Arc;
use std::time::Duration;

use super::{SalesError, SalesService};
use crate::domain::{Sale, SaleId, Sku, SkuId};
use crate::stock::{self, BucketHealth};

/// Longest wait of a rebuild for one SKU. The maintenance processes continue afterwards.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Interval of the checks whether the buckets are loaded.
const POLL_EVERY: Duration = Duration::from_millis(50);

impl SalesService {
    /// Reloads the buckets of a sale, or of one SKU of it. Idempotent. If the caller stops waiting,
    /// the maintenance processes still load the held buckets.
    ///
    /// # Errors
    /// [`SalesError::Unknown`], [`SalesError::NoBuckets`], [`SalesError::NotRebuilt`], or the error
    /// of the ledger or the stock.
    pub async fn rebuild(
        &self,
        id: &SaleId,
        only: Option<&SkuId>,
    ) -> Result<Vec<Arc<Sku>>, SalesError> {
        let sale = self.current_sale(id).await?;
        if !self.backends.is_shared || !self.has_buckets(&sale) || !self.is_due(&sale) {
            return Err(SalesError::NoBuckets);
        }
        let skus = sale.skus.iter().filter(|sku| only.is_none_or(|id| sku.id == *id));
        let skus: Vec<_> = skus.cloned().map(Arc::new).collect();
        if skus.is_empty() {
            return Err(SalesError::Unknown);
        }
        for sku in &skus {
            self.hold_buckets(sku).await?;
            tracing::warn!(sale = %sale.id, sku = %sku.id, "buckets held: an operator rebuilds");
            // Crash here [held_by_operator]: a maintenance process loads the held buckets.
            self.wait_until_loaded(&sale, sku).await?;
            tracing::info!(sale = %sale.id, sku = %sku.id, "buckets rebuilt");
        }
        Ok(skus)
    }

    /// Waits until any process, including this one, has loaded the held buckets.
    async fn wait_until_loaded(&self, sale: &Sale, sku: &Arc<Sku>) -> Result<(), SalesError> {
        let started = self.clock.now();
        loop {
            let synced = {
                let _lock = self.loads.lock(sku.no).await;
                self.sync_sku(sale, sku).await.map(drop)
            };
            let health = self.backends.stock.health(sku, sale.phase, sale.epoch).await;
            if matches!(health, Ok(BucketHealth::Ready | BucketHealth::OtherPhase)) {
                return Ok(());
            }
            if self.clock.now().duration_since(started) >= WAIT_MAX {
                // Fenced by another loader: not an error of the rebuild.
                let is_fenced =
                    |e: &SalesError| matches!(e, SalesError::Stock(stock::Error::Fenced { .. }));
                synced.or_else(|error| if is_fenced(&error) { Ok(()) } else { Err(error) })?;
                return Err(SalesError::NotRebuilt { sku: sku.id.clone() });
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }
}
