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
use crate::domain::{BucketKey, BucketNo, Epoch, LoaderToken, OrderIntent, Phase, RequestId, Sku};
use crate::services::sales::SalesError;
use crate::stock::Stock;

/// Rows per chunk from the ledger's thread.
const CHUNK: usize = 1024;

/// Chunks buffered between the ledger's thread and the stock.
const CHUNKS_MAX: usize = 4;

/// Rows that were loaded into the buckets of a SKU.
#[derive(Debug)]
pub struct RebuildCounts {
    pub num_orders: u64,
    /// Requests of the loaded orders and failures, sorted.
    requests: Vec<RequestId>,
}

/// Loads one SKU with the token of a begun load, and opens its buckets. `queued` are accepted
/// requests that the ledger may not have decided and the buckets may have lost.
pub async fn load_sku(
    ledger: &dyn Ledger,
    stock: &dyn Stock,
    sku: &Arc<Sku>,
    loader: LoaderToken,
    queued: Vec<OrderIntent>,
) -> Result<RebuildCounts, SalesError> {
    let mut loading = stock.load(Arc::clone(sku), loader).await?;
    // A phase change before this point was not written to missing buckets, so it is read from the
    // ledger; a later one is written to the buckets.
    let sales = ledger.sales().await?;
    let sale = sales.iter().find(|sale| sale.skus.iter().any(|one| one.no == sku.no));
    let (phase, epoch) = sale.map_or((Phase::Draft, Epoch(0)), |sale| (sale.phase, sale.epoch));
    loading.clear().await?;
    loading.queued(queued).await?;
    let mut requests = Vec::new();
    let mut available = 0;
    let scan = |visit| ledger.scan_audit(sku.no, visit);
    for_each_chunk::<_, SalesError>(scan, async |rows| {
        let mut orders = Vec::with_capacity(rows.len());
        for row in rows {
            match row {
                // A negative number is a violation that the audit reports; nothing is left to sell.
                AuditRow::Sku(facts) => {
                    available = u32::try_from(facts.available).unwrap_or(0);
                    loading.stock_change(facts.history.change_no);
                }
                AuditRow::Order(order) => orders.push(order),
            }
        }
        requests.extend(orders.iter().map(|order| order.request));
        Ok(loading.orders(orders).await?)
    })
    .await?;
    let num_orders = requests.len() as u64;
    let scan = |visit| ledger.scan_failures(sku.no, visit);
    for_each_chunk::<_, SalesError>(scan, async |failures| {
        requests.extend(failures.iter().map(|failure| failure.request));
        Ok(loading.failures(failures).await?)
    })
    .await?;
    loading.publish(available, phase, epoch).await?;
    requests.sort_unstable();
    Ok(RebuildCounts { num_orders, requests })
}

impl RebuildCounts {
    /// Settles orders and failures that committed since the rows were read: during a load the
    /// buckets take no results. With `all`, also what was read: its changes since then came to no
    /// bucket, and no process repeats them. Returns the number of settled orders and failures.
    ///
    /// # Errors
    /// The next load settles the rest.
    pub async fn catch_up(
        &self,
        ledger: &dyn Ledger,
        stock: &dyn Stock,
        sku: &Sku,
        all: bool,
    ) -> Result<usize, SalesError> {
        let counts = ledger.ledger_size(sku.no).await?;
        if !all && counts.num_orders + counts.num_failures == self.requests.len() as u64 {
            return Ok(0);
        }
        let is_new = |request: &RequestId| all || self.requests.binary_search(request).is_err();
        let mut num_settled = 0;
        let home = |buyer| BucketNo::home_of(buyer, sku.buckets);
        let scan = |visit| ledger.scan_orders(sku.no, visit);
        for_each_chunk::<_, SalesError>(scan, async |orders| {
            let new = orders.into_iter().filter(|order| is_new(&order.request));
            let new: Vec<_> = new.map(|order| (home(order.buyer), order)).collect();
            num_settled += new.len();
            Ok(stock.settle(new).await?)
        })
        .await?;
        let scan = |visit| ledger.scan_failures(sku.no, visit);
        for_each_chunk::<_, SalesError>(scan, async |failures| {
            for failure in failures.into_iter().filter(|failure| is_new(&failure.request)) {
                let key = BucketKey { sku: sku.no, bucket: home(failure.buyer) };
                num_settled += 1;
                stock.release(key, vec![failure]).await?;
            }
            Ok(())
        })
        .await?;
        Ok(num_settled)
    }
}

/// Runs a scan of the ledger and writes its rows, in chunks of at most [`CHUNK`].
///
/// # Errors
/// The writer's, which ends the scan early; else the scan's.
pub(super) async fn for_each_chunk<T: Send + 'static, E: From<db::Error>>(
    scan: impl AsyncFnOnce(Visitor<T>) -> Result<(), db::Error>,
    mut write: impl AsyncFnMut(Vec<T>) -> Result<(), E>,
) -> Result<(), E> {
    let (sender, mut chunks) = mpsc::channel(CHUNKS_MAX);
    let mut buffer = RowBuffer { rows: Vec::new(), sender };
    let scan = scan(Box::new(move |row| buffer.push(row)));
    // The receiver is dropped with the last chunk or the first error.
    let write = async move {
        while let Some(chunk) = chunks.recv().await {
            write(chunk).await?;
        }
        Ok::<(), E>(())
    };
    let (scanned, written) = tokio::join!(scan, write);
    written?;
    Ok(scanned?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_scan_that_breaks_off_fails_although_what_it_read_is_written() {
        let scan = async |visit: Visitor<u32>| {
            let reader = std::thread::spawn(move || [1, 2, 3].map(visit));
            assert_eq!(reader.join().unwrap(), [true; 3]);
            Err(db::Error::Unstorable { what: "the rest".to_owned() })
        };
        let mut written = Vec::new();
        let write = async |rows| {
            written.extend(rows);
            Ok(())
        };
        let result = for_each_chunk::<_, db::Error>(scan, write).await;
        assert!(matches!(result, Err(db::Error::Unstorable { .. })), "{result:?}");
        assert_eq!(written, [1, 2, 3]);
    }
}
