//! Keeps this process in step with the others: sales that were created or turned elsewhere, and
//! buckets that have to be loaded before a sale starts or after their store lost them.
//!
//! Ticks on a timer and takes no input. Learning what is sold waits for no bucket; a look at the
//! buckets that takes long, because it loads one, holds up no other SKU: the next look leaves that
//! one out. Limits: `LOOKS_MAX` looks at once. Which of many keepers loads is decided by a lease,
//! and fenced by a token from the ledger. On error: waits for the next tick. On death: nothing is
//! lost; the lease passes on.

use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};

use crate::actors::supervisor::supervised::{
    ExitReason, Incarnation, Supervised, end, spawn_step, step,
};
use crate::domain::Sale;
use crate::messages::Stop;
use crate::services::sales::{SalesError, SalesService};

/// Looks at buckets that are under way at once: all but one may be loading.
const LOOKS_MAX: usize = 8;

/// What the keeper works with.
#[derive(Clone)]
pub struct SaleLoaderDeps {
    /// Where sales are looked after.
    pub desk: SalesService,
    /// How often, milliseconds.
    pub every_ms: u64,
}

/// Looks after sales and buckets.
pub struct SaleLoader {
    life: Incarnation,
    deps: SaleLoaderDeps,
    learning: bool,
    num_looks: usize,
    /// The last error, until a look succeeds; for one log line at each change.
    trouble: Option<String>,
}

impl SaleLoader {
    /// A keeper that has not looked yet.
    #[must_use]
    pub fn new(life: Incarnation, deps: SaleLoaderDeps) -> Self {
        Self { life, deps, learning: false, num_looks: 0, trouble: None }
    }

    /// Learns what is sold, then looks at its buckets.
    fn learn(&mut self, ctx: &mut Context<Self>) {
        if self.learning {
            return;
        }
        self.learning = true;
        let desk = self.deps.desk.clone();
        spawn_step(self, ctx, async move { desk.learn().await }, |keeper, ctx, learned| {
            keeper.learning = false;
            match learned {
                Ok(sales) => keeper.look(ctx, sales),
                Err(error) => keeper.note(Err(error)),
            }
        });
    }

    fn look(&mut self, ctx: &mut Context<Self>, sales: Vec<Sale>) {
        if self.num_looks >= LOOKS_MAX {
            return;
        }
        self.num_looks += 1;
        let desk = self.deps.desk.clone();
        spawn_step(self, ctx, async move { desk.look_at(&sales).await }, |keeper, _, looked| {
            keeper.num_looks -= 1;
            keeper.note(looked);
        });
    }

    fn note(&mut self, looked: Result<(), SalesError>) {
        let Err(error) = looked else {
            self.trouble = None;
            return;
        };
        let said = error.to_string();
        if self.trouble.as_ref() != Some(&said) {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "sale sync failed, retrying");
            self.trouble = Some(said);
        }
    }
}

impl Supervised for SaleLoader {
    fn life(&mut self) -> &mut Incarnation {
        &mut self.life
    }
}

impl Actor for SaleLoader {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let every = Duration::from_millis(self.deps.every_ms.max(10));
        ctx.run_interval(every, |keeper, ctx| step(keeper, ctx, Self::learn));
    }
}

impl Handler<Stop> for SaleLoader {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
