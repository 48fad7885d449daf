//! Looks at buckets: what others have changed, what an audit asks, in which condition they are.

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

/// How old a look may be to tell in which condition the buckets are: an error in between makes it
/// void at once.
const CONDITION_AGE: Duration = Duration::from_secs(10);

/// Pages whose ids are read in one go.
const PAGES_AT_ONCE: usize = 64;

/// How often empty buckets are read again because something moved meanwhile.
const READINGS_MAX: u32 = 3;

/// In which condition the buckets are.
pub(super) async fn condition(
    wire: &StockExecutor,
    shelf: &SkuCache,
    phase: Phase,
    epoch: Epoch,
) -> Result<BucketHealth, Error> {
    let stands = |counts: &BucketCounts| (counts.phase, counts.epoch) == (phase, epoch);
    let is_recent = |look: &StockPoll| now_monotonic().duration_since(look.at) < CONDITION_AGE;
    if let Some(look) = shelf.look()
        && is_recent(&look)
        && look.counts.iter().all(stands)
    {
        return Ok(BucketHealth::Ready);
    }
    match count_all(wire, shelf, false).await {
        Ok(counts) => {
            let is_ready = counts.iter().all(stands);
            // Stuck loans are left to the next refresh.
            shelf.keep_look(Arc::new(StockPoll { at: now_monotonic(), counts }));
            Ok(if is_ready { BucketHealth::Ready } else { BucketHealth::OtherPhase })
        }
        Err(PollError::Script(key, error)) => {
            let reason = format!("{key}: {error}");
            let told = shelf.told(&key, error.clone());
            match error {
                scripts::Error::NotReady => Ok(BucketHealth::Missing),
                scripts::Error::Fenced | scripts::Error::Corrupt { .. } => {
                    Ok(BucketHealth::Distrusted { reason })
                }
                _ => Err(told),
            }
        }
        Err(PollError::StockExecutor(error)) => Err(error),
    }
}

/// Why a look failed: with the script's own word and the bucket's key, where it said one.
pub(super) enum PollError {
    Script(String, scripts::Error),
    StockExecutor(Error),
}

impl PollError {
    pub(super) fn told(self, shelf: &SkuCache) -> Error {
        match self {
            Self::Script(key, error) => shelf.told(&key, error),
            Self::StockExecutor(error) => error,
        }
    }
}

pub(super) async fn count(
    wire: &StockExecutor,
    keys: &BucketKeys,
    pages: bool,
) -> Result<BucketCounts, PollError> {
    let link =
        wire.link(ConnectionPurpose::Results, keys).await.map_err(PollError::StockExecutor)?;
    let fence = wire.fence(&link);
    let door = Snapshot { keys, fence: &fence, pages };
    let answer =
        wire.ask(&link, door.call(), "counting").await.map_err(PollError::StockExecutor)?;
    door.parse(answer).map_err(|error| PollError::Script(keys.bucket(), error))
}

/// Counts every bucket. One that cannot be asked is told before one that must be loaded: a loader
/// could not hold it, and would leave its siblings held.
async fn count_all(
    wire: &StockExecutor,
    shelf: &SkuCache,
    pages: bool,
) -> Result<Vec<BucketCounts>, PollError> {
    let counted = join_all(shelf.keys.iter().map(|keys| count(wire, keys, pages))).await;
    let (away, asked): (Vec<_>, Vec<_>) = counted.into_iter().partition(is_away);
    let counts = away.into_iter().chain(asked).collect::<Result<Vec<_>, _>>()?;
    for (bucket, counts) in (0..).map(BucketNo).zip(&counts) {
        shelf.note(bucket, counts.left);
    }
    Ok(counts)
}

fn is_away(counted: &Result<BucketCounts, PollError>) -> bool {
    matches!(
        counted,
        Err(PollError::StockExecutor(Error::Unavailable { .. } | Error::Unknown { .. }))
    )
}

/// The counts of every bucket.
pub(super) async fn all(
    wire: &StockExecutor,
    shelf: &SkuCache,
) -> Result<Vec<BucketCounts>, Error> {
    let counted = count_all(wire, shelf, false).await;
    let mut counts = counted.map_err(|error| error.told(shelf))?;
    for _ in 1..READINGS_MAX {
        if !are_empty(&counts) || stood_still(wire, shelf, &mut counts).await? {
            break;
        }
    }
    Ok(counts)
}

fn are_empty(counts: &[BucketCounts]) -> bool {
    counts.iter().all(|counts| counts.left.stock == 0 && counts.left.lent == 0)
}

/// Counts again; true when nothing has changed. Buckets are read one after the other: units that
/// hopped from one that was not read yet to one that was are seen nowhere.
async fn stood_still(
    wire: &StockExecutor,
    shelf: &SkuCache,
    counts: &mut Vec<BucketCounts>,
) -> Result<bool, Error> {
    let again = count_all(wire, shelf, false).await.map_err(|error| error.told(shelf))?;
    let before = std::mem::replace(counts, again);
    Ok(before == *counts)
}

/// Looks at every bucket and notes what is left, whether that is nothing, and which requests were
/// accepted. Returns transfers that got stuck.
pub(super) async fn refresh(
    wire: &StockExecutor,
    shelf: &SkuCache,
    sold_out_refresh: Duration,
) -> Result<Vec<(BucketNo, BucketNo, Loan)>, Error> {
    let now = now_monotonic();
    if let Some(known) = shelf.known() {
        let is_recent = known.is_sold_out && shelf.is_seen_since(now, sold_out_refresh);
        if is_recent || changes(wire, shelf).await? == known.changes {
            return Ok(Vec::new());
        }
    }
    let counts = all(wire, shelf).await?;
    let seen: Vec<_> = counts.iter().map(|counts| Some(counts.left.changes)).collect();
    let is_sold_out = are_empty(&counts);
    if counts.iter().all(|counts| counts.left.is_new()) {
        shelf.know(AcceptedRequests { requests: HashSet::new(), changes: seen, is_sold_out });
    } else if is_sold_out {
        // The ids are read after the units: while nothing has changed since, they are all.
        let requests = accepted(wire, shelf).await?;
        if changes(wire, shelf).await? == seen {
            shelf.know(AcceptedRequests { requests, changes: seen, is_sold_out });
        }
    }
    Ok(shelf.keep_look(Arc::new(StockPoll { at: now, counts })))
}

/// How often each bucket has changed what it accepted; one plain command per bucket, because a
/// crowd that reads "sold out" must cost nearly nothing. `None`: the bucket does not say.
async fn changes(wire: &StockExecutor, shelf: &SkuCache) -> Result<Vec<Option<u64>>, Error> {
    let asking = shelf.keys.iter().map(|keys| async move {
        let request = redis::cmd("HGET").arg(keys.bucket()).arg("changes").to_owned();
        let link = wire.link(ConnectionPurpose::Results, keys).await?;
        let answers = wire.send(&link, &[request], "looking for changes").await;
        let answer = answers.map_err(|error| at(&keys.bucket(), error))?.pop();
        Ok::<_, Error>(answer.and_then(|answer| redis::from_redis_value(answer).ok()))
    });
    let changes = try_join_all(asking).await?;
    shelf.see(now_monotonic());
    Ok(changes)
}

/// Every request that was accepted.
async fn accepted(wire: &StockExecutor, shelf: &SkuCache) -> Result<HashSet<RequestId>, Error> {
    let mut known = HashSet::new();
    for keys in &shelf.keys {
        let pages: Vec<u16> = (0..keys.pages()).collect();
        for pages in pages.chunks(PAGES_AT_ONCE) {
            let requests: Vec<Cmd> = pages
                .iter()
                .map(|page| redis::cmd("HKEYS").arg(keys.requests(*page)).to_owned())
                .collect();
            let link = wire.link(ConnectionPurpose::Results, keys).await?;
            let answers = wire.send(&link, &requests, "reading accepted requests").await;
            let answers = answers.map_err(|error| at(&keys.bucket(), error))?;
            for (page, answer) in pages.iter().zip(answers) {
                let page = || keys.requests(*page);
                let ids: Vec<String> =
                    redis::from_redis_value(answer).map_err(|error| damaged(&page(), &error))?;
                for id in ids {
                    known.insert(id.parse().map_err(|error| damaged(&page(), &error))?);
                }
            }
        }
    }
    Ok(known)
}

/// Says where, for a plain command that found something else there.
pub(super) fn at(key: &str, error: Error) -> Error {
    match error {
        Error::Damaged { what } => damaged(key, &what),
        other => other,
    }
}

pub(super) fn damaged(key: &str, what: &dyn std::fmt::Display) -> Error {
    Error::Damaged { what: format!("{key}: {what}") }
}

/// The counts of one bucket for an audit. What is unsettled is read in full, and with an outbox
/// that is a walk over all pages: some milliseconds of the server for each 10,000 requests of the
/// bucket. Whoever needs only the number takes [`num_unsettled`].
pub(super) async fn snapshot(
    wire: &StockExecutor,
    shelf: &SkuCache,
    bucket: BucketNo,
) -> Result<BookSnapshot, Error> {
    let keys = shelf.keys(bucket)?;
    let counts = count(wire, keys, true).await.map_err(|error| error.told(shelf))?;
    let unsettled = unsettled::of_counted(wire, shelf, bucket, &counts).await?;
    let narrow = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let num_settled = counts.num_requests.saturating_sub(counts.num_queued);
    // A loan that has arrived is counted where it arrived.
    let mut arrived = 0;
    for (to, loan) in &counts.loans {
        let borrower = count(wire, shelf.keys(*to)?, false).await;
        let borrower = borrower.map_err(|error| error.told(shelf))?;
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

/// How many requests of a SKU the ledger must still be asked about; one short script for each
/// bucket.
pub(super) async fn num_unsettled(wire: &StockExecutor, shelf: &SkuCache) -> Result<u64, Error> {
    let counted = count_all(wire, shelf, false).await.map_err(|error| error.told(shelf))?;
    Ok(counted.iter().map(BucketCounts::num_unsettled).sum())
}

/// What all buckets say together.
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
