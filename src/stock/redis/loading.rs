//! Loads buckets from the ledger; see [`Loading`].

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::try_join_all;

use super::super::{Error, Loading};
use super::unsettled::{log_unreadable, pages_at_once};
use crate::domain::book::gives_back;
use crate::domain::{
    BucketNo, BuyerId, Epoch, Failure, LoaderToken, Order, OrderIntent, Phase, Policy, RequestId,
};
use crate::redis::scripts::load::LoadRow;
use crate::redis::scripts::record::{RequestRecord, RequestStage};
use crate::redis::scripts::{BucketKeys, ClearBucket, HoldBucket, LoadRows, OpenBucket, codes};
use crate::redis::transport::ConnectionPurpose;
use crate::stock::redis::executor::StockExecutor;
use crate::stock::redis::sku_cache::SkuCache;

/// Buckets whose pages are cleared at once; bounds the memory for their queued requests.
const CLEARED_AT_ONCE: usize = 8;

/// Fills every bucket of a SKU.
pub(super) struct RedisLoader {
    executor: StockExecutor,
    cache: Arc<SkuCache>,
    token: LoaderToken,
    buckets: Vec<BucketFill>,
    /// Accepted requests without an order or a failure so far.
    queued: HashMap<RequestId, (BuyerId, u32)>,
}

/// The rows and counts of one bucket so far.
#[derive(Default)]
struct BucketFill {
    rows: Vec<LoadRow>,
    /// Units by buyer, under a quota; a buyer's orders are passed one at a time.
    units: HashMap<BuyerId, u32>,
    released_units: u64,
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
    pub(super) async fn hold(
        executor: StockExecutor,
        cache: Arc<SkuCache>,
        token: LoaderToken,
    ) -> Result<Self, Error> {
        cache.forget_polls();
        cache.forget_accepted();
        let holds = cache.keys.iter().map(|keys| hold(&executor, &cache, keys, token));
        try_join_all(holds).await?;
        // A poll may have begun before the hold.
        cache.forget_polls();
        // Crash here [held]: the buckets refuse every request and are otherwise unchanged; the next
        // loader holds them with a larger token.
        let buckets = cache.keys.iter().map(|_| BucketFill::default()).collect();
        Ok(Self { executor, cache, token, buckets, queued: HashMap::new() })
    }

    /// Empties a bucket. Returns its accepted requests without a ledger decision.
    async fn clear_bucket(
        &self,
        keys: &BucketKeys,
    ) -> Result<Vec<(RequestId, RequestRecord)>, Error> {
        let mut queued = Vec::new();
        let step = pages_at_once(&self.cache.sku, keys.pages());
        for first in (0..keys.pages()).step_by(usize::from(step)) {
            let pages = first..first.saturating_add(step).min(keys.pages());
            let connection = self.executor.connection(ConnectionPurpose::Results, keys).await?;
            let fence = self.executor.fence(&connection);
            let script = ClearBucket { keys, fence: &fence, loader: self.token, pages };
            let answer = self.executor.call(&connection, script.call(), "clearing pages").await?;
            let found = script.parse(answer);
            for request in found.map_err(|error| self.cache.invalidate_on(&keys.bucket(), error))? {
                match request {
                    Ok(request) => queued.push(request),
                    Err(error) => log_unreadable(&keys.bucket(), error),
                }
            }
        }
        Ok(queued)
    }

    fn home(&mut self, buyer: BuyerId) -> Option<&mut BucketFill> {
        let home = BucketNo::home_of(buyer, self.cache.sku.buckets);
        self.buckets.get_mut(usize::from(home.0))
    }

    /// Adds the buyers of the requests that are still queued. Returns their units.
    fn add_queued(&mut self) -> u32 {
        let policy = self.cache.sku.policy;
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
        let (executor, cache, loader) = (&self.executor, &self.cache, self.token);
        let sending = cache.keys.iter().zip(&mut self.buckets).map(|(keys, fill)| async move {
            if fill.rows.len() < at_least {
                return Ok::<(), Error>(());
            }
            let connection = executor.connection(ConnectionPurpose::Results, keys).await?;
            let fence = executor.fence(&connection);
            for rows in fill.rows.chunks(codes::ITEMS_MAX_USIZE) {
                let script = LoadRows { keys, fence: &fence, loader, rows };
                let answer = executor.call(&connection, script.call(), "loading rows").await?;
                script.parse(answer).map_err(|error| cache.invalidate_on(&keys.bucket(), error))?;
            }
            fill.rows.clear();
            Ok(())
        });
        try_join_all(sending).await.map(drop)
    }
}

async fn hold(
    executor: &StockExecutor,
    cache: &SkuCache,
    keys: &BucketKeys,
    loader: LoaderToken,
) -> Result<(), Error> {
    let connection = executor.connection(ConnectionPurpose::Results, keys).await?;
    let fence = executor.fence(&connection);
    let script = HoldBucket { keys, fence: &fence, loader };
    let answer = executor.call(&connection, script.call(), "holding a bucket").await?;
    script.parse(answer).map(drop).map_err(|error| cache.invalidate_on(&keys.bucket(), error))
}

#[async_trait]
impl Loading for RedisLoader {
    async fn clear(&mut self) -> Result<(), Error> {
        let cache = Arc::clone(&self.cache);
        for group in cache.keys.chunks(CLEARED_AT_ONCE) {
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
        let policy = self.cache.sku.policy;
        for order in rows {
            self.queued.remove(&order.request);
            let Some(home) = self.home(order.buyer) else { continue };
            home.request(order.request, RequestRecord::ordered(&order));
            if order.state.is_live() {
                home.add_units(policy, order.buyer, order.quantity);
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
            let record = RequestRecord {
                buyer: failure.buyer,
                quantity: failure.quantity,
                placed_at_ms: failure.recorded_at_ms,
                stage: RequestStage::Failed(failure.reason),
            };
            home.request(failure.request, record);
        }
        self.send(codes::ITEMS_MAX_USIZE).await
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
        for (number, (keys, fill)) in (0..).zip(self.cache.keys.iter().zip(&self.buckets)) {
            let connection = self.executor.connection(ConnectionPurpose::Results, keys).await?;
            let fence = self.executor.fence(&connection);
            let script = OpenBucket {
                keys,
                fence: &fence,
                loader: self.token,
                epoch,
                phase,
                stock: self.cache.sku.share(available, number),
                released_units: fill.released_units,
                num_failed: fill.num_failed,
                num_queued: fill.num_queued,
                is_new: !fill.has_requests && fill.num_queued == 0,
            };
            let answer = self.executor.call(&connection, script.call(), "opening a bucket").await?;
            script
                .parse(answer)
                .map_err(|error| self.cache.invalidate_on(&keys.bucket(), error))?;
        }
        Ok(())
    }
}
