//! The repairs of audits.

use async_trait::async_trait;

use super::Error;
use crate::domain::{BuyerId, Repair, SkuNo};

/// See the module.
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
