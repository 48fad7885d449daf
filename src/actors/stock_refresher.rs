//! Tells every API process what is left where others count: in the ledger (tier `ledger`) or in a
//! store that many processes share (tier `gate`).
//!
//! Ticks on a timer and takes no input: the same reading sets and clears the local sold-out flag,
//! so that units that come back are on sale again within one tick. On error: waits for the next
//! tick. On death: nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};

use crate::actors::supervisor::supervised::{
    ExitReason, Incarnation, Supervised, end, spawn_step, step,
};
use crate::db::{self, Ledger};
use crate::domain::{Counting, Phase, SkuNo};
use crate::messages::Stop;
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;
use crate::stock::{self, Stock};

/// What the teller works with.
#[derive(Clone)]
pub struct RefresherDeps {
    /// Which SKUs are open.
    pub catalog: Arc<Catalog>,
    /// Who counts.
    pub ledger: Arc<dyn Ledger>,
    /// Who is told.
    pub stock: Arc<dyn Stock>,
    /// Who counts units.
    pub counting: Counting,
    /// The time.
    pub clock: SharedClock,
    /// How often, milliseconds.
    pub every_ms: u64,
}

/// Reads what is left and passes it on.
pub struct StockRefresher {
    life: Incarnation,
    deps: RefresherDeps,
    reading: bool,
    /// The last error, until a reading succeeds; for one log line at each change.
    trouble: Option<String>,
}

/// Why nobody could tell.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Ledger(#[from] db::Error),
    #[error("{0}")]
    Stock(#[from] stock::Error),
}

impl StockRefresher {
    /// A teller that has not read yet.
    #[must_use]
    pub fn new(life: Incarnation, deps: RefresherDeps) -> Self {
        Self { life, deps, reading: false, trouble: None }
    }

    fn read(&mut self, ctx: &mut Context<Self>) {
        if self.reading {
            return;
        }
        self.reading = true;
        let deps = self.deps.clone();
        spawn_step(self, ctx, async move { tell(&deps).await }, |teller, _, told| {
            teller.reading = false;
            let said = told.err().map(|error| error.to_string());
            if let Some(said) = said.as_ref().filter(|said| teller.trouble.as_ref() != Some(said)) {
                tracing::warn!(said, "what is left is not known, trying again");
            }
            teller.trouble = said;
        });
    }
}

/// Tells of every SKU; the first error, after all of them.
async fn tell(deps: &RefresherDeps) -> Result<(), Failure> {
    let mut worst = Ok(());
    for listed in deps.catalog.all() {
        // Buyers of a closed sale still ask what became of their requests.
        let sale = &listed.sale;
        if sale.phase != Phase::Draft && !sale.is_forgotten(deps.clock.wall_ms()) {
            for sku in &listed.skus {
                worst = worst.and(tell_of(deps, sku.no).await);
            }
        }
    }
    worst
}

async fn tell_of(deps: &RefresherDeps, sku: SkuNo) -> Result<(), Failure> {
    match deps.counting {
        Counting::InLedger => {
            deps.stock.note_left(sku, deps.ledger.available(sku).await?);
            Ok(())
        }
        Counting::Here => match deps.stock.refresh(sku).await {
            // Not prepared yet: there is nothing to tell.
            Ok(()) | Err(stock::Error::NotLoaded(_) | stock::Error::Fenced { .. }) => Ok(()),
            told => Ok(told?),
        },
    }
}

impl Supervised for StockRefresher {
    fn life(&mut self) -> &mut Incarnation {
        &mut self.life
    }
}

impl Actor for StockRefresher {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let every = Duration::from_millis(self.deps.every_ms.max(10));
        ctx.run_interval(every, |teller, ctx| step(teller, ctx, Self::read));
    }
}

impl Handler<Stop> for StockRefresher {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
