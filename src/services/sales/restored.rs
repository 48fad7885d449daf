//! A ledger that was restored from an older backup: its sales are behind their buckets.
//!
//! A phase is written to the ledger before the buckets, so a read of the ledger that begins after
//! a read of the buckets finds their pair of epoch and phase or a later one. Otherwise the ledger
//! went back: its epoch is refused by the buckets (`Fenced`), and orders in the buckets may be
//! missing in it. The next change of phase takes an epoch above both and loads the buckets again.

use std::sync::Arc;

use super::{SalesError, SalesService};
use crate::domain::{Epoch, Phase, Sale, Sku};
use crate::stock::{self, BucketHealth};

/// Tries to hold the buckets with a larger token: the ledger's counter went back, too, by the loads
/// of all SKUs since the backup. Each try takes twice as many tokens as the one before.
const TRIES_MAX: u32 = 14;

impl SalesService {
    /// Compares the ledger with `latest`, which was read from buckets of the sale.
    pub(super) async fn check_not_behind(
        &self,
        seen: &Sale,
        latest: (Epoch, Phase),
    ) -> Result<(), SalesError> {
        if latest <= (seen.epoch, seen.phase) {
            return Ok(());
        }
        let sale = self.sale_in_ledger(&seen.id).await?;
        if latest <= (sale.epoch, sale.phase) {
            return Ok(());
        }
        let (buckets, ledger) = (latest.0.0, sale.epoch.0);
        Err(SalesError::LedgerBehind { sale: sale.id, buckets, ledger })
    }

    /// The latest epoch of the sale's buckets if the ledger is behind them. Buckets that cannot be
    /// read do not count.
    pub(super) async fn epoch_behind(&self, sale: &Sale) -> Result<Option<Epoch>, SalesError> {
        let mut latest = None;
        for sku in &sale.skus {
            match self.backends.stock.health(sku, sale.phase, sale.epoch).await {
                Ok(BucketHealth::OtherPhase { latest: found }) => latest = latest.max(Some(found)),
                // A store that is away must not delay an operator once per SKU.
                Err(stock::Error::Unavailable { .. } | stock::Error::Unknown { .. }) => break,
                _ => {}
            }
        }
        let Some(latest) = latest else { return Ok(None) };
        match self.check_not_behind(sale, latest).await {
            Ok(()) => Ok(None),
            Err(SalesError::LedgerBehind { .. }) => Ok(Some(latest.0)),
            Err(error) => Err(error),
        }
    }

    /// Holds the buckets of a sale that is behind them, so that they sell nothing and are loaded
    /// from the ledger again, and pauses the sale under an epoch after `above`.
    pub(super) async fn continue_above(
        &self,
        sale: Sale,
        above: Epoch,
    ) -> Result<Sale, SalesError> {
        if self.backends.is_shared {
            for sku in &sale.skus {
                self.hold_despite_old_tokens(sku).await?;
            }
        }
        // After a crash here a maintenance process loads the held buckets in their own epoch: the
        // ledger is still behind them, and the next change of phase repeats this.
        let raised = self.backends.ledger.pause_above(sale.id.clone(), sale.epoch, above).await?;
        tracing::warn!(sale = %sale.id, above = above.0, "ledger behind its buckets: epoch raised");
        match raised {
            Some(raised) => Ok(raised),
            None => self.sale_in_ledger(&sale.id).await,
        }
    }

    async fn hold_despite_old_tokens(&self, sku: &Arc<Sku>) -> Result<(), SalesError> {
        for tries in 1..TRIES_MAX {
            match self.hold_buckets(sku).await {
                Err(SalesError::Stock(stock::Error::Fenced { .. })) => {}
                held => return held,
            }
            for _ in 1..1 << tries {
                self.backends.ledger.begin_load(sku.no).await?;
            }
        }
        self.hold_buckets(sku).await
    }
}
