//! Refreshes the available units in every API process where the units are counted elsewhere: in the
//! ledger (tier `ledger`), or in a store that many processes share (tier `gate`).
//!
//! Ticks on a timer and takes no input: the same read sets and clears the local sold-out flag, so
//! that returned units are on sale within one tick. On error: the next tick retries. On crash: no
//! state is lost.

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

/// Dependencies of the stock refresher.
#[derive(Clone)]
pub struct RefresherDeps {
    pub catalog: Arc<Catalog>,
    pub ledger: Arc<dyn Ledger>,
    pub stock: Arc<dyn Stock>,
    /// Where units are counted.
    pub counting: Counting,
    pub clock: SharedClock,
    /// Tick interval, milliseconds.
    pub every_ms: u64,
}

/// Reads the available units of every SKU into the local stock.
pub struct StockRefresher {
    incarnation: Incarnation,
    deps: RefresherDeps,
    is_reading: bool,
    /// The last error, until a refresh succeeds; one log line per change.
    last_error: Option<String>,
}

#[derive(Debug, thiserror::Error)]
enum RefreshError {
    #[error("{0}")]
    Ledger(#[from] db::Error),
    #[error("{0}")]
    Stock(#[from] stock::Error),
}

impl StockRefresher {
    #[must_use]
    pub fn new(incarnation: Incarnation, deps: RefresherDeps) -> Self {
        Self { incarnation, deps, is_reading: false, last_error: None }
    }

    fn read(&mut self, ctx: &mut Context<Self>) {
        if self.is_reading {
            return;
        }
        self.is_reading = true;
        let deps = self.deps.clone();
        spawn_step(self, ctx, async move { refresh_all(&deps).await }, |refresher, _, outcome| {
            refresher.is_reading = false;
            let error = outcome.err().map(|error| error.to_string());
            if let Some(error) = error.as_ref().filter(|_| error != refresher.last_error) {
                tracing::warn!(error, "stock refresh failed, retrying");
            }
            refresher.last_error = error;
        });
    }
}

/// Refreshes every SKU; returns the first error after all of them.
async fn refresh_all(deps: &RefresherDeps) -> Result<(), RefreshError> {
    let mut outcome = Ok(());
    for listed in deps.catalog.all() {
        // Recently closed sales are included: their buyers still read the status of their requests.
        let sale = &listed.sale;
        if sale.phase != Phase::Draft && !sale.is_dormant(deps.clock.wall_ms()) {
            for sku in &listed.skus {
                outcome = outcome.and(refresh(deps, sku.no).await);
            }
        }
    }
    outcome
}

async fn refresh(deps: &RefresherDeps, sku: SkuNo) -> Result<(), RefreshError> {
    match deps.counting {
        Counting::InLedger => {
            deps.stock.cache_left(sku, deps.ledger.available(sku).await?);
            Ok(())
        }
        Counting::InStock => match deps.stock.refresh(sku).await {
            // The buckets are not loaded yet.
            Ok(()) | Err(stock::Error::NotLoaded(_) | stock::Error::Fenced { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        },
    }
}

impl Supervised for StockRefresher {
    fn incarnation(&mut self) -> &mut Incarnation {
        &mut self.incarnation
    }
}

impl Actor for StockRefresher {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let every = Duration::from_millis(self.deps.every_ms.max(10));
        ctx.run_interval(every, |refresher, ctx| step(refresher, ctx, Self::read));
    }
}

impl Handler<Stop> for StockRefresher {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
