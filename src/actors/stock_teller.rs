//! Tells every API process what the ledger has left, where the ledger counts (tier `ledger`).
//!
//! Ticks on a timer and takes no input: the same reading sets and clears the local sold-out flag,
//! so that units that come back are on sale again within one tick. On error: waits for the next
//! tick. On death: nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};

use super::child::{ExitReason, Life, Living, end, spawn_step, step};
use crate::catalog::Catalog;
use crate::db::Ledger;
use crate::domain::{Phase, SkuNo};
use crate::messages::Stop;
use crate::stock::Stock;

/// What the teller works with.
#[derive(Clone)]
pub struct TellerParts {
    /// Which SKUs are open.
    pub catalog: Arc<Catalog>,
    /// Who counts.
    pub ledger: Arc<dyn Ledger>,
    /// Who is told.
    pub stock: Arc<dyn Stock>,
    /// How often, milliseconds.
    pub every_ms: u64,
}

/// Reads what is left and passes it on.
pub struct StockTeller {
    life: Life,
    parts: TellerParts,
    reading: bool,
}

impl StockTeller {
    /// A teller that has not read yet.
    #[must_use]
    pub fn new(life: Life, parts: TellerParts) -> Self {
        Self { life, parts, reading: false }
    }

    fn read(&mut self, ctx: &mut Context<Self>) {
        if self.reading {
            return;
        }
        self.reading = true;
        let parts = self.parts.clone();
        spawn_step(self, ctx, async move { tell(&parts).await }, |teller, _, ()| {
            teller.reading = false;
        });
    }
}

async fn tell(parts: &TellerParts) {
    for listed in parts.catalog.all() {
        if listed.sale.phase != Phase::Open {
            continue;
        }
        let skus: Vec<SkuNo> = listed.skus.iter().map(|sku| sku.no).collect();
        for sku in skus {
            match parts.ledger.available(sku).await {
                Ok(left) => parts.stock.note_left(sku, left),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(%sku, error, "stock not read, waiting for the next tick");
                    return;
                }
            }
        }
    }
}

impl Living for StockTeller {
    fn life(&mut self) -> &mut Life {
        &mut self.life
    }
}

impl Actor for StockTeller {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let every = Duration::from_millis(self.parts.every_ms.max(10));
        ctx.run_interval(every, |teller, ctx| step(teller, ctx, Self::read));
    }
}

impl Handler<Stop> for StockTeller {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
