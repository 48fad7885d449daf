//! The repairs of audits: their port and their rows; see `rows`.

use async_trait::async_trait;
use diesel::prelude::*;

use super::Error;
use super::rows::readable;
use super::schema::repairs;
use crate::domain::repair::DETAIL_CHARS_MAX;
use crate::domain::text::clip;
use crate::domain::{AuditVerdict, BuyerId, Repair, RepairAction, RepairOutcome, RequestId, SkuNo};

/// The repairs of counts, and the record of every repair.
#[async_trait]
pub trait RepairStore: Send + Sync {
    /// Sets a count to what the orders say, and records that: the units left of a SKU, or the units
    /// of a buyer's quota.
    async fn recount(
        &self,
        sku: SkuNo,
        buyer: Option<BuyerId>,
        now_ms: i64,
    ) -> Result<Repair, Error>;

    /// Records repairs. A failure that is recorded already is not recorded again.
    async fn record_repairs(&self, repairs: Vec<Repair>) -> Result<(), Error>;

    /// Repairs with their numbers, newest first: those before a number, at most `limit`.
    async fn repairs(&self, before: Option<i32>, limit: u32) -> Result<Vec<(i32, Repair)>, Error>;
}

/// A row of `repairs`.
#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = repairs, treat_none_as_default_value = false)]
pub struct RepairRow {
    /// Numbered by the database.
    #[diesel(skip_insertion)]
    pub(super) repair_no: i32,
    pub(super) sku_no: i32,
    pub(super) request_id: Option<i64>,
    pub(super) verdict: i16,
    pub(super) action: String,
    pub(super) outcome: i16,
    pub(super) detail: String,
    at_ms: i64,
}

impl From<&Repair> for RepairRow {
    fn from(repair: &Repair) -> Self {
        Self {
            repair_no: 0,
            sku_no: repair.sku.0,
            request_id: repair.request.map(RequestId::to_db),
            verdict: repair.verdict.to_db(),
            action: repair.action.name().to_owned(),
            outcome: repair.outcome.to_db(),
            detail: clip(&repair.detail, DETAIL_CHARS_MAX),
            at_ms: repair.at_ms,
        }
    }
}

impl TryFrom<RepairRow> for Repair {
    type Error = Error;

    fn try_from(row: RepairRow) -> Result<Self, Error> {
        let name = || format!("repair {}", row.repair_no);
        let request =
            row.request_id.map(|id| readable(RequestId::from_db(id), name, "request", id));
        let (verdict, action) =
            (AuditVerdict::from_db(row.verdict), RepairAction::from_name(&row.action));
        let outcome = RepairOutcome::from_db(row.outcome);
        Ok(Self {
            sku: SkuNo(row.sku_no),
            request: request.transpose()?,
            verdict: readable(verdict, name, "verdict", row.verdict)?,
            action: readable(action, name, "action", &row.action)?,
            outcome: readable(outcome, name, "outcome", row.outcome)?,
            detail: row.detail,
            at_ms: row.at_ms,
        })
    }
}
