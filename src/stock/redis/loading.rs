//! Buckets being loaded from the ledger; see [`Loading`].

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::try_join_all;

use super::super::{Error, LoaderToken, Loading};
use super::unsettled::{pages_at_once, unreadable};
use crate::domain::book::gives_back;
use crate::domain::{
    BucketNo, BuyerId, Epoch, Failure, Order, OrderIntent, Phase, Policy, RequestId,
};
use crate::redis::scripts::load::LoadRow;
use crate::redis::scripts::record::{RequestRecord, RequestStage};
use crate::redis::scripts::{BucketKeys, ClearBucket, HoldBucket, LoadRows, OpenBucket, codes};
use crate::redis::transport::ConnectionPurpose;
use crate::stock::redis::executor::StockExecutor;
use crate::stock::redis::sku_cache::SkuCache;

/// Buckets whose pages are cleared at once: bounds what is in memory on their way.
const CLEARED_AT_ONCE: usize = 8;

/// Fills every bucket of a SKU.
pub(super) struct RedisLoader {
    wire: StockExecutor,
    shelf: Arc<SkuCache>,
    token: LoaderToken,
    buckets: Vec<BucketFill>,
    /// Accepted requests of which no order and no failure has come yet.
    queued: HashMap<RequestId, (BuyerId, u32)>,
}

/// What of one bucket was entered so far.
#[derive(Default)]
struct BucketFill {
    rows: Vec<LoadRow>,
    /// Units of buyers with a quota, whose orders come one after the other.
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

    /// The buyer has these units, which count where there is a quota.
    fn hold(&mut self, policy: Policy, buyer: BuyerId, units: u32) {
        if policy.quota().is_some() {
            let sum = self.units.entry(buyer).or_default();
            *sum = sum.saturating_add(units);
            self.rows.push(LoadRow::Units(buyer, *sum));
        }
    }
}

impl RedisLoader {
    /// Holds every bucket of the SKU: from here on nothing is accepted.
    pub(super) async fn hold(
        wire: StockExecutor,
        shelf: Arc<SkuCache>,
        token: LoaderToken,
    ) -> Result<Self, Error> {
        shelf.forget_looks();
        shelf.doubt_known();
        let holding = shelf.keys.iter().map(|keys| hold(&wire, &shelf, keys, token));
        try_join_all(holding).await?;
        // A look that began before.
        shelf.forget_looks();
        // Crash here [held]: nothing was changed but that the buckets refuse everybody; the next
        // loader holds them with a larger token.
        let buckets = shelf.keys.iter().map(|_| BucketFill::default()).collect();
        Ok(Self { wire, shelf, token, buckets, queued: HashMap::new() })
    }

    /// Empties a bucket. Returns what it has accepted and the ledger has not decided.
    async fn clear_bucket(
        &self,
        keys: &BucketKeys,
    ) -> Result<Vec<(RequestId, RequestRecord)>, Error> {
        let mut stays = Vec::new();
        let step = pages_at_once(&self.shelf.sku, keys.pages());
        for first in (0..keys.pages()).step_by(usize::from(step)) {
            let pages = first..first.saturating_add(step).min(keys.pages());
            let link = self.wire.link(ConnectionPurpose::Results, keys).await?;
            let fence = self.wire.fence(&link);
            let door = ClearBucket { keys, fence: &fence, loader: self.token, pages };
            let answer = self.wire.ask(&link, door.call(), "clearing pages").await?;
            let found = door.parse(answer);
            for request in found.map_err(|error| self.shelf.told(&keys.bucket(), error))? {
                match request {
                    Ok(request) => stays.push(request),
                    Err(error) => unreadable(&keys.bucket(), error),
                }
            }
        }
        Ok(stays)
    }

    fn home(&mut self, buyer: BuyerId) -> Option<&mut BucketFill> {
        let home = BucketNo::home_of(buyer, self.shelf.sku.buckets);
        self.buckets.get_mut(usize::from(home.0))
    }

    /// Enters the buyers of requests that are queued still, and returns their units.
    fn enter_queued(&mut self) -> u32 {
        let policy = self.shelf.sku.policy;
        let mut units = 0_u32;
        for (buyer, quantity) in std::mem::take(&mut self.queued).into_values() {
            let Some(home) = self.home(buyer) else { continue };
            home.hold(policy, buyer, quantity);
            home.num_queued += 1;
            units = units.saturating_add(quantity);
        }
        units
    }

    /// Sends what has gathered; all of it at the end.
    async fn send(&mut self, at_least: usize) -> Result<(), Error> {
        let (wire, shelf, loader) = (&self.wire, &self.shelf, self.token);
        let sending = shelf.keys.iter().zip(&mut self.buckets).map(|(keys, filling)| async move {
            if filling.rows.len() < at_least {
                return Ok::<(), Error>(());
            }
            let link = wire.link(ConnectionPurpose::Results, keys).await?;
            let fence = wire.fence(&link);
            for rows in filling.rows.chunks(codes::ITEMS_MAX_USIZE) {
                let door = LoadRows { keys, fence: &fence, loader, rows };
                let answer = wire.ask(&link, door.call(), "loading rows").await?;
                door.parse(answer).map_err(|error| shelf.told(&keys.bucket(), error))?;
            }
            filling.rows.clear();
            Ok(())
        });
        try_join_all(sending).await.map(drop)
    }
}

async fn hold(
    wire: &StockExecutor,
    shelf: &SkuCache,
    keys: &BucketKeys,
    loader: LoaderToken,
) -> Result<(), Error> {
    let link = wire.link(ConnectionPurpose::Results, keys).await?;
    let fence = wire.fence(&link);
    let door = HoldBucket { keys, fence: &fence, loader };
    let answer = wire.ask(&link, door.call(), "holding a bucket").await?;
    door.parse(answer).map(drop).map_err(|error| shelf.told(&keys.bucket(), error))
}

#[async_trait]
impl Loading for RedisLoader {
    async fn clear(&mut self) -> Result<(), Error> {
        let shelf = Arc::clone(&self.shelf);
        for group in shelf.keys.chunks(CLEARED_AT_ONCE) {
            let clearing = group.iter().map(|keys| self.clear_bucket(keys));
            for (request, record) in try_join_all(clearing).await?.into_iter().flatten() {
                self.queued.insert(request, (record.buyer, record.quantity));
            }
        }
        // Crash here [cleared]: what the ledger has not decided is on the pages still, and all else
        // is in the ledger; the next loader clears them again.
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
        let policy = self.shelf.sku.policy;
        for order in rows {
            self.queued.remove(&order.request);
            let Some(home) = self.home(order.buyer) else { continue };
            home.request(order.request, RequestRecord::ordered(&order));
            if order.state.is_live() {
                home.hold(policy, order.buyer, order.quantity);
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
        let available = available.saturating_sub(self.enter_queued());
        self.send(1).await?;
        // Crash here [rows_entered]: as before; here and between two openings.
        for (number, (keys, filling)) in (0..).zip(self.shelf.keys.iter().zip(&self.buckets)) {
            let link = self.wire.link(ConnectionPurpose::Results, keys).await?;
            let fence = self.wire.fence(&link);
            let door = OpenBucket {
                keys,
                fence: &fence,
                loader: self.token,
                epoch,
                phase,
                stock: self.shelf.sku.share(available, number),
                released_units: filling.released_units,
                num_failed: filling.num_failed,
                num_queued: filling.num_queued,
                is_new: !filling.has_requests && filling.num_queued == 0,
            };
            let answer = self.wire.ask(&link, door.call(), "opening a bucket").await?;
            door.parse(answer).map_err(|error| self.shelf.told(&keys.bucket(), error))?;
        }
        Ok(())
    }
}
