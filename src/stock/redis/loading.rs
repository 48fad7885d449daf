//! Loads buckets from the ledger; see [`Loading`].

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::try_join_all;

use super::super::{Error, Loading};
use super::sku_buckets::SkuBuckets;
use super::unsettled::{log_unreadable, pages_at_once};
use crate::domain::book::gives_back;
use crate::domain::{
    BucketNo, BuyerId, Epoch, Failure, LoaderToken, Order, OrderIntent, Phase, Policy, RequestId,
    RequestRecord,
};
use crate::redis::scripts::load::{self, LoadRow};
use crate::redis::scripts::{BucketKeys, OpenBucket, codes};

/// Buckets whose pages are cleared at once; bounds the memory for their queued requests.
const CLEARED_AT_ONCE: usize = 8;

/// Fills every bucket of a SKU.
pub(super) struct RedisLoader {
    buckets: Arc<SkuBuckets>,
    token: LoaderToken,
    /// One for each bucket.
    fills: Vec<BucketFill>,
    /// Accepted requests without an order or a failure so far.
    queued: HashMap<RequestId, (BuyerId, u32)>,
    change_no: i32,
}

/// The rows and counts of one bucket so far.
#[derive(Default)]
struct BucketFill {
    rows: Vec<LoadRow>,
    /// Units by buyer, under a quota; a buyer's orders are passed one at a time.
    units: HashMap<BuyerId, u32>,
    released_units: u64,
    returned_units: u64,
    num_failed: u64,
    num_queued: u64,
    has_requests: bool,
}

impl BucketFill {
    fn request(&mut self, request: RequestId, record: RequestRecord) {
        self.rows.push(LoadRow::Request(request, record));
        self.has_requests = true;
    }

    /// Adds units to a buyer; they count only under a quota.
    fn add_units(&mut self, policy: Policy, buyer: BuyerId, units: u32) {
        if policy.quota().is_some() {
            let sum = self.units.entry(buyer).or_default();
            *sum = sum.saturating_add(units);
            self.rows.push(LoadRow::Units(buyer, *sum));
        }
    }
}

impl RedisLoader {
    /// Holds every bucket of the SKU: from here on the buckets accept nothing.
    pub(super) async fn hold(buckets: Arc<SkuBuckets>, token: LoaderToken) -> Result<Self, Error> {
        buckets.forget_accepted();
        let holds = buckets
            .keys
            .iter()
            .map(|keys| buckets.run(load::hold(keys, token), "holding a bucket"));
        let held = try_join_all(holds).await;
        // Also if only some buckets are held.
        buckets.forget_polls();
        held?;
        // Crash here [held]: the buckets refuse every request and are otherwise unchanged; the next
        // loader holds them with a larger token.
        let fills = buckets.keys.iter().map(|_| BucketFill::default()).collect();
        Ok(Self { buckets, token, fills, queued: HashMap::new(), change_no: 0 })
    }

    /// Empties a bucket. Returns its accepted requests without a ledger decision.
    async fn clear_bucket(
        &self,
        keys: &BucketKeys,
    ) -> Result<Vec<(RequestId, RequestRecord)>, Error> {
        let mut queued = Vec::new();
        let pages = self.buckets.pages().all();
        let step = pages_at_once(&self.buckets.sku, pages.end);
        for first in pages.clone().step_by(usize::from(step)) {
            let pages = first..first.saturating_add(step).min(pages.end);
            let call = load::clear(keys, self.token, pages);
            for request in self.buckets.run(call, "clearing pages").await? {
                match request {
                    Ok(request) => queued.push(request),
                    Err(error) => log_unreadable(&keys.bucket(), error),
                }
            }
        }
        Ok(queued)
    }

    fn home(&mut self, buyer: BuyerId) -> Option<&mut BucketFill> {
        let home = BucketNo::home_of(buyer, self.buckets.sku.buckets);
        self.fills.get_mut(usize::from(home.0))
    }

    /// Adds the buyers of the requests that are still queued. Returns their units.
    fn add_queued(&mut self) -> u32 {
        let policy = self.buckets.sku.policy;
        let mut units = 0_u32;
        for (buyer, quantity) in std::mem::take(&mut self.queued).into_values() {
            let Some(home) = self.home(buyer) else { continue };
            home.add_units(policy, buyer, quantity);
            home.num_queued += 1;
            units = units.saturating_add(quantity);
        }
        units
    }

    /// Sends the rows of each bucket that has `at_least` rows.
    async fn send(&mut self, at_least: usize) -> Result<(), Error> {
        let (buckets, loader) = (&self.buckets, self.token);
        let sending = buckets.keys.iter().zip(&mut self.fills).map(|(keys, fill)| async move {
            if fill.rows.len() < at_least {
                return Ok::<(), Error>(());
            }
            for rows in fill.rows.chunks(codes::ITEMS_MAX_USIZE) {
                let call = load::load_rows(keys, &buckets.sku, loader, rows);
                buckets.run(call, "loading rows").await?;
            }
            fill.rows.clear();
            Ok(())
        });
        try_join_all(sending).await.map(drop)
    }
}

#[async_trait]
impl Loading for RedisLoader {
    async fn clear(&mut self) -> Result<(), Error> {
        let buckets = Arc::clone(&self.buckets);
        for group in buckets.keys.chunks(CLEARED_AT_ONCE) {
            let clearing = group.iter().map(|keys| self.clear_bucket(keys));
            for (request, record) in try_join_all(clearing).await?.into_iter().flatten() {
                self.queued.insert(request, (record.buyer, record.quantity));
            }
        }
        // Crash here [cleared]: the pages still have the requests without a ledger decision, and
        // the ledger has all others; the next loader clears the pages again.
        Ok(())
    }

    async fn queued(&mut self, rows: Vec<OrderIntent>) -> Result<(), Error> {
        for intent in rows {
            if self.queued.contains_key(&intent.request) {
                continue;
            }
            self.queued.insert(intent.request, (intent.buyer, intent.quantity));
            let Some(home) = self.home(intent.buyer) else { continue };
            home.request(intent.request, RequestRecord::queued(&intent));
        }
        self.send(codes::ITEMS_MAX_USIZE).await
    }

    async fn orders(&mut self, rows: Vec<Order>) -> Result<(), Error> {
        let policy = self.buckets.sku.policy;
        for order in rows {
            self.queued.remove(&order.request);
            let Some(home) = self.home(order.buyer) else { continue };
            home.request(order.request, RequestRecord::ordered(&order));
            if order.counts_for_limit {
                home.add_units(policy, order.buyer, order.quantity);
            }
            if !order.state.is_live() {
                home.returned_units += u64::from(order.quantity);
            }
        }
        self.send(codes::ITEMS_MAX_USIZE).await
    }

    async fn failures(&mut self, rows: Vec<Failure>) -> Result<(), Error> {
        for failure in rows {
            self.queued.remove(&failure.request);
            let Some(home) = self.home(failure.buyer) else { continue };
            home.num_failed += 1;
            if gives_back(&failure.reason) {
                home.released_units += u64::from(failure.quantity);
            }
            home.request(failure.request, RequestRecord::failed(&failure));
        }
        self.send(codes::ITEMS_MAX_USIZE).await
    }

    fn stock_change(&mut self, no: i32) {
        self.change_no = no;
    }

    async fn publish(
        mut self: Box<Self>,
        available: u32,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<(), Error> {
        let available = available.saturating_sub(self.add_queued());
        self.send(1).await?;
        // Crash here [rows_entered]: as in `cleared`; here and between opening two buckets.
        for (number, (keys, fill)) in (0..).zip(self.buckets.keys.iter().zip(&self.fills)) {
            let open = OpenBucket {
                loader: self.token,
                epoch,
                phase,
                stock: self.buckets.sku.share(available, number),
                released_units: fill.released_units,
                returned_units: fill.returned_units,
                num_failed: fill.num_failed,
                num_queued: fill.num_queued,
                is_new: !fill.has_requests && fill.num_queued == 0,
                change_no: self.change_no,
            };
            self.buckets.run(open.call(keys), "opening a bucket").await?;
        }
        Ok(())
    }
}
