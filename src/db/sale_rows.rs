//! Rows of sales and their SKUs; see `rows`.

use diesel::prelude::*;

use super::Error;
use super::rows::{narrow, readable, units, unstorable};
use super::schema::{sales, skus};
use crate::domain::{Currency, Epoch, Phase, Policy, Sale, Sku, SkuDraft, SkuNo, SlotReturns};

/// A row of `sales`.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = sales)]
pub struct SaleRow {
    pub(super) sale_no: i32,
    sale_id: String,
    title: String,
    starts_at_ms: i64,
    ends_at_ms: i64,
    phase: i16,
    pub(super) epoch: i64,
    pub(super) opened_at_ms: i64,
    currency: String,
}

impl SaleRow {
    fn name(&self) -> String {
        format!("sale {}", self.sale_no)
    }

    pub(super) fn phase(&self) -> Result<Phase, Error> {
        readable(Phase::from_db(self.phase), || self.name(), "phase", self.phase)
    }

    /// The sale with the SKUs of these rows.
    pub(super) fn with_skus(self, rows: Vec<SkuRow>) -> Result<Sale, Error> {
        let id = self.sale_id.parse().ok();
        Ok(Sale {
            no: self.sale_no,
            id: readable(id, || self.name(), "sale_id", &self.sale_id)?,
            phase: self.phase()?,
            currency: currency(&self.currency, || self.name())?,
            title: self.title,
            starts_at_ms: self.starts_at_ms,
            ends_at_ms: self.ends_at_ms,
            epoch: Epoch(self.epoch),
            skus: rows.into_iter().map(Sku::try_from).collect::<Result<_, _>>()?,
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
    sku_id: String,
    title: String,
    price: i64,
    initial_stock: i32,
    pub(super) available: i32,
    policy_kind: String,
    policy_limit: Option<i32>,
    max_quantity: i32,
    buckets: i16,
    payment_window_s: i32,
    bar_lapsed: i16,
    slot_returns: i16,
    ends_max: i16,
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
            buckets: i16::try_from(sku.buckets).or_else(|_| unstorable("buckets", sku.buckets))?,
            payment_window_s: sku.payment_window_s,
            bar_lapsed: i16::from(sku.bar_lapsed),
            slot_returns: sku.slot_returns.to_db(),
            ends_max: i16::try_from(sku.ends_max)
                .or_else(|_| unstorable("ends_max", sku.ends_max))?,
        })
    }
}

impl TryFrom<SkuRow> for Sku {
    type Error = Error;

    fn try_from(row: SkuRow) -> Result<Self, Error> {
        let name = || format!("sku {}", row.sku_no);
        let limit = row.policy_limit.map(|limit| units(name, "policy_limit", limit)).transpose()?;
        let max_quantity = units(name, "max_quantity", row.max_quantity)?;
        let policy = Policy::from_parts(&row.policy_kind, limit, Some(max_quantity))
            .or_else(|fault| readable(None, name, "policy", fault))?;
        let returns = SlotReturns::from_db(row.slot_returns);
        Ok(Self {
            no: SkuNo(row.sku_no),
            id: readable(row.sku_id.parse().ok(), name, "sku_id", &row.sku_id)?,
            price: row.price,
            initial: units(name, "initial_stock", row.initial_stock)?,
            policy,
            buckets: readable(u16::try_from(row.buckets).ok(), name, "buckets", row.buckets)?,
            payment_window_s: row.payment_window_s,
            bar_lapsed: row.bar_lapsed != 0,
            slot_returns: readable(returns, name, "slot_returns", row.slot_returns)?,
            ends_max: readable(u16::try_from(row.ends_max).ok(), name, "ends_max", row.ends_max)?,
            title: row.title,
        })
    }
}
