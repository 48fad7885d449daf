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
use super::poll::{count, is_distrusted};
use super::sku_buckets::SkuBuckets;
use crate::domain::{BucketNo, OrderIntent, RequestId, Sku};
use crate::redis::executor::CallError;
use crate::redis::scripts::intent::{self, BrokenRecord};
use crate::redis::scripts::lookup::read_queued;
use crate::redis::scripts::snapshot::BucketCounts;
use crate::redis::scripts::{BucketKeys, OutboxArgs};

/// Most pages that one call reads.
const PAGES_AT_ONCE: u16 = 64;

/// About as many requests are read by one call: it blocks the server for some milliseconds.
const REQUESTS_AT_ONCE: u32 = 6_000;

/// Every unsettled intent of a bucket.
pub(super) async fn all(buckets: &SkuBuckets, bucket: BucketNo) -> Result<Vec<OrderIntent>, Error> {
    let keys = buckets.keys(bucket)?;
    match count(buckets, keys, 0..0).await {
        Ok(counts) => of_counted(buckets, bucket, &counts).await,
        Err(CallError::Rejected { error, .. }) if is_distrusted(&error) => {
            with_queued(buckets, bucket, kept(buckets, keys).await?).await
        }
        Err(error) => Err(buckets.error(error)),
    }
}

/// Every unsettled intent of a bucket with these counts.
pub(super) async fn of_counted(
    buckets: &SkuBuckets,
    bucket: BucketNo,
    counts: &BucketCounts,
) -> Result<Vec<OrderIntent>, Error> {
    let mut intents = Vec::new();
    if counts.num_kept > 0 {
        intents = kept(buckets, buckets.keys(bucket)?).await?;
    }
    // The stored intents are complete, unless the installation had another tier before.
    let is_complete = match buckets.outbox {
        OutboxArgs::None => counts.num_queued <= intents.len() as u64,
        OutboxArgs::List(_) | OutboxArgs::Stream(_) => counts.num_queued == 0,
    };
    if is_complete { Ok(intents) } else { with_queued(buckets, bucket, intents).await }
}

/// The intents that are stored by request id, but for those that no process of this installation
/// wrote: the requests behind those are read from their records.
async fn kept(buckets: &SkuBuckets, keys: &BucketKeys) -> Result<Vec<OrderIntent>, Error> {
    let key = keys.unsettled();
    let read = redis::cmd("HVALS").arg(&key).to_owned();
    let values = buckets.executor.read(&key, read, "reading unsettled requests").await?;
    let mut intents = Vec::new();
    for value in Vec::<Vec<u8>>::into_iter(values) {
        match intent::unpack(&value) {
            Ok(intent) if buckets.intents.has_signed(&value) => intents.push(intent),
            Ok(intent) => {
                tracing::error!(key, request = %intent.request, "accepted request: forged");
            }
            Err(error) => log_unreadable(&key, error),
        }
    }
    Ok(intents)
}

/// Adds the queued requests that are not among these intents.
async fn with_queued(
    buckets: &SkuBuckets,
    bucket: BucketNo,
    mut intents: Vec<OrderIntent>,
) -> Result<Vec<OrderIntent>, Error> {
    let stored: HashSet<RequestId> = intents.iter().map(|intent| intent.request).collect();
    let mut next = Some(0);
    while let Some(first) = next {
        let page = page(buckets, bucket, first).await?;
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
    buckets: &SkuBuckets,
    bucket: BucketNo,
    first: u16,
) -> Result<QueuedPage, Error> {
    let num_all = buckets.pages().all().end;
    let end = first.saturating_add(pages_at_once(&buckets.sku, num_all)).min(num_all);
    let mut page = QueuedPage {
        num_pages: end.saturating_sub(first),
        next: (end < num_all).then_some(end),
        ..QueuedPage::default()
    };
    if read(buckets, bucket, first..end, &mut page).await?.is_err() {
        for number in first..end {
            if let Err(damage) = read(buckets, bucket, number..number + 1, &mut page).await? {
                page.damage.get_or_insert(damage);
            }
        }
    }
    Ok(page)
}

/// Adds the queued requests on these pages, or none if one of the pages is damaged (inner error).
async fn read(
    buckets: &SkuBuckets,
    bucket: BucketNo,
    pages: Range<u16>,
    to: &mut QueuedPage,
) -> Result<Result<(), String>, Error> {
    let keys = buckets.keys(bucket)?;
    let found = buckets.run(read_queued(keys, pages), "reading queued requests").await;
    let requests = match found {
        Ok(found) => found,
        Err(error @ Error::Damaged { .. }) => return Ok(Err(error.to_string())),
        Err(error) => return Err(error),
    };
    let sku = buckets.latest.load();
    for queued in requests {
        match queued {
            Ok((request, record)) => to.intents.extend(record.intent(request, &sku, bucket)),
            Err(error) => {
                to.damage.get_or_insert(format!("{}: {error}", keys.bucket()));
            }
        }
    }
    Ok(Ok(()))
}

/// The number of pages that one call reads.
pub(super) fn pages_at_once(sku: &Sku, pages: u16) -> u16 {
    let units = sku.planned_units() / u32::from(sku.buckets.max(1));
    let on_each = (units / u32::from(pages.max(1))).max(1);
    u16::try_from(REQUESTS_AT_ONCE / on_each).unwrap_or(u16::MAX).clamp(1, PAGES_AT_ONCE)
}

/// Logs a request that stays in Redis for a version that can read it; it must not block the others.
pub(super) fn log_unreadable(key: &str, error: BrokenRecord) {
    tracing::error!(
        key,
        %error,
        "accepted request: unreadable, perhaps written by a newer version"
    );
}
