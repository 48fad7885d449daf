//! Reads buckets: changes made by other processes, counts for audits, and the buckets' health.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use redis::FromRedisValue;

use super::super::{BucketHealth, Error};
use super::sku_buckets::{AcceptedRequests, SkuBuckets, StockPoll};
use super::unsettled;
use crate::domain::{
    BucketNo, BucketSnapshot, Epoch, Loan, Phase, RecordState, RequestId, RequestRecord,
};
use crate::redis::executor::{CallError, damaged, decode};
use crate::redis::scripts::snapshot::BucketCounts;
use crate::redis::scripts::{self, BucketKeys, snapshot};
use crate::runtime::clock::now_monotonic;

/// Age up to which a poll may answer [`health`]. An error in between discards the poll.
const POLL_AGE_MAX: Duration = Duration::from_secs(10);

/// Pages whose ids are read by one pipeline.
const PAGES_AT_ONCE: usize = 64;

pub(super) async fn health(
    buckets: &SkuBuckets,
    phase: Phase,
    epoch: Epoch,
    change_no: i32,
) -> Result<BucketHealth, Error> {
    let is_in_phase = |counts: &BucketCounts| (counts.phase, counts.epoch) == (phase, epoch);
    let is_current = |counts: &BucketCounts| {
        let is_withdrawn = counts.loans.iter().any(|(to, _)| *to == BucketNo::LEDGER);
        is_in_phase(counts) && counts.change_no >= change_no && !is_withdrawn
    };
    let at = now_monotonic();
    if let Some(poll) = buckets.last_poll()
        && at.saturating_duration_since(poll.at) < POLL_AGE_MAX
        && poll.counts.iter().all(is_current)
    {
        return Ok(BucketHealth::Ready);
    }
    match count_all(buckets).await {
        Ok(counts) => {
            let is_in_phase = counts.iter().all(is_in_phase);
            let oldest = counts.iter().map(|counts| counts.change_no).min().unwrap_or(0);
            let latest = counts.iter().map(|counts| (counts.epoch, counts.phase)).max();
            // The next refresh handles stuck loans.
            buckets.store_poll(Arc::new(StockPoll { at, counts }));
            Ok(match latest {
                _ if buckets.has_stuck_withdrawal(at) => {
                    let reason = "units were withdrawn and not taken by the ledger".to_owned();
                    BucketHealth::Distrusted { reason }
                }
                Some(latest) if !is_in_phase => BucketHealth::OtherPhase { latest },
                _ if oldest < change_no => BucketHealth::OtherStock { change_no: oldest },
                _ => BucketHealth::Ready,
            })
        }
        Err(error) => match (buckets.error(error.clone()), error) {
            (_, CallError::Rejected { error: scripts::Error::NotReady, .. }) => {
                Ok(BucketHealth::Missing)
            }
            (_, CallError::Rejected { key, error, .. }) if is_distrusted(&error) => {
                Ok(BucketHealth::Distrusted { reason: format!("{key}: {error}") })
            }
            (mapped, _) => Err(mapped),
        },
    }
}

/// Whether the bucket's content, read in this state, may be lost or damaged.
pub(super) fn is_distrusted(error: &scripts::Error) -> bool {
    matches!(error, scripts::Error::Fenced | scripts::Error::Corrupt { .. })
}

pub(super) async fn count(
    buckets: &SkuBuckets,
    keys: &BucketKeys,
    pages: Range<u16>,
) -> Result<BucketCounts, CallError> {
    buckets.executor.run(&snapshot::snapshot(keys, pages), "counting").await
}

/// Counts every bucket, without its pages. An unreachable bucket is reported before one that must
/// be loaded: a loader could not hold the unreachable one, and would leave its siblings held.
async fn count_all(buckets: &SkuBuckets) -> Result<Vec<BucketCounts>, CallError> {
    let counted = join_all(buckets.keys.iter().map(|keys| count(buckets, keys, 0..0))).await;
    let (unreachable, others): (Vec<_>, Vec<_>) = counted.into_iter().partition(|counted| {
        matches!(counted, Err(CallError::Unavailable { .. } | CallError::Unknown { .. }))
    });
    let counts = unreachable.into_iter().chain(others).collect::<Result<Vec<_>, _>>()?;
    for (bucket, counts) in (0..).map(BucketNo).zip(&counts) {
        buckets.record_level(bucket, counts.left);
    }
    Ok(counts)
}

/// The counts of every bucket. If all are empty, no unit was left at one instant.
///
/// # Errors
/// Also `Unavailable`, if units may be moving between empty buckets.
pub(super) async fn all(buckets: &SkuBuckets) -> Result<Vec<BucketCounts>, Error> {
    let read = snapshot::read_all(|| count_all(buckets)).await;
    let counts = read.map_err(|error| buckets.error(error))?;
    counts.ok_or_else(|| Error::Unavailable { reason: "units move between the buckets".to_owned() })
}

/// Polls every bucket and caches the units left, and the accepted requests once the SKU is sold
/// out. Returns the stuck transfers.
pub(super) async fn refresh(
    buckets: &SkuBuckets,
    sold_out_refresh: Duration,
) -> Result<Vec<(BucketNo, BucketNo, Loan)>, Error> {
    let (now, num_forgotten) = (now_monotonic(), buckets.num_forgotten());
    // Units that return are a change; those that move, or leave the stock, are none.
    if let Some(accepted) = buckets.accepted.load_full().filter(|accepted| accepted.is_sold_out) {
        let polled_at = *buckets.polled_at.lock();
        let is_recent = polled_at.is_some_and(|at| now.duration_since(at) < sold_out_refresh);
        if is_recent || changes(buckets).await? == accepted.changes {
            return Ok(Vec::new());
        }
    }
    let counts = all(buckets).await?;
    let counted: Vec<_> = counts.iter().map(|counts| Some(counts.left.changes)).collect();
    let is_sold_out = snapshot::are_empty(&counts);
    let is_new = counts.iter().all(|counts| counts.left.is_new());
    if is_new || is_sold_out {
        // The ids are read after the units: they are complete if nothing has changed since.
        let requests = if is_new { HashSet::new() } else { accepted(buckets).await? };
        if is_new || changes(buckets).await? == counted {
            let changes = counted;
            let accepted = AcceptedRequests { requests, changes, num_forgotten, is_sold_out };
            buckets.set_accepted(accepted);
        }
    }
    Ok(buckets.store_poll(Arc::new(StockPoll { at: now, counts })))
}

/// Each bucket's number of changes to its accepted requests; `None` if the field is missing or no
/// number. One plain command for each bucket: polling a sold-out SKU must cost almost nothing.
async fn changes(buckets: &SkuBuckets) -> Result<Vec<Option<u64>>, Error> {
    let reads = buckets.keys.iter().map(|keys| async move {
        let (key, operation) = (keys.bucket(), "reading the change counts");
        let read = redis::cmd("HGET").arg(&key).arg("changes").to_owned();
        let answer = buckets.executor.send(&key, vec![read], operation).await?.pop();
        Ok::<_, Error>(answer.and_then(|answer| redis::from_redis_value(answer).ok()))
    });
    let changes = try_join_all(reads).await?;
    *buckets.polled_at.lock() = Some(now_monotonic());
    Ok(changes)
}

/// The ids of all accepted requests.
async fn accepted(buckets: &SkuBuckets) -> Result<HashSet<RequestId>, Error> {
    let mut accepted = HashSet::new();
    for keys in &buckets.keys {
        let add = |page: &str, id: String| {
            accepted.insert(id.parse().map_err(|error| damaged(page, &error))?);
            Ok(())
        };
        read_pages(buckets, keys, "HKEYS", add).await?;
    }
    Ok(accepted)
}

/// Reads the pages of a bucket's requests with this command, in any state of the bucket.
async fn read_pages<T: FromRedisValue>(
    buckets: &SkuBuckets,
    keys: &BucketKeys,
    command: &str,
    mut visit: impl FnMut(&str, T) -> Result<(), Error>,
) -> Result<(), Error> {
    let pages: Vec<String> = buckets.pages().all().map(|page| keys.requests(page)).collect();
    for pages in pages.chunks(PAGES_AT_ONCE) {
        let reads = pages.iter().map(|page| redis::cmd(command).arg(page).to_owned());
        let (reads, operation) = (reads.collect(), "reading accepted requests");
        let answers = buckets.executor.send(&keys.bucket(), reads, operation).await?;
        for (page, answer) in pages.iter().zip(answers) {
            for item in decode::<Vec<T>>(page, answer)? {
                visit(page, item)?;
            }
        }
    }
    Ok(())
}

/// The counts of one bucket for an audit. Reads every unsettled request; with an outbox that is a
/// scan of all pages: some milliseconds of the server for each 10,000 requests of the bucket. For
/// the number alone, use [`num_unsettled`].
pub(super) async fn snapshot(
    buckets: &SkuBuckets,
    bucket: BucketNo,
) -> Result<BucketSnapshot, Error> {
    let counted = count(buckets, buckets.keys(bucket)?, buckets.pages().all()).await;
    let counts = counted.map_err(|error| buckets.error(error))?;
    let unsettled = unsettled::of_counted(buckets, bucket, &counts).await?;
    let narrow = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let num_settled = counts.num_requests.saturating_sub(counts.num_queued);
    // A loan that the borrower has added is counted in the borrower.
    let mut arrived = 0;
    for (to, loan) in counts.loans.iter().filter(|(to, _)| *to != BucketNo::LEDGER) {
        let borrower = count(buckets, buckets.keys(*to)?, 0..0).await;
        let borrower = borrower.map_err(|error| buckets.error(error))?;
        if borrower.borrowed.iter().any(|(from, no)| *from == bucket && *no >= loan.no) {
            arrived += loan.units;
        }
    }
    Ok(BucketSnapshot {
        available: counts.left.stock,
        lent_units: counts.left.lent.saturating_sub(arrived),
        num_unsettled: narrow(counts.num_unsettled()).max(unsettled.len()),
        oldest_unsettled_ms: unsettled.iter().map(|intent| intent.placed_at_ms).min(),
        num_ordered: narrow(num_settled.saturating_sub(counts.num_failed)),
        num_failed: narrow(counts.num_failed),
        num_buyers: narrow(counts.num_buyers),
        released_units: counts.released_units,
        returned_units: counts.returned_units,
        change_no: counts.change_no,
        open_loan: counts.loans.first().map(|(_, loan)| *loan),
    })
}

/// The number of a SKU's requests without a ledger decision; one short script for each bucket.
pub(super) async fn num_unsettled(buckets: &SkuBuckets) -> Result<u64, Error> {
    let counted = count_all(buckets).await.map_err(|error| buckets.error(error))?;
    Ok(counted.iter().map(BucketCounts::num_unsettled).sum())
}

/// [`num_unsettled`], where a bucket that no script counts in its state is counted by its records.
pub(super) async fn num_unsettled_in_any_state(buckets: &SkuBuckets) -> Result<u64, Error> {
    let mut num = 0;
    for keys in &buckets.keys {
        num += match count(buckets, keys, 0..0).await {
            Ok(counts) => counts.num_unsettled(),
            Err(CallError::Rejected { error, .. })
                if is_distrusted(&error) || error == scripts::Error::NotReady =>
            {
                num_in_records(buckets, keys).await?
            }
            Err(error) => return Err(buckets.error(error)),
        };
    }
    Ok(num)
}

/// The unsettled requests of a bucket, by its records and stored intents. An unreadable record
/// counts: a newer version may have written it.
async fn num_in_records(buckets: &SkuBuckets, keys: &BucketKeys) -> Result<u64, Error> {
    let mut num_queued = 0_u64;
    let add = |_: &str, record: Vec<u8>| {
        let record = RequestRecord::unpack(&record);
        let is_queued = |record: RequestRecord| matches!(record.state, RecordState::Queued { .. });
        num_queued += u64::from(record.map_or(true, is_queued));
        Ok(())
    };
    read_pages(buckets, keys, "HVALS", add).await?;
    let unsettled = keys.unsettled();
    let read = redis::cmd("HLEN").arg(&unsettled).to_owned();
    let num_kept = buckets.executor.read(&unsettled, read, "counting unsettled requests").await?;
    Ok(num_queued.max(num_kept))
}
