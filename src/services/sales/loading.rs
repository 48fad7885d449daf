//! Loads missing or distrusted buckets of a SKU, under the loader lease.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard, Semaphore};

use super::{SalesError, SalesService};
use crate::domain::{DeadLetterNo, OrderIntent, Sale, Sku, SkuNo};
use crate::services::dead_letters::replay;
use crate::services::rebuild::{RebuildCounts, load_sku, next_loader_token};
use crate::stock::{self, BucketHealth};

/// Concurrent loads of a process. Each load buffers rows in memory and occupies a ledger
/// connection.
const LOADS_MAX: usize = 4;

/// Dead letters per read; each may be a megabyte.
const DEAD_LETTERS_PER_READ: u32 = 32;

/// Name of the lease of the process that loads buckets.
const LOADER_LEASE: &str = "loader";

/// Locks per SKU, and permits for concurrent loads, in this process.
#[derive(Debug)]
pub(super) struct BucketLoads {
    by_sku: parking_lot::Mutex<HashMap<SkuNo, Arc<Mutex<()>>>>,
    permits: Semaphore,
}

impl Default for BucketLoads {
    fn default() -> Self {
        Self { by_sku: parking_lot::Mutex::default(), permits: Semaphore::new(LOADS_MAX) }
    }
}

impl BucketLoads {
    fn lock_of(&self, sku: SkuNo) -> Arc<Mutex<()>> {
        Arc::clone(self.by_sku.lock().entry(sku).or_default())
    }

    /// Waits for the lock of a SKU.
    pub(super) async fn lock(&self, sku: SkuNo) -> OwnedMutexGuard<()> {
        self.lock_of(sku).lock_owned().await
    }

    /// The lock of a SKU; `None` if another task of this process has it.
    pub(super) fn try_lock(&self, sku: SkuNo) -> Option<OwnedMutexGuard<()>> {
        self.lock_of(sku).try_lock_owned().ok()
    }
}

impl SalesService {
    /// Loads the buckets of a SKU from the ledger if they need it and this process may load.
    /// Returns the number of loaded orders. The caller has the lock of the SKU.
    pub(super) async fn load(&self, sale: &Sale, sku: &Arc<Sku>) -> Result<u64, SalesError> {
        let _permit = self.loads.permits.acquire().await;
        // Another process may have loaded it while this one waited.
        let stock = self.backends.stock.as_ref();
        let reason = match stock.health(sku, sale.phase, sale.epoch).await? {
            BucketHealth::Ready | BucketHealth::OtherPhase => return Ok(0),
            BucketHealth::Missing => "missing, or held by a loader".to_owned(),
            BucketHealth::Distrusted { reason } => reason,
        };
        if !self.backends.is_shared {
            let ledger = self.backends.ledger.as_ref();
            let loaded = load_sku(ledger, stock, sku, Vec::new()).await?;
            return Ok(loaded.num_orders);
        }
        if !self.may_load || !self.is_due(sale) || !self.acquire_lease().await {
            return Ok(0);
        }
        tracing::info!(sale = %sale.id, sku = %sku.id, reason, "loading buckets");
        let loaded = tokio::select! {
            loaded = self.load_shared(sku) => loaded?,
            () = self.lease_lost() => {
                let reason = "another process took over the loading".to_owned();
                return Err(stock::Error::Fenced { sku: sku.no, reason }.into());
            }
        };
        let late = self.catch_up(sku, &loaded).await?;
        let orders = loaded.num_orders;
        tracing::info!(sale = %sale.id, sku = %sku.id, orders, late, "buckets loaded");
        Ok(orders)
    }

    /// Loads buckets that other processes share.
    async fn load_shared(&self, sku: &Arc<Sku>) -> Result<RebuildCounts, SalesError> {
        let queued = self.queued_in_dead_letters(sku).await?;
        let (ledger, stock) = (self.backends.ledger.as_ref(), self.backends.stock.as_ref());
        Ok(load_sku(ledger, stock, sku, queued).await?)
    }

    /// Settles what the ledger decided during the load. On error the buckets are held again, for
    /// the next load.
    async fn catch_up(&self, sku: &Arc<Sku>, loaded: &RebuildCounts) -> Result<usize, SalesError> {
        let (ledger, stock) = (self.backends.ledger.as_ref(), self.backends.stock.as_ref());
        // Crash here [opened]: results that the ledger committed during the load, of requests that
        // the buckets had lost, are settled by the next load.
        match loaded.catch_up(ledger, stock, sku).await {
            Ok(late) => Ok(late),
            Err(error) => {
                stock.load(Arc::clone(sku), 0, next_loader_token(ledger).await?).await?;
                Err(error.into())
            }
        }
    }

    /// Requests of a SKU whose end state is a dead letter: accepted, undecided, and possibly lost
    /// by their buckets.
    async fn queued_in_dead_letters(&self, sku: &Sku) -> Result<Vec<OrderIntent>, SalesError> {
        let Some(pipeline) = &self.backends.pipeline else { return Ok(Vec::new()) };
        let (mut queued, mut after) = (Vec::new(), DeadLetterNo(0));
        loop {
            let dead_letters =
                self.backends.ledger.final_dead_letters(after, DEAD_LETTERS_PER_READ).await?;
            let Some((last, _)) = dead_letters.last() else { return Ok(queued) };
            after = last.no;
            for (dead_letter, body) in dead_letters {
                let intents = replay::intents_ending_in(&dead_letter, body, &pipeline.installation);
                queued.extend(intents.into_iter().filter(|intent| intent.sku == sku.no));
            }
        }
    }

    /// Renews the loader lease, and returns when it is lost.
    async fn lease_lost(&self) {
        loop {
            tokio::time::sleep(self.lease_ttl / 3).await;
            if !self.acquire_lease().await {
                return;
            }
        }
    }

    /// Holds the buckets of a SKU, so that the next sync of a maintenance process loads them.
    pub(super) async fn hold_buckets(&self, sku: &Arc<Sku>) -> Result<(), SalesError> {
        let loader = next_loader_token(self.backends.ledger.as_ref()).await?;
        drop(self.backends.stock.load(Arc::clone(sku), 0, loader).await?);
        Ok(())
    }

    /// Acquires or renews the loader lease. Returns whether this process has it.
    pub(super) async fn acquire_lease(&self) -> bool {
        let grant = self.backends.lease.hold(LOADER_LEASE, &self.holder, self.lease_ttl).await;
        match grant {
            Ok(hold) => hold.is_held(self.clock.now()),
            Err(error) => {
                tracing::warn!(%error, "loader lease: not available, not loading buckets");
                false
            }
        }
    }

    /// Whether the preload time of a sale has come.
    pub(super) fn is_due(&self, sale: &Sale) -> bool {
        self.clock.wall_ms() >= sale.starts_at_ms.saturating_sub(self.preload_ms)
    }
}
