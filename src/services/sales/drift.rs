//! Detects SKUs whose buckets and ledger have different free units at quiescence, and reloads them.
//!
//! Cause: Redis lost accepted requests whose orders committed later. The buckets were loaded with
//! units that those orders take, accepted a request of several units, and the ledger, with fewer
//! units left, refused all of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::loading::acquired;
use super::{SalesError, SalesService};
use crate::domain::Sku;
use crate::domain::invariants::BucketFacts;

/// Interval of the comparisons: the same difference must last this long. A committed order usually
/// reaches its bucket within milliseconds, and a change of it within a second.
const COMPARE_EVERY: Duration = Duration::from_secs(10);

/// A comparison of a SKU: its time, and the buckets and the ledger's free units if they differed.
pub(super) type Comparison = (Instant, Option<(BucketFacts, u32)>);

impl SalesService {
    /// Compares the units of a SKU, at most every [`COMPARE_EVERY`]. Holds its buckets, so that the
    /// next sync loads them, if two comparisons find the same difference, no request is unsettled,
    /// and the buckets counted no order or returned unit in between.
    pub(super) async fn compare_units(
        &self,
        sku: &Arc<Sku>,
        compared: &mut Option<Comparison>,
    ) -> Result<(), SalesError> {
        let (now, last) = (self.clock.now(), *compared);
        let is_recent = |(at, _)| now.duration_since(at) < COMPARE_EVERY;
        if !self.backends.is_shared || !self.may_load || last.is_some_and(is_recent) {
            return Ok(());
        }
        let (stock, ledger) = (&self.backends.stock, &self.backends.ledger);
        let is_settled = stock.num_unsettled(sku.no).await? == 0;
        let mut difference = None;
        if is_settled && stock.left(sku.no) != ledger.available(sku.no).await? {
            let (facts, units) = (stock.facts(sku.no).await?, ledger.available(sku.no).await?);
            let differs = facts.num_unsettled == 0 && facts.left != u64::from(units);
            difference = differs.then_some((facts, units));
        }
        *compared = Some((now, difference));
        let is_same = |found: &(BucketFacts, u32)| last.and_then(|(_, last)| last) == Some(*found);
        let Some((facts, ledger)) = difference.filter(is_same) else { return Ok(()) };
        if acquired(&self.loader).await {
            let buckets = facts.left;
            tracing::error!(sku = %sku.id, buckets, ledger, "free units differ: loading buckets");
            self.hold_buckets(sku).await?;
        }
        Ok(())
    }
}
