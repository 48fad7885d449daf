//! The sales of the defective ledger.

use std::sync::Arc;

use async_trait::async_trait;
use floodgate::db::{Error, Ledger, OrderReader, SaleStore};
use floodgate::domain::{
    ByOperator, Epoch, LoaderToken, Phase, PhaseChange, Sale, SaleChange, SaleChanged, SaleDraft,
    SaleId, Sku, SkuHistory, SkuNo, StockChange, StockChangeOutcome, StockChangeRequest,
};

use super::DefectiveLedger;

#[async_trait]
impl SaleStore for DefectiveLedger {
    async fn create_sale(&self, draft: SaleDraft, _: i64) -> Result<Option<Sale>, Error> {
        let mut rows = self.rows.lock();
        let no = i32::try_from(rows.sales.len()).unwrap() + 1;
        let skus = draft.skus.iter().zip(0..).map(|(sku, index)| Sku {
            no: SkuNo(no * 1000 + index),
            id: sku.id.clone(),
            title: sku.title.clone(),
            price: sku.price,
            initial: sku.initial,
            policy: sku.policy,
            buckets: sku.buckets,
            payment_window_s: sku.payment_window_s,
            bar_lapsed: sku.bar_lapsed,
            slot_returns: sku.slot_returns,
            ends_max: sku.ends_max,
            queue_timeout_s: sku.queue_timeout_s,
            history: SkuHistory::default(),
        });
        let sale = Sale {
            no,
            id: draft.id,
            title: draft.title,
            starts_at_ms: draft.starts_at_ms,
            ends_at_ms: draft.ends_at_ms,
            closed_at_ms: None,
            phase: Phase::Draft,
            epoch: Epoch(0),
            currency: draft.currency,
            ticket_required: draft.ticket_required,
            retention: floodgate::domain::Retention::default(),
            skus: skus.map(Arc::new).collect(),
        };
        for sku in &sale.skus {
            rows.available.insert(sku.no, i64::from(sku.initial));
        }
        rows.sales.push(sale.clone());
        Ok(Some(sale))
    }

    async fn set_sale_phase(
        &self,
        id: SaleId,
        epoch: Epoch,
        next: Phase,
        now: i64,
        _: Option<ByOperator>,
    ) -> Result<Option<Sale>, Error> {
        let mut rows = self.rows.lock();
        let is_current = |sale: &&mut Sale| sale.id == id && sale.epoch == epoch;
        let Some(sale) = rows.sales.iter_mut().find(is_current) else { return Ok(None) };
        sale.phase = next;
        if next == Phase::Open {
            sale.epoch = Epoch(sale.epoch.0 + 1);
        }
        sale.closed_at_ms = (next == Phase::Closed).then_some(now);
        let sale = sale.clone();
        let (epoch, phase, applied_at_ms) = (sale.epoch, sale.phase, Some(now));
        let change = PhaseChange { epoch, phase, changed_at_ms: now, applied_at_ms };
        rows.phases.push((sale.no, change));
        Ok(Some(sale))
    }

    async fn pause_above(
        &self,
        id: SaleId,
        epoch: Epoch,
        above: Epoch,
    ) -> Result<Option<Sale>, Error> {
        let mut rows = self.rows.lock();
        let may_pause =
            |sale: &&mut Sale| sale.id == id && sale.epoch == epoch && sale.phase != Phase::Closed;
        let Some(sale) = rows.sales.iter_mut().find(may_pause) else { return Ok(None) };
        (sale.epoch, sale.phase) = (sale.epoch.max(Epoch(above.0 + 1)), Phase::Paused);
        Ok(Some(sale.clone()))
    }

    async fn change_sale(
        &self,
        id: SaleId,
        change: SaleChange,
        now_ms: i64,
    ) -> Result<SaleChanged, Error> {
        let mut rows = self.rows.lock();
        let Some(sale) = rows.sales.iter_mut().find(|sale| sale.id == id) else {
            return Ok(SaleChanged::Unknown);
        };
        let changed = sale.changed(&change, now_ms);
        if let SaleChanged::Changed(changed) = &changed {
            sale.clone_from(changed);
        }
        Ok(changed)
    }

    async fn begin_load(&self, _: SkuNo) -> Result<LoaderToken, Error> {
        self.next_token("loader").await.map(LoaderToken)
    }

    /// Its stock never changes.
    async fn change_stock(&self, _: StockChangeRequest) -> Result<StockChangeOutcome, Error> {
        Ok(StockChangeOutcome::TooMany)
    }

    async fn stock_change(&self, _: SkuNo, _: String) -> Result<Option<StockChange>, Error> {
        Ok(None)
    }

    async fn stock_changes(&self, _: SkuNo, _: i32) -> Result<Vec<StockChange>, Error> {
        Ok(Vec::new())
    }

    async fn phase_applied(&self, _: &Sale, _: i64) -> Result<(), Error> {
        Ok(())
    }

    async fn sales(&self) -> Result<Vec<Sale>, Error> {
        Ok(self.rows.lock().sales.clone())
    }

    async fn available(&self, sku: SkuNo) -> Result<u32, Error> {
        Ok(self.ledger_size(sku).await?.available)
    }
}
