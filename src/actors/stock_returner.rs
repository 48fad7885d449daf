//! Brings the changes of committed orders to their buckets: the units of an order that ended are on
//! sale again, and its buyer reads its state without the ledger.
//!
//! Reads the ledger's events after its cursor, settles their orders, then moves the cursor. Runs in
//! every process that maintains; two at once settle the same events twice. Limits: events per page,
//! and pages read beyond a bucket that cannot be settled. On error: the cursor stays before the
//! first event that was not settled, and the next pass reads it again; one that is not readable is
//! left out. On crash: the same. May repeat: everything, because a bucket ignores a version that it
//! has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::periodic::{RunResult, Task};
use crate::db::{self, ErrorClass, Ledger};
use crate::domain::{BucketNo, Order, OrderEvent, SkuNo};
use crate::observe::metrics::Metrics;
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;
use crate::services::order_feed::STOCK_READER;
use crate::stock::{self, Stock};

/// Events per read of the ledger.
const EVENTS_PER_PAGE: u32 = 1_000;

/// Most pages that are read beyond the first event that could not be settled, for other buckets.
const PAGES_AHEAD_MAX: u32 = 16;

/// Settles the changes of orders.
pub struct StockReturner {
    pub ledger: Arc<dyn Ledger>,
    pub stock: Arc<dyn Stock>,
    pub catalog: Arc<Catalog>,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
    /// Since when the changes cannot be read, epoch milliseconds; `None` if they can.
    pub unread_since_ms: Mutex<Option<i64>>,
}

#[derive(Debug, thiserror::Error)]
enum ReturnError {
    #[error(transparent)]
    Stock(#[from] stock::Error),
    #[error("this process has not read the sale of sku {0} yet")]
    UnknownSku(SkuNo),
}

impl ReturnError {
    fn is_unreachable(&self) -> bool {
        use stock::Error::{Unavailable, Unknown};
        matches!(self, Self::Stock(Unavailable { .. } | Unknown { .. }))
    }
}

/// The events that a pass could not settle.
#[derive(Default)]
struct Backlog {
    num_events: usize,
    oldest_ms: Option<i64>,
    num_pages_ahead: u32,
    first_error: Option<ReturnError>,
    /// Whether the stock answered for no bucket of a page.
    is_unreachable: bool,
}

impl Task for StockReturner {
    type State = ();

    const FAILURE: &'static str = "changes of orders not brought to their buckets, retrying";

    /// Settles every event after the cursor; returns the first error after the pass.
    async fn run(&self, (): &()) -> RunResult {
        let mut backlog = Backlog::default();
        let read = self.settle_all(&mut backlog).await;
        let mut unread_since_ms = self.unread_since_ms.lock();
        if read.is_err() {
            // Changes may wait that this process does not see: reported as one, since the first
            // failure.
            let since_ms = *unread_since_ms.get_or_insert_with(|| self.clock.wall_ms());
            backlog.num_events += 1;
            backlog.oldest_ms = backlog.oldest_ms.into_iter().chain([since_ms]).min();
        } else {
            *unread_since_ms = None;
        }
        self.report(&backlog);
        read?;
        backlog.first_error.map_or(Ok(()), |error| Err(error.into()))
    }
}

impl StockReturner {
    /// Settles the events after the cursor, page by page; those that fail are added to the backlog.
    async fn settle_all(&self, backlog: &mut Backlog) -> Result<(), db::Error> {
        while self.ledger.number_events(EVENTS_PER_PAGE).await? >= EVENTS_PER_PAGE {}
        let mut read_to = self.ledger.cursor(STOCK_READER).await?;
        while backlog.num_pages_ahead < PAGES_AHEAD_MAX && !backlog.is_unreachable {
            // A placed order is settled by its gate or consumer.
            let page = self.ledger.changes_after(read_to, EVENTS_PER_PAGE).await?;
            if page.read_to == read_to {
                break;
            }
            read_to = page.read_to;
            (0..page.num_unreadable).for_each(|_| self.metrics.ledger_error(ErrorClass::Bug));
            self.settle(&page.events, backlog).await;
            // Crash here [changes_settled]: the next pass settles the same events without effect.
            if backlog.num_events == 0 {
                self.ledger.move_cursor(STOCK_READER, read_to).await?;
            } else {
                backlog.num_pages_ahead += 1;
            }
        }
        Ok(())
    }

    /// Settles the events of each bucket; those of a bucket that fails are added to the backlog.
    async fn settle(&self, events: &[OrderEvent], backlog: &mut Backlog) {
        let mut by_bucket: BTreeMap<(SkuNo, Option<BucketNo>), Vec<&OrderEvent>> = BTreeMap::new();
        for event in events {
            let Order { sku, buyer, .. } = event.order;
            // `None`: this process has not read the sale yet.
            let sold = self.catalog.of_sku(sku);
            let bucket = sold.map(|(_, sku)| BucketNo::home_of(buyer, sku.buckets));
            by_bucket.entry((sku, bucket)).or_default().push(event);
        }
        // At once: a server that does not answer delays no bucket of another server.
        let settling = by_bucket.into_iter().map(|((sku, bucket), events)| async move {
            (self.settle_bucket(sku, bucket, &events).await, events)
        });
        let (mut any_settled, mut any_unreachable) = (false, false);
        for (settled, events) in join_all(settling).await {
            match settled {
                Ok(()) => {
                    any_settled = true;
                    self.metrics.order_changes_settled.inc_by(events.len() as u64);
                }
                Err(error) => {
                    let oldest_ms = events.iter().map(|event| event.at_ms);
                    backlog.oldest_ms = oldest_ms.chain(backlog.oldest_ms).min();
                    backlog.num_events += events.len();
                    any_unreachable |= error.is_unreachable();
                    backlog.first_error.get_or_insert(error);
                    self.report(backlog);
                }
            }
        }
        // One server of several that is away delays only its own buckets.
        backlog.is_unreachable |= any_unreachable && !any_settled;
    }

    async fn settle_bucket(
        &self,
        sku: SkuNo,
        bucket: Option<BucketNo>,
        events: &[&OrderEvent],
    ) -> Result<(), ReturnError> {
        let (Some(bucket), Some((sale, sku))) = (bucket, self.catalog.of_sku(sku)) else {
            return Err(ReturnError::UnknownSku(sku));
        };
        let orders = events.iter().map(|event| (bucket, event.order)).collect();
        let is_dormant = sale.is_dormant(self.clock.wall_ms());
        if is_dormant {
            // This process may not have needed its buckets before.
            self.stock.register(&sku);
        }
        match self.stock.settle(orders).await {
            // Their next load settles every order.
            Err(error) if is_dormant && error.is_not_loaded() => Ok(()),
            settled => Ok(settled.inspect_err(|error| self.metrics.stock_error(error))?),
        }
    }

    fn report(&self, backlog: &Backlog) {
        let oldest_ms = backlog.oldest_ms;
        let age_ms = oldest_ms.map_or(0, |oldest| self.clock.wall_ms().saturating_sub(oldest));
        let age = Duration::from_millis(u64::try_from(age_ms).unwrap_or(0));
        self.metrics.set_order_changes_waiting(backlog.num_events, age);
    }
}
