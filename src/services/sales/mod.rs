//! What operators do with sales: create, open, pause, close, and look at the funnel.
//!
//! The ledger hears of a change first, then the buckets, then the catalog. Epoch and phase are one
//! ordered pair that only grows, in the ledger as in every bucket and catalog: a write that is
//! late, repeated or crossed by another changes nothing. Before it takes the next epoch, opening
//! makes sure that no bucket sells under the one before (`Fenced`). On death between two steps: the
//! next start, or the next look of any process, moves the buckets on.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use tokio::sync::Mutex;

use crate::actors::ActorSystem;
use crate::config::Settings;
use crate::db;
use crate::domain::{Phase, Sale, SaleDraft, SaleId, Sku, SkuId};
use crate::runtime::clock::SharedClock;
use crate::runtime::process::unique_name;
use crate::services::catalog::Catalog;
use crate::services::rebuild;
use crate::stock::{self, BucketHealth};
use crate::tier::Backends;

mod drift;
mod funnel;
mod loading;
mod rebuild_sku;

pub use funnel::FunnelStage;

/// A verb that other processes' verbs come before so many times is refused.
const TURNS_MAX: u32 = 8;
/// SKUs that are looked at at once.
const LOOKS_AT_ONCE: usize = 16;

/// Why a verb was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum SalesError {
    /// A sale of that name exists.
    #[error("a sale with this sale_id exists already")]
    Exists,
    /// No sale of that name.
    #[error("no sale has this id")]
    Unknown,
    /// The sale is in a phase that does not allow it.
    #[error("a sale that is {from:?} cannot become {to:?}")]
    NotAllowed {
        /// Where it stands.
        from: Phase,
        /// What was asked.
        to: Phase,
    },
    /// No buckets of the sale are outside of this process: nothing to rebuild.
    #[error("the sale has no buckets that could be rebuilt")]
    NoBuckets,
    /// The buckets are held, and no process has loaded them yet.
    #[error("the buckets of sku {sku} are held, and no process has loaded them yet")]
    NotRebuilt {
        /// Which SKU.
        sku: SkuId,
    },
    /// The description has faults.
    #[error("{}", .0.join("; "))]
    Faults(Vec<String>),
    /// The ledger did not answer.
    #[error("the ledger is not available")]
    Ledger(#[from] db::Error),
    /// The buckets did not answer.
    #[error("the stock is not available")]
    Stock(#[from] stock::Error),
}

impl From<rebuild::Error> for SalesError {
    fn from(error: rebuild::Error) -> Self {
        match error {
            rebuild::Error::Ledger(error) => Self::Ledger(error),
            rebuild::Error::Stock(error) => Self::Stock(error),
        }
    }
}

/// Where operators' verbs are carried out, one at a time. Cheap to clone.
#[derive(Clone)]
pub struct SalesService {
    catalog: Arc<Catalog>,
    backends: Backends,
    actors: Arc<ActorSystem>,
    clock: SharedClock,
    preload_ms: i64,
    lease_ttl: Duration,
    /// Whether this process loads buckets; others wait for one that does.
    may_load: bool,
    /// Names this start of this process.
    holder: Arc<str>,
    /// One verb after the other.
    one_at_a_time: Arc<Mutex<()>>,
    /// One SKU does not wait for the load of another one.
    loads: Arc<loading::BucketLoads>,
    /// Units that differed at the last comparison.
    compared: Arc<drift::DriftHistory>,
}

impl SalesService {
    /// A desk in front of the running actors.
    #[must_use]
    pub fn new(
        catalog: Arc<Catalog>,
        backends: &Backends,
        actors: Arc<ActorSystem>,
        clock: SharedClock,
        settings: &Settings,
    ) -> Self {
        let maintenance = &settings.maintenance;
        Self {
            catalog,
            backends: backends.clone(),
            actors,
            clock,
            preload_ms: i64::try_from(maintenance.preload_ms).unwrap_or(i64::MAX),
            lease_ttl: Duration::from_millis(maintenance.lease_ttl_ms),
            may_load: settings.role.maintains(),
            holder: unique_name(),
            one_at_a_time: Arc::default(),
            loads: Arc::default(),
            compared: Arc::default(),
        }
    }

    /// Brings every sale of the ledger back to where it stood; called once, before HTTP listens.
    /// Returns how many orders were read.
    ///
    /// # Errors
    /// The ledger's error; or the stock's where no keeper mends it later. The process must not
    /// serve then.
    pub async fn restore(&self) -> Result<u64, SalesError> {
        let _turn = self.one_at_a_time.lock().await;
        let mut num_orders = 0;
        for sale in self.backends.ledger.sales().await? {
            num_orders += match self.bring_up(&sale).await {
                Err(SalesError::Stock(error)) if self.backends.is_shared => {
                    tracing::warn!(sale = %sale.id, %error, "not prepared, the keeper goes on");
                    0
                }
                done => done?,
            };
            self.catalog.put(&sale);
        }
        Ok(num_orders)
    }

    /// Brings the catalog up to date with the ledger, and returns what the ledger says. Touches no
    /// bucket: whoever only has to know a sale must not wait for the stock of another one.
    pub async fn learn(&self) -> Result<Vec<Sale>, SalesError> {
        let sales = self.backends.ledger.sales().await?;
        for sale in &sales {
            if self.catalog.sale(sale.id.as_str()).is_none_or(|known| known.sale != *sale) {
                self.catalog.put(sale);
            }
        }
        Ok(sales)
    }

    /// One look at everything that other processes may have changed: sales that were created or
    /// turned, buckets that have to be loaded or turned.
    ///
    /// # Errors
    /// The first error; the other SKUs were looked at all the same.
    pub async fn look(&self) -> Result<(), SalesError> {
        self.look_at(&self.learn().await?).await
    }

    /// Sees to the buckets of these sales, several at once. What another call of this process is at
    /// is left to it. Called by the keeper.
    ///
    /// # Errors
    /// The first error; the other SKUs were looked at all the same.
    pub async fn look_at(&self, sales: &[Sale]) -> Result<(), SalesError> {
        // A server that was promoted since is found out here; its buckets are fenced from then on.
        let worst = self.backends.stock.ping().await.map_err(SalesError::from);
        let standing = sales.iter().filter(|sale| self.stands(sale));
        let skus = standing.flat_map(|sale| sale.skus.iter().map(move |sku| (sale, sku)));
        let looks = skus.map(|(sale, sku)| async move {
            let sku = Arc::new(sku.clone());
            let Some(_turn) = self.loads.try_turn(sku.no) else { return Ok(()) };
            self.bring_up_sku(sale, &sku).await.map(drop)
        });
        let looked = stream::iter(looks).buffer_unordered(LOOKS_AT_ONCE);
        looked.fold(worst, async |worst, looked| worst.and(looked)).await
    }

    /// Creates a sale in phase draft.
    ///
    /// # Errors
    /// [`SalesError::Faults`] with every fault of the description, [`SalesError::Exists`], or the
    /// ledger's error.
    pub async fn create(&self, draft: SaleDraft) -> Result<Sale, SalesError> {
        let faults = draft.faults();
        if !faults.is_empty() {
            return Err(SalesError::Faults(faults));
        }
        let _turn = self.one_at_a_time.lock().await;
        let created = self.backends.ledger.create_sale(draft, self.clock.wall_ms()).await?;
        let sale = created.ok_or(SalesError::Exists)?;
        self.catalog.put(&sale);
        Ok(sale)
    }

    /// Opens, pauses or closes a sale; repeats are harmless, and tell the buckets again.
    ///
    /// # Errors
    /// [`SalesError::Unknown`], [`SalesError::NotAllowed`], or what the ledger or the stock said.
    pub async fn turn(&self, id: &SaleId, next: Phase) -> Result<Sale, SalesError> {
        let _turn = self.one_at_a_time.lock().await;
        let sale = self.turn_ledger(id, next).await?;
        // Crash here [turned_not_told]: the ledger has turned and the buckets have not; the next
        // start, or the keeper of another process, moves them on.
        let told = match self.turn_buckets(&sale).await {
            Ok(()) => self.bring_up(&sale).await.map(drop),
            error => error,
        };
        self.catalog.put(&sale);
        told.map(|()| sale)
    }

    /// The sale after the ledger has turned it. A sale that another process turns meanwhile is
    /// looked at again.
    async fn turn_ledger(&self, id: &SaleId, next: Phase) -> Result<Sale, SalesError> {
        let mut sale = self.present(id).await?;
        for _ in 0..TURNS_MAX {
            if !sale.phase.may_become(next) {
                break;
            }
            if next == Phase::Open && sale.phase == Phase::Paused {
                // A bucket that the pause did not reach sells under this epoch no longer.
                self.turn_buckets(&sale).await?;
            }
            let now_ms = self.clock.wall_ms();
            match self.backends.ledger.turn_sale(id.clone(), sale.epoch, next, now_ms).await {
                Ok(Some(turned)) => return Ok(turned),
                Ok(None) => sale = self.in_ledger(id).await?,
                Err(error) if error.class() == db::ErrorClass::Unknown => {
                    let stands = self.in_ledger(id).await?;
                    return if stands.phase == next { Ok(stands) } else { Err(error.into()) };
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(SalesError::NotAllowed { from: sale.phase, to: next })
    }

    /// The sale as it stands now; where other processes may turn sales, the ledger is asked.
    async fn present(&self, id: &SaleId) -> Result<Sale, SalesError> {
        if self.backends.is_shared {
            return self.in_ledger(id).await;
        }
        let listed = self.catalog.sale(id.as_str()).ok_or(SalesError::Unknown)?;
        Ok(listed.sale.clone())
    }

    async fn in_ledger(&self, id: &SaleId) -> Result<Sale, SalesError> {
        let sales = self.backends.ledger.sales().await?;
        sales.into_iter().find(|sale| sale.id == *id).ok_or(SalesError::Unknown)
    }

    /// Moves the buckets on to where the sale stands. Buckets that nobody can buy from anyway,
    /// because they are not loaded or not believed, are left to [`Self::bring_up`].
    async fn turn_buckets(&self, sale: &Sale) -> Result<(), SalesError> {
        for sku in &sale.skus {
            match self.backends.stock.turn(&Arc::new(sku.clone()), sale.phase, sale.epoch).await {
                Ok(()) | Err(stock::Error::NotLoaded(_) | stock::Error::Fenced { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether a sale has buckets.
    fn stands(&self, sale: &Sale) -> bool {
        let is_forgotten = self.backends.is_shared && sale.is_forgotten(self.clock.wall_ms());
        sale.phase != Phase::Draft && !is_forgotten
    }

    /// Sees to it that the buckets of a sale can be sold from and that its gates stand. Returns how
    /// many orders were read.
    ///
    /// # Errors
    /// The first error; the other SKUs were seen to all the same.
    async fn bring_up(&self, sale: &Sale) -> Result<u64, SalesError> {
        let mut num_orders = Ok(0);
        for sku in sale.skus.iter().filter(|_| self.stands(sale)) {
            let sku = Arc::new(sku.clone());
            let _turn = self.loads.turn(sku.no).await;
            let brought = self.bring_up_sku(sale, &sku).await;
            num_orders = num_orders.and_then(|sum: u64| Ok(sum + brought?));
        }
        num_orders
    }

    /// Whoever calls has the SKU's turn.
    async fn bring_up_sku(&self, sale: &Sale, sku: &Arc<Sku>) -> Result<u64, SalesError> {
        let stock = self.backends.stock.as_ref();
        let brought = match stock.condition(sku, sale.phase, sale.epoch).await {
            Ok(BucketHealth::Ready) => self.compare_units(sku).await.map(|()| 0),
            // Left behind, or further on than this look at the ledger.
            Ok(BucketHealth::OtherPhase) => {
                let turned = stock.turn(sku, sale.phase, sale.epoch).await;
                turned.map(|()| 0).map_err(SalesError::from)
            }
            Ok(BucketHealth::Missing | BucketHealth::Distrusted { .. }) => {
                self.load(sale, sku).await
            }
            Err(error) => Err(error.into()),
        };
        // A gate in front of a bucket that cannot be asked says so; no gate at all would read as a
        // sale that has not started.
        self.actors.open_gates(sku);
        brought
    }
}
