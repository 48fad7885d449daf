//! The operators' verb that loads buckets anew while everything runs: it holds them, and whichever
//! process has the keepers' lease loads them as it loads buckets that were lost.

use std::sync::Arc;
use std::time::Duration;

use super::{SalesError, SalesService};
use crate::domain::{Sale, SaleId, Sku, SkuId};
use crate::stock::{self, BucketHealth};

/// How long the verb waits for one SKU; the keepers go on without it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often it looks whether the buckets are loaded.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl SalesService {
    /// Loads the buckets of a sale, or of one SKU of it, anew. Repeats are harmless; whoever gives
    /// up waiting leaves it to the keepers.
    ///
    /// # Errors
    /// [`SalesError::Unknown`], [`SalesError::NoBuckets`], [`SalesError::NotRebuilt`], or what the
    /// ledger or the stock said.
    pub async fn rebuild(
        &self,
        id: &SaleId,
        only: Option<&SkuId>,
    ) -> Result<Vec<Arc<Sku>>, SalesError> {
        let sale = self.present(id).await?;
        if !self.backends.is_shared || !self.stands(&sale) || !self.is_due(&sale) {
            return Err(SalesError::NoBuckets);
        }
        let chosen = sale.skus.iter().filter(|sku| only.is_none_or(|id| sku.id == *id));
        let chosen: Vec<_> = chosen.cloned().map(Arc::new).collect();
        if chosen.is_empty() {
            return Err(SalesError::Unknown);
        }
        for sku in &chosen {
            self.hold_buckets(sku).await?;
            tracing::warn!(sale = %sale.id, sku = %sku.id, "buckets held: an operator rebuilds");
            // Crash here [held_by_operator]: the keepers load what is held.
            self.until_loaded(&sale, sku).await?;
            tracing::info!(sale = %sale.id, sku = %sku.id, "buckets rebuilt");
        }
        Ok(chosen)
    }

    /// Waits until some process has loaded held buckets; this one tries, too.
    async fn until_loaded(&self, sale: &Sale, sku: &Arc<Sku>) -> Result<(), SalesError> {
        let begun = self.clock.now();
        loop {
            let brought = {
                let _turn = self.loads.turn(sku.no).await;
                self.bring_up_sku(sale, sku).await.map(drop)
            };
            let condition = self.backends.stock.condition(sku, sale.phase, sale.epoch).await;
            if matches!(condition, Ok(BucketHealth::Ready | BucketHealth::OtherPhase)) {
                return Ok(());
            }
            if self.clock.now().duration_since(begun) >= PATIENCE {
                // Another loader is no error of its own.
                let is_fenced =
                    |e: &SalesError| matches!(e, SalesError::Stock(stock::Error::Fenced { .. }));
                brought.or_else(|error| if is_fenced(&error) { Ok(()) } else { Err(error) })?;
                return Err(SalesError::NotRebuilt { sku: sku.id.clone() });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
