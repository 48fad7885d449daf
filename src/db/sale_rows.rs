//! Rows of sales and their SKUs; see `rows`.

use std::collections::HashMap;
use std::sync::Arc;

use diesel::prelude::*;

use super::Error;
use super::rows::{narrow, number, readable};
use super::schema::{sale_phases, sales, skus, stock_changes, terms};
use crate::domain::{
    Currency, Epoch, Phase, PhaseChange, Policy, Retention, RetentionState, Sale, SaleId, Sku,
    SkuDraft, SkuHistory, SkuNo, SlotReturns, StockChange, Terms, TermsSince,
};

/// A row of `sales`.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = sales)]
pub struct SaleRow {
    pub(super) sale_no: i32,
    sale_id: String,
    title: String,
    pub(super) starts_at_ms: i64,
    pub(super) ends_at_ms: i64,
    phase: i16,
    pub(super) epoch: i64,
    pub(super) opened_at_ms: i64,
    pub(super) closed_at_ms: Option<i64>,
    currency: String,
    ticket_required: i16,
    retention: i16,
    archive_digest: Option<String>,
    retention_at_ms: Option<i64>,
}

impl SaleRow {
    fn name(&self) -> String {
        format!("sale {}", self.sale_no)
    }

    pub(super) fn id(&self) -> Result<SaleId, Error> {
        readable(self.sale_id.parse().ok(), || self.name(), "sale_id", &self.sale_id)
    }

    pub(super) fn phase(&self) -> Result<Phase, Error> {
        readable(Phase::from_db(self.phase), || self.name(), "phase", self.phase)
    }

    pub(super) fn retention(&self) -> Result<Retention, Error> {
        let state = RetentionState::from_db(self.retention);
        let digest = self
            .archive_digest
            .as_ref()
            .map(|text| readable(text.parse().ok(), || self.name(), "archive_digest", text));
        Ok(Retention {
            state: readable(state, || self.name(), "retention", self.retention)?,
            digest: digest.transpose()?,
            since_ms: self.retention_at_ms,
        })
    }

    /// The sale with the SKUs of these rows, and their histories.
    pub(super) fn with_skus(
        self,
        rows: Vec<SkuRow>,
        histories: &SkuHistories,
    ) -> Result<Sale, Error> {
        let sku = |row: SkuRow| row.with_history(histories).map(Arc::new);
        Ok(Sale {
            no: self.sale_no,
            id: self.id()?,
            phase: self.phase()?,
            currency: currency(&self.currency, || self.name())?,
            ticket_required: self.ticket_required != 0,
            retention: self.retention()?,
            title: self.title,
            starts_at_ms: self.starts_at_ms,
            ends_at_ms: self.ends_at_ms,
            closed_at_ms: self.closed_at_ms,
            epoch: Epoch(self.epoch),
            skus: rows.into_iter().map(sku).collect::<Result<_, _>>()?,
        })
    }
}

/// The currency of a column.
pub(super) fn currency(code: &str, row: impl FnOnce() -> String) -> Result<Currency, Error> {
    readable(code.parse().ok(), row, "currency", code)
}

/// A row of `skus`.
#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = skus, treat_none_as_default_value = false)]
pub struct SkuRow {
    /// Numbered by the database.
    #[diesel(skip_insertion)]
    pub(super) sku_no: i32,
    pub(super) sale_no: i32,
    pub(super) sku_id: String,
    title: String,
    price: i64,
    pub(super) initial_stock: i32,
    pub(super) available: i32,
    policy_kind: String,
    pub(super) policy_limit: Option<i32>,
    max_quantity: i32,
    buckets: i16,
    payment_window_s: i32,
    bar_lapsed: i16,
    slot_returns: i16,
    ends_max: i16,
    queue_timeout_s: i32,
}

impl SkuRow {
    /// The row of a new SKU: all units are available.
    pub(super) fn new(sale_no: i32, sku: SkuDraft) -> Result<Self, Error> {
        let initial = narrow("initial_stock", sku.initial)?;
        Ok(Self {
            sku_no: 0,
            sale_no,
            sku_id: sku.id.as_str().to_owned(),
            title: sku.title,
            price: sku.price,
            initial_stock: initial,
            available: initial,
            policy_kind: sku.policy.kind().to_owned(),
            policy_limit: sku.policy.quota().map(|limit| narrow("limit", limit)).transpose()?,
            max_quantity: narrow("max_quantity", sku.policy.max_quantity())?,
            buckets: narrow("buckets", sku.buckets)?,
            payment_window_s: sku.payment_window_s,
            bar_lapsed: i16::from(sku.bar_lapsed),
            slot_returns: sku.slot_returns.to_db(),
            ends_max: narrow("ends_max", sku.ends_max)?,
            queue_timeout_s: sku.queue_timeout_s,
        })
    }

    /// The SKU with its history among these.
    pub(super) fn with_history(self, histories: &SkuHistories) -> Result<Sku, Error> {
        let row = self;
        let name = || format!("sku {}", row.sku_no);
        let limit =
            row.policy_limit.map(|limit| number(name, "policy_limit", limit)).transpose()?;
        let max_quantity = number(name, "max_quantity", row.max_quantity)?;
        let policy = Policy::from_parts(&row.policy_kind, limit, Some(max_quantity))
            .or_else(|fault| readable(None, name, "policy", fault))?;
        let returns = SlotReturns::from_db(row.slot_returns);
        let history = histories.of(row.sku_no)?;
        Ok(Sku {
            no: SkuNo(row.sku_no),
            id: readable(row.sku_id.parse().ok(), name, "sku_id", &row.sku_id)?,
            price: row.price,
            initial: number(name, "initial_stock", row.initial_stock)?,
            policy,
            buckets: number(name, "buckets", row.buckets)?,
            payment_window_s: row.payment_window_s,
            bar_lapsed: row.bar_lapsed != 0,
            slot_returns: readable(returns, name, "slot_returns", row.slot_returns)?,
            ends_max: number(name, "ends_max", row.ends_max)?,
            queue_timeout_s: row.queue_timeout_s,
            title: row.title,
            history,
        })
    }
}

/// The rows about changes of SKUs.
#[derive(Debug, Default)]
pub struct SkuHistories {
    terms: HashMap<i32, Vec<TermsRow>>,
    /// Number and total of the last change of the stock.
    stock: HashMap<i32, (i32, i32)>,
}

impl SkuHistories {
    /// Of these rows, in the order of their epochs and numbers.
    pub(super) fn new(terms: Vec<TermsRow>, changes: Vec<StockChangeRow>) -> Self {
        let mut histories = Self::default();
        for row in terms {
            histories.terms.entry(row.sku_no).or_default().push(row);
        }
        let last = |row: StockChangeRow| (row.sku_no, (row.change_no, row.total));
        histories.stock.extend(changes.into_iter().map(last));
        histories
    }

    fn of(&self, sku: i32) -> Result<SkuHistory, Error> {
        let (change_no, changed_units) = self.stock.get(&sku).copied().unwrap_or_default();
        let terms = self.terms.get(&sku).into_iter().flatten();
        let terms = terms.map(TermsSince::try_from).collect::<Result<_, _>>()?;
        Ok(SkuHistory { terms, change_no, changed_units })
    }
}

/// A row of `terms`.
#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = terms, treat_none_as_default_value = false)]
pub struct TermsRow {
    pub(super) sku_no: i32,
    epoch: i64,
    since_ms: i64,
    pub(super) price: i64,
    pub(super) policy_limit: Option<i32>,
    pub(super) max_quantity: i32,
    pub(super) payment_window_s: i32,
}

impl TermsRow {
    pub(super) fn new(sku: SkuNo, since: &TermsSince) -> Result<Self, Error> {
        let Terms { price, limit, max_quantity, payment_window_s } = since.terms;
        Ok(Self {
            sku_no: sku.0,
            epoch: since.epoch.0,
            since_ms: since.since_ms,
            price,
            policy_limit: limit.map(|limit| narrow("limit", limit)).transpose()?,
            max_quantity: narrow("max_quantity", max_quantity)?,
            payment_window_s,
        })
    }
}

impl TryFrom<&TermsRow> for TermsSince {
    type Error = Error;

    fn try_from(row: &TermsRow) -> Result<Self, Error> {
        let name = || format!("terms of sku {} in epoch {}", row.sku_no, row.epoch);
        let limit =
            row.policy_limit.map(|limit| number(name, "policy_limit", limit)).transpose()?;
        let terms = Terms {
            price: row.price,
            limit,
            max_quantity: number(name, "max_quantity", row.max_quantity)?,
            payment_window_s: row.payment_window_s,
        };
        Ok(Self { epoch: Epoch(row.epoch), since_ms: row.since_ms, terms })
    }
}

/// A row of `stock_changes`.
#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = stock_changes, treat_none_as_default_value = false)]
pub struct StockChangeRow {
    pub(super) change_id: String,
    pub(super) sku_no: i32,
    pub(super) change_no: i32,
    pub(super) wanted: i32,
    pub(super) units: i32,
    pub(super) total: i32,
    pub(super) reason: Option<String>,
    pub(super) at_ms: i64,
}

impl From<StockChangeRow> for StockChange {
    fn from(row: StockChangeRow) -> Self {
        Self { sku: SkuNo(row.sku_no), no: row.change_no, wanted: row.wanted, units: row.units }
    }
}

/// A row of `sale_phases` without the number of its sale.
#[derive(Debug, Queryable, Selectable)]
#[diesel(table_name = sale_phases)]
pub struct PhaseRow {
    epoch: i64,
    phase: i16,
    changed_at_ms: i64,
    applied_at_ms: Option<i64>,
}

impl TryFrom<PhaseRow> for PhaseChange {
    type Error = Error;

    fn try_from(row: PhaseRow) -> Result<Self, Error> {
        let name = || format!("phase of epoch {}", row.epoch);
        Ok(Self {
            epoch: Epoch(row.epoch),
            phase: readable(Phase::from_db(row.phase), name, "phase", row.phase)?,
            changed_at_ms: row.changed_at_ms,
            applied_at_ms: row.applied_at_ms,
        })
    }
}
