//! Builds the buckets of a SKU from the ledger: at start, when a sale is prepared, and when the
//! store that counts has lost them.
//!
//! The ledger is the write-ahead log of the gates: units = what the ledger has left, buyers and
//! requests = its orders and recorded failures, all as of one instant. An order that commits after
//! that instant is entered, with its units, when it settles. What was decided and not committed
//! before a crash was promised to nobody; what an outbox promised is brought to the ledger first,
//! but for what waits in dead letters: that is entered as the old buckets had it.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::db::{self, AuditRow, Ledger, Visit};
use crate::domain::{Epoch, OrderIntent, Phase, Sku};
use crate::stock::{self, LoaderToken, Loading, Stock};

/// Rows on their way from the ledger's thread at once.
const CHUNK: usize = 1024;

/// Chunks on their way at once.
const CHUNKS_MAX: usize = 4;

/// Whose token a loader takes.
const LOADER: &str = "loader";

/// Why the buckets were not built; nothing is published then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ledger was not read.
    #[error("the ledger is not available")]
    Ledger(#[from] db::Error),
    /// The stock was not written.
    #[error("the stock is not available")]
    Stock(#[from] stock::Error),
}

/// Loads one SKU and publishes its buckets. `queued` are requests that were accepted before and
/// that the ledger may not have. Returns how many orders were read.
///
/// # Errors
/// The ledger's or the stock's error.
pub async fn load_sku(
    ledger: &dyn Ledger,
    stock: &dyn Stock,
    sku: &Arc<Sku>,
    phase: Phase,
    epoch: Epoch,
    queued: Vec<OrderIntent>,
) -> Result<u64, Error> {
    let loader = LoaderToken(ledger.next_token(LOADER).await?);
    let tally = ledger.tally(sku.no).await?;
    let num_rows = tally.num_orders + tally.num_failures + queued.len() as u64;
    let mut loading = stock.load(Arc::clone(sku), num_rows, loader).await?;
    loading.queued(queued).await?;
    let (available, num_orders) = load_orders(ledger, loading.as_mut(), sku).await?;
    load_failures(ledger, loading.as_mut(), sku).await?;
    loading.publish(available, phase, epoch).await?;
    Ok(num_orders)
}

/// Enters every order; the units left as of the same instant, and how many orders there are.
async fn load_orders(
    ledger: &dyn Ledger,
    loading: &mut dyn Loading,
    sku: &Sku,
) -> Result<(u32, u64), Error> {
    let (visit, mut chunks) = in_chunks();
    let scan = ledger.scan_audit(sku.no, visit);
    let enter = async {
        let (mut available, mut num_orders) = (0, 0);
        while let Some(chunk) = chunks.recv().await {
            let mut orders = Vec::with_capacity(chunk.len());
            for row in chunk {
                match row {
                    // Less than nothing is a violation for the audit, and nothing to sell.
                    AuditRow::Sku(facts, _) => {
                        available = u32::try_from(facts.available).unwrap_or(0);
                    }
                    AuditRow::Order(order) => orders.push(order),
                }
            }
            num_orders += orders.len() as u64;
            loading.orders(orders).await?;
        }
        Ok::<_, stock::Error>((available, num_orders))
    };
    let (scanned, entered) = tokio::join!(scan, enter);
    // A stock that refuses ends the scan early, which is no error of the ledger.
    let entered = entered?;
    scanned?;
    Ok(entered)
}

/// Enters every recorded failure.
async fn load_failures(
    ledger: &dyn Ledger,
    loading: &mut dyn Loading,
    sku: &Sku,
) -> Result<(), Error> {
    let (visit, mut chunks) = in_chunks();
    let scan = ledger.scan_failures(sku.no, visit);
    let enter = async {
        while let Some(chunk) = chunks.recv().await {
            loading.failures(chunk).await?;
        }
        Ok::<_, stock::Error>(())
    };
    let (scanned, entered) = tokio::join!(scan, enter);
    entered?;
    scanned?;
    Ok(())
}

/// A visitor on the ledger's thread, and where its rows arrive.
fn in_chunks<T: Send + 'static>() -> (Visit<T>, mpsc::Receiver<Vec<T>>) {
    let (sender, chunks) = mpsc::channel(CHUNKS_MAX);
    let mut gathering = Gathering { rows: Vec::new(), sender };
    (Box::new(move |row| gathering.push(row)), chunks)
}

/// Rows that are not on their way yet. The last ones leave when the scan drops its visitor.
struct Gathering<T> {
    rows: Vec<T>,
    sender: mpsc::Sender<Vec<T>>,
}

impl<T> Gathering<T> {
    fn push(&mut self, row: T) -> bool {
        self.rows.push(row);
        self.rows.len() < CHUNK || self.send()
    }

    fn send(&mut self) -> bool {
        let rows = std::mem::replace(&mut self.rows, Vec::with_capacity(CHUNK));
        self.sender.blocking_send(rows).is_ok()
    }
}

impl<T> Drop for Gathering<T> {
    fn drop(&mut self) {
        if !self.rows.is_empty() {
            self.send();
        }
    }
}
