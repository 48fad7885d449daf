//! Buckets that have to be loaded: whose task that is, when, and what comes before and after.

use std::sync::Arc;

use super::{DeskError, SalesDesk};
use crate::domain::{OrderIntent, Outcome, Sale, Sku};
use crate::rebuild::load_sku;
use crate::stock::{self, BucketKey, Condition};

/// Intents that are brought to the ledger in one go before a load.
const DRAIN_AT_ONCE: usize = 512;

/// The lease of whoever loads buckets.
const KEEPER: &str = "keeper";

impl SalesDesk {
    /// Loads the buckets of a SKU from the ledger, where that is this process's to do.
    pub(super) async fn load(&self, sale: &Sale, sku: &Arc<Sku>) -> Result<u64, DeskError> {
        let _turn = self.loads.lock().await;
        // Whoever had the turn before may have loaded it.
        let stock = self.backends.stock.as_ref();
        let why = match stock.condition(sku, sale.phase, sale.epoch).await? {
            Condition::Ready | Condition::OtherPhase => return Ok(0),
            Condition::Missing => "missing".to_owned(),
            Condition::Distrusted { reason } => reason,
        };
        if self.backends.is_shared {
            if !self.may_load || !self.is_due(sale) || !self.holds_lease().await {
                return Ok(0);
            }
            tracing::info!(sale = %sale.id, sku = %sku.id, why, "loading buckets");
            return tokio::select! {
                loaded = self.load_shared(sale, sku) => loaded,
                () = self.lease_lost() => {
                    let reason = "another process took over the loading".to_owned();
                    Err(stock::Error::Fenced { sku: sku.no, reason }.into())
                }
            };
        }
        let ledger = self.backends.ledger.as_ref();
        Ok(load_sku(ledger, stock, sku, sale.phase, sale.epoch, Vec::new()).await?)
    }

    /// Loads buckets that other processes sell from, too. A load may take long: they are turned
    /// once more when the sale has been turned meanwhile.
    async fn load_shared(&self, sale: &Sale, sku: &Arc<Sku>) -> Result<u64, DeskError> {
        let dead = self.drain(sku).await?;
        let (ledger, stock) = (self.backends.ledger.as_ref(), self.backends.stock.as_ref());
        let num_orders = load_sku(ledger, stock, sku, sale.phase, sale.epoch, dead).await?;
        let now = self.present(&sale.id).await?;
        if (now.phase, now.epoch) != (sale.phase, sale.epoch) {
            stock.turn(sku.no, now.phase, now.epoch).await?;
        }
        Ok(num_orders)
    }

    /// Renews the lease until it cannot be had any more.
    async fn lease_lost(&self) {
        loop {
            tokio::time::sleep(self.lease_ttl / 3).await;
            if !self.holds_lease().await {
                return;
            }
        }
    }

    /// Whether this process is the one that loads.
    async fn holds_lease(&self) -> bool {
        let asked = self.backends.lease.hold(KEEPER, &self.holder, self.lease_ttl).await;
        match asked {
            Ok(hold) => hold.is_held(self.clock.now()),
            Err(error) => {
                tracing::warn!(%error, "nobody can say who loads buckets");
                false
            }
        }
    }

    /// Whether a sale must be loaded by now.
    fn is_due(&self, sale: &Sale) -> bool {
        self.clock.wall_ms() >= sale.starts_at_ms.saturating_sub(self.preheat_ms)
    }

    /// Brings what the buckets still hold of accepted requests to the ledger, so that the rebuild
    /// finds it there. What is in dead letters waits for an operator: it is returned, and keeps its
    /// units.
    async fn drain(&self, sku: &Sku) -> Result<Vec<OrderIntent>, DeskError> {
        let mut all_dead = Vec::new();
        for key in BucketKey::all_of(sku) {
            let intents = match self.backends.stock.unsettled(key, i64::MAX).await {
                Err(stock::Error::NotLoaded(_)) => continue,
                found => found?,
            };
            if intents.is_empty() {
                continue;
            }
            let (bucket, num) = (key.bucket, intents.len());
            tracing::info!(sku = %sku.id, %bucket, intents = num, "draining a bucket");
            for piece in intents.chunks(DRAIN_AT_ONCE) {
                let asked = piece.iter().map(|intent| intent.request).collect();
                let dead = self.backends.ledger.dead_among(asked).await?;
                let (dead, piece): (Vec<_>, Vec<_>) =
                    piece.iter().partition(|intent| dead.contains(&intent.request));
                all_dead.extend(dead);
                if piece.is_empty() {
                    continue;
                }
                let outcomes = self.actors.orders().place(piece).await;
                if outcomes.is_none_or(|all| all.contains(&Outcome::Unavailable)) {
                    let reason = "accepted requests are not in the ledger yet".to_owned();
                    return Err(stock::Error::Fenced { sku: sku.no, reason }.into());
                }
            }
        }
        Ok(all_dead)
    }
}
