//! The buyers whom open sales bar: each process reads them from the ledger, so that the gate handle
//! refuses them. The ledger refuses those that a process has not read yet.

use super::{SalesError, SalesService};
use crate::domain::{Phase, Sale};

/// The longest time from that of a bar to its commit, with the difference of two processes' clocks.
const COMMIT_MAX_MS: i64 = 60_000;

impl SalesService {
    /// Reads the bars that this process may lack, of the open ones of these sales. A repeat after
    /// an error continues.
    pub async fn read_bars(&self, sales: &[Sale]) -> Result<(), SalesError> {
        let now_ms = self.clock.wall_ms();
        let bars_buyers = |sale: &&Sale| {
            let is_open = sale.phase == Phase::Open && !sale.is_over(now_ms);
            is_open && sale.skus.iter().any(|sku| sku.bar_lapsed)
        };
        for sku in sales.iter().filter(bars_buyers).flat_map(|sale| &sale.skus) {
            // The clock may have stepped back.
            let read_at_ms = self.catalog.bars_read_at_ms(sku.no).min(now_ms);
            let since_ms = read_at_ms.saturating_sub(COMMIT_MAX_MS);
            let buyers = self.backends.ledger.barred(sku.no, since_ms).await?;
            self.catalog.bar(sku.no, buyers, now_ms);
        }
        Ok(())
    }
}
