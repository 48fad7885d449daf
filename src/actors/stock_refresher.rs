//! Refreshes the available units in every process where the units are counted elsewhere: in the
//! ledger (tier `ledger`), or in a store that many processes share (tiers `gate` and `pipeline`).
//!
//! The same read sets and clears the local sold-out flag, so that returned units are on sale within
//! one tick. On error: the next tick retries. On crash: no state is lost.

use std::sync::Arc;

use super::periodic::{RunResult, Task};
use crate::db::Ledger;
use crate::domain::{Counting, SkuNo};
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;
use crate::stock::{self, Stock};

/// Reads the available units of every SKU into the local stock.
pub struct StockRefresher {
    pub catalog: Arc<Catalog>,
    pub ledger: Arc<dyn Ledger>,
    pub stock: Arc<dyn Stock>,
    /// Where units are counted.
    pub counting: Counting,
    pub clock: SharedClock,
}

impl Task for StockRefresher {
    type State = ();

    const FAILURE: &'static str = "stock refresh failed, retrying";

    /// Refreshes every SKU; returns the first error after all of them.
    async fn run(&self, (): &()) -> RunResult {
        let mut outcome = Ok(());
        for sale in self.catalog.all() {
            // Recently closed sales are included: their buyers still read the status of their
            // requests.
            if sale.has_buckets() && !sale.is_dormant(self.clock.wall_ms()) {
                for sku in &sale.skus {
                    outcome = outcome.and(self.refresh(sku.no).await);
                }
            }
        }
        outcome
    }
}

impl StockRefresher {
    async fn refresh(&self, sku: SkuNo) -> RunResult {
        match self.counting {
            Counting::InLedger => {
                self.stock.cache_left(sku, self.ledger.available(sku).await?);
            }
            Counting::InStock => stock::if_loaded(self.stock.refresh(sku).await)?,
        }
        Ok(())
    }
}
