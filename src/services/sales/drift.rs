//! Free units that the buckets and the ledger count differently, at rest: mended by a load.
//!
//! It happens where Redis lost accepted requests whose orders came later: buckets were filled with
//! units that those orders take, a request of several units was accepted on them, and the ledger,
//! which had fewer left, refused all of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{SalesError, SalesService};
use crate::domain::{Sku, SkuNo};

/// How long the same difference must last. An order that committed is in its bucket, as a rule,
/// milliseconds later.
const COMPARE_EVERY: Duration = Duration::from_secs(10);

/// What the last comparison of each SKU found.
pub(super) type DriftHistory = Mutex<HashMap<SkuNo, (Instant, Option<UnitCounts>)>>;

/// Free units of one SKU, as its buckets count them and as the ledger does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnitCounts {
    buckets: u32,
    ledger: u32,
}

impl SalesService {
    /// Compares the units of a SKU now and then. Holds its buckets, for the next look to load them,
    /// when they differ in the same way twice and nothing is undecided.
    pub(super) async fn compare_units(&self, sku: &Arc<Sku>) -> Result<(), SalesError> {
        let now = self.clock.now();
        let last = self.compared.lock().get(&sku.no).copied();
        let is_recent = |(at, _)| now.duration_since(at) < COMPARE_EVERY;
        if !self.backends.is_shared || !self.may_load || last.is_some_and(is_recent) {
            return Ok(());
        }
        let differ = self.differing(sku).await?;
        self.compared.lock().insert(sku.no, (now, differ));
        let Some(units) = differ.filter(|units| last.and_then(|(_, last)| last) == Some(*units))
        else {
            return Ok(());
        };
        if self.holds_lease().await {
            let UnitCounts { buckets, ledger } = units;
            tracing::error!(sku = %sku.id, buckets, ledger, "free units differ: loading buckets");
            self.hold_buckets(sku).await?;
        }
        Ok(())
    }

    /// The units of a SKU of which nothing is undecided, where they differ.
    async fn differing(&self, sku: &Sku) -> Result<Option<UnitCounts>, SalesError> {
        let stock = &self.backends.stock;
        if stock.num_unsettled(sku.no).await? > 0 {
            return Ok(None);
        }
        let buckets = stock.left(sku.no);
        let ledger = self.backends.ledger.available(sku.no).await?;
        Ok((buckets != ledger).then_some(UnitCounts { buckets, ledger }))
    }
}
