//! What operators do with sales: create, open, pause, close, and look at the funnel.
//!
//! The ledger hears of a change first, then the buckets, then the catalog. Opening holds the
//! buckets before it takes the next epoch, so that nothing is accepted between two openings
//! (`Fenced`). On death between two steps: the next start builds buckets and catalog from the
//! ledger.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::actors::ActorSystem;
use crate::catalog::Catalog;
use crate::clock::SharedClock;
use crate::config::Settings;
use crate::db;
use crate::domain::{Phase, Sale, SaleDraft, SaleId, Sku, SkuNo};
use crate::rebuild;
use crate::stock::{self, Condition};
use crate::tier::Backends;

mod funnel;
mod loading;

pub use funnel::Stage;

/// Why a verb was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
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

impl From<rebuild::Error> for DeskError {
    fn from(error: rebuild::Error) -> Self {
        match error {
            rebuild::Error::Ledger(error) => Self::Ledger(error),
            rebuild::Error::Stock(error) => Self::Stock(error),
        }
    }
}

/// Where operators' verbs are carried out, one at a time. Cheap to clone.
#[derive(Clone)]
pub struct SalesDesk {
    catalog: Arc<Catalog>,
    backends: Backends,
    actors: Arc<ActorSystem>,
    clock: SharedClock,
    preheat_ms: i64,
    lease_ttl: Duration,
    /// Whether this process loads buckets; others wait for one that does.
    may_load: bool,
    /// Names this start of this process.
    holder: Arc<str>,
    /// One verb after the other.
    one_at_a_time: Arc<Mutex<()>>,
    /// One load after the other; a verb that needs none does not wait for one.
    loads: Arc<Mutex<()>>,
    /// SKUs whose buckets stood in another phase than the sale at the last look.
    suspects: Arc<parking_lot::Mutex<HashSet<SkuNo>>>,
}

impl SalesDesk {
    /// A desk in front of the running actors.
    #[must_use]
    pub fn new(
        catalog: Arc<Catalog>,
        backends: &Backends,
        actors: Arc<ActorSystem>,
        clock: SharedClock,
        settings: &Settings,
    ) -> Self {
        let keeper = &settings.keeper;
        Self {
            catalog,
            backends: backends.clone(),
            actors,
            clock,
            preheat_ms: i64::try_from(keeper.preheat_ms).unwrap_or(i64::MAX),
            lease_ttl: Duration::from_millis(keeper.lease_ttl_ms),
            may_load: settings.role.keeps(),
            holder: format!("{}-{:016x}", std::process::id(), fastrand::u64(..)).into(),
            one_at_a_time: Arc::default(),
            loads: Arc::default(),
            suspects: Arc::default(),
        }
    }

    /// Brings every sale of the ledger back to where it stood; called once, before HTTP listens.
    /// Returns how many orders were read.
    ///
    /// # Errors
    /// The ledger's error; or the stock's where no keeper mends it later. The process must not
    /// serve then.
    pub async fn restore(&self) -> Result<u64, DeskError> {
        let _turn = self.one_at_a_time.lock().await;
        let mut num_orders = 0;
        for sale in self.backends.ledger.sales().await? {
            num_orders += match self.bring_up(&sale).await {
                Err(DeskError::Stock(error)) if self.backends.is_shared => {
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
    ///
    /// # Errors
    /// The ledger's error.
    pub async fn learn(&self) -> Result<Vec<Sale>, DeskError> {
        let sales = self.backends.ledger.sales().await?;
        for sale in &sales {
            if self.catalog.sale(sale.id.as_str()).is_none_or(|known| known.sale != *sale) {
                self.catalog.put(sale);
            }
        }
        Ok(sales)
    }

    /// One look at everything that other processes may have changed: sales that were created or
    /// turned, buckets that have to be loaded or turned. Called by the keeper.
    ///
    /// # Errors
    /// The first error; the other sales were looked at all the same.
    pub async fn look(&self) -> Result<(), DeskError> {
        // What buyers read comes first: buckets may take long.
        let sales = self.learn().await?;
        let mut worst = Ok(());
        for sale in &sales {
            let looked = self.bring_up(sale).await.map(drop);
            worst = worst.and(looked);
        }
        worst
    }

    /// Creates a sale in phase draft.
    ///
    /// # Errors
    /// [`DeskError::Faults`] with every fault of the description, [`DeskError::Exists`], or the
    /// ledger's error.
    pub async fn create(&self, draft: SaleDraft) -> Result<Sale, DeskError> {
        let faults = draft.faults();
        if !faults.is_empty() {
            return Err(DeskError::Faults(faults));
        }
        let _turn = self.one_at_a_time.lock().await;
        let created = self.backends.ledger.create_sale(draft, self.clock.wall_ms()).await?;
        let sale = created.ok_or(DeskError::Exists)?;
        self.catalog.put(&sale);
        Ok(sale)
    }

    /// Opens, pauses or closes a sale; repeats are harmless.
    ///
    /// # Errors
    /// [`DeskError::Unknown`], [`DeskError::NotAllowed`], or what the ledger or the stock said.
    pub async fn turn(&self, id: &SaleId, next: Phase) -> Result<Sale, DeskError> {
        let _turn = self.one_at_a_time.lock().await;
        let sale = self.present(id).await?;
        let from = sale.phase;
        if !from.may_become(next) {
            return Err(DeskError::NotAllowed { from, to: next });
        }
        if from == next {
            return Ok(sale);
        }
        self.turn_buckets(&sale, Phase::Paused).await?;
        let turned = self.backends.ledger.turn_sale(id.clone(), next, self.clock.wall_ms()).await;
        let sale = match turned {
            Ok(Some(sale)) => sale,
            Ok(None) => return Err(DeskError::NotAllowed { from, to: next }),
            Err(error) => {
                // Where nobody knows whether the ledger turned, it is asked; until it answers the
                // buckets stay held.
                let stands = match error.class() {
                    db::Class::Unknown => self.in_ledger(id).await?,
                    _ => sale,
                };
                self.turn_buckets(&stands, stands.phase).await?;
                self.catalog.put(&stands);
                return if stands.phase == next { Ok(stands) } else { Err(error.into()) };
            }
        };
        // Crash here [turned_not_told]: the ledger has turned and the buckets are held; the next
        // start, or the keeper of another process, turns them too.
        self.turn_buckets(&sale, sale.phase).await?;
        self.bring_up(&sale).await?;
        self.catalog.put(&sale);
        Ok(sale)
    }

    /// The sale as it stands now; where other processes may turn sales, the ledger is asked.
    async fn present(&self, id: &SaleId) -> Result<Sale, DeskError> {
        if self.backends.is_shared {
            return self.in_ledger(id).await;
        }
        let listed = self.catalog.sale(id.as_str()).ok_or(DeskError::Unknown)?;
        Ok(listed.sale.clone())
    }

    async fn in_ledger(&self, id: &SaleId) -> Result<Sale, DeskError> {
        let sales = self.backends.ledger.sales().await?;
        sales.into_iter().find(|sale| sale.id == *id).ok_or(DeskError::Unknown)
    }

    /// Moves the buckets to a phase of the sale's opening. Buckets that nobody can buy from anyway,
    /// because they are not loaded or not believed, are left to [`Self::bring_up`].
    async fn turn_buckets(&self, sale: &Sale, phase: Phase) -> Result<(), DeskError> {
        for sku in &sale.skus {
            match self.backends.stock.turn(sku.no, phase, sale.epoch).await {
                Ok(()) | Err(stock::Error::NotLoaded(_) | stock::Error::Fenced { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sees to it that the buckets of a sale can be sold from and that its gates stand. Returns how
    /// many orders were read.
    ///
    /// # Errors
    /// The first error; the other SKUs were seen to all the same.
    async fn bring_up(&self, sale: &Sale) -> Result<u64, DeskError> {
        let is_forgotten = self.backends.is_shared && sale.is_forgotten(self.clock.wall_ms());
        if sale.phase == Phase::Draft || is_forgotten {
            return Ok(0);
        }
        let mut num_orders = Ok(0);
        for sku in &sale.skus {
            let sku = Arc::new(sku.clone());
            let brought = self.bring_up_sku(sale, &sku).await;
            num_orders = num_orders.and_then(|sum: u64| Ok(sum + brought?));
            // A gate in front of a bucket that cannot be asked says so; no gate at all would read
            // as a sale that has not started.
            self.actors.open_gates(&sku);
        }
        num_orders
    }

    async fn bring_up_sku(&self, sale: &Sale, sku: &Arc<Sku>) -> Result<u64, DeskError> {
        let stock = self.backends.stock.as_ref();
        match stock.condition(sku, sale.phase, sale.epoch).await? {
            Condition::Ready => {
                self.suspects.lock().remove(&sku.no);
                Ok(0)
            }
            Condition::OtherPhase => self.turn_if_still(sale, sku).await.map(|()| 0),
            Condition::Missing | Condition::Distrusted { .. } => self.load(sale, sku).await,
        }
    }

    /// Turns buckets that another process left behind: only what stood so at the last look, too,
    /// because a verb that is being carried out elsewhere holds the buckets for a moment.
    async fn turn_if_still(&self, sale: &Sale, sku: &Sku) -> Result<(), DeskError> {
        if self.suspects.lock().insert(sku.no) {
            return Ok(());
        }
        tracing::warn!(sale = %sale.id, sku = %sku.id, "buckets were left in another phase");
        Ok(self.backends.stock.turn(sku.no, sale.phase, sale.epoch).await?)
    }
}
