//! Keeps this process in step with the others: sales that were created or turned elsewhere, and
//! buckets that have to be loaded before a sale starts or after their store lost them.
//!
//! Ticks on a timer and takes no input; one look at a time. Which of many keepers loads is decided
//! by a lease, and fenced by a token from the ledger. On error: waits for the next tick. On death:
//! nothing is lost; the lease passes on.

use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};

use super::child::{ExitReason, Life, Living, end, spawn_step, step};
use crate::messages::Stop;
use crate::sales_desk::SalesDesk;

/// What the keeper works with.
#[derive(Clone)]
pub struct KeeperParts {
    /// Where sales are looked after.
    pub desk: SalesDesk,
    /// How often, milliseconds.
    pub every_ms: u64,
}

/// Looks after sales and buckets.
pub struct SaleKeeper {
    life: Life,
    parts: KeeperParts,
    looking: bool,
    /// The last error, until a look succeeds; for one log line at each change.
    trouble: Option<String>,
}

impl SaleKeeper {
    /// A keeper that has not looked yet.
    #[must_use]
    pub fn new(life: Life, parts: KeeperParts) -> Self {
        Self { life, parts, looking: false, trouble: None }
    }

    fn look(&mut self, ctx: &mut Context<Self>) {
        if self.looking {
            return;
        }
        self.looking = true;
        let desk = self.parts.desk.clone();
        spawn_step(self, ctx, async move { desk.look().await }, |keeper, _, looked| {
            keeper.looking = false;
            let Err(error) = looked else {
                keeper.trouble = None;
                return;
            };
            let said = error.to_string();
            if keeper.trouble.as_ref() != Some(&said) {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "sales are not looked after, trying again");
                keeper.trouble = Some(said);
            }
        });
    }
}

impl Living for SaleKeeper {
    fn life(&mut self) -> &mut Life {
        &mut self.life
    }
}

impl Actor for SaleKeeper {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let every = Duration::from_millis(self.parts.every_ms.max(10));
        ctx.run_interval(every, |keeper, ctx| step(keeper, ctx, Self::look));
    }
}

impl Handler<Stop> for SaleKeeper {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
