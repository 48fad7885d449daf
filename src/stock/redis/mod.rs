//! Buckets in Redis, shared by every process of the installation.
//!
//! Every change is one script on one bucket; the process's own cache (`sku_buckets`) only saves
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

use self::sku_buckets::SkuBuckets;
use super::{BucketHealth, Error, Loading, QueuedPage, SkuIndex, Stock, sum_facts};
use crate::domain::invariants::BucketFacts;
use crate::domain::{
    BucketKey, BucketNo, BucketSnapshot, BuyerId, Epoch, Failure, LoaderToken, Loan, Order,
    OrderIntent, Phase, RequestId, RequestRecord, Sku, SkuNo, StockChange, Verdict, Withdrawal,
};
use crate::redis::executor::ScriptExecutor;
use crate::redis::scripts::intent::IntentKey;
use crate::redis::scripts::reserve_settle::{self, SettleOutcome};
use crate::redis::scripts::{
    Installation, Leveled, OutboxArgs, ScriptCall, codes, load, loans, lookup,
};
use crate::redis::transport::{ConnectionPool, ConnectionPurpose};

mod hints;
mod loading;
mod poll;
mod purge;
mod records;
mod sku_buckets;
mod transfers;
mod unsettled;

pub use hints::ResultHints;

/// Connections, key names and limits of [`RedisStock`].
#[derive(Debug)]
pub struct RedisStockOptions {
    pub pool: ConnectionPool,
    /// First part of every key.
    pub namespace: String,
    pub installation: Installation,
    /// Where accepted intents are stored.
    pub outbox: OutboxArgs,
    /// Signs accepted intents.
    pub intents: IntentKey,
    /// Whether replicas must confirm each batch; then every batch writes something.
    pub replicated: bool,
    /// Time between two polls of a sold-out SKU.
    pub sold_out_refresh: Duration,
}

/// Buckets in Redis.
#[derive(Debug)]
pub struct RedisStock {
    executor: ScriptExecutor,
    /// For reservations.
    reserve_executor: ScriptExecutor,
    /// Shared with each subscription to hints that listens.
    skus: Arc<SkuIndex<SkuBuckets>>,
    options: RedisStockOptions,
}

impl RedisStock {
    /// A stock without any SKU; connects on the first call.
    pub fn new(options: RedisStockOptions) -> Self {
        let RedisStockOptions { pool, namespace, installation, .. } = &options;
        let executor =
            |purpose| ScriptExecutor::new(pool.clone(), purpose, namespace, *installation);
        Self {
            executor: executor(ConnectionPurpose::Results),
            reserve_executor: executor(ConnectionPurpose::Hot),
            skus: Arc::default(),
            options,
        }
    }

    /// Registers a SKU with its latest terms.
    fn buckets_of(&self, sku: &Arc<Sku>) -> Arc<SkuBuckets> {
        let buckets = self.skus.get(sku.no).unwrap_or_else(|_unknown| {
            let executor = self.executor.clone();
            let RedisStockOptions { outbox, intents, .. } = &self.options;
            let new = SkuBuckets::new(executor, Arc::clone(sku), *outbox, intents.clone());
            let new = Arc::new(new);
            self.skus.change(|skus| {
                skus.entry(sku.no).or_insert_with(|| Arc::clone(&new));
            });
            self.skus.get(sku.no).unwrap_or(new)
        });
        buckets.set_latest(sku);
        buckets
    }

    /// Calls the script for intents of one epoch, at most [`codes::ITEMS_MAX`].
    async fn reserve_same_epoch(
        &self,
        buckets: &SkuBuckets,
        bucket: BucketNo,
        batch: &[OrderIntent],
    ) -> Result<Vec<Verdict>, Error> {
        let keys = buckets.keys(bucket)?;
        let RedisStockOptions { replicated, intents, .. } = &self.options;
        let call = reserve_settle::reserve(
            keys,
            &buckets.sku,
            buckets.outbox,
            *replicated,
            batch,
            intents,
        );
        let decided = self.reserve_executor.run(&call, "reserving").await;
        let (verdicts, level) = decided.map_err(|error| buckets.error(error))?;
        buckets.record_level(bucket, level);
        Ok(verdicts)
    }
}

/// The result of one call on every bucket of a SKU. Of several errors, one that may have left a
/// bucket selling comes first.
fn worst_of<T>(results: Vec<Result<T, Error>>) -> Result<(), Error> {
    let (harmless, worst): (Vec<_>, Vec<_>) =
        results.into_iter().filter_map(Result::err).partition(Error::is_not_loaded);
    worst.into_iter().chain(harmless).next().map_or(Ok(()), Err)
}

/// Records the ledger's decisions of these requests. A contradiction between ledger and bucket is a
/// bug or tampering; the bucket keeps its first result.
async fn record_decisions(
    buckets: &SkuBuckets,
    bucket: BucketNo,
    requests: impl Iterator<Item = RequestId>,
    call: ScriptCall<Leveled<Vec<SettleOutcome>>>,
    operation: &'static str,
) -> Result<(), Error> {
    let outcomes = buckets.run_leveled(bucket, call, operation).await?;
    for (request, outcome) in requests.zip(outcomes) {
        if matches!(outcome, SettleOutcome::Contradicts | SettleOutcome::Mismatch) {
            let (sku, request) = (buckets.sku.no, request.get());
            tracing::error!(%sku, %bucket, request, ?outcome, "ledger and bucket contradict");
        }
    }
    Ok(())
}

#[async_trait]
impl Stock for RedisStock {
    fn register(&self, sku: &Arc<Sku>) {
        self.buckets_of(sku);
    }

    fn forget(&self, sku: SkuNo) {
        self.skus.remove(sku);
    }

    async fn load(&self, sku: Arc<Sku>, loader: LoaderToken) -> Result<Box<dyn Loading>, Error> {
        Ok(Box::new(loading::RedisLoader::hold(self.buckets_of(&sku), loader).await?))
    }

    async fn health(
        &self,
        sku: &Arc<Sku>,
        phase: Phase,
        epoch: Epoch,
    ) -> Result<BucketHealth, Error> {
        poll::health(&self.buckets_of(sku), phase, epoch, sku.history.change_no).await
    }

    async fn set_phase(&self, sku: &Arc<Sku>, phase: Phase, epoch: Epoch) -> Result<(), Error> {
        let buckets = self.buckets_of(sku);
        buckets.forget_polls();
        let calls = buckets
            .keys
            .iter()
            .map(|keys| buckets.run(load::set_phase(keys, epoch, phase), "setting a phase"));
        worst_of(join_all(calls).await)
    }

    async fn purge(&self, sku: &Arc<Sku>) -> Result<(), Error> {
        purge::delete_buckets(&self.buckets_of(sku)).await?;
        self.forget(sku.no);
        Ok(())
    }

    async fn change_stock(&self, sku: &Arc<Sku>, change: StockChange) -> Result<(), Error> {
        let buckets = self.buckets_of(sku);
        buckets.forget_polls();
        let calls = (0..).map(BucketNo).zip(&buckets.keys).map(|(bucket, keys)| {
            let call = loans::change_stock(keys, change.no, change.share(sku, bucket));
            buckets.run_leveled(bucket, call, "changing the stock")
        });
        worst_of(join_all(calls).await)
    }

    async fn withdraw(&self, sku: SkuNo, units: u32) -> Result<Withdrawal, Error> {
        transfers::withdraw(&*self.skus.get(sku)?, units).await
    }

    async fn end_withdrawal(
        &self,
        sku: SkuNo,
        withdrawal: &Withdrawal,
        is_recorded: bool,
    ) -> Result<(), Error> {
        let buckets = self.skus.get(sku)?;
        for (bucket, loan) in &withdrawal.loans {
            let call = loans::end_withdrawal(buckets.keys(*bucket)?, loan.no, is_recorded);
            buckets.run_leveled(*bucket, call, "ending a withdrawal").await?;
        }
        Ok(())
    }

    async fn reserve(
        &self,
        bucket: BucketKey,
        batch: Vec<OrderIntent>,
    ) -> Result<Vec<Verdict>, Error> {
        let buckets = self.skus.get(bucket.sku)?;
        let mut verdicts = Vec::with_capacity(batch.len());
        for same_epoch in batch.chunk_by(|a, b| a.epoch == b.epoch) {
            for chunk in same_epoch.chunks(codes::ITEMS_MAX_USIZE) {
                let decided = self.reserve_same_epoch(&buckets, bucket.bucket, chunk).await;
                verdicts.extend(match decided {
                    // Earlier chunks of the batch were decided, so the batch as a whole is unknown.
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
            Some(async move {
                let buckets = self.skus.get(first.sku)?;
                for orders in orders.chunks(codes::ITEMS_MAX_USIZE) {
                    let call = reserve_settle::settle(buckets.keys(bucket)?, &buckets.sku, orders);
                    let requests = orders.iter().map(|order| order.request);
                    record_decisions(&buckets, bucket, requests, call, "recording orders").await?;
                }
                Ok(())
            })
        });
        // A bucket that fails does not keep the call from the others.
        join_all(settling).await.into_iter().collect()
    }

    async fn release(&self, bucket: BucketKey, refused: Vec<Failure>) -> Result<(), Error> {
        let buckets = self.skus.get(bucket.sku)?;
        for refused in refused.chunks(codes::ITEMS_MAX_USIZE) {
            let call = reserve_settle::release(buckets.keys(bucket.bucket)?, &buckets.sku, refused);
            let requests = refused.iter().map(|failure| failure.request);
            record_decisions(&buckets, bucket.bucket, requests, call, "recording refusals").await?;
        }
        Ok(())
    }

    async fn unsettled(&self, bucket: BucketKey) -> Result<Vec<OrderIntent>, Error> {
        unsettled::all(&*self.skus.get(bucket.sku)?, bucket.bucket).await
    }

    async fn queued(&self, bucket: BucketKey, page: u16) -> Result<QueuedPage, Error> {
        unsettled::page(&*self.skus.get(bucket.sku)?, bucket.bucket, page).await
    }

    async fn lend(&self, from: BucketKey, to: BucketNo, want: u32) -> Result<Option<Loan>, Error> {
        let buckets = self.skus.get(from.sku)?;
        let call = loans::lend(buckets.keys(from.bucket)?, to, want);
        buckets.run_leveled(from.bucket, call, "lending units").await
    }

    async fn borrow(&self, from: BucketKey, to: BucketNo, loan: Loan) -> Result<u32, Error> {
        transfers::borrow(&*self.skus.get(from.sku)?, from.bucket, to, loan).await
    }

    async fn finish_transfers(&self, to: BucketKey) -> Result<u32, Error> {
        transfers::finish(&*self.skus.get(to.sku)?, to.bucket).await
    }

    async fn record(
        &self,
        bucket: BucketKey,
        request: RequestId,
        buyer: Option<BuyerId>,
    ) -> Result<Option<RequestRecord>, Error> {
        let buckets = self.skus.get(bucket.sku)?;
        let found = records::find(&buckets, bucket.bucket, &[request]).await?.pop().flatten();
        Ok(found.filter(|record| buyer.is_none_or(|buyer| record.buyer == buyer)))
    }

    async fn owned(&self, bucket: BucketKey, buyer: BuyerId) -> Result<u32, Error> {
        let buckets = self.skus.get(bucket.sku)?;
        if buckets.sku.policy.quota().is_none() {
            return Ok(0);
        }
        let call = lookup::owned(buckets.keys(bucket.bucket)?, &buckets.sku, buyer);
        buckets.run(call, "reading a buyer's units").await
    }

    async fn records(
        &self,
        sku: SkuNo,
        requests: Vec<(RequestId, BuyerId)>,
    ) -> Result<Vec<Option<RequestRecord>>, Error> {
        records::of_buyers(&*self.skus.get(sku)?, &requests).await
    }

    fn may_have_accepted(&self, bucket: BucketKey, request: RequestId) -> bool {
        // Without a subscription no hint discards what is cached.
        let is_listening = Arc::strong_count(&self.skus) > 1;
        let cached = self.skus.get(bucket.sku);
        !is_listening || cached.map_or(true, |buckets| buckets.may_have_accepted(request))
    }

    fn left(&self, sku: SkuNo) -> u32 {
        self.skus.get(sku).map_or(0, |buckets| buckets.left())
    }

    fn is_sold_out(&self, sku: SkuNo) -> bool {
        self.skus.get(sku).is_ok_and(|buckets| buckets.is_sold_out())
    }

    async fn refresh(&self, sku: SkuNo) -> Result<(), Error> {
        let buckets = self.skus.get(sku)?;
        let stuck = poll::refresh(&buckets, self.options.sold_out_refresh).await?;
        transfers::resume(&buckets, stuck).await
    }

    async fn result_hints(&self) -> Result<Option<ResultHints>, Error> {
        let RedisStockOptions { pool, namespace, .. } = &self.options;
        hints::subscribe(pool, namespace, &self.skus).await.map(Some)
    }

    async fn ping(&self) -> Result<(), Error> {
        let result = self.executor.ping().await;
        if result.is_err() {
            self.skus.0.load().values().for_each(|buckets| buckets.forget_polls());
        }
        result.map_err(Error::from)
    }

    async fn snapshot(&self, bucket: BucketKey) -> Result<BucketSnapshot, Error> {
        poll::snapshot(&*self.skus.get(bucket.sku)?, bucket.bucket).await
    }

    async fn num_unsettled(&self, sku: SkuNo) -> Result<u64, Error> {
        poll::num_unsettled(&*self.skus.get(sku)?).await
    }

    async fn num_unsettled_in_any_state(&self, sku: SkuNo) -> Result<u64, Error> {
        poll::num_unsettled_in_any_state(&*self.skus.get(sku)?).await
    }

    async fn facts(&self, sku: SkuNo) -> Result<BucketFacts, Error> {
        let buckets = self.skus.get(sku)?;
        let numbers = (0..buckets.sku.buckets).map(BucketNo);
        let all = try_join_all(numbers.map(|bucket| poll::snapshot(&buckets, bucket))).await?;
        Ok(sum_facts(buckets.sku.policy, true, &all))
    }
}
