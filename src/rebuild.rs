//! Builds the books of a SKU from the ledger: at start, and when a sale is opened for the first
//! time.
//!
//! The ledger is the write-ahead log of the gates: units = what the ledger has left, buyers and
//! requests = its orders and recorded failures. What was decided and not committed before a crash
//! was promised to nobody.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::db::{Error, Ledger};
use crate::domain::{Epoch, Phase, Sku};
use crate::stock::{Loading, Stock};

/// Loads one SKU and publishes its buckets. Nothing may write the SKU meanwhile. Returns how many
/// orders were read.
///
/// # Errors
/// The ledger's error; nothing is published then.
pub async fn load_sku(
    ledger: &dyn Ledger,
    stock: &dyn Stock,
    sku: &Arc<Sku>,
    phase: Phase,
    epoch: Epoch,
) -> Result<u64, Error> {
    let tally = ledger.tally(sku.no).await?;
    let loading = stock.load(Arc::clone(sku), tally.num_orders + tally.num_failures);
    let shared: Arc<Mutex<Option<Box<dyn Loading>>>> = Arc::new(Mutex::new(Some(loading)));

    let visitor = Arc::clone(&shared);
    let visit = Box::new(move |order| {
        visitor.lock().as_mut().is_some_and(|loading| {
            loading.order(&order);
            true
        })
    });
    ledger.scan_orders(sku.no, visit).await?;

    if tally.num_failures > 0 {
        let visitor = Arc::clone(&shared);
        let visit = Box::new(move |failure| {
            visitor.lock().as_mut().is_some_and(|loading| {
                loading.failure(&failure);
                true
            })
        });
        ledger.scan_failures(sku.no, visit).await?;
    }

    let loading = shared.lock().take();
    if let Some(loading) = loading {
        loading.publish(tally.available, phase, epoch);
    }
    Ok(tally.num_orders)
}
