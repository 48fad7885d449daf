//! The feed of order events, in the order of their numbers: every change of an order, and every
//! accepted request that became none.
//!
//! Numbers are given after the commit ([`crate::db::OrderChanges::number_events`]), here and by the
//! stock returner. Waiting readers share one poll of the ledger, at a bounded rate.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::db::{self, FeedEvent, Ledger};
use crate::domain::{Payment, SkuNo};
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;

mod cloud_event;

pub use cloud_event::CloudEvent;

/// The cursors of the readers that bring changes of orders to buckets, and to the broker.
pub const STOCK_READER: &str = "stock";
pub const BROKER_READER: &str = "broker";

/// Shortest time between two polls.
const POLL_EVERY: Duration = Duration::from_millis(200);

/// Events that get their numbers in one transaction.
pub const NUMBERED_MAX: u32 = 1_000;

#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    #[error(transparent)]
    Ledger(#[from] db::Error),
    #[error("this process has not read the sale of sku {0} yet")]
    UnknownSku(SkuNo),
}

/// Reads the feed.
pub struct OrderFeed {
    ledger: Arc<dyn Ledger>,
    catalog: Arc<Catalog>,
    clock: SharedClock,
    /// Identifies the ledger.
    installation: Arc<str>,
    last_poll: Mutex<Option<FeedPoll>>,
}

/// A poll of the end of the feed.
#[derive(Clone, Copy)]
struct FeedPoll {
    began: Instant,
    last_feed_no: i64,
}

impl OrderFeed {
    pub fn new(
        ledger: Arc<dyn Ledger>,
        catalog: Arc<Catalog>,
        clock: SharedClock,
        installation: Arc<str>,
    ) -> Self {
        Self { ledger, catalog, clock, installation, last_poll: Mutex::default() }
    }

    /// The first events after a feed number, at most `limit`. If there are none, waits for one: at
    /// most `wait`, and while `goes_on`. An empty page: every event that was committed before the
    /// call has a number up to `after`.
    pub async fn page(
        &self,
        mut after: i64,
        limit: u32,
        wait: Duration,
        goes_on: impl Fn() -> bool,
    ) -> Result<Vec<CloudEvent>, FeedError> {
        let mut since = self.clock.now();
        let until = since + wait;
        let mut events = self.events(after, limit).await?;
        while events.is_empty() {
            let last = self.poll(since).await?;
            if last > after {
                events = self.events(after, limit).await?;
                // No event up to there: those are of purged sales.
                after = last;
            }
            since = self.clock.now();
            if since >= until || !goes_on() {
                break;
            }
        }
        Ok(events)
    }

    /// The first numbered events after a feed number, at most `limit`.
    pub async fn events(&self, after: i64, limit: u32) -> Result<Vec<CloudEvent>, FeedError> {
        let events = self.ledger.events_after(after, limit).await?;
        let paid_for = |event: &FeedEvent| match event {
            FeedEvent::Order(event) => event.payment_id.as_ref().map(|_| event.order.key()),
            FeedEvent::Refused { .. } => None,
        };
        let orders: Vec<_> = events.iter().filter_map(paid_for).collect();
        let mut payments: HashMap<String, Payment> = HashMap::new();
        if !orders.is_empty() {
            for payment in self.ledger.payments_of(orders).await? {
                if let Some(started) = &payment.started {
                    payments.insert(started.payment_id.clone(), payment);
                }
            }
        }
        let mut cloud_events = Vec::with_capacity(events.len());
        for event in events {
            let sku_no = match &event {
                FeedEvent::Order(event) => event.order.sku,
                FeedEvent::Refused { failure, .. } => failure.sku,
            };
            let (sale, sku) = self.catalog.of_sku(sku_no).ok_or(FeedError::UnknownSku(sku_no))?;
            let of_sale = (&*sale, &*sku);
            cloud_events.push(CloudEvent::new(&self.installation, of_sale, event, &payments));
        }
        Ok(cloud_events)
    }

    /// The last feed number, by a poll that began at or after `since`: one caller polls for all
    /// who wait.
    async fn poll(&self, since: Instant) -> Result<i64, db::Error> {
        let mut last_poll = self.last_poll.lock().await;
        if let Some(FeedPoll { began, last_feed_no }) = *last_poll {
            if began >= since {
                return Ok(last_feed_no);
            }
            let pause = (began + POLL_EVERY).saturating_duration_since(self.clock.now());
            tokio::time::sleep(pause).await;
        }
        let began = self.clock.now();
        let last_feed_no = self.number().await?;
        *last_poll = Some(FeedPoll { began, last_feed_no });
        Ok(last_feed_no)
    }

    /// Gives numbers to committed events without one; returns the last feed number.
    pub async fn number(&self) -> Result<i64, db::Error> {
        while self.ledger.number_events(NUMBERED_MAX).await? >= NUMBERED_MAX {}
        self.ledger.last_feed_no().await
    }
}
