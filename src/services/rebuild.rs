//! Builds the buckets of a SKU from the ledger: at start, when a sale is prepared, when the store
//! that counts has lost them, and when an operator asks for it.
//!
//! The ledger is the write-ahead log of the gates: units = what the ledger has left, buyers and
//! requests = its orders and recorded failures, all as of one instant. What a bucket has accepted
//! and the ledger has not decided stays in the bucket as it is. An order or a failure that commits
//! after that instant is entered, with its units, when the buckets are open.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::db::{self, AuditRow, Ledger, Visitor};
use crate::domain::{BucketNo, Epoch, Failure, Order, OrderIntent, Phase, RequestId, Sku, SkuNo};
use crate::stock::{self, BucketKey, LoaderToken, Loading, Stock};

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

/// What was entered in the buckets of a SKU.
#[derive(Debug)]
pub struct RebuildCounts {
    /// How many orders.
    pub num_orders: u64,
    /// Requests of orders and failures.
    requests: Vec<RequestId>,
}

/// A fencing token for one load.
///
/// # Errors
/// The ledger's.
pub async fn next_loader(ledger: &dyn Ledger) -> Result<LoaderToken, db::Error> {
    Ok(LoaderToken(ledger.next_token(LOADER).await?))
}

/// Loads one SKU and publishes its buckets. `queued` are requests that were accepted before, which
/// the ledger may not have decided and the buckets may have lost.
///
/// # Errors
/// The ledger's or the stock's error.
pub async fn load_sku(
    ledger: &dyn Ledger,
    stock: &dyn Stock,
    sku: &Arc<Sku>,
    queued: Vec<OrderIntent>,
) -> Result<RebuildCounts, Error> {
    let loader = next_loader(ledger).await?;
    let tally = ledger.tally(sku.no).await?;
    let num_rows = tally.num_orders + tally.num_failures + queued.len() as u64;
    let mut loading = stock.load(Arc::clone(sku), num_rows, loader).await?;
    // A verb that came before had nowhere to leave its pair where a bucket was missing; one that
    // comes from here on is kept.
    let (phase, epoch) = stands(ledger, sku.no).await?;
    loading.clear().await?;
    loading.queued(queued).await?;
    let mut requests = Vec::with_capacity(usize::try_from(num_rows).unwrap_or(0));
    let available = load_orders(ledger, loading.as_mut(), sku, &mut requests).await?;
    let num_orders = requests.len() as u64;
    load_failures(ledger, loading.as_mut(), sku, &mut requests).await?;
    loading.publish(available, phase, epoch).await?;
    requests.sort_unstable();
    Ok(RebuildCounts { num_orders, requests })
}

/// Where the sale of a SKU stands.
async fn stands(ledger: &dyn Ledger, sku: SkuNo) -> Result<(Phase, Epoch), db::Error> {
    let sales = ledger.sales().await?;
    let own = sales.iter().find(|sale| sale.skus.iter().any(|one| one.no == sku));
    Ok(own.map_or((Phase::Draft, Epoch(0)), |sale| (sale.phase, sale.epoch)))
}

impl RebuildCounts {
    /// Enters what the ledger has decided since the rows were read: while the buckets were loaded
    /// they took no results. Returns how many orders and failures.
    ///
    /// # Errors
    /// The ledger's or the stock's error; what was not entered is entered by the next load.
    pub async fn catch_up(
        &self,
        ledger: &dyn Ledger,
        stock: &dyn Stock,
        sku: &Sku,
    ) -> Result<usize, Error> {
        let tally = ledger.tally(sku.no).await?;
        if tally.num_orders + tally.num_failures == self.requests.len() as u64 {
            return Ok(0);
        }
        let is_new = |request: &RequestId| self.requests.binary_search(request).is_err();
        let mut num_entered = 0;
        let (visit, mut chunks) = in_chunks();
        let scan = ledger.scan_orders(sku.no, visit);
        let enter = async {
            while let Some(chunk) = chunks.recv().await {
                let new = chunk.into_iter().filter(|order: &Order| is_new(&order.request));
                let home = |order: &Order| BucketNo::home_of(order.buyer, sku.buckets);
                let new: Vec<_> = new.map(|order| (home(&order), order)).collect();
                num_entered += new.len();
                stock.settle(new).await?;
            }
            Ok::<_, stock::Error>(())
        };
        both(scan, enter).await?;
        let (visit, mut chunks) = in_chunks();
        let scan = ledger.scan_failures(sku.no, visit);
        let enter = async {
            while let Some(chunk) = chunks.recv().await {
                let new = chunk.into_iter().filter(|failure: &Failure| is_new(&failure.request));
                for failure in new {
                    let bucket = BucketNo::home_of(failure.buyer, sku.buckets);
                    let key = BucketKey { sku: sku.no, bucket };
                    num_entered += 1;
                    stock.release(key, vec![failure]).await?;
                }
            }
            Ok::<_, stock::Error>(())
        };
        both(scan, enter).await?;
        Ok(num_entered)
    }
}

/// A scan of the ledger, and what enters its rows. A stock that refuses ends the scan early, which
/// is no error of the ledger.
async fn both<T>(
    scan: impl Future<Output = Result<(), db::Error>>,
    enter: impl Future<Output = Result<T, stock::Error>>,
) -> Result<T, Error> {
    let (scanned, entered) = tokio::join!(scan, enter);
    let entered = entered?;
    scanned?;
    Ok(entered)
}

/// Enters every order; the units left as of the same instant.
async fn load_orders(
    ledger: &dyn Ledger,
    loading: &mut dyn Loading,
    sku: &Sku,
    requests: &mut Vec<RequestId>,
) -> Result<u32, Error> {
    let (visit, mut chunks) = in_chunks();
    let scan = ledger.scan_audit(sku.no, visit);
    let enter = async {
        let mut available = 0;
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
            requests.extend(orders.iter().map(|order| order.request));
            loading.orders(orders).await?;
        }
        Ok(available)
    };
    both(scan, enter).await
}

/// Enters every recorded failure.
async fn load_failures(
    ledger: &dyn Ledger,
    loading: &mut dyn Loading,
    sku: &Sku,
    requests: &mut Vec<RequestId>,
) -> Result<(), Error> {
    let (visit, mut chunks) = in_chunks();
    let scan = ledger.scan_failures(sku.no, visit);
    let enter = async {
        while let Some(chunk) = chunks.recv().await {
            requests.extend(chunk.iter().map(|failure: &Failure| failure.request));
            loading.failures(chunk).await?;
        }
        Ok(())
    };
    both(scan, enter).await
}

/// A visitor on the ledger's thread, and where its rows arrive.
fn in_chunks<T: Send + 'static>() -> (Visitor<T>, mpsc::Receiver<Vec<T>>) {
    let (sender, chunks) = mpsc::channel(CHUNKS_MAX);
    let mut gathering = RowBuffer { rows: Vec::new(), sender };
    (Box::new(move |row| gathering.push(row)), chunks)
}

/// Rows that are not on their way yet. The last ones leave when the scan drops its visitor.
struct RowBuffer<T> {
    rows: Vec<T>,
    sender: mpsc::Sender<Vec<T>>,
}

impl<T> RowBuffer<T> {
    fn push(&mut self, row: T) -> bool {
        self.rows.push(row);
        self.rows.len() < CHUNK || self.send()
    }

    fn send(&mut self) -> bool {
        let rows = std::mem::replace(&mut self.rows, Vec::with_capacity(CHUNK));
        self.sender.blocking_send(rows).is_ok()
    }
}

impl<T> Drop for RowBuffer<T> {
    fn drop(&mut self) {
        if !self.rows.is_empty() {
            self.send();
        }
    }
}
