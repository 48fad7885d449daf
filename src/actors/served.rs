//! The buckets that a maintenance pass visits.

use crate::domain::{BucketKey, Phase};
use crate::services::catalog::Catalog;

/// Passes per pass that includes the sales closed for long.
const PASSES_PER_FULL_PASS: u32 = 60;

/// Selects the buckets of consecutive passes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BucketRotation(u32);

impl BucketRotation {
    /// The buckets of the next pass: those of every sale except drafts. Sales closed for long are
    /// included in the first pass and every 60th after it.
    pub(super) fn next(&mut self, catalog: &Catalog, wall_ms: i64) -> Vec<BucketKey> {
        let is_full = self.0.is_multiple_of(PASSES_PER_FULL_PASS);
        self.0 = self.0.wrapping_add(1);
        let sales = catalog.all();
        let sales = sales.iter().filter(|listed| {
            let is_published = listed.sale.phase != Phase::Draft;
            is_published && (is_full || !listed.sale.is_dormant(wall_ms))
        });
        sales.flat_map(|listed| &listed.skus).flat_map(|sku| BucketKey::all_of(sku)).collect()
    }
}
