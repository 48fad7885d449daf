//! Rows of recorded failures; see `rows`.

use diesel::prelude::*;

use super::Error;
use super::rows::{narrow, number, readable};
use super::schema::failed_requests;
use crate::domain::{BuyerId, Failure, Refusal, RequestId, SkuNo};

/// A row of `failed_requests`.
#[derive(Debug, Clone, Queryable, Selectable, Insertable)]
#[diesel(table_name = failed_requests, treat_none_as_default_value = false)]
pub struct FailureRow {
    pub(super) request_id: i64,
    sku_no: i32,
    buyer_id: i64,
    quantity: i32,
    reason: String,
    first_request_id: Option<i64>,
    owned: Option<i32>,
    quota: Option<i32>,
    recorded_at_ms: i64,
}

impl TryFrom<&Failure> for FailureRow {
    type Error = Error;

    fn try_from(failure: &Failure) -> Result<Self, Error> {
        let (mut first_request_id, mut owned, mut quota) = (None, None, None);
        match failure.reason {
            Refusal::AlreadyPurchased { first } => first_request_id = Some(first.to_db()),
            Refusal::QuotaExceeded { owned: units, limit } => {
                owned = Some(narrow("owned", units)?);
                quota = Some(narrow("limit", limit)?);
            }
            Refusal::SoldOut
            | Refusal::RequestIdReused
            | Refusal::NotStarted
            | Refusal::Ended
            | Refusal::Discarded
            | Refusal::Barred
            | Refusal::CancelledByBuyer
            | Refusal::QueueTimeout => {}
        }
        Ok(Self {
            request_id: failure.request.to_db(),
            sku_no: failure.sku.0,
            buyer_id: failure.buyer.to_db(),
            quantity: narrow("quantity", failure.quantity)?,
            reason: failure.reason.code().to_owned(),
            first_request_id,
            owned,
            quota,
            recorded_at_ms: failure.recorded_at_ms,
        })
    }
}

impl FailureRow {
    fn name(&self) -> String {
        format!("failed request {}", self.request_id)
    }

    fn refusal(&self) -> Result<Refusal, Error> {
        let name = || self.name();
        let missing = format_args!("{} without details", self.reason);
        match self.reason.as_str() {
            "already-purchased" => {
                let first = self.first_request_id.and_then(RequestId::from_db);
                let first = readable(first, name, "reason", missing)?;
                Ok(Refusal::AlreadyPurchased { first })
            }
            "quota-exceeded" => {
                let details = self.owned.zip(self.quota);
                let (owned, limit) = readable(details, name, "reason", missing)?;
                Ok(Refusal::QuotaExceeded {
                    owned: number(name, "owned", owned)?,
                    limit: number(name, "quota", limit)?,
                })
            }
            code => readable(refusal_without_details(code), name, "reason", code),
        }
    }
}

/// The refusal of this code; `None` for unknown codes and for those with details.
pub(super) fn refusal_without_details(code: &str) -> Option<Refusal> {
    let refusals = [
        Refusal::SoldOut,
        Refusal::RequestIdReused,
        Refusal::NotStarted,
        Refusal::Ended,
        Refusal::Discarded,
        Refusal::Barred,
        Refusal::CancelledByBuyer,
        Refusal::QueueTimeout,
    ];
    refusals.into_iter().find(|refusal| refusal.code() == code)
}

impl TryFrom<FailureRow> for Failure {
    type Error = Error;

    fn try_from(row: FailureRow) -> Result<Self, Error> {
        let name = || row.name();
        let request = RequestId::from_db(row.request_id);
        let buyer = BuyerId::from_db(row.buyer_id);
        Ok(Self {
            request: readable(request, name, "request_id", row.request_id)?,
            sku: SkuNo(row.sku_no),
            buyer: readable(buyer, name, "buyer_id", row.buyer_id)?,
            quantity: number(name, "quantity", row.quantity)?,
            reason: row.refusal()?,
            recorded_at_ms: row.recorded_at_ms,
        })
    }
}
