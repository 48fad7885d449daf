//! Changes of a sale while it runs: title, end and terms, and the stock of a SKU.
//!
//! Other terms and an earlier end are another epoch, which reaches the buckets like a phase. Units
//! enter the ledger before the buckets and leave the buckets before the ledger. On crash between
//! two steps: the next sync of any process, or a repeat, writes the change to the buckets; units
//! that left the buckets and not the ledger return with the next load of the buckets.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{SalesError, SalesService};
use crate::db;
use crate::domain::{
    LoaderToken, Phase, Sale, SaleChange, SaleChanged, SaleId, Sku, SkuId, SkuNo, StockChange,
    StockChangeOutcome, StockChangeRequest, Withdrawal,
};
use crate::stock;

/// Withdrawals of units, by SKU, whose change the ledger does not tell the outcome of.
pub(super) type OpenWithdrawals = Mutex<HashMap<SkuNo, (StockChangeRequest, Withdrawal)>>;

/// A change of a stock, as an operator asks for it.
#[derive(Debug, Clone)]
pub struct StockOrder {
    pub sale: SaleId,
    pub sku: SkuId,
    /// Names the change.
    pub change_id: String,
    /// Units to add; negative: to take out.
    pub delta: i32,
    pub reason: Option<String>,
    /// The name of the operator's token.
    pub operator: Option<String>,
}

/// A change of a stock, and the SKU afterwards.
#[derive(Debug, Clone)]
pub struct StockChanged {
    pub change: StockChange,
    /// It was recorded before: nothing was changed now.
    pub is_repeat: bool,
    pub sku: Arc<Sku>,
    /// Units of the SKU that the ledger has not sold.
    pub left: u32,
}

impl SalesService {
    /// Changes title, end and terms of a sale. Idempotent: a repeat writes to the buckets again.
    pub async fn change(&self, id: &SaleId, change: SaleChange) -> Result<Sale, SalesError> {
        let _guard = self.operation.lock().await;
        let now_ms = self.clock.wall_ms();
        // A repeat of the change would change nothing.
        let has_change =
            |sale: &Sale| sale.changed(&change, now_ms) == SaleChanged::Changed(sale.clone());
        let changed = self.backends.ledger.change_sale(id.clone(), change.clone(), now_ms).await;
        let sale = match changed {
            Ok(SaleChanged::Changed(sale)) => sale,
            Ok(SaleChanged::Unknown) => return Err(SalesError::Unknown),
            Ok(SaleChanged::Closed) => return Err(SalesError::IsClosed),
            Ok(SaleChanged::Faults(faults)) => return Err(SalesError::Faults(faults)),
            Err(error) => self.if_committed(id, error, has_change).await?,
        };
        tracing::info!(sale = %sale.id, epoch = sale.epoch.0, "sale: changed");
        // Crash here [terms_set_not_applied]: the ledger has the new epoch and the buckets sell
        // under the old one, whose intents stay valid; the next sync writes it to them.
        let applied = self.set_bucket_phases(&sale).await;
        let listed = self.enter_changed(sale).await;
        applied.and(listed)
    }

    /// Changes the stock of a SKU, once per change id. Idempotent: a repeat writes to the buckets
    /// again.
    pub async fn change_stock(&self, order: StockOrder) -> Result<StockChanged, SalesError> {
        let _guard = self.operation.lock().await;
        let sale = self.current_sale(&order.sale).await?;
        let sku = sale.sku(order.sku.as_str()).ok_or(SalesError::Unknown)?;
        self.end_open_withdrawal(sku).await?;
        let request = StockChangeRequest {
            id: order.change_id,
            sku: sku.no,
            wanted: order.delta,
            withdrawn: 0,
            load: None,
            reason: order.reason,
            operator: order.operator,
            at_ms: self.clock.wall_ms(),
        };
        let outcome = match self.backends.ledger.stock_change(sku.no, request.id.clone()).await? {
            Some(recorded) => request.repeats(recorded),
            None if sale.phase == Phase::Closed => return Err(SalesError::IsClosed),
            None if order.delta < 0 => self.take_out(sku, request.clone()).await?,
            None => self.backends.ledger.change_stock(request.clone()).await?,
        };
        let (change, is_repeat) = match outcome {
            StockChangeOutcome::Recorded(change) => (change, false),
            StockChangeOutcome::Repeat(change) => (change, true),
            StockChangeOutcome::OtherContent => return Err(SalesError::ChangeConflict),
            StockChangeOutcome::Closed => return Err(SalesError::IsClosed),
            StockChangeOutcome::Reloaded => return Err(SalesError::NotWithdrawn),
            StockChangeOutcome::TooMany => {
                let fault = "delta: the stock would exceed 1000000000".to_owned();
                return Err(SalesError::Faults(vec![fault]));
            }
        };
        if !is_repeat {
            let (change_id, sale, sku) = (&request.id, &sale.id, &sku.id);
            tracing::info!(%sale, %sku, change_id, units = change.units, "stock: changed");
        }
        // Crash here [stock_recorded_not_applied]: the ledger has the units and the buckets do not;
        // the next sync adds them, and so does a load.
        let sale = self.sale_in_ledger(&order.sale).await?;
        let sku = sale.sku(order.sku.as_str()).cloned().ok_or(SalesError::Unknown)?;
        // With the changes before it: a bucket that lacks one adds none after it.
        self.apply_stock_changes(&sku, 0).await?;
        let available = self.backends.ledger.available(sku.no).await?;
        self.backends.stock.cache_left(sku.no, available);
        Ok(StockChanged { change, is_repeat, sku, left: available })
    }

    /// Enters a changed sale in the catalog, and returns it: as the ledger has it now, if other
    /// processes may have changed it since.
    pub(super) async fn enter_changed(&self, sale: Sale) -> Result<Sale, SalesError> {
        if self.backends.is_shared {
            return self.sale_in_ledger(&sale.id).await;
        }
        // No later read would repair a catalog without the change. After a read that began before.
        let _reading = self.reading.lock().await;
        self.enter_in_catalog(&sale);
        Ok(sale)
    }

    /// Takes free units out of the buckets, then out of the ledger.
    async fn take_out(
        &self,
        sku: &Arc<Sku>,
        mut request: StockChangeRequest,
    ) -> Result<StockChangeOutcome, SalesError> {
        let (ledger, stock) = (&self.backends.ledger, &self.backends.stock);
        let wanted = request.wanted.unsigned_abs();
        let withdrawal = match stock.withdraw(sku.no, wanted).await {
            Ok(withdrawal) => withdrawal,
            // Without buckets only the ledger has units. A first load that begins meanwhile fences
            // this change.
            Err(stock::Error::NotLoaded(_)) => {
                let load = self.backends.is_shared.then_some(LoaderToken(0));
                Withdrawal { units: wanted, load, ..Withdrawal::default() }
            }
            Err(error) => return Err(error.into()),
        };
        (request.withdrawn, request.load) = (withdrawal.units, withdrawal.load);
        let mut outcome = ledger.change_stock(request.clone()).await;
        // A repeat was recorded by another process, with units that it withdrew itself.
        let mut is_recorded = matches!(outcome, Ok(StockChangeOutcome::Recorded(_)));
        if matches!(&outcome, Err(error) if error.class() == db::ErrorClass::Unknown) {
            outcome = self.recorded_change(sku.no, &request).await;
            is_recorded = matches!(outcome, Ok(StockChangeOutcome::Repeat(_)));
            if outcome.is_err() {
                if !self.backends.is_shared {
                    // No load returns the units: the next change of this stock does.
                    self.open_withdrawals.lock().insert(sku.no, (request, withdrawal));
                }
                return Ok(outcome?);
            }
        }
        if withdrawal.loans.is_empty() {
            return Ok(outcome?);
        }
        stock.end_withdrawal(sku.no, &withdrawal, is_recorded).await?;
        if matches!(outcome, Ok(StockChangeOutcome::Reloaded)) && self.backends.is_shared {
            // Buckets that were loaded under a token that the ledger does not know.
            self.hold_buckets(sku).await?;
        }
        Ok(outcome?)
    }

    /// What the ledger has of a change whose outcome is unknown. Waits for its transaction, and
    /// fences it: the answer is final.
    async fn recorded_change(
        &self,
        sku: SkuNo,
        request: &StockChangeRequest,
    ) -> Result<StockChangeOutcome, db::Error> {
        let ledger = &self.backends.ledger;
        ledger.begin_load(sku).await?;
        let recorded = ledger.stock_change(sku, request.id.clone()).await?;
        Ok(recorded.map_or(StockChangeOutcome::Reloaded, |change| request.repeats(change)))
    }

    /// Ends the withdrawal of a SKU whose change the ledger did not tell the outcome of.
    async fn end_open_withdrawal(&self, sku: &Arc<Sku>) -> Result<(), SalesError> {
        let open = self.open_withdrawals.lock().get(&sku.no).cloned();
        let Some((request, withdrawal)) = open else { return Ok(()) };
        let outcome = self.recorded_change(sku.no, &request).await?;
        let is_recorded = matches!(outcome, StockChangeOutcome::Repeat(_));
        self.backends.stock.end_withdrawal(sku.no, &withdrawal, is_recorded).await?;
        self.apply_stock_changes(sku, 0).await?;
        self.open_withdrawals.lock().remove(&sku.no);
        Ok(())
    }

    /// Writes the changes of a SKU's stock after a number to its buckets. Skips buckets that cannot
    /// sell: their load enters all changes.
    pub(super) async fn apply_stock_changes(
        &self,
        sku: &Arc<Sku>,
        after: i32,
    ) -> Result<(), SalesError> {
        for change in self.backends.ledger.stock_changes(sku.no, after).await? {
            stock::if_loaded(self.backends.stock.change_stock(sku, change).await)?;
        }
        Ok(())
    }
}
