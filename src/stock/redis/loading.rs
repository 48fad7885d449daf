//! Buckets being loaded from the ledger; see [`Loading`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::try_join_all;

use super::super::{Error, LoaderToken, Loading};
use super::local::Shelf;
use super::wire::Wire;
use crate::domain::book::gives_back;
use crate::domain::{
    BucketNo, BuyerId, Epoch, Failure, Order, OrderIntent, Phase, Policy, RequestId,
};
use crate::redis_link::Lane;
use crate::scripts::load::Row;
use crate::scripts::record::{Record, Stage};
use crate::scripts::{LoadBegin, LoadRows, Open, codes};

/// Fills every bucket of a SKU.
pub(super) struct Loader {
    wire: Wire,
    shelf: Arc<Shelf>,
    token: LoaderToken,
    buckets: Vec<Filling>,
    /// Of which no order and no failure has come yet.
    queued: HashMap<RequestId, OrderIntent>,
    /// Their buyers, as long as no order of theirs has come.
    without_order: HashSet<BuyerId>,
}

/// What of one bucket was entered so far.
#[derive(Default)]
struct Filling {
    rows: Vec<Row>,
    /// Units of buyers with a quota, whose orders come one after the other.
    units: HashMap<BuyerId, u32>,
    released_units: u64,
    num_failed: u64,
    num_queued: u64,
}

impl Filling {
    /// The buyer of this request has its units.
    fn hold(&mut self, policy: Policy, buyer: BuyerId, units: u32, request: RequestId) {
        match policy {
            Policy::OnePerBuyer { .. } => self.rows.push(Row::First(buyer, request)),
            Policy::Quota { .. } => {
                let sum = self.units.entry(buyer).or_default();
                *sum = sum.saturating_add(units);
                self.rows.push(Row::Units(buyer, *sum));
            }
            Policy::Unlimited { .. } => {}
        }
    }
}

impl Loader {
    pub(super) async fn begin(
        wire: Wire,
        shelf: Arc<Shelf>,
        loader: LoaderToken,
    ) -> Result<Self, Error> {
        shelf.forget_looks();
        shelf.doubt_known();
        for keys in &shelf.keys {
            let link = wire.link(Lane::Results, keys).await?;
            let fence = wire.fence(&link);
            let door = LoadBegin { keys, fence: &fence, loader };
            let answer = wire.ask(&link, door.call(), "beginning to load").await?;
            door.parse(answer).map_err(|error| shelf.told(&keys.bucket(), error))?;
        }
        // Crash here [loading]: the buckets refuse everybody; the next holder of the lease begins
        // anew with a larger token.
        let buckets = shelf.keys.iter().map(|_| Filling::default()).collect();
        let (queued, without_order) = (HashMap::new(), HashSet::new());
        Ok(Self { wire, shelf, token: loader, buckets, queued, without_order })
    }

    fn home(&mut self, buyer: BuyerId) -> Option<&mut Filling> {
        let home = BucketNo::home_of(buyer, self.shelf.sku.buckets);
        self.buckets.get_mut(usize::from(home.0))
    }

    /// Enters the requests that are queued still, and returns their units.
    fn enter_queued(&mut self) -> u32 {
        let policy = self.shelf.sku.policy;
        let mut units = 0_u32;
        for (request, intent) in std::mem::take(&mut self.queued) {
            let (buyer, quantity) = (intent.buyer, intent.quantity);
            // A buyer who may have one order and has it stands there with that one.
            let holds =
                self.without_order.remove(&buyer) || !matches!(policy, Policy::OnePerBuyer { .. });
            let Some(home) = self.home(buyer) else { continue };
            home.rows.push(Row::Request(request, Record::queued(&intent)));
            if holds {
                home.hold(policy, buyer, quantity, request);
            }
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
            let link = wire.link(Lane::Results, keys).await?;
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

#[async_trait]
impl Loading for Loader {
    async fn queued(&mut self, rows: Vec<OrderIntent>) -> Result<(), Error> {
        for intent in rows {
            self.without_order.insert(intent.buyer);
            self.queued.insert(intent.request, intent);
        }
        Ok(())
    }

    async fn orders(&mut self, rows: Vec<Order>) -> Result<(), Error> {
        let policy = self.shelf.sku.policy;
        for order in rows {
            self.queued.remove(&order.request);
            if order.state.is_live() {
                self.without_order.remove(&order.buyer);
            }
            let Some(home) = self.home(order.buyer) else { continue };
            home.rows.push(Row::Request(order.request, Record::ordered(&order)));
            if order.state.is_live() {
                home.hold(policy, order.buyer, order.quantity, order.request);
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
            let record = Record {
                buyer: failure.buyer,
                quantity: failure.quantity,
                placed_at_ms: failure.recorded_at_ms,
                stage: Stage::Failed(failure.reason),
            };
            home.rows.push(Row::Request(failure.request, record));
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
        for (number, (keys, filling)) in (0..).zip(self.shelf.keys.iter().zip(&self.buckets)) {
            let link = self.wire.link(Lane::Results, keys).await?;
            let fence = self.wire.fence(&link);
            let door = Open {
                keys,
                fence: &fence,
                loader: self.token,
                epoch,
                phase,
                stock: self.shelf.sku.share(available, number),
                released_units: filling.released_units,
                num_failed: filling.num_failed,
                num_queued: filling.num_queued,
            };
            let answer = self.wire.ask(&link, door.call(), "opening a bucket").await?;
            door.parse(answer).map_err(|error| self.shelf.told(&keys.bucket(), error))?;
        }
        Ok(())
    }
}
