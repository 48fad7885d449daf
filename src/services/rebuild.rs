//! Loads the buckets of a SKU from the ledger: at start, when a sale is prepared, after the stock
//! has lost them, and on an operator's request.
//!
//! The ledger is the write-ahead log of the gates: the units left, and the buyers and requests of
//! its orders and recorded failures, are read as of one instant. Requests that a bucket has
//! accepted and the ledger has not decided stay in the bucket. Orders and failures that commit
//! after that instant are settled once the buckets are open.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::db::{self, AuditRow, Ledger, Visitor};
use crate::domain::{
    BucketKey, BucketNo, Epoch, Failure, LoaderToken, Order, OrderIntent, Phase, RequestId, Sku,
    SkuNo,
};
use crate::stock::{self, Loading, Stock};

/// Rows per chunk from the ledger's thread.
const CHUNK: usize = 1024;

/// Chunks buffered between the ledger's thread and the stock.
const CHUNKS_MAX: usize = 4;

/// Name of the token sequence in the ledger.
const LOADER: &str = "loader";

/// Why the buckets were not loaded; nothing is published then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the ledger is not available")]
    Ledger(#[from] db::Error),
    #[error("the stock is not available")]
    Stock(#[from] stock::Error),
}

/// Rows that were loaded into the buckets of a SKU.
#[derive(Debug)]
pub struct RebuildCounts {
    pub num_orders: u64,
    /// Requests of the loaded orders and failures, sorted.
    requests: Vec<RequestId>,
}

/// A fencing token for one load.
///
/// # Errors
/// The ledger's.
pub async fn next_loader_token(ledger: &dyn Ledger) -> Result<LoaderToken, db::Error> {
    Ok(LoaderToken(ledger.next_token(LOADER).await?))
}

/// Loads one SKU and opens its buckets. `queued` are accepted requests that the ledger may not have
/// decided and the buckets may have lost.
///
/// # Errors
/// The ledger's or the stock's error.
pub async fn load_sku(
    ledger: &dyn Ledger,
    stock: &dyn Stock,
    sku: &Arc<Sku>,
    queued: Vec<OrderIntent>,
) -> Result<RebuildCounts, Error> {
    let loader = next_loader_token(ledger).await?;
    let counts = ledger.ledger_size(sku.no).await?;
    let num_rows = counts.num_orders + counts.num_failures + queued.len() as u64;
    let mut loading = stock.load(Arc::clone(sku), num_rows, loader).await?;
    // A phase change before this point was not written to missing buckets, so it is read from the
    // ledger; a later one is written to the buckets.
    let (phase, epoch) = sale_version(ledger, sku.no).await?;
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

/// Phase and epoch of the sale of a SKU.
async fn sale_version(ledger: &dyn Ledger, sku: SkuNo) -> Result<(Phase, Epoch), db::Error> {
    let sales = ledger.sales().await?;
    let sale = sales.iter().find(|sale| sale.skus.iter().any(|one| one.no == sku));
    Ok(sale.map_or((Phase::Draft, Epoch(0)), |sale| (sale.phase, sale.epoch)))
}

impl RebuildCounts {
    /// Settles orders and failures that committed since the rows were read: during a load the
    /// buckets take no results. Returns the number of settled orders and failures.
    ///
    /// # Errors
    /// The ledger's or the stock's error; the next load settles the rest.
    pub async fn catch_up(
        &self,
        ledger: &dyn Ledger,
        stock: &dyn Stock,
        sku: &Sku,
    ) -> Result<usize, Error> {
        let counts = ledger.ledger_size(sku.no).await?;
        if counts.num_orders + counts.num_failures == self.requests.len() as u64 {
            return Ok(0);
        }
        let is_new = |request: &RequestId| self.requests.binary_search(request).is_err();
        let mut num_settled = 0;
        let (visit, mut chunks) = chunk_channel();
        let scan = ledger.scan_orders(sku.no, visit);
        let settle = async {
            while let Some(chunk) = chunks.recv().await {
                let new = chunk.into_iter().filter(|order: &Order| is_new(&order.request));
                let home = |order: &Order| BucketNo::home_of(order.buyer, sku.buckets);
                let new: Vec<_> = new.map(|order| (home(&order), order)).collect();
                num_settled += new.len();
                stock.settle(new).await?;
            }
            Ok::<_, stock::Error>(())
        };
        scan_into(scan, settle).await?;
        let (visit, mut chunks) = chunk_channel();
        let scan = ledger.scan_failures(sku.no, visit);
        let settle = async {
            while let Some(chunk) = chunks.recv().await {
                let new = chunk.into_iter().filter(|failure: &Failure| is_new(&failure.request));
                for failure in new {
                    let bucket = BucketNo::home_of(failure.buyer, sku.buckets);
                    let key = BucketKey { sku: sku.no, bucket };
                    num_settled += 1;
                    stock.release(key, vec![failure]).await?;
                }
            }
            Ok::<_, stock::Error>(())
        };
        scan_into(scan, settle).await?;
        Ok(num_settled)
    }
}

/// Runs a scan of the ledger together with the writer of its rows. An error of the writer ends the
/// scan early and is the one returned.
async fn scan_into<T>(
    scan: impl Future<Output = Result<(), db::Error>>,
    write: impl Future<Output = Result<T, stock::Error>>,
) -> Result<T, Error> {
    let (scanned, written) = tokio::join!(scan, write);
    let written = written?;
    scanned?;
    Ok(written)
}

/// Loads all orders. Returns the units left as of the same instant.
async fn load_orders(
    ledger: &dyn Ledger,
    loading: &mut dyn Loading,
    sku: &Sku,
    requests: &mut Vec<RequestId>,
) -> Result<u32, Error> {
    let (visit, mut chunks) = chunk_channel();
    let scan = ledger.scan_audit(sku.no, visit);
    let write = async {
        let mut available = 0;
        while let Some(chunk) = chunks.recv().await {
            let mut orders = Vec::with_capacity(chunk.len());
            for row in chunk {
                match row {
                    // A negative number is a violation that the audit reports; nothing is left to
                    // sell.
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
    scan_into(scan, write).await
}

/// Loads all recorded failures.
async fn load_failures(
    ledger: &dyn Ledger,
    loading: &mut dyn Loading,
    sku: &Sku,
    requests: &mut Vec<RequestId>,
) -> Result<(), Error> {
    let (visit, mut chunks) = chunk_channel();
    let scan = ledger.scan_failures(sku.no, visit);
    let write = async {
        while let Some(chunk) = chunks.recv().await {
            requests.extend(chunk.iter().map(|failure: &Failure| failure.request));
            loading.failures(chunk).await?;
        }
        Ok(())
    };
    scan_into(scan, write).await
}

/// A visitor for the ledger's thread, and the receiver of its rows in chunks.
fn chunk_channel<T: Send + 'static>() -> (Visitor<T>, mpsc::Receiver<Vec<T>>) {
    let (sender, chunks) = mpsc::channel(CHUNKS_MAX);
    let mut buffer = RowBuffer { rows: Vec::new(), sender };
    (Box::new(move |row| buffer.push(row)), chunks)
}

/// Collects rows into chunks. The last chunk is sent when the scan drops its visitor.
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
