//! Loads missing or distrusted buckets of a SKU, under the loader lease. On an operator's request
//! the buckets are held, and the process with the lease loads them as it loads lost buckets.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};

use super::drift::Comparison;
use super::{SalesError, SalesService};
use crate::domain::{DeadLetterNo, LoaderToken, OrderIntent, Sale, SaleId, Sku, SkuId, SkuNo};
use crate::lease::TaskLease;
use crate::services::dead_letters::replay;
use crate::services::rebuild::load_sku;
use crate::stock::{self, BucketHealth};

/// Concurrent loads of a process. Each load buffers rows in memory and scans the ledger; at the
/// default `ledger.readers`, which leaves two readers for scans, none waits for another one.
pub(super) const LOADS_MAX: usize = 2;

/// Dead letters per read; each may be a megabyte.
const DEAD_LETTERS_PER_READ: u32 = 32;

/// Longest wait of a rebuild for one SKU. The maintenance processes continue afterwards.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Interval of the checks whether the buckets are loaded.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// Most syncs of a SKU from one load that does not finish to the next, as a power of two. Each load
/// takes a token, and the scripts count exactly for some 90 million of them.
const SYNCS_LOG2_MAX: u32 = 5;

/// The syncs of each SKU, and permits for concurrent loads, in this process.
#[derive(Debug)]
pub(super) struct BucketLoads {
    by_sku: parking_lot::Mutex<HashMap<SkuNo, Arc<Mutex<SkuSyncs>>>>,
    pub(super) permits: Semaphore,
    /// Syncs of dormant SKUs so far.
    pub(super) num_dormant_syncs: AtomicUsize,
}

/// The syncs of a SKU by this process, one at a time.
#[derive(Debug, Default)]
pub(super) struct SkuSyncs {
    /// The last load, if it did not settle the latest results: a later sync loads the SKU again.
    unfinished: Option<LoaderToken>,
    /// Loads in a row that did not finish.
    num_loads: u32,
    /// Since the last of these loads.
    num_syncs: u32,
    pub(super) compared: Option<Comparison>,
}

impl Default for BucketLoads {
    fn default() -> Self {
        Self {
            by_sku: parking_lot::Mutex::default(),
            permits: Semaphore::new(LOADS_MAX),
            num_dormant_syncs: AtomicUsize::new(0),
        }
    }
}

impl BucketLoads {
    /// The syncs of a SKU. The lock is held during each of them.
    pub(super) fn of_sku(&self, sku: SkuNo) -> Arc<Mutex<SkuSyncs>> {
        Arc::clone(self.by_sku.lock().entry(sku).or_default())
    }
}

impl SkuSyncs {
    /// Counts a sync. Returns whether it may load: with each load in a row that did not finish, the
    /// next one waits for twice as many syncs.
    pub(super) fn begin(&mut self) -> bool {
        self.num_syncs = self.num_syncs.saturating_add(1);
        self.num_syncs >= 1 << self.num_loads.saturating_sub(1).min(SYNCS_LOG2_MAX)
    }

    fn begin_load(&mut self, loader: LoaderToken) {
        let num_loads = self.num_loads.saturating_add(1);
        *self = Self { unfinished: Some(loader), num_loads, num_syncs: 0, ..*self };
    }

    fn finish_load(&mut self) {
        *self = Self { compared: self.compared, ..Self::default() };
    }
}

impl SalesService {
    /// Loads the buckets of a SKU from the ledger if they need it and this process may load.
    /// Returns the number of loaded orders; `None`: nothing was loaded.
    pub(super) async fn load(
        &self,
        sale: &Sale,
        sku: &Arc<Sku>,
        syncs: &mut SkuSyncs,
    ) -> Result<Option<u64>, SalesError> {
        // With other processes there is a next sync: none waits behind the loads of others, which
        // would count as a stall.
        let _permit = match self.loads.permits.try_acquire() {
            Ok(permit) => Ok(permit),
            Err(_) if self.backends.is_shared => return Ok(None),
            Err(_) => self.loads.permits.acquire().await,
        };
        // Another process may have loaded it while this one waited.
        let (ledger, stock) = (self.backends.ledger.as_ref(), self.backends.stock.as_ref());
        let reason = match stock.health(sku, sale.phase, sale.epoch).await? {
            BucketHealth::Ready
            | BucketHealth::OtherPhase { .. }
            | BucketHealth::OtherStock { .. } => return Ok(None),
            BucketHealth::Missing => "missing, or held by a loader".to_owned(),
            BucketHealth::Distrusted { reason } => reason,
        };
        if !self.backends.is_shared {
            let loader = ledger.begin_load(sku.no).await?;
            let loaded = load_sku(ledger, stock, sku, loader, Vec::new()).await?;
            return Ok(Some(loaded.num_orders));
        }
        if !self.may_load || !self.is_due(sale) || !acquired(&self.loader).await {
            return Ok(None);
        }
        tracing::info!(sale = %sale.id, sku = %sku.id, reason, "loading buckets");
        let loader = ledger.begin_load(sku.no).await?;
        // Even a publish without an answer may have opened the buckets.
        syncs.begin_load(loader);
        let load = async {
            let queued = self.queued_in_dead_letters(sku).await?;
            load_sku(ledger, stock, sku, loader, queued).await
        };
        let loaded = tokio::select! {
            loaded = load => loaded?,
            () = self.loader.lost() => {
                let reason = "another process took over the loading".to_owned();
                return Err(stock::Error::Fenced { sku: sku.no, reason }.into());
            }
        };
        // Crash here [opened]: results that the ledger committed during the load, of requests that
        // the buckets had lost, are settled by the next load.
        // The stock returner passes over the orders of dormant sales.
        let is_dormant = sale.is_dormant(self.clock.wall_ms());
        let late = loaded.catch_up(ledger, stock, sku, is_dormant).await?;
        syncs.finish_load();
        let orders = loaded.num_orders;
        tracing::info!(sale = %sale.id, sku = %sku.id, orders, late, "buckets loaded");
        Ok(Some(orders))
    }

    /// Requests of a SKU whose end state is a dead letter: accepted, undecided, and possibly lost
    /// by their buckets.
    pub(super) async fn queued_in_dead_letters(
        &self,
        sku: &Sku,
    ) -> Result<Vec<OrderIntent>, SalesError> {
        let Some(pipeline) = &self.backends.pipeline else { return Ok(Vec::new()) };
        let (mut queued, mut after) = (Vec::new(), DeadLetterNo(0));
        loop {
            let dead_letters = self
                .backends
                .ledger
                .holding_dead_letters(vec![sku.no], after, DEAD_LETTERS_PER_READ)
                .await?;
            let Some((last, _)) = dead_letters.last() else { return Ok(queued) };
            after = last.no;
            for (dead_letter, body) in dead_letters {
                let intents = replay::intents_held_by(&dead_letter, body, &pipeline.reader);
                queued.extend(intents.into_iter().filter(|intent| intent.sku == sku.no));
            }
        }
    }

    /// Holds the buckets of a SKU, so that the next sync of a maintenance process loads them.
    pub(super) async fn hold_buckets(&self, sku: &Arc<Sku>) -> Result<(), SalesError> {
        let loader = self.backends.ledger.begin_load(sku.no).await?;
        drop(self.backends.stock.load(Arc::clone(sku), loader).await?);
        Ok(())
    }

    /// Holds the open buckets of a SKU whose load by this process is not finished, unless a later
    /// load, which settles the results, has them. The ledger, or the store, that was away then may
    /// be away still. Returns whether they are held.
    pub(super) async fn hold_if_unfinished(
        &self,
        sku: &Arc<Sku>,
        syncs: &mut SkuSyncs,
    ) -> Result<bool, SalesError> {
        let Some(LoaderToken(loader)) = syncs.unfinished else { return Ok(false) };
        if !acquired(&self.loader).await {
            return Ok(false);
        }
        // Nothing is held that the ledger could not load.
        self.backends.ledger.begin_load(sku.no).await?;
        // A later load has this token or a larger one: it is not held again.
        let next = LoaderToken(loader + 1);
        match self.backends.stock.load(Arc::clone(sku), next).await {
            Ok(_) => return Ok(true),
            Err(stock::Error::Fenced { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        syncs.finish_load();
        Ok(false)
    }

    /// Runs `repair` as the only one of all processes. `None`: another one repairs, or has taken
    /// over.
    pub async fn repair_alone<T>(&self, repair: impl Future<Output = T>) -> Option<T> {
        let _alone = self.repairing.try_lock().ok()?;
        if !acquired(&self.repairer).await {
            return None;
        }
        let repaired = tokio::select! {
            repaired = repair => Some(repaired),
            () = self.repairer.lost() => None,
        };
        self.repairer.release().await;
        repaired
    }

    /// Whether the preload time of a sale has come.
    pub(super) fn is_due(&self, sale: &Sale) -> bool {
        self.clock.wall_ms() >= sale.starts_at_ms.saturating_sub(self.preload_ms)
    }

    /// Reloads the buckets of a sale, of one SKU, or of the SKUs that have a bucket. Idempotent. If
    /// the caller stops waiting, the maintenance processes still load the held buckets.
    pub async fn rebuild(
        &self,
        id: &SaleId,
        only: Option<&SkuId>,
        bucket: Option<u16>,
    ) -> Result<Vec<Arc<Sku>>, SalesError> {
        let sale = self.current_sale(id).await?;
        let skus = sale.skus.iter().filter(|sku| only.is_none_or(|id| sku.id == *id));
        let skus = skus.filter(|sku| bucket.is_none_or(|bucket| bucket < sku.buckets));
        let skus: Vec<_> = skus.cloned().collect();
        if skus.is_empty() {
            return Err(SalesError::Unknown);
        }
        if !self.backends.is_shared || !self.is_synced(&sale) || !self.is_due(&sale) {
            return Err(SalesError::NoBuckets);
        }
        for sku in &skus {
            match self.backends.stock.health(sku, sale.phase, sale.epoch).await {
                Ok(BucketHealth::OtherPhase { latest }) => {
                    self.check_not_behind(&sale, latest).await?;
                }
                // No load begins before every bucket has answered, and held buckets sell nothing.
                Err(error @ (stock::Error::Unavailable { .. } | stock::Error::Unknown { .. })) => {
                    return Err(error.into());
                }
                _ => {}
            }
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
                let mut syncs = self.loads.of_sku(sku.no).lock_owned().await;
                self.sync_sku(sale, sku, &mut syncs).await.map(drop)
            };
            let health = self.backends.stock.health(sku, sale.phase, sale.epoch).await;
            match health {
                Ok(BucketHealth::Ready) => return Ok(()),
                Ok(BucketHealth::OtherPhase { latest }) => {
                    return self.check_not_behind(sale, latest).await;
                }
                _ => {}
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

/// Whether this process has the lease; not if that cannot be known.
pub(super) async fn acquired(lease: &TaskLease) -> bool {
    lease.acquire().await.unwrap_or_else(|error| {
        tracing::warn!(lease = lease.name, %error, "lease not available");
        false
    })
}
