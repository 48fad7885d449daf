//! The buckets that keepers look at.

use crate::domain::Phase;
use crate::services::catalog::Catalog;
use crate::stock::BucketKey;

/// How many looks there are for one that takes in sales which nobody remembers.
const LOOKS_PER_SWEEP: u32 = 60;

/// Looks, one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Looks(u32);

impl Looks {
    /// The buckets of the next look: those of every sale that may have accepted anything. Sales
    /// that have been over for long are taken in now and then, the first time at once.
    pub(super) fn next(&mut self, catalog: &Catalog, wall_ms: i64) -> Vec<BucketKey> {
        let is_sweep = self.0.is_multiple_of(LOOKS_PER_SWEEP);
        self.0 = self.0.wrapping_add(1);
        let sales = catalog.all();
        let sales = sales.iter().filter(|listed| {
            let is_sold = listed.sale.phase != Phase::Draft;
            is_sold && (is_sweep || !listed.sale.is_forgotten(wall_ms))
        });
        sales.flat_map(|listed| &listed.skus).flat_map(|sku| BucketKey::all_of(sku)).collect()
    }
}
