//! Accepted requests that the ledger has not answered, as intents that can be brought to it.
//!
//! Without an outbox the intents are kept by request id. With one they wait there, and whoever must
//! have them all at once makes them anew from the records: all but the trace follows from record,
//! SKU and bucket. Both places are read, so that no change of the tier leaves anything behind.
//!
//! Everything is read also from a bucket that is not believed any more: what it has accepted must
//! still come to the ledger; never from another installation's.

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

/// Most pages of which one call reads.
const PAGES_AT_ONCE: u16 = 64;

/// About as many requests are read by one call: some milliseconds in which the server does nothing
/// else.
const REQUESTS_AT_ONCE: u32 = 6_000;

/// All of one bucket.
pub(super) async fn all(
    wire: &StockExecutor,
    shelf: &SkuCache,
    bucket: BucketNo,
) -> Result<Vec<OrderIntent>, Error> {
    match count(wire, shelf.keys(bucket)?, false).await {
        Ok(counts) => of_counted(wire, shelf, bucket, &counts).await,
        Err(PollError::Script(_, scripts::Error::Fenced | scripts::Error::Corrupt { .. })) => {
            let kept = kept(wire, shelf.keys(bucket)?).await?;
            with_queued(wire, shelf, bucket, kept).await
        }
        Err(error) => Err(error.told(shelf)),
    }
}

/// All of one bucket with these counts.
pub(super) async fn of_counted(
    wire: &StockExecutor,
    shelf: &SkuCache,
    bucket: BucketNo,
    counts: &BucketCounts,
) -> Result<Vec<OrderIntent>, Error> {
    let mut intents = Vec::new();
    if counts.num_kept > 0 {
        intents = kept(wire, shelf.keys(bucket)?).await?;
    }
    // Where intents are kept they are complete, unless the tier was another one before.
    let is_complete = match shelf.outbox {
        OutboxArgs::None => counts.num_queued <= intents.len() as u64,
        OutboxArgs::List(_) | OutboxArgs::Stream(_) => counts.num_queued == 0,
    };
    if is_complete { Ok(intents) } else { with_queued(wire, shelf, bucket, intents).await }
}

/// The intents that are kept by request id.
async fn kept(wire: &StockExecutor, keys: &BucketKeys) -> Result<Vec<OrderIntent>, Error> {
    let link = wire.link(ConnectionPurpose::Results, keys).await?;
    let request = redis::cmd("HVALS").arg(keys.unsettled()).to_owned();
    let answers = wire.send(&link, &[request], "reading unsettled requests").await;
    let answers = answers.map_err(|error| at(&keys.unsettled(), error))?;
    let mut intents = Vec::new();
    for answer in answers {
        let values: Vec<Vec<u8>> =
            redis::from_redis_value(answer).map_err(|error| damaged(&keys.unsettled(), &error))?;
        for value in values {
            match intent::unpack(&value) {
                Ok(intent) => intents.push(intent),
                Err(error) => unreadable(&keys.unsettled(), error),
            }
        }
    }
    Ok(intents)
}

/// Adds what is queued and not among these intents.
async fn with_queued(
    wire: &StockExecutor,
    shelf: &SkuCache,
    bucket: BucketNo,
    mut intents: Vec<OrderIntent>,
) -> Result<Vec<OrderIntent>, Error> {
    let known: HashSet<RequestId> = intents.iter().map(|intent| intent.request).collect();
    let mut next = Some(0);
    while let Some(first) = next {
        let page = page(wire, shelf, bucket, first).await?;
        // The requests wait in the outbox, too: that the bucket is loaded anew matters more.
        if let Some(damage) = page.damage {
            tracing::error!(damage, "queued requests cannot be read");
        }
        intents.extend(page.intents.iter().filter(|intent| !known.contains(&intent.request)));
        next = page.next;
    }
    Ok(intents)
}

/// What is queued on the pages from this one on; where one is damaged, on the others.
pub(super) async fn page(
    wire: &StockExecutor,
    shelf: &SkuCache,
    bucket: BucketNo,
    first: u16,
) -> Result<QueuedPage, Error> {
    let num_all = shelf.keys(bucket)?.pages();
    let end = first.saturating_add(pages_at_once(&shelf.sku, num_all)).min(num_all);
    let mut page = QueuedPage {
        num_pages: end.saturating_sub(first),
        next: (end < num_all).then_some(end),
        ..QueuedPage::default()
    };
    if let Err(Error::Damaged { .. }) = read(wire, shelf, bucket, first..end, &mut page).await? {
        for one in first..end {
            if let Err(error) = read(wire, shelf, bucket, one..one + 1, &mut page).await? {
                page.damage.get_or_insert(error.to_string());
            }
        }
    }
    Ok(page)
}

/// Adds what is queued on these pages, or nothing if one of them is damaged.
async fn read(
    wire: &StockExecutor,
    shelf: &SkuCache,
    bucket: BucketNo,
    pages: Range<u16>,
    to: &mut QueuedPage,
) -> Result<Result<(), Error>, Error> {
    let keys = shelf.keys(bucket)?;
    let link = wire.link(ConnectionPurpose::Results, keys).await?;
    let fence = wire.fence(&link);
    let door = ReadQueued { keys, fence: &fence, pages };
    let answer = wire.ask(&link, door.call(), "reading queued requests").await;
    let found = answer
        .and_then(|answer| door.parse(answer).map_err(|error| shelf.told(&keys.bucket(), error)));
    let found = match found {
        Ok(found) => found,
        Err(error @ Error::Damaged { .. }) => return Ok(Err(error)),
        Err(error) => return Err(error),
    };
    for request in found.requests {
        match request {
            Ok((request, record)) => {
                to.intents.push(anew(&shelf.sku, bucket, found.epoch, request, &record));
            }
            Err(error) => {
                to.damage.get_or_insert(format!("{}: {error}", keys.bucket()));
            }
        }
    }
    Ok(Ok(()))
}

/// How many pages one call reads.
pub(super) fn pages_at_once(sku: &Sku, pages: u16) -> u16 {
    let units = sku.initial / u32::from(sku.buckets.max(1));
    let on_each = (units / u32::from(pages.max(1))).max(1);
    u16::try_from(REQUESTS_AT_ONCE / on_each).unwrap_or(u16::MAX).clamp(1, PAGES_AT_ONCE)
}

/// The intent of a request, as the gate made it when the request was accepted.
fn anew(
    sku: &Sku,
    bucket: BucketNo,
    epoch: Epoch,
    request: RequestId,
    record: &RequestRecord,
) -> OrderIntent {
    let asked = Reservation {
        request,
        sku: sku.no,
        bucket,
        epoch,
        buyer: record.buyer,
        quantity: record.quantity,
        asked_at_ms: record.placed_at_ms,
        trace: TraceId(0),
    };
    asked.intent(sku)
}

/// It must not hold up the others; it stays where it is, for whoever can read it.
pub(super) fn unreadable(key: &str, error: scripts::record::BrokenRecord) {
    tracing::error!(
        key,
        %error,
        "an accepted request cannot be read: was it written by a newer version?"
    );
}
