//! The buckets of sales follow the ledger: loaded where they are missing, in its phase, with its
//! stock.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::stream::{self, StreamExt};

use super::loading::{LOADS_MAX, SkuSyncs};
use super::{SalesError, SalesService};
use crate::domain::{Phase, Sale, Sku};
use crate::stock::BucketHealth;

/// SKUs that are synced concurrently.
const SYNCS_MAX: usize = 16;

impl SalesService {
    /// Syncs the buckets of these sales with the changes of other processes, several concurrently,
    /// those of open sales before the others, and then one dormant SKU. Skips SKUs that another
    /// task of this process is syncing.
    ///
    /// # Errors
    /// The first error; the other SKUs are synced nevertheless.
    pub async fn sync_sales(&self, sales: &[Sale]) -> Result<(), SalesError> {
        // The ping detects a promoted server; its buckets are fenced from then on.
        let first_error = self.backends.stock.ping().await.map_err(SalesError::from);
        let loadable = sales.iter().filter(|sale| self.is_synced(sale));
        let (open, others): (Vec<_>, Vec<_>) = loadable.partition(|sale| sale.phase == Phase::Open);
        let mut results = Vec::new();
        for sales in [open, others] {
            let skus = sales.iter().flat_map(|sale| sale.skus.iter().map(move |sku| (*sale, sku)));
            let syncs = skus.map(|(sale, sku)| async move {
                let Ok(mut syncs) = self.loads.of_sku(sku.no).try_lock_owned() else {
                    return (sale.no, Ok(false));
                };
                (sale.no, self.sync_sku(sale, sku, &mut syncs).await.map(|_| true))
            });
            let synced = stream::iter(syncs).buffer_unordered(SYNCS_MAX);
            results.extend(synced.collect::<Vec<_>>().await);
        }
        let (mut synced, mut unsynced) = (first_error, HashSet::new());
        for (sale, result) in results {
            if !matches!(result, Ok(true)) {
                unsynced.insert(sale);
            }
            synced = synced.and(result.map(drop));
        }
        for sale in sales.iter().filter(|sale| !unsynced.contains(&sale.no)) {
            self.record_applied(sale).await;
        }
        synced.and(self.sync_next_dormant(sales).await)
    }

    /// Syncs one dormant SKU, another one each time, while no bucket is loaded: its buckets are
    /// loaded if Redis lost them, so that its requests stay readable, and delay no other load.
    async fn sync_next_dormant(&self, sales: &[Sale]) -> Result<(), SalesError> {
        if !self.may_load || self.loads.permits.available_permits() < LOADS_MAX {
            return Ok(());
        }
        let dormant = sales.iter().filter(|sale| sale.has_buckets() && !self.is_synced(sale));
        let skus: Vec<_> =
            dormant.flat_map(|sale| sale.skus.iter().map(move |sku| (sale, sku))).collect();
        let sync_no = self.loads.num_dormant_syncs.fetch_add(1, Ordering::Relaxed);
        let next = sync_no.checked_rem(skus.len()).and_then(|at| skus.get(at));
        let Some((sale, sku)) = next else { return Ok(()) };
        let Ok(mut syncs) = self.loads.of_sku(sku.no).try_lock_owned() else { return Ok(()) };
        self.sync_sku(sale, sku, &mut syncs).await?;
        let stock = &self.backends.stock;
        // There are many, and the reconciler needs only those with unsettled requests. Buckets that
        // another process is to load are no error.
        if stock.num_unsettled(sku.no).await == Ok(0) {
            stock.forget(sku.no);
        }
        Ok(())
    }

    /// Records when no bucket of a sale sold under an earlier phase any more, by every trusted
    /// clock, once for each phase. The caller has written the phase to all buckets that can sell.
    async fn record_applied(&self, sale: &Sale) {
        let pair = (sale.epoch, sale.phase);
        if !self.is_synced(sale) || self.applied.lock().get(&sale.no) == Some(&pair) {
            return;
        }
        let applied_ms = self.clock.wall_ms().saturating_add(self.skew_max_ms);
        match self.backends.ledger.phase_applied(sale, applied_ms).await {
            Ok(()) => {
                self.applied.lock().insert(sale.no, pair);
            }
            // The next sync repeats it.
            Err(error) => tracing::warn!(sale = %sale.id, %error, "applied phase not recorded"),
        }
    }

    /// Loads the buckets of a sale if needed, and writes its phase to them. Returns the number of
    /// orders read.
    ///
    /// # Errors
    /// The first error; the other SKUs are synced nevertheless.
    pub(super) async fn sync_sale(&self, sale: &Sale) -> Result<u64, SalesError> {
        let mut num_orders = Ok(0);
        for sku in sale.skus.iter().filter(|_| self.is_synced(sale)) {
            let mut syncs = self.loads.of_sku(sku.no).lock_owned().await;
            let loaded = self.sync_sku(sale, sku, &mut syncs).await;
            num_orders = num_orders.and_then(|sum: u64| Ok(sum + loaded?));
        }
        if num_orders.is_ok() {
            self.record_applied(sale).await;
        }
        num_orders
    }

    /// Syncs one SKU. Returns the number of orders read.
    pub(super) async fn sync_sku(
        &self,
        sale: &Sale,
        sku: &Arc<Sku>,
        syncs: &mut SkuSyncs,
    ) -> Result<u64, SalesError> {
        let (stock, may_load) = (&self.backends.stock, syncs.begin());
        let health = stock.health(sku, sale.phase, sale.epoch).await?;
        let is_lost = matches!(health, BucketHealth::Missing | BucketHealth::Distrusted { .. });
        if may_load
            && (is_lost || self.hold_if_unfinished(sku, syncs).await?)
            && let Some(num_orders) = self.load(sale, sku, syncs).await?
        {
            return Ok(num_orders);
        }
        match health {
            BucketHealth::Ready => match self.compare_units(sku, &mut syncs.compared).await {
                // Lost since the last poll: the next sync loads them.
                Err(SalesError::Stock(error)) if error.is_not_loaded() => {}
                compared => compared?,
            },
            // Behind the ledger, or ahead of this read of it.
            BucketHealth::OtherPhase { latest } => {
                stock.set_phase(sku, sale.phase, sale.epoch).await?;
                self.check_not_behind(sale, latest).await?;
            }
            BucketHealth::OtherStock { change_no } => {
                self.apply_stock_changes(sku, change_no).await?;
            }
            // The siblings of a lost bucket may sell until they are loaded with it.
            _ => self.set_sku_phase(sale, sku).await?,
        }
        Ok(0)
    }
}
