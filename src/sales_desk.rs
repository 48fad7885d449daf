//! What operators do with sales: create, open, pause, close, and look at the funnel.
//!
//! The ledger hears of a change first, then the buckets, then the catalog. Opening holds the
//! buckets before it takes the next epoch, so that nothing is accepted between two openings
//! (`Fenced`). On death between two steps: the next start builds buckets and catalog from the
//! ledger.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::Mutex;

use crate::actors::ActorSystem;
use crate::catalog::{Catalog, Listed};
use crate::clock::SharedClock;
use crate::db::{self, Ledger};
use crate::domain::{Phase, Sale, SaleDraft, SaleId};
use crate::rebuild::load_sku;
use crate::stock::{self, Stock};
use crate::tier::Backends;

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

/// One stage of the way from click to ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// Which one, in the order of the way.
    pub stage: &'static str,
    /// How many requests (`left`: units) are there.
    pub count: u64,
    /// How long the oldest of them has been there, milliseconds.
    pub oldest_age_ms: Option<i64>,
}

/// Where operators' verbs are carried out, one at a time. Cheap to clone.
#[derive(Clone)]
pub struct SalesDesk {
    catalog: Arc<Catalog>,
    ledger: Arc<dyn Ledger>,
    stock: Arc<dyn Stock>,
    actors: Arc<ActorSystem>,
    clock: SharedClock,
    one_at_a_time: Arc<Mutex<()>>,
}

impl SalesDesk {
    /// A desk in front of the running actors.
    #[must_use]
    pub fn new(
        catalog: Arc<Catalog>,
        backends: &Backends,
        actors: Arc<ActorSystem>,
        clock: SharedClock,
    ) -> Self {
        Self {
            catalog,
            ledger: Arc::clone(&backends.ledger),
            stock: Arc::clone(&backends.stock),
            actors,
            clock,
            one_at_a_time: Arc::default(),
        }
    }

    /// Brings every sale of the ledger back to where it stood; called once, before HTTP listens.
    /// Returns how many orders were read.
    ///
    /// # Errors
    /// The ledger's error; the process must not serve then.
    pub async fn restore(&self) -> Result<u64, DeskError> {
        let _turn = self.one_at_a_time.lock().await;
        let mut num_orders = 0;
        for sale in self.ledger.sales().await? {
            if sale.phase != Phase::Draft {
                num_orders += self.bring_up(&sale).await?;
            }
            self.catalog.put(&sale);
        }
        Ok(num_orders)
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
        let created = self.ledger.create_sale(draft, self.clock.wall_ms()).await?;
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
        let listed = self.catalog.sale(id.as_str()).ok_or(DeskError::Unknown)?;
        let from = listed.sale.phase;
        if !from.may_become(next) {
            return Err(DeskError::NotAllowed { from, to: next });
        }
        if from == next {
            return Ok(listed.sale.clone());
        }
        let is_up = listed.skus.iter().all(|sku| self.actors.directory().has(sku.no));
        if is_up {
            self.hold(&listed).await?;
        }
        let turned = self.ledger.turn_sale(id.clone(), next, self.clock.wall_ms()).await;
        let sale = match turned {
            Ok(Some(sale)) => sale,
            Ok(None) => return Err(DeskError::NotAllowed { from, to: next }),
            Err(error) => {
                // The ledger did not turn; neither do the buckets.
                self.turn_buckets(&listed.sale, is_up).await?;
                return Err(error.into());
            }
        };
        if !is_up {
            self.bring_up(&sale).await?;
        }
        self.turn_buckets(&sale, true).await?;
        self.catalog.put(&sale);
        Ok(sale)
    }

    /// Stops acceptance without forgetting the opening.
    async fn hold(&self, listed: &Listed) -> Result<(), DeskError> {
        for sku in &listed.skus {
            self.stock.turn(sku.no, Phase::Paused, listed.sale.epoch).await?;
        }
        Ok(())
    }

    async fn turn_buckets(&self, sale: &Sale, are_up: bool) -> Result<(), DeskError> {
        for sku in sale.skus.iter().filter(|_| are_up) {
            self.stock.turn(sku.no, sale.phase, sale.epoch).await?;
        }
        Ok(())
    }

    /// Loads what is not loaded yet and starts its gates.
    async fn bring_up(&self, sale: &Sale) -> Result<u64, DeskError> {
        let mut num_orders = 0;
        for sku in sale.skus.iter().filter(|sku| !self.actors.directory().has(sku.no)) {
            let sku = Arc::new(sku.clone());
            let (ledger, stock) = (self.ledger.as_ref(), self.stock.as_ref());
            num_orders += load_sku(ledger, stock, &sku, sale.phase, sale.epoch).await?;
            self.actors.open_gates(&sku);
        }
        Ok(num_orders)
    }

    /// Every stage of a sale with count and oldest age, in the order of the way.
    ///
    /// # Errors
    /// [`DeskError::Unknown`], or what the ledger or the stock said.
    pub async fn funnel(&self, id: &SaleId) -> Result<Vec<Stage>, DeskError> {
        let listed = self.catalog.sale(id.as_str()).ok_or(DeskError::Unknown)?;
        let now_ms = self.clock.wall_ms();
        let (mut left, mut unsettled, mut landed, mut failed) = (0, 0, 0, 0);
        let mut oldest: Option<i64> = None;
        for sku in &listed.skus {
            if let Some(gates) = self.stock.facts(sku.no).await? {
                unsettled += gates.num_unsettled;
                oldest = [oldest, gates.oldest_unsettled_ms].into_iter().flatten().min();
            }
            let tally = self.ledger.tally(sku.no).await?;
            left += u64::from(tally.available);
            landed += tally.num_orders;
            failed += tally.num_failures;
        }
        let stage = |stage, count| Stage { stage, count, oldest_age_ms: None };
        Ok(vec![
            stage("left", left),
            Stage {
                stage: "unsettled",
                count: unsettled,
                oldest_age_ms: oldest.map(|asked| (now_ms - asked).max(0)),
            },
            stage("landed", landed),
            stage("failed", failed),
        ])
    }
}
