//! Synchronizes this process with the ledger: sales that other processes created or changed, and
//! buckets that must be loaded before a sale starts or after their store lost them.
//!
//! Ticks on a timer and takes no input. Reading the sales waits for no bucket. A long pass over the
//! buckets, because it loads one, delays no other SKU: the next pass skips the bucket that is being
//! loaded. Limits: `PASSES_MAX` concurrent passes. A lease selects the process that loads, fenced
//! by a token from the ledger. On error: the next tick retries. On crash: no state is lost; the
//! lease expires.

use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};

use crate::actors::supervisor::supervised::{
    ExitReason, Incarnation, Supervised, end, spawn_step, step,
};
use crate::domain::Sale;
use crate::messages::Stop;
use crate::services::sales::{SalesError, SalesService};

/// Most concurrent passes over the buckets; all but one may be loading.
const PASSES_MAX: usize = 8;

/// Dependencies of the sale loader.
#[derive(Clone)]
pub struct SaleLoaderDeps {
    pub sales: SalesService,
    /// Tick interval, milliseconds.
    pub every_ms: u64,
}

/// Synchronizes sales and loads buckets.
pub struct SaleLoader {
    incarnation: Incarnation,
    deps: SaleLoaderDeps,
    is_reading: bool,
    num_passes: usize,
    /// The last error, until a pass succeeds; one log line per change.
    last_error: Option<String>,
}

impl SaleLoader {
    #[must_use]
    pub fn new(incarnation: Incarnation, deps: SaleLoaderDeps) -> Self {
        Self { incarnation, deps, is_reading: false, num_passes: 0, last_error: None }
    }

    /// Reads the sales, then starts a pass over their buckets.
    fn read_sales(&mut self, ctx: &mut Context<Self>) {
        if self.is_reading {
            return;
        }
        self.is_reading = true;
        let service = self.deps.sales.clone();
        spawn_step(
            self,
            ctx,
            async move { service.refresh_catalog().await },
            |loader, ctx, read| {
                loader.is_reading = false;
                match read {
                    Ok(sales) => loader.start_pass(ctx, sales),
                    Err(error) => loader.record(Err(error)),
                }
            },
        );
    }

    fn start_pass(&mut self, ctx: &mut Context<Self>, sales: Vec<Sale>) {
        if self.num_passes >= PASSES_MAX {
            return;
        }
        self.num_passes += 1;
        let service = self.deps.sales.clone();
        spawn_step(
            self,
            ctx,
            async move { service.sync_sales(&sales).await },
            |loader, _, ended| {
                loader.num_passes -= 1;
                loader.record(ended);
            },
        );
    }

    fn record(&mut self, outcome: Result<(), SalesError>) {
        let Err(error) = outcome else {
            self.last_error = None;
            return;
        };
        let message = error.to_string();
        if self.last_error.as_ref() != Some(&message) {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "sale sync failed, retrying");
            self.last_error = Some(message);
        }
    }
}

impl Supervised for SaleLoader {
    fn incarnation(&mut self) -> &mut Incarnation {
        &mut self.incarnation
    }
}

impl Actor for SaleLoader {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let every = Duration::from_millis(self.deps.every_ms.max(10));
        ctx.run_interval(every, |loader, ctx| step(loader, ctx, Self::read_sales));
    }
}

impl Handler<Stop> for SaleLoader {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
