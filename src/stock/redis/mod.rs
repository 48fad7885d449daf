//! Buckets in Redis, shared by every process of the installation.
//!
//! Every change is one script on one bucket; the process's own cache (`sku_cache`) only saves
//! calls. A bucket is fenced on any server but the one that it was opened on.
//!
//! If the process crashes: requests that it accepted and did not submit to the ledger are in the
//! bucket's `unsettled`, which every gate of the bucket reads, or in its outbox, which every relay
//! reads. If the server is lost: the buckets are loaded from the ledger again. May repeat: every
//! call, by request id, loan number or loader token.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};

use self::executor::StockExecutor;
use self::sku_cache::{SkuCache, SkuCaches};
use super::{BucketHealth, Error, Loading, QueuedPage, Stock, StoredRequest};
use crate::domain::invariants::GateFacts;
use crate::domain::{
    BookSnapshot, BucketKey, BucketNo, BuyerId, Epoch, Failure, LoaderToken, Loan, Order,
    OrderIntent, Phase, RequestId, RequestStatus, Reservation, Sku, SkuNo, Verdict,
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

/// Connections, key names and limits of [`RedisStock`].
#[derive(Debug)]
pub struct RedisOptions {
    pub pool: ConnectionPool,
    /// First part of every key.
    pub namespace: String,
    pub installation: Installation,
    /// Where accepted intents are stored.
    pub outbox: OutboxArgs,
    /// Whether replicas must confirm each batch; then every batch writes something.
    pub replicated: bool,
    /// Time between two polls of a sold-out SKU.
    pub sold_out_refresh: Duration,
}

/// Buckets in Redis.
#[derive(Debug)]
pub struct RedisStock {
    executor: StockExecutor,
    caches: SkuCaches,
    outbox: OutboxArgs,
    replicated: bool,
    sold_out_refresh: Duration,
}

impl RedisStock {
    /// A stock without any SKU; connects on the first call.
    #[must_use]
    pub fn new(options: RedisOptions) -> Self {
        Self {
            executor: StockExecutor::new(options.pool, options.namespace, options.installation),
            caches: SkuCaches::default(),
            outbox: options.outbox,
            replicated: options.replicated,
            sold_out_refresh: options.sold_out_refresh,
        }
    }

    fn cache(&self, sku: SkuNo) -> Result<Arc<SkuCache>, Error> {
        self.caches.get(sku).ok_or(Error::NotLoaded(sku))
    }

    fn cache_or_new(&self, sku: &Arc<Sku>) -> Arc<SkuCache> {
        self.caches.get_or_insert(sku.no, || {
            SkuCache::new(Arc::clone(sku), self.executor.keys_of(sku), self.outbox)
        })
    }

    /// Reserves a run of reservations of one epoch.
    async fn reserve_run(
        &self,
        cache: &SkuCache,
        bucket: BucketNo,
        run: &[Reservation],
    ) -> Result<Vec<Verdict>, Error> {
        let keys = cache.keys(bucket)?;
        let connection = self.executor.connection(ConnectionPurpose::Hot, keys).await?;
        let fence = self.executor.fence(&connection);
        let Some(epoch) = run.first().map(|reservation| reservation.epoch) else {
            return Ok(Vec::new());
        };
        let script = ReserveBatch {
            keys,
            fence: &fence,
            sku: &cache.sku,
            epoch,
            outbox: cache.outbox,
            touch: self.replicated,
            batch: run,
        };
        let answer = self.executor.call_and_wait(&connection, script.call(), "reserving").await?;
        let decided =
            script.parse(answer).map_err(|error| cache.invalidate_on(&keys.bucket(), error))?;
        cache.record_level(bucket, decided.left);
        Ok(decided.verdicts)
    }

    async fn set_bucket_phase(
        &self,
        cache: &SkuCache,
        keys: &BucketKeys,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<(), Error> {
        let connection = self.executor.connection(ConnectionPurpose::Results, keys).await?;
        let fence = self.executor.fence(&connection);
        let script = SetPhase { keys, fence: &fence, epoch, phase };
        let answer = self.executor.call(&connection, script.call(), "setting a phase").await?;
        script.parse(answer).map(drop).map_err(|error| cache.invalidate_on(&keys.bucket(), error))
    }

    async fn find_in(
        &self,
        bucket: BucketKey,
        requests: &[RequestId],
    ) -> Result<Vec<Option<RequestRecord>>, Error> {
        let cache = self.cache(bucket.sku)?;
        let keys = cache.keys(bucket.bucket)?;
        let connection = self.executor.connection(ConnectionPurpose::Results, keys).await?;
        let fence = self.executor.fence(&connection);
        let mut found = Vec::with_capacity(requests.len());
        for requests in requests.chunks(codes::ITEMS_MAX_USIZE) {
            let script = Find { keys, fence: &fence, requests };
            let answer = self.executor.call(&connection, script.call(), "finding requests").await?;
            found.extend(
                script.parse(answer).map_err(|error| cache.invalidate_on(&keys.bucket(), error))?,
            );
        }
        Ok(found)
    }
}

fn stored_request(record: &RequestRecord) -> StoredRequest {
    StoredRequest {
        quantity: record.quantity,
        asked_at_ms: record.placed_at_ms,
        status: record.status(),
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
        let cache = self.cache_or_new(&sku);
        Ok(Box::new(loading::RedisLoader::hold(self.executor.clone(), cache, loader).await?))
    }

    async fn health(
        &self,
        sku: &Arc<Sku>,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<BucketHealth, Error> {
        poll::health(&self.executor, &self.cache_or_new(sku), phase, epoch).await
    }

    async fn set_phase(&self, sku: &Arc<Sku>, phase: Phase, epoch: Epoch) -> Result<(), Error> {
        let cache = self.cache_or_new(sku);
        cache.forget_polls();
        // A bucket that fails does not keep the call from the others.
        let calls = cache.keys.iter().map(|keys| self.set_bucket_phase(&cache, keys, phase, epoch));
        let results = join_all(calls).await;
        // Returns the error that may have left a bucket open, if there is one.
        let (harmless, worst): (Vec<_>, Vec<_>) = results
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
        let cache = self.cache(bucket.sku)?;
        let mut verdicts = Vec::with_capacity(batch.len());
        for same_epoch in batch.chunk_by(|a, b| a.epoch == b.epoch) {
            for run in same_epoch.chunks(codes::ITEMS_MAX_USIZE) {
                let decided = self.reserve_run(&cache, bucket.bucket, run).await;
                verdicts.extend(match decided {
                    // Earlier runs of the batch were decided, so the batch as a whole is unknown.
                    Err(error) if error.is_certain() && !verdicts.is_empty() => {
                        let reason = error.to_string();
                        return Err(Error::Unknown { operation: "reserving", reason });
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
        // A bucket that fails does not keep the call from the others.
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
        let cache = self.cache(bucket.sku)?;
        let mut intents = unsettled::all(&self.executor, &cache, bucket.bucket).await?;
        intents.retain(|intent| intent.placed_at_ms < asked_before_ms);
        Ok(intents)
    }

    async fn queued(&self, bucket: BucketKey, page: u16) -> Result<QueuedPage, Error> {
        unsettled::page(&self.executor, &*self.cache(bucket.sku)?, bucket.bucket, page).await
    }

    async fn lend(&self, from: BucketKey, to: BucketNo, want: u32) -> Result<Option<Loan>, Error> {
        let cache = self.cache(from.sku)?;
        let keys = cache.keys(from.bucket)?;
        let connection = self.executor.connection(ConnectionPurpose::Results, keys).await?;
        let fence = self.executor.fence(&connection);
        let script = Lend { keys, fence: &fence, to, want };
        let answer = self.executor.call(&connection, script.call(), "lending units").await?;
        let (loan, left) =
            script.parse(answer).map_err(|error| cache.invalidate_on(&keys.bucket(), error))?;
        cache.record_level(from.bucket, left);
        Ok(loan)
    }

    async fn borrow(&self, from: BucketKey, to: BucketNo, loan: Loan) -> Result<u32, Error> {
        let cache = self.cache(from.sku)?;
        let keys = cache.keys(to)?;
        let connection = self.executor.connection(ConnectionPurpose::Results, keys).await?;
        let fence = self.executor.fence(&connection);
        let script = Borrow { keys, fence: &fence, from: from.bucket, loan };
        let answer = self.executor.call(&connection, script.call(), "borrowing units").await?;
        let (units, left) =
            script.parse(answer).map_err(|error| cache.invalidate_on(&keys.bucket(), error))?;
        cache.record_level(to, left);
        // Crash here [borrowed_not_cleared]: the lender still records the loan, and the borrower
        // has its number: the next transfer or refresh clears it and adds nothing.
        let keys = cache.keys(from.bucket)?;
        let connection = self.executor.connection(ConnectionPurpose::Results, keys).await?;
        let fence = self.executor.fence(&connection);
        let script = ClearLoan { keys, fence: &fence, to, no: loan.no };
        let answer = self.executor.call(&connection, script.call(), "clearing a loan").await?;
        let (_, left) =
            script.parse(answer).map_err(|error| cache.invalidate_on(&keys.bucket(), error))?;
        cache.record_level(from.bucket, left);
        Ok(units)
    }

    async fn finish_transfers(&self, to: BucketKey) -> Result<u32, Error> {
        let cache = self.cache(to.sku)?;
        let counts = poll::all(&self.executor, &cache).await?;
        let mut total = 0;
        for (from, counts) in (0..).map(BucketNo).zip(&counts) {
            for (_, loan) in counts.loans.iter().filter(|(borrower, _)| *borrower == to.bucket) {
                let from = BucketKey { sku: to.sku, bucket: from };
                total += self.borrow(from, to.bucket, *loan).await?;
            }
        }
        Ok(total)
    }

    async fn status(
        &self,
        bucket: BucketKey,
        request: RequestId,
        buyer: BuyerId,
    ) -> Result<Option<StoredRequest>, Error> {
        let found = self.find_in(bucket, &[request]).await?.pop().flatten();
        Ok(found.filter(|record| record.buyer == buyer).as_ref().map(stored_request))
    }

    async fn find(
        &self,
        bucket: BucketKey,
        request: RequestId,
    ) -> Result<Option<StoredRequest>, Error> {
        let found = self.find_in(bucket, &[request]).await?.pop().flatten();
        Ok(found.as_ref().map(stored_request))
    }

    async fn statuses(
        &self,
        sku: SkuNo,
        requests: Vec<(RequestId, BuyerId)>,
    ) -> Result<Vec<Option<RequestStatus>>, Error> {
        let cache = self.cache(sku)?;
        let mut by_bucket = vec![Vec::new(); cache.keys.len()];
        for (at, (request, buyer)) in requests.iter().enumerate() {
            let home = BucketNo::home_of(*buyer, cache.sku.buckets);
            if let Some(group) = by_bucket.get_mut(usize::from(home.0)) {
                group.push((at, *request, *buyer));
            }
        }
        let mut statuses = vec![None; requests.len()];
        for (bucket, group) in (0..).map(BucketNo).zip(by_bucket) {
            let requests: Vec<RequestId> = group.iter().map(|(_, request, _)| *request).collect();
            let found = self.find_in(BucketKey { sku, bucket }, &requests).await?;
            for ((at, _, buyer), record) in group.into_iter().zip(found) {
                let own = record.filter(|record| record.buyer == buyer);
                if let (Some(status), Some(record)) = (statuses.get_mut(at), own) {
                    *status = Some(record.status());
                }
            }
        }
        Ok(statuses)
    }

    fn may_have_accepted(&self, bucket: BucketKey, request: RequestId) -> bool {
        self.caches.get(bucket.sku).is_none_or(|cache| cache.may_have_accepted(request))
    }

    fn left(&self, sku: SkuNo) -> u32 {
        self.caches.get(sku).map_or(0, |cache| cache.left())
    }

    fn is_sold_out(&self, sku: SkuNo) -> bool {
        self.caches.get(sku).is_some_and(|cache| cache.is_sold_out())
    }

    fn cache_left(&self, _sku: SkuNo, _left: u32) {}

    async fn refresh(&self, sku: SkuNo) -> Result<(), Error> {
        let cache = self.cache(sku)?;
        for (from, to, loan) in poll::refresh(&self.executor, &cache, self.sold_out_refresh).await?
        {
            let from = BucketKey { sku, bucket: from };
            let units = loan.units;
            tracing::warn!(%sku, from = %from.bucket, %to, units, "transfer: resuming");
            self.borrow(from, to, loan).await?;
        }
        Ok(())
    }

    async fn ping(&self) -> Result<(), Error> {
        let result = self.executor.ping().await;
        if result.is_err() {
            self.caches.forget_polls();
        }
        result
    }

    async fn snapshot(&self, bucket: BucketKey) -> Result<BookSnapshot, Error> {
        poll::snapshot(&self.executor, &*self.cache(bucket.sku)?, bucket.bucket).await
    }

    async fn num_unsettled(&self, sku: SkuNo) -> Result<u64, Error> {
        poll::num_unsettled(&self.executor, &*self.cache(sku)?).await
    }

    async fn facts(&self, sku: SkuNo) -> Result<Option<GateFacts>, Error> {
        let Ok(cache) = self.cache(sku) else { return Ok(None) };
        let buckets = (0..cache.sku.buckets).map(BucketNo);
        let reading = buckets.map(|bucket| poll::snapshot(&self.executor, &cache, bucket));
        match try_join_all(reading).await {
            Ok(all) => Ok(Some(poll::facts(cache.sku.policy, &all))),
            Err(Error::NotLoaded(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
