//! Operations on sales: create, open, pause, close, rebuild, funnel.
//!
//! A change is written to the ledger first, then to the buckets, then to the catalog. Epoch and
//! phase are one ordered pair that only grows, in the ledger, every bucket and every catalog: a
//! late, repeated or overtaken write changes nothing. Opening takes the next epoch only after no
//! bucket sells under the previous one (`Fenced`). On crash between two steps: the next start, or
//! the next sync of any process, writes the change to the buckets.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Mutex;

use crate::config::Settings;
use crate::db;
use crate::domain::{
    ArchiveDigest, ByOperator, Epoch, OpenEnd, Phase, Sale, SaleDraft, SaleId, Sku, SkuId, SkuNo,
};
use crate::lease::TaskLease;
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;
use crate::services::order_feed::{BROKER_READER, STOCK_READER};
use crate::stock;
use crate::tier::Backends;

mod bars;
mod buckets;
mod changes;
mod drift;
mod funnel;
mod loading;
mod lookup;
mod restored;
mod retention;
mod sync;

pub use buckets::SkuBucketsReport;
pub use changes::{StockChanged, StockOrder};
pub use funnel::FunnelStage;
pub use lookup::NotRead;
pub use retention::{PurgeProgress, SaleArchive};

/// Attempts to set a phase against concurrent changes of other processes.
const PHASE_ATTEMPTS_MAX: u32 = 8;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum SalesError {
    #[error("a sale with this sale_id exists already")]
    Exists,
    #[error("no sale has this id")]
    Unknown,
    /// The transition is not allowed from the sale's phase.
    #[error(
        "sale {sale} is {} and cannot become {}; {}",
        .from.name(), .to.name(), .from.possible_now()
    )]
    NotAllowed { sale: SaleId, from: Phase, to: Phase },
    /// The sale has no shared buckets: nothing to rebuild.
    #[error("the sale has no buckets that could be rebuilt")]
    NoBuckets,
    /// The rebuild timed out: the buckets are held and not loaded yet.
    #[error("the buckets of sku {sku} are held, and no process has loaded them yet")]
    NotRebuilt { sku: SkuId },
    /// The buckets are in a later epoch or phase than the ledger, which is read after them and
    /// written before them: the ledger was restored from an older backup, or replaced.
    #[error(
        "the buckets of sale {sale} are in epoch {buckets}, the ledger in {ledger}: it was \
         restored from an older backup; `floodgate sale open {sale}` continues above both"
    )]
    LedgerBehind { sale: SaleId, buckets: i64, ledger: i64 },
    /// Buckets could not be reached: they are brought to the phase once they can.
    #[error("the sale is {} in the ledger, its buckets follow: {error}", .phase.name())]
    NotApplied { phase: Phase, error: stock::Error },
    #[error("a closed sale does not change")]
    IsClosed,
    #[error("this change_id names a change of other units")]
    ChangeConflict,
    /// No unit left the stock, and the buckets have them again or will be loaded.
    #[error("the buckets were loaded meanwhile: repeat the change")]
    NotWithdrawn,
    #[error("the sale is not finished")]
    Unfinished(Vec<(OpenEnd, u64)>),
    #[error("the archive does not fit the ledger: {0}")]
    ArchiveDiffers(String),
    #[error("the sale was deleted; the manifest of its archive has the SHA-256 {0}")]
    Purged(ArchiveDigest),
    /// All faults of the description.
    #[error("{}", .0.join("; "))]
    Faults(Vec<String>),
    #[error("the ledger is not available")]
    Ledger(#[from] db::Error),
    #[error("the stock is not available")]
    Stock(#[from] stock::Error),
}

/// The gates of this process, as the sales service sees them.
pub trait Gates: Send + Sync {
    /// Starts the gates of a SKU, unless they run.
    fn open(&self, sku: &Arc<Sku>);

    /// Ends the gates of a SKU. Returns whether they ran.
    fn close(&self, sku: SkuNo) -> bool;
}

/// Operations on sales, serialized within a process. Cheap to clone.
#[derive(Clone)]
pub struct SalesService {
    catalog: Arc<Catalog>,
    backends: Backends,
    gates: Arc<dyn Gates>,
    clock: SharedClock,
    preload_ms: i64,
    /// The most by which the trusted clocks of two processes differ: one is ahead of the ledger's,
    /// the other behind it.
    skew_max_ms: i64,
    /// The readers of the feed whose cursors must have passed the events of a purged sale.
    feed_readers: &'static [&'static str],
    /// The lease of the process that loads buckets.
    loader: Arc<TaskLease>,
    /// The lease of the process that repairs what an audit found.
    repairer: Arc<TaskLease>,
    /// Whether the role of this process loads shared buckets.
    may_load: bool,
    /// Serializes operations.
    operation: Arc<Mutex<()>>,
    /// Held by the repair of this process.
    repairing: Arc<Mutex<()>>,
    /// Held from a read of the ledger's sales until the catalog has what was read, so that the
    /// catalog never goes back.
    reading: Arc<Mutex<()>>,
    /// Locked by SKU, so that a SKU does not wait for the load of another one.
    loads: Arc<loading::BucketLoads>,
    /// The pair of epoch and phase that this process recorded as applied, by sale.
    applied: Arc<parking_lot::Mutex<HashMap<i32, (Epoch, Phase)>>>,
    open_withdrawals: Arc<changes::OpenWithdrawals>,
    last_read: Arc<Mutex<Option<lookup::LastRead>>>,
}

impl SalesService {
    pub fn new(
        catalog: Arc<Catalog>,
        backends: &Backends,
        gates: Arc<dyn Gates>,
        clock: SharedClock,
        settings: &Settings,
    ) -> Self {
        let maintenance = &settings.maintenance;
        let lease = |name| {
            let ttl_ms = maintenance.lease_ttl_ms;
            Arc::new(TaskLease::new(&backends.lease, name, ttl_ms, &clock))
        };
        let (loader, repairer) = (lease("loader"), lease("repair"));
        let skew_max_ms = settings.payment.clock_skew_max_ms.saturating_mul(2);
        let has_publisher = settings.events.exchange && backends.pipeline.is_some();
        let feed_readers: &[_] =
            if has_publisher { &[STOCK_READER, BROKER_READER] } else { &[STOCK_READER] };
        Self {
            catalog,
            backends: backends.clone(),
            gates,
            clock,
            preload_ms: i64::try_from(maintenance.preload_ms).unwrap_or(i64::MAX),
            skew_max_ms: i64::try_from(skew_max_ms).unwrap_or(i64::MAX),
            feed_readers,
            loader,
            repairer,
            may_load: settings.role.maintains(),
            operation: Arc::default(),
            repairing: Arc::default(),
            reading: Arc::default(),
            loads: Arc::default(),
            applied: Arc::default(),
            open_withdrawals: Arc::default(),
            last_read: Arc::default(),
        }
    }

    /// Restores the buckets, gates and catalog of all sales; called once, before HTTP listens.
    /// Returns the number of orders read.
    ///
    /// # Errors
    /// The stock's only if no maintenance process would retry. The process must not serve then.
    pub async fn restore(&self) -> Result<u64, SalesError> {
        let _guard = self.operation.lock().await;
        let mut num_orders = 0;
        let sales = self.backends.ledger.sales().await?;
        for sale in &sales {
            num_orders += match self.sync_sale(sale).await {
                Err(SalesError::Stock(error)) if self.backends.is_shared => {
                    tracing::warn!(sale = %sale.id, %error, "sale: not loaded, retried later");
                    0
                }
                // Reported by the first sync.
                Err(SalesError::LedgerBehind { .. }) => 0,
                synced => synced?,
            };
            self.enter_in_catalog(sale);
        }
        Ok(num_orders)
    }

    /// Refreshes the catalog from the ledger, and returns all sales. Does not access shared
    /// buckets, so that reading a new sale never waits for the stock of another one: they have a
    /// sync. Those of this process have none, and get phase and epoch before the catalog.
    pub async fn refresh_catalog(&self) -> Result<Vec<Sale>, SalesError> {
        let _reading = self.reading.lock().await;
        let sales = self.backends.ledger.sales().await?;
        for sale in &sales {
            if !self.backends.is_shared
                && let Err(error) = self.set_bucket_phases(sale).await
            {
                // The other sales go on.
                tracing::warn!(sale = %sale.id, %error, "sale: phase not written to its buckets");
            }
            self.enter_in_catalog(sale);
        }
        Ok(sales)
    }

    /// Opens the gates of a sale, then enters it in the catalog: a buyer who finds an open sale
    /// finds its gates. The gates of a bucket that is not loaded answer `busy`. Those of a dormant
    /// sale end once the catalog refuses its purchases.
    fn enter_in_catalog(&self, sale: &Sale) {
        if self.is_synced(sale) {
            for sku in &sale.skus {
                self.backends.stock.register(sku);
                self.gates.open(sku);
            }
        }
        if self.catalog.sale(sale.id.as_str()).is_none_or(|known| *known != *sale) {
            self.catalog.put(sale);
        }
        if !self.is_synced(sale) {
            for sku in &sale.skus {
                // Late reads of a dormant sale register its SKUs again, without gates.
                if self.gates.close(sku.no) || sale.retention.is_purged() {
                    self.backends.stock.forget(sku.no);
                }
            }
        }
    }

    /// Creates a sale in phase draft.
    pub async fn create(&self, draft: SaleDraft) -> Result<Sale, SalesError> {
        let faults = draft.faults();
        if !faults.is_empty() {
            return Err(SalesError::Faults(faults));
        }
        let _guard = self.operation.lock().await;
        let now_ms = self.clock.wall_ms();
        let sale = match self.backends.ledger.create_sale(draft.clone(), now_ms).await {
            Ok(created) => created.ok_or(SalesError::Exists)?,
            Err(error) => self.if_committed(&draft.id, error, |sale| sale.is_new(&draft)).await?,
        };
        self.enter_in_catalog(&sale);
        Ok(sale)
    }

    /// Opens, pauses or closes a sale. Idempotent: a repeat writes to the buckets again.
    pub async fn set_phase(
        &self,
        id: &SaleId,
        next: Phase,
        by: Option<ByOperator>,
    ) -> Result<Sale, SalesError> {
        let guard = self.operation.lock().await;
        let sale = self.set_ledger_phase(id, next, by).await?;
        // Crash here [phase_set_not_applied]: the phase is in the ledger and not in the buckets;
        // the next start, or the sync of another process, writes it to them.
        let written = self.set_bucket_phases(&sale).await;
        // Loads of shared buckets may be long; one in memory must not miss a change of the stock.
        let _guard = (!self.backends.is_shared).then_some(guard);
        let synced = match written {
            Ok(()) => self.sync_sale(&sale).await.map(drop),
            error => error,
        };
        let synced = synced.map_err(|error| match error {
            SalesError::Stock(error) => SalesError::NotApplied { phase: next, error },
            error => error,
        });
        // Another operation may have changed the sale during the sync of shared buckets.
        let listed = self.enter_changed(sale).await;
        synced.and(listed)
    }

    /// Sets the phase in the ledger and returns the sale. Retries after a concurrent change by
    /// another process.
    async fn set_ledger_phase(
        &self,
        id: &SaleId,
        next: Phase,
        by: Option<ByOperator>,
    ) -> Result<Sale, SalesError> {
        let mut sale = self.current_sale(id).await?;
        for _ in 0..PHASE_ATTEMPTS_MAX {
            if !sale.phase.may_become(next) {
                break;
            }
            if let Some(above) = self.epoch_behind(&sale).await? {
                sale = self.continue_above(sale, above).await?;
                continue;
            }
            if next == Phase::Open && sale.phase == Phase::Paused {
                // The pause may have missed a bucket: it must not sell under the old epoch.
                self.set_bucket_phases(&sale).await?;
            }
            let now_ms = self.clock.wall_ms();
            let (id, by, epoch) = (id.clone(), by.clone(), sale.epoch);
            match self.backends.ledger.set_sale_phase(id, epoch, next, now_ms, by).await {
                Ok(Some(changed)) => return Ok(changed),
                Ok(None) => sale = self.sale_in_ledger(&sale.id).await?,
                Err(error) => {
                    return self.if_committed(&sale.id, error, |sale| sale.phase == next).await;
                }
            }
        }
        Err(SalesError::NotAllowed { sale: sale.id, from: sale.phase, to: next })
    }

    /// Writes phase and epoch of the sale to its buckets. Skips buckets that cannot sell, because
    /// they are not loaded or fenced: [`Self::sync_sale`] loads them.
    async fn set_bucket_phases(&self, sale: &Sale) -> Result<(), SalesError> {
        for sku in &sale.skus {
            self.set_sku_phase(sale, sku).await?;
        }
        Ok(())
    }

    /// [`Self::set_bucket_phases`] of one SKU.
    async fn set_sku_phase(&self, sale: &Sale, sku: &Arc<Sku>) -> Result<(), SalesError> {
        let set = self.backends.stock.set_phase(sku, sale.phase, sale.epoch).await;
        Ok(stock::if_loaded(set)?)
    }

    /// Whether a sale has gates, and buckets that every sync looks at: not if it is dormant and its
    /// buckets are shared.
    fn is_synced(&self, sale: &Sale) -> bool {
        let is_dormant = self.backends.is_shared && sale.is_dormant(self.clock.wall_ms());
        sale.has_buckets() && !is_dormant
    }
}
