//! The buckets of a sale, as an operator sees them: are they loaded, and what do they hold.

use serde::Serialize;

use super::{SalesError, SalesService};
use crate::db;
use crate::domain::SaleId;
use crate::stock::BucketHealth;

/// The buckets of one SKU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkuBucketsReport {
    pub sku_id: String,
    pub sku_no: String,
    pub buckets: u16,
    /// `ready`, `other_phase`, `other_stock`, `missing` (not loaded), `distrusted` or
    /// `unavailable`.
    pub health: &'static str,
    /// Why they are not ready; `None`: they are.
    pub why: Option<String>,
    /// Free units in the buckets, with those on loan between them; `None`: not known.
    pub free: Option<u64>,
    /// Units left in the ledger; `None`: not known.
    pub left_in_ledger: Option<u32>,
    /// Accepted requests without a result of the ledger; `None`: not known.
    pub unsettled: Option<u64>,
    /// Whether units are on loan from one bucket to another.
    pub has_open_loan: bool,
}

impl SalesService {
    /// The buckets of every SKU of a sale. What a store does not answer is not known.
    pub async fn buckets(&self, id: &SaleId) -> Result<Vec<SkuBucketsReport>, SalesError> {
        let sale = self.catalog.sale(id.as_str()).ok_or(SalesError::Unknown)?;
        let (phase, epoch) = (sale.phase, sale.epoch);
        let mut reports = Vec::with_capacity(sale.skus.len());
        for sku in &sale.skus {
            let (health, why) = if sale.retention.is_purged() {
                // A stock that is asked registers the SKU, and polls its deleted buckets.
                ("missing", Some("the sale is purged".to_owned()))
            } else {
                match self.backends.stock.health(sku, phase, epoch).await {
                    Ok(health) => describe(&health),
                    Err(error) => ("unavailable", Some(error.to_string())),
                }
            };
            let facts = self.backends.stock.facts(sku.no).await.ok();
            let left = self.backends.ledger.available(sku.no);
            let left_in_ledger = db::with_timeout("the units left", left).await.ok();
            reports.push(SkuBucketsReport {
                sku_id: sku.id.to_string(),
                sku_no: sku.no.to_string(),
                buckets: sku.buckets,
                health,
                why,
                free: facts.as_ref().filter(|facts| facts.counts_units).map(|facts| facts.left),
                left_in_ledger,
                unsettled: facts.as_ref().map(|facts| facts.num_unsettled),
                has_open_loan: facts.is_some_and(|facts| facts.open_loan.is_some()),
            });
        }
        Ok(reports)
    }
}

fn describe(health: &BucketHealth) -> (&'static str, Option<String>) {
    match health {
        BucketHealth::Ready => ("ready", None),
        BucketHealth::OtherPhase { latest: (epoch, phase) } => {
            let why = format!("a bucket is {} in epoch {}", phase.name(), epoch.0);
            ("other_phase", Some(why))
        }
        BucketHealth::OtherStock { change_no } => {
            ("other_stock", Some(format!("a bucket lacks changes of stock after {change_no}")))
        }
        BucketHealth::Missing => ("missing", Some("a bucket is not loaded".to_owned())),
        BucketHealth::Distrusted { reason } => ("distrusted", Some(reason.clone())),
    }
}
