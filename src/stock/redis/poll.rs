//! Reads buckets: changes made by other processes, counts for audits, and the buckets' health.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use redis::Cmd;

use super::super::{BucketHealth, Error};
use super::unsettled;
use crate::domain::invariants::GateFacts;
use crate::domain::{BookSnapshot, BucketNo, Epoch, Loan, Phase, Policy, RequestId};
use crate::redis::scripts;
use crate::redis::scripts::snapshot::BucketCounts;
use crate::redis::scripts::{BucketKeys, Snapshot};
use crate::redis::transport::ConnectionPurpose;
use crate::runtime::clock::now_monotonic;
use crate::stock::redis::executor::StockExecutor;
use crate::stock::redis::sku_cache::{AcceptedRequests, SkuCache, StockPoll};

/// Age up to which a poll may answer [`health`]. An error in between discards the poll.
const POLL_AGE_MAX: Duration = Duration::from_secs(10);

/// Pages whose ids are read by one pipeline.
const PAGES_AT_ONCE: usize = 64;

/// Attempts to read empty buckets without a concurrent change.
const READINGS_MAX: u32 = 3;

pub(super) async fn health(
    executor: &StockExecutor,
    cache: &SkuCache,
    phase: Phase,
    epoch: Epoch,
) -> Result<BucketHealth, Error> {
    let is_current = |counts: &BucketCounts| (counts.phase, counts.epoch) == (phase, epoch);
    let is_recent = |poll: &StockPoll| now_monotonic().duration_since(poll.at) < POLL_AGE_MAX;
    if let Some(poll) = cache.last_poll()
        && is_recent(&poll)
        && poll.counts.iter().all(is_current)
    {
        return Ok(BucketHealth::Ready);
    }
    match count_all(executor, cache, false).await {
        Ok(counts) => {
            let is_ready = counts.iter().all(is_current);
            // The next refresh handles stuck loans.
            cache.store_poll(Arc::new(StockPoll { at: now_monotonic(), counts }));
            Ok(if is_ready { BucketHealth::Ready } else { BucketHealth::OtherPhase })
        }
        Err(PollError::Script(key, error)) => {
            let reason = format!("{key}: {error}");
            let mapped = cache.invalidate_on(&key, error.clone());
            match error {
                scripts::Error::NotReady => Ok(BucketHealth::Missing),
                scripts::Error::Fenced | scripts::Error::Corrupt { .. } => {
                    Ok(BucketHealth::Distrusted { reason })
                }
                _ => Err(mapped),
            }
        }
        Err(PollError::Executor(error)) => Err(error),
    }
}

pub(super) enum PollError {
    /// The script rejected the bucket with this key.
    Script(String, scripts::Error),
    Executor(Error),
}

impl PollError {
    pub(super) fn into_error(self, cache: &SkuCache) -> Error {
        match self {
            Self::Script(key, error) => cache.invalidate_on(&key, error),
            Self::Executor(error) => error,
        }
    }
}

pub(super) async fn count(
    executor: &StockExecutor,
    keys: &BucketKeys,
    pages: bool,
) -> Result<BucketCounts, PollError> {
    let connection =
        executor.connection(ConnectionPurpose::Results, keys).await.map_err(PollError::Executor)?;
    let fence = executor.fence(&connection);
    let script = Snapshot { keys, fence: &fence, pages };
    let answer =
        executor.call(&connection, script.call(), "counting").await.map_err(PollError::Executor)?;
    script.parse(answer).map_err(|error| PollError::Script(keys.bucket(), error))
}

/// Counts every bucket. An unreachable bucket is reported before one that must be loaded: a loader
/// could not hold the unreachable one, and would leave its siblings held.
async fn count_all(
    executor: &StockExecutor,
    cache: &SkuCache,
    pages: bool,
) -> Result<Vec<BucketCounts>, PollError> {
    let counted = join_all(cache.keys.iter().map(|keys| count(executor, keys, pages))).await;
    let (unreachable, others): (Vec<_>, Vec<_>) = counted.into_iter().partition(is_unreachable);
    let counts = unreachable.into_iter().chain(others).collect::<Result<Vec<_>, _>>()?;
    for (bucket, counts) in (0..).map(BucketNo).zip(&counts) {
        cache.record_level(bucket, counts.left);
    }
    Ok(counts)
}

fn is_unreachable(counted: &Result<BucketCounts, PollError>) -> bool {
    matches!(counted, Err(PollError::Executor(Error::Unavailable { .. } | Error::Unknown { .. })))
}

/// The counts of every bucket. Empty buckets are counted again until two counts are equal: the
/// buckets are read one after the other, so units that move from an unread bucket to a read one
/// would be in neither count.
pub(super) async fn all(
    executor: &StockExecutor,
    cache: &SkuCache,
) -> Result<Vec<BucketCounts>, Error> {
    let counted = count_all(executor, cache, false).await;
    let mut counts = counted.map_err(|error| error.into_error(cache))?;
    for _ in 1..READINGS_MAX {
        if !are_empty(&counts) || recount(executor, cache, &mut counts).await? {
            break;
        }
    }
    Ok(counts)
}

fn are_empty(counts: &[BucketCounts]) -> bool {
    counts.iter().all(|counts| counts.left.stock == 0 && counts.left.lent == 0)
}

/// Counts again; true if nothing has changed.
async fn recount(
    executor: &StockExecutor,
    cache: &SkuCache,
    counts: &mut Vec<BucketCounts>,
) -> Result<bool, Error> {
    let again = count_all(executor, cache, false).await.map_err(|error| error.into_error(cache))?;
    let before = std::mem::replace(counts, again);
    Ok(before == *counts)
}

/// Polls every bucket and caches the units left, and the accepted requests once the SKU is sold
/// out. Returns the stuck transfers.
pub(super) async fn refresh(
    executor: &StockExecutor,
    cache: &SkuCache,
    sold_out_refresh: Duration,
) -> Result<Vec<(BucketNo, BucketNo, Loan)>, Error> {
    let now = now_monotonic();
    if let Some(accepted) = cache.accepted() {
        let is_recent = accepted.is_sold_out && cache.is_polled_within(now, sold_out_refresh);
        if is_recent || changes(executor, cache).await? == accepted.changes {
            return Ok(Vec::new());
        }
    }
    let counts = all(executor, cache).await?;
    let counted: Vec<_> = counts.iter().map(|counts| Some(counts.left.changes)).collect();
    let is_sold_out = are_empty(&counts);
    if counts.iter().all(|counts| counts.left.is_new()) {
        cache.set_accepted(AcceptedRequests {
            requests: HashSet::new(),
            changes: counted,
            is_sold_out,
        });
    } else if is_sold_out {
        // The ids are read after the units: they are complete if nothing has changed since.
        let requests = accepted(executor, cache).await?;
        if changes(executor, cache).await? == counted {
            cache.set_accepted(AcceptedRequests { requests, changes: counted, is_sold_out });
        }
    }
    Ok(cache.store_poll(Arc::new(StockPoll { at: now, counts })))
}

/// Each bucket's number of changes to its accepted requests; `None` if the field is missing or no
/// number. One plain command for each bucket: polling a sold-out SKU must cost almost nothing.
async fn changes(executor: &StockExecutor, cache: &SkuCache) -> Result<Vec<Option<u64>>, Error> {
    let reads = cache.keys.iter().map(|keys| async move {
        let request = redis::cmd("HGET").arg(keys.bucket()).arg("changes").to_owned();
        let connection = executor.connection(ConnectionPurpose::Results, keys).await?;
        let answers = executor.send(&connection, &[request], "reading the change counts").await;
        let answer = answers.map_err(|error| at(&keys.bucket(), error))?.pop();
        Ok::<_, Error>(answer.and_then(|answer| redis::from_redis_value(answer).ok()))
    });
    let changes = try_join_all(reads).await?;
    cache.set_polled(now_monotonic());
    Ok(changes)
}

/// The ids of all accepted requests.
async fn accepted(executor: &StockExecutor, cache: &SkuCache) -> Result<HashSet<RequestId>, Error> {
    let mut accepted = HashSet::new();
    for keys in &cache.keys {
        let pages: Vec<u16> = (0..keys.pages()).collect();
        for pages in pages.chunks(PAGES_AT_ONCE) {
            let requests: Vec<Cmd> = pages
                .iter()
                .map(|page| redis::cmd("HKEYS").arg(keys.requests(*page)).to_owned())
                .collect();
            let connection = executor.connection(ConnectionPurpose::Results, keys).await?;
            let answers = executor.send(&connection, &requests, "reading accepted requests").await;
            let answers = answers.map_err(|error| at(&keys.bucket(), error))?;
            for (page, answer) in pages.iter().zip(answers) {
                let page = || keys.requests(*page);
                let ids: Vec<String> =
                    redis::from_redis_value(answer).map_err(|error| damaged(&page(), &error))?;
                for id in ids {
                    accepted.insert(id.parse().map_err(|error| damaged(&page(), &error))?);
                }
            }
        }
    }
    Ok(accepted)
}

/// Adds the key to the error of a plain command on a key of another type.
pub(super) fn at(key: &str, error: Error) -> Error {
    match error {
        Error::Damaged { what } => damaged(key, &what),
        other => other,
    }
}

pub(super) fn damaged(key: &str, what: &dyn std::fmt::Display) -> Error {
    Error::Damaged { what: format!("{key}: {what}") }
}

/// The counts of one bucket for an audit. Reads every unsettled request; with an outbox that is a
/// scan of all pages: some milliseconds of the server for each 10,000 requests of the bucket. For
/// the number alone, use [`num_unsettled`].
pub(super) async fn snapshot(
    executor: &StockExecutor,
    cache: &SkuCache,
    bucket: BucketNo,
) -> Result<BookSnapshot, Error> {
    let keys = cache.keys(bucket)?;
    let counts = count(executor, keys, true).await.map_err(|error| error.into_error(cache))?;
    let unsettled = unsettled::of_counted(executor, cache, bucket, &counts).await?;
    let narrow = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let num_settled = counts.num_requests.saturating_sub(counts.num_queued);
    // A loan that the borrower has added is counted in the borrower.
    let mut arrived = 0;
    for (to, loan) in &counts.loans {
        let borrower = count(executor, cache.keys(*to)?, false).await;
        let borrower = borrower.map_err(|error| error.into_error(cache))?;
        if borrower.borrowed.iter().any(|(from, no)| *from == bucket && *no >= loan.no) {
            arrived += loan.units;
        }
    }
    Ok(BookSnapshot {
        available: counts.left.stock,
        lent_units: counts.left.lent.saturating_sub(arrived),
        num_unsettled: narrow(counts.num_unsettled()).max(unsettled.len()),
        unsettled_units: unsettled.iter().map(|intent| u64::from(intent.quantity)).sum(),
        oldest_unsettled_ms: unsettled.iter().map(|intent| intent.placed_at_ms).min(),
        num_ordered: narrow(num_settled.saturating_sub(counts.num_failed)),
        num_failed: narrow(counts.num_failed),
        num_buyers: narrow(counts.num_buyers),
        released_units: counts.released_units,
    })
}

/// The number of a SKU's requests without a ledger decision; one short script for each bucket.
pub(super) async fn num_unsettled(
    executor: &StockExecutor,
    cache: &SkuCache,
) -> Result<u64, Error> {
    let counted =
        count_all(executor, cache, false).await.map_err(|error| error.into_error(cache))?;
    Ok(counted.iter().map(BucketCounts::num_unsettled).sum())
}

/// The sums of all buckets.
pub(super) fn facts(policy: Policy, all: &[BookSnapshot]) -> GateFacts {
    let mut facts = GateFacts { counts_units: true, ..GateFacts::default() };
    if policy.quota().is_some() {
        facts.num_buyers = Some(all.iter().map(|counts| counts.num_buyers as u64).sum());
    }
    for counts in all {
        facts.left += u64::from(counts.available) + u64::from(counts.lent_units);
        facts.num_unsettled += counts.num_unsettled as u64;
        facts.num_ordered += counts.num_ordered as u64;
        facts.released_units += counts.released_units;
        facts.oldest_unsettled_ms =
            [facts.oldest_unsettled_ms, counts.oldest_unsettled_ms].into_iter().flatten().min();
    }
    facts
}
