//! Synchronizes this process with the ledger: sales that other processes created or changed, and
//! buckets that must be loaded before a sale starts or after their store lost them.
//!
//! Reading the sales waits for no bucket. A long pass over the buckets, because it loads one,
//! delays no other SKU: the next pass skips the bucket that is being loaded. Limits: `PASSES_MAX`
//! concurrent passes. A lease selects the process that loads, fenced by a token from the ledger. On
//! error: the next tick retries. On crash: no state is lost; the lease expires.

use std::cell::Cell;

use super::periodic::{RunResult, Task};
use crate::services::sales::SalesService;

/// Most concurrent passes over the buckets; all but one may be loading.
const PASSES_MAX: usize = 8;

/// Synchronizes sales and loads buckets.
pub struct SaleLoader {
    pub sales: SalesService,
}

impl Task for SaleLoader {
    /// The number of runs that have read the sales and make a pass over their buckets.
    type State = Cell<usize>;

    const FAILURE: &'static str = "sale sync failed, retrying";

    /// Not while another run reads the sales.
    fn can_begin(num_passes: &Cell<usize>, num_runs: usize) -> bool {
        num_runs == num_passes.get()
    }

    /// Reads the sales and the buyers that they bar, then makes a pass over their buckets.
    async fn run(&self, num_passes: &Cell<usize>) -> RunResult {
        let sales = self.sales.refresh_catalog().await?;
        // Bars that cannot be read delay no bucket.
        let bars_read = self.sales.read_bars(&sales).await;
        if num_passes.get() >= PASSES_MAX {
            return Ok(bars_read?);
        }
        num_passes.update(|num| num + 1);
        let synced = self.sales.sync_sales(&sales).await;
        num_passes.update(|num| num - 1);
        Ok(synced.and(bars_read)?)
    }
}
