//! Accepted requests without a ledger decision, as intents to submit to the ledger.
//!
//! Without an outbox the intents are stored by request id. With an outbox the intents wait there;
//! to list them all they are rebuilt from the request records: all but the trace follows from
//! record, SKU and bucket. Both are read, so that a change of the tier loses no request.
//!
//! A fenced bucket is read, too: its accepted requests must still be decided by the ledger. A
//! bucket of another installation is never read.

use std::collections::HashSet;
use std::ops::Range;

use super::super::{Error, QueuedPage};
use crate::domain::{BucketNo, Epoch, OrderIntent, RequestId, Reservation, Sku, TraceId};
use crate::redis::scripts;
use crate::redis::scripts::record::RequestRecord;
use crate::redis::scripts::snapshot::BucketCounts;
use crate::redis::scripts::{BucketKeys, OutboxArgs, ReadQueued, intent};
use crate::redis::transport::ConnectionPurpose;
use crate::stock::redis::executor::StockExecutor;
use crate::stock::redis::poll::{PollError, at, count, damaged};
use crate::stock::redis::sku_cache::SkuCache;

/// Most pages that one call reads.
const PAGES_AT_ONCE: u16 = 64;

/// About as many requests are read by one call: it blocks the server for some milliseconds.
const REQUESTS_AT_ONCE: u32 = 6_000;

/// Every unsettled intent of a bucket.
pub(super) async fn all(
    executor: &StockExecutor,
    cache: &SkuCache,
    bucket: BucketNo,
) -> Result<Vec<OrderIntent>, Error> {
    match count(executor, cache.keys(bucket)?, false).await {
        Ok(counts) => of_counted(executor, cache, bucket, &counts).await,
        Err(PollError::Script(_, scripts::Error::Fenced | scripts::Error::Corrupt { .. })) => {
            let kept = kept(executor, cache.keys(bucket)?).await?;
            with_queued(executor, cache, bucket, kept).await
        }
        Err(error) => Err(error.into_error(cache)),
    }
}

/// Every unsettled intent of a bucket with these counts.
pub(super) async fn of_counted(
    executor: &StockExecutor,
    cache: &SkuCache,
    bucket: BucketNo,
    counts: &BucketCounts,
) -> Result<Vec<OrderIntent>, Error> {
    let mut intents = Vec::new();
    if counts.num_kept > 0 {
        intents = kept(executor, cache.keys(bucket)?).await?;
    }
    // The stored intents are complete, unless the installation had another tier before.
    let is_complete = match cache.outbox {
        OutboxArgs::None => counts.num_queued <= intents.len() as u64,
        OutboxArgs::List(_) | OutboxArgs::Stream(_) => counts.num_queued == 0,
    };
    if is_complete { Ok(intents) } else { with_queued(executor, cache, bucket, intents).await }
}

/// The intents that are stored by request id.
async fn kept(executor: &StockExecutor, keys: &BucketKeys) -> Result<Vec<OrderIntent>, Error> {
    let connection = executor.connection(ConnectionPurpose::Results, keys).await?;
    let request = redis::cmd("HVALS").arg(keys.unsettled()).to_owned();
    let answers = executor.send(&connection, &[request], "reading unsettled requests").await;
    let answers = answers.map_err(|error| at(&keys.unsettled(), error))?;
    let mut intents = Vec::new();
    for answer in answers {
        let values: Vec<Vec<u8>> =
            redis::from_redis_value(answer).map_err(|error| damaged(&keys.unsettled(), &error))?;
        for value in values {
            match intent::unpack(&value) {
                Ok(intent) => intents.push(intent),
                Err(error) => log_unreadable(&keys.unsettled(), error),
            }
        }
    }
    Ok(intents)
}

/// Adds the queued requests that are not among these intents.
async fn with_queued(
    executor: &StockExecutor,
    cache: &SkuCache,
    bucket: BucketNo,
    mut intents: Vec<OrderIntent>,
) -> Result<Vec<OrderIntent>, Error> {
    let stored: HashSet<RequestId> = intents.iter().map(|intent| intent.request).collect();
    let mut next = Some(0);
    while let Some(first) = next {
        let page = page(executor, cache, bucket, first).await?;
        // The requests are in the outbox, too; reloading the bucket matters more.
        if let Some(damage) = page.damage {
            tracing::error!(damage, "queued requests: unreadable, skipped");
        }
        intents.extend(page.intents.iter().filter(|intent| !stored.contains(&intent.request)));
        next = page.next;
    }
    Ok(intents)
}

/// The queued requests on the pages from `first` on. Damaged pages are skipped.
pub(super) async fn page(
    executor: &StockExecutor,
    cache: &SkuCache,
    bucket: BucketNo,
    first: u16,
) -> Result<QueuedPage, Error> {
    let num_all = cache.keys(bucket)?.pages();
    let end = first.saturating_add(pages_at_once(&cache.sku, num_all)).min(num_all);
    let mut page = QueuedPage {
        num_pages: end.saturating_sub(first),
        next: (end < num_all).then_some(end),
        ..QueuedPage::default()
    };
    if let Err(Error::Damaged { .. }) = read(executor, cache, bucket, first..end, &mut page).await?
    {
        for number in first..end {
            if let Err(error) = read(executor, cache, bucket, number..number + 1, &mut page).await?
            {
                page.damage.get_or_insert(error.to_string());
            }
        }
    }
    Ok(page)
}

/// Adds the queued requests on these pages, or none if one of the pages is damaged (inner error).
async fn read(
    executor: &StockExecutor,
    cache: &SkuCache,
    bucket: BucketNo,
    pages: Range<u16>,
    to: &mut QueuedPage,
) -> Result<Result<(), Error>, Error> {
    let keys = cache.keys(bucket)?;
    let connection = executor.connection(ConnectionPurpose::Results, keys).await?;
    let fence = executor.fence(&connection);
    let script = ReadQueued { keys, fence: &fence, pages };
    let answer = executor.call(&connection, script.call(), "reading queued requests").await;
    let found = answer.and_then(|answer| {
        script.parse(answer).map_err(|error| cache.invalidate_on(&keys.bucket(), error))
    });
    let found = match found {
        Ok(found) => found,
        Err(error @ Error::Damaged { .. }) => return Ok(Err(error)),
        Err(error) => return Err(error),
    };
    for request in found.requests {
        match request {
            Ok((request, record)) => {
                to.intents.push(rebuild_intent(&cache.sku, bucket, found.epoch, request, &record));
            }
            Err(error) => {
                to.damage.get_or_insert(format!("{}: {error}", keys.bucket()));
            }
        }
    }
    Ok(Ok(()))
}

/// The number of pages that one call reads.
pub(super) fn pages_at_once(sku: &Sku, pages: u16) -> u16 {
    let units = sku.initial / u32::from(sku.buckets.max(1));
    let on_each = (units / u32::from(pages.max(1))).max(1);
    u16::try_from(REQUESTS_AT_ONCE / on_each).unwrap_or(u16::MAX).clamp(1, PAGES_AT_ONCE)
}

/// The intent of a request, as the gate built it when the request was accepted; without the trace.
fn rebuild_intent(
    sku: &Sku,
    bucket: BucketNo,
    epoch: Epoch,
    request: RequestId,
    record: &RequestRecord,
) -> OrderIntent {
    let reservation = Reservation {
        request,
        sku: sku.no,
        bucket,
        epoch,
        buyer: record.buyer,
        quantity: record.quantity,
        asked_at_ms: record.placed_at_ms,
        trace: TraceId(0),
    };
    reservation.intent(sku)
}

/// Logs a request that stays in Redis for a version that can read it; it must not block the others.
pub(super) fn log_unreadable(key: &str, error: scripts::record::BrokenRecord) {
    tracing::error!(
        key,
        %error,
        "accepted request: unreadable, perhaps written by a newer version"
    );
}
