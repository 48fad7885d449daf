//! Buckets being loaded from the ledger; see [`Loading`].

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::try_join_all;

use super::super::{Error, LoaderToken, Loading};
use super::local::Shelf;
use super::wire::Wire;
use crate::domain::book::gives_back;
use crate::domain::{BucketNo, BuyerId, Epoch, Failure, Order, Phase, Policy};
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
}

/// What of one bucket was entered so far.
#[derive(Default)]
struct Filling {
    rows: Vec<Row>,
    /// Units of buyers with a quota, whose orders come one after the other.
    units: HashMap<BuyerId, u32>,
    released_units: u64,
    num_failed: u64,
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
        Ok(Self { wire, shelf, token: loader, buckets })
    }

    fn home(&mut self, buyer: BuyerId) -> Option<&mut Filling> {
        let home = BucketNo::home_of(buyer, self.shelf.sku.buckets);
        self.buckets.get_mut(usize::from(home.0))
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
    async fn orders(&mut self, rows: Vec<Order>) -> Result<(), Error> {
        let policy = self.shelf.sku.policy;
        for order in rows {
            let Some(home) = self.home(order.buyer) else { continue };
            home.rows.push(Row::Request(order.request, Record::ordered(&order)));
            if !order.state.is_live() {
                continue;
            }
            match policy {
                Policy::OnePerBuyer { .. } => {
                    home.rows.push(Row::First(order.buyer, order.request));
                }
                Policy::Quota { .. } => {
                    let units = home.units.entry(order.buyer).or_default();
                    *units = units.saturating_add(order.quantity);
                    home.rows.push(Row::Units(order.buyer, *units));
                }
                Policy::Unlimited { .. } => {}
            }
        }
        self.send(codes::ITEMS_MAX_USIZE).await
    }

    async fn failures(&mut self, rows: Vec<Failure>) -> Result<(), Error> {
        for failure in rows {
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
            };
            let answer = self.wire.ask(&link, door.call(), "opening a bucket").await?;
            door.parse(answer).map_err(|error| self.shelf.told(&keys.bucket(), error))?;
        }
        Ok(())
    }
}
