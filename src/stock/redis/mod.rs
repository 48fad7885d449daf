//! Buckets in Redis, shared by every process of the installation.
//!
//! Every change is one script on one bucket; what this process knows besides (`local`) only spares
//! questions. Nothing is believed of a server that is not the one the bucket was opened on.
//!
//! On death of the process: what it had accepted and not brought to the ledger is in the bucket's
//! `unsettled`, where every gate of the bucket looks, or in its outbox, where every relay does.
//! On loss of the server: the buckets are loaded from the ledger again. May repeat: every call, by
//! request id, loan number or loader token.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};

use self::executor::StockExecutor;
use self::sku_cache::{SkuCache, SkuCaches};
use super::{
    BucketHealth, BucketKey, Error, LoaderToken, Loading, QueuedPage, Stock, StoredRequest,
};
use crate::domain::invariants::GateFacts;
use crate::domain::{
    BookSnapshot, BucketNo, BuyerId, Epoch, Failure, Loan, Order, OrderIntent, Phase, RequestId,
    RequestStatus, Reservation, Sku, SkuNo, Verdict,
};
use crate::redis::scripts::record::RequestRecord;
use crate::redis::scripts::{
    Borrow, BucketKeys, ClearLoan, Find, Installation, Lend, OutboxArgs, ReserveBatch, SetPhase,
    codes,
};
use crate::redis::transport::{ConnectionPool, ConnectionPurpose};

mod executor;
mod loading;
mod poll;
mod results;
mod sku_cache;
mod unsettled;

/// How the buckets are reached and named.
#[derive(Debug)]
pub struct RedisOptions {
    /// The connections.
    pub links: ConnectionPool,
    /// The first part of every key.
    pub namespace: String,
    /// The ledger that the buckets belong to.
    pub installation: Installation,
    /// Where accepted intents wait.
    pub outbox: OutboxArgs,
    /// Whether replicas must confirm, so that each batch has to write something.
    pub replicated: bool,
    /// Age at which a sold-out SKU is looked at again.
    pub sold_out_refresh: Duration,
}

/// Buckets in Redis.
#[derive(Debug)]
pub struct RedisStock {
    wire: StockExecutor,
    shelves: SkuCaches,
    outbox: OutboxArgs,
    replicated: bool,
    sold_out_refresh: Duration,
}

impl RedisStock {
    /// A stock that knows no SKU yet; connects when it is first asked.
    #[must_use]
    pub fn new(options: RedisOptions) -> Self {
        Self {
            wire: StockExecutor::new(options.links, options.namespace, options.installation),
            shelves: SkuCaches::default(),
            outbox: options.outbox,
            replicated: options.replicated,
            sold_out_refresh: options.sold_out_refresh,
        }
    }

    /// What this process knows of a SKU.
    fn shelf(&self, sku: SkuNo) -> Result<Arc<SkuCache>, Error> {
        self.shelves.get(sku).ok_or(Error::NotLoaded(sku))
    }

    fn know(&self, sku: &Arc<Sku>) -> Arc<SkuCache> {
        let keys = || self.wire.keys_of(sku);
        self.shelves.know(sku.no, || SkuCache::new(Arc::clone(sku), keys(), self.outbox))
    }

    /// One run of reservations of one opening.
    async fn reserve_run(
        &self,
        shelf: &SkuCache,
        bucket: BucketNo,
        run: &[Reservation],
    ) -> Result<Vec<Verdict>, Error> {
        let keys = shelf.keys(bucket)?;
        let link = self.wire.link(ConnectionPurpose::Hot, keys).await?;
        let fence = self.wire.fence(&link);
        let Some(epoch) = run.first().map(|ask| ask.epoch) else { return Ok(Vec::new()) };
        let door = ReserveBatch {
            keys,
            fence: &fence,
            sku: &shelf.sku,
            epoch,
            outbox: shelf.outbox,
            touch: self.replicated,
            batch: run,
        };
        let answer = self.wire.ask_and_wait(&link, door.call(), "reserving").await?;
        let decided = door.parse(answer).map_err(|error| shelf.told(&keys.bucket(), error))?;
        shelf.note(bucket, decided.left);
        Ok(decided.verdicts)
    }

    async fn turn_bucket(
        &self,
        shelf: &SkuCache,
        keys: &BucketKeys,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<(), Error> {
        let link = self.wire.link(ConnectionPurpose::Results, keys).await?;
        let fence = self.wire.fence(&link);
        let door = SetPhase { keys, fence: &fence, epoch, phase };
        let answer = self.wire.ask(&link, door.call(), "turning a bucket").await?;
        door.parse(answer).map(drop).map_err(|error| shelf.told(&keys.bucket(), error))
    }

    async fn find_in(
        &self,
        bucket: BucketKey,
        requests: &[RequestId],
    ) -> Result<Vec<Option<RequestRecord>>, Error> {
        let shelf = self.shelf(bucket.sku)?;
        let keys = shelf.keys(bucket.bucket)?;
        let link = self.wire.link(ConnectionPurpose::Results, keys).await?;
        let fence = self.wire.fence(&link);
        let mut found = Vec::with_capacity(requests.len());
        for requests in requests.chunks(codes::ITEMS_MAX_USIZE) {
            let door = Find { keys, fence: &fence, requests };
            let answer = self.wire.ask(&link, door.call(), "looking up requests").await?;
            found.extend(door.parse(answer).map_err(|error| shelf.told(&keys.bucket(), error))?);
        }
        Ok(found)
    }
}

fn standing_of(record: &RequestRecord) -> StoredRequest {
    StoredRequest {
        quantity: record.quantity,
        asked_at_ms: record.placed_at_ms,
        standing: record.standing(),
    }
}

#[async_trait]
impl Stock for RedisStock {
    async fn load(
        &self,
        sku: Arc<Sku>,
        _num_orders: u64,
        loader: LoaderToken,
    ) -> Result<Box<dyn Loading>, Error> {
        let shelf = self.know(&sku);
        Ok(Box::new(loading::RedisLoader::hold(self.wire.clone(), shelf, loader).await?))
    }

    async fn condition(
        &self,
        sku: &Arc<Sku>,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<BucketHealth, Error> {
        poll::condition(&self.wire, &self.know(sku), phase, epoch).await
    }

    async fn turn(&self, sku: &Arc<Sku>, phase: Phase, epoch: Epoch) -> Result<(), Error> {
        let shelf = self.know(sku);
        shelf.forget_looks();
        // Every bucket is told, also when another one could not be.
        let turning = shelf.keys.iter().map(|keys| self.turn_bucket(&shelf, keys, phase, epoch));
        let turned = join_all(turning).await;
        // Of several errors the one that may leave a bucket selling.
        let (harmless, worst): (Vec<_>, Vec<_>) = turned
            .into_iter()
            .filter_map(Result::err)
            .partition(|error| matches!(error, Error::NotLoaded(_) | Error::Fenced { .. }));
        worst.into_iter().chain(harmless).next().map_or(Ok(()), Err)
    }

    async fn reserve(
        &self,
        bucket: BucketKey,
        batch: Vec<Reservation>,
    ) -> Result<Vec<Verdict>, Error> {
        let shelf = self.shelf(bucket.sku)?;
        let mut verdicts = Vec::with_capacity(batch.len());
        for same_epoch in batch.chunk_by(|a, b| a.epoch == b.epoch) {
            for run in same_epoch.chunks(codes::ITEMS_MAX_USIZE) {
                let decided = self.reserve_run(&shelf, bucket.bucket, run).await;
                verdicts.extend(match decided {
                    // Runs before this one were accepted: of the batch as a whole that is no
                    // certain end.
                    Err(error) if error.is_certain() && !verdicts.is_empty() => {
                        let reason = error.to_string();
                        return Err(Error::Unknown { doing: "reserving", reason });
                    }
                    decided => decided?,
                });
            }
        }
        Ok(verdicts)
    }

    async fn settle(&self, mut orders: Vec<(BucketNo, Order)>) -> Result<(), Error> {
        orders.sort_by_key(|(bucket, order)| (order.sku, *bucket));
        let by_bucket = orders.chunk_by(|(a, x), (b, y)| (x.sku, a) == (y.sku, b));
        let settling = by_bucket.filter_map(|group| {
            let (bucket, first) = *group.first()?;
            let orders: Vec<Order> = group.iter().map(|(_, order)| *order).collect();
            Some(async move { self.settle_bucket(first.sku, bucket, &orders).await })
        });
        // Every bucket is told, also when another one could not be.
        join_all(settling).await.into_iter().collect()
    }

    async fn release(&self, bucket: BucketKey, refused: Vec<Failure>) -> Result<(), Error> {
        self.release_bucket(bucket, &refused).await
    }

    async fn unsettled(
        &self,
        bucket: BucketKey,
        asked_before_ms: i64,
    ) -> Result<Vec<OrderIntent>, Error> {
        let shelf = self.shelf(bucket.sku)?;
        let mut intents = unsettled::all(&self.wire, &shelf, bucket.bucket).await?;
        intents.retain(|intent| intent.placed_at_ms < asked_before_ms);
        Ok(intents)
    }

    async fn queued(&self, bucket: BucketKey, page: u16) -> Result<QueuedPage, Error> {
        unsettled::page(&self.wire, &*self.shelf(bucket.sku)?, bucket.bucket, page).await
    }

    async fn lend(&self, from: BucketKey, to: BucketNo, want: u32) -> Result<Option<Loan>, Error> {
        let shelf = self.shelf(from.sku)?;
        let keys = shelf.keys(from.bucket)?;
        let link = self.wire.link(ConnectionPurpose::Results, keys).await?;
        let fence = self.wire.fence(&link);
        let door = Lend { keys, fence: &fence, to, want };
        let answer = self.wire.ask(&link, door.call(), "lending units").await?;
        let (loan, left) = door.parse(answer).map_err(|error| shelf.told(&keys.bucket(), error))?;
        shelf.note(from.bucket, left);
        Ok(loan)
    }

    async fn borrow(&self, from: BucketKey, to: BucketNo, loan: Loan) -> Result<u32, Error> {
        let shelf = self.shelf(from.sku)?;
        let keys = shelf.keys(to)?;
        let link = self.wire.link(ConnectionPurpose::Results, keys).await?;
        let fence = self.wire.fence(&link);
        let door = Borrow { keys, fence: &fence, from: from.bucket, loan };
        let answer = self.wire.ask(&link, door.call(), "borrowing units").await?;
        let (units, left) =
            door.parse(answer).map_err(|error| shelf.told(&keys.bucket(), error))?;
        shelf.note(to, left);
        // Crash here [borrowed_not_cleared]: the loan is still on record, and the borrower knows
        // its number: whoever finds it clears it, and adds nothing.
        let keys = shelf.keys(from.bucket)?;
        let link = self.wire.link(ConnectionPurpose::Results, keys).await?;
        let fence = self.wire.fence(&link);
        let door = ClearLoan { keys, fence: &fence, to, no: loan.no };
        let answer = self.wire.ask(&link, door.call(), "clearing a loan").await?;
        let (_, left) = door.parse(answer).map_err(|error| shelf.told(&keys.bucket(), error))?;
        shelf.note(from.bucket, left);
        Ok(units)
    }

    async fn finish_transfers(&self, to: BucketKey) -> Result<u32, Error> {
        let shelf = self.shelf(to.sku)?;
        let counts = poll::all(&self.wire, &shelf).await?;
        let mut total = 0;
        for (from, counts) in (0..).map(BucketNo).zip(&counts) {
            for (_, loan) in counts.loans.iter().filter(|(borrower, _)| *borrower == to.bucket) {
                let from = BucketKey { sku: to.sku, bucket: from };
                total += self.borrow(from, to.bucket, *loan).await?;
            }
        }
        Ok(total)
    }

    async fn standing(
        &self,
        bucket: BucketKey,
        request: RequestId,
        buyer: BuyerId,
    ) -> Result<Option<StoredRequest>, Error> {
        let found = self.find_in(bucket, &[request]).await?.pop().flatten();
        Ok(found.filter(|record| record.buyer == buyer).as_ref().map(standing_of))
    }

    async fn find(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<StoredRequest>, Error> {
        let found = self.find_in(bucket, &[request]).await?.pop().flatten();
        Ok(found.as_ref().map(standing_of))
    }

    async fn standings(
        &self,
        sku: SkuNo,
        asked: Vec<(RequestId, BuyerId)>,
    ) -> Result<Vec<Option<RequestStatus>>, Error> {
        let shelf = self.shelf(sku)?;
        let mut by_bucket = vec![Vec::new(); shelf.keys.len()];
        for (at, (request, buyer)) in asked.iter().enumerate() {
            let home = BucketNo::home_of(*buyer, shelf.sku.buckets);
            if let Some(here) = by_bucket.get_mut(usize::from(home.0)) {
                here.push((at, *request, *buyer));
            }
        }
        let mut standings = vec![None; asked.len()];
        for (bucket, here) in (0..).map(BucketNo).zip(by_bucket) {
            let requests: Vec<RequestId> = here.iter().map(|(_, request, _)| *request).collect();
            let found = self.find_in(BucketKey { sku, bucket }, &requests).await?;
            for ((at, _, buyer), record) in here.into_iter().zip(found) {
                let own = record.filter(|record| record.buyer == buyer);
                if let (Some(place), Some(record)) = (standings.get_mut(at), own) {
                    *place = Some(record.standing());
                }
            }
        }
        Ok(standings)
    }

    fn may_know(&self, bucket: BucketKey, request: RequestId) -> bool {
        self.shelves.get(bucket.sku).is_none_or(|shelf| shelf.may_know(request))
    }

    fn left(&self, sku: SkuNo) -> u32 {
        self.shelves.get(sku).map_or(0, |shelf| shelf.left())
    }

    fn is_sold_out(&self, sku: SkuNo) -> bool {
        self.shelves.get(sku).is_some_and(|shelf| shelf.is_sold_out())
    }

    fn note_left(&self, _sku: SkuNo, _left: u32) {}

    async fn refresh(&self, sku: SkuNo) -> Result<(), Error> {
        let shelf = self.shelf(sku)?;
        for (from, to, loan) in poll::refresh(&self.wire, &shelf, self.sold_out_refresh).await? {
            let from = BucketKey { sku, bucket: from };
            tracing::warn!(%sku, from = %from.bucket, %to, loan.units, "finishing a transfer");
            self.borrow(from, to, loan).await?;
        }
        Ok(())
    }

    async fn ping(&self) -> Result<(), Error> {
        let pinged = self.wire.ping().await;
        if pinged.is_err() {
            self.shelves.forget_looks();
        }
        pinged
    }

    async fn snapshot(&self, bucket: BucketKey) -> Result<BookSnapshot, Error> {
        poll::snapshot(&self.wire, &*self.shelf(bucket.sku)?, bucket.bucket).await
    }

    async fn num_unsettled(&self, sku: SkuNo) -> Result<u64, Error> {
        poll::num_unsettled(&self.wire, &*self.shelf(sku)?).await
    }

    async fn facts(&self, sku: SkuNo) -> Result<Option<GateFacts>, Error> {
        let Ok(shelf) = self.shelf(sku) else { return Ok(None) };
        let buckets = (0..shelf.sku.buckets).map(BucketNo);
        let reading = buckets.map(|bucket| poll::snapshot(&self.wire, &shelf, bucket));
        match try_join_all(reading).await {
            Ok(all) => Ok(Some(poll::facts(shelf.sku.policy, &all))),
            Err(Error::NotLoaded(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
