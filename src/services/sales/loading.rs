//! Buckets that have to be loaded: whose task that is, when, and what comes before and after.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard, Semaphore};

use super::{SalesError, SalesService};
use crate::domain::{DeadLetterNo, OrderIntent, Sale, Sku, SkuNo};
use crate::services::dead_letters::replay;
use crate::services::rebuild::{RebuildCounts, load_sku, next_loader};
use crate::stock::{self, BucketHealth};

/// SKUs that one process loads at once: each holds rows on their way in memory, and a connection to
/// the ledger.
const LOADS_AT_ONCE: usize = 4;

/// Dead letters that are read at once; each may be a megabyte.
const LETTERS_AT_ONCE: u32 = 32;

/// The lease of whoever loads buckets.
const LOADER_LEASE: &str = "loader";

/// Who sees to which SKU in this process.
#[derive(Debug)]
pub(super) struct BucketLoads {
    by_sku: parking_lot::Mutex<HashMap<SkuNo, Arc<Mutex<()>>>>,
    permits: Semaphore,
}

impl Default for BucketLoads {
    fn default() -> Self {
        Self { by_sku: parking_lot::Mutex::default(), permits: Semaphore::new(LOADS_AT_ONCE) }
    }
}

impl BucketLoads {
    fn of(&self, sku: SkuNo) -> Arc<Mutex<()>> {
        Arc::clone(self.by_sku.lock().entry(sku).or_default())
    }

    /// The right to see to a SKU.
    pub(super) async fn turn(&self, sku: SkuNo) -> OwnedMutexGuard<()> {
        self.of(sku).lock_owned().await
    }

    /// The right to see to a SKU, unless somebody in this process is at it.
    pub(super) fn try_turn(&self, sku: SkuNo) -> Option<OwnedMutexGuard<()>> {
        self.of(sku).try_lock_owned().ok()
    }
}

impl SalesService {
    /// Loads the buckets of a SKU from the ledger, where that is this process's to do. The caller
    /// has the SKU's turn.
    pub(super) async fn load(&self, sale: &Sale, sku: &Arc<Sku>) -> Result<u64, SalesError> {
        let _permit = self.loads.permits.acquire().await;
        // Another process may have loaded it while this one waited.
        let stock = self.backends.stock.as_ref();
        let why = match stock.condition(sku, sale.phase, sale.epoch).await? {
            BucketHealth::Ready | BucketHealth::OtherPhase => return Ok(0),
            BucketHealth::Missing => "missing, or held by a loader".to_owned(),
            BucketHealth::Distrusted { reason } => reason,
        };
        if !self.backends.is_shared {
            let ledger = self.backends.ledger.as_ref();
            let loaded = load_sku(ledger, stock, sku, Vec::new()).await?;
            return Ok(loaded.num_orders);
        }
        if !self.may_load || !self.is_due(sale) || !self.holds_lease().await {
            return Ok(0);
        }
        tracing::info!(sale = %sale.id, sku = %sku.id, why, "loading buckets");
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

    /// Loads buckets that other processes sell from, too.
    async fn load_shared(&self, sku: &Arc<Sku>) -> Result<RebuildCounts, SalesError> {
        let waiting = self.waiting_in_letters(sku).await?;
        let (ledger, stock) = (self.backends.ledger.as_ref(), self.backends.stock.as_ref());
        Ok(load_sku(ledger, stock, sku, waiting).await?)
    }

    /// Enters what the ledger decided while the buckets were loaded. Where that fails they are held
    /// again, for the next load.
    async fn catch_up(&self, sku: &Arc<Sku>, loaded: &RebuildCounts) -> Result<usize, SalesError> {
        let (ledger, stock) = (self.backends.ledger.as_ref(), self.backends.stock.as_ref());
        // Crash here [opened]: what the ledger decided while the buckets were loaded, of requests
        // that they had lost, is entered by the next load.
        match loaded.catch_up(ledger, stock, sku).await {
            Ok(late) => Ok(late),
            Err(error) => {
                stock.load(Arc::clone(sku), 0, next_loader(ledger).await?).await?;
                Err(error.into())
            }
        }
    }

    /// Requests of a SKU that wait in dead letters: accepted, undecided, and perhaps lost by their
    /// buckets since.
    async fn waiting_in_letters(&self, sku: &Sku) -> Result<Vec<OrderIntent>, SalesError> {
        let Some(pipeline) = &self.backends.pipeline else { return Ok(Vec::new()) };
        let (mut waiting, mut after) = (Vec::new(), DeadLetterNo(0));
        loop {
            let letters = self.backends.ledger.ending_letters(after, LETTERS_AT_ONCE).await?;
            let Some((last, _)) = letters.last() else { return Ok(waiting) };
            after = last.no;
            for (letter, body) in letters {
                let intents = replay::ending_in(&letter, body, &pipeline.installation);
                waiting.extend(intents.into_iter().filter(|intent| intent.sku == sku.no));
            }
        }
    }

    /// Renews the lease until it cannot be had any more.
    async fn lease_lost(&self) {
        loop {
            tokio::time::sleep(self.lease_ttl / 3).await;
            if !self.holds_lease().await {
                return;
            }
        }
    }

    /// Holds the buckets of a SKU, for the next look of a keeper to load them.
    pub(super) async fn hold_buckets(&self, sku: &Arc<Sku>) -> Result<(), SalesError> {
        let loader = next_loader(self.backends.ledger.as_ref()).await?;
        drop(self.backends.stock.load(Arc::clone(sku), 0, loader).await?);
        Ok(())
    }

    /// Whether this process is the one that loads.
    pub(super) async fn holds_lease(&self) -> bool {
        let asked = self.backends.lease.hold(LOADER_LEASE, &self.holder, self.lease_ttl).await;
        match asked {
            Ok(hold) => hold.is_held(self.clock.now()),
            Err(error) => {
                tracing::warn!(%error, "nobody can say who loads buckets");
                false
            }
        }
    }

    /// Whether a sale must be loaded by now.
    pub(super) fn is_due(&self, sale: &Sale) -> bool {
        self.clock.wall_ms() >= sale.starts_at_ms.saturating_sub(self.preload_ms)
    }
}
