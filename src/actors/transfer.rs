//! Stock hops, requests do not: fetches units from sibling buckets for a bucket that ran dry.
//!
//! A transfer takes units out of the lender and records the loan there; then it adds them to the
//! borrower and clears the record, once per transfer id. A crash between the steps is finished by
//! the borrower's next gate. Sold out is said only when all buckets and all transfers are empty.

use std::time::Duration;

use tokio::sync::oneshot;

use super::gate_directory::GateDoor;
use super::stock_gate::GateParts;
use crate::domain::BucketNo;
use crate::messages::LendStock;
use crate::stock::{self, BucketKey};

/// How long a sibling may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// How often all siblings are asked while there is stock that nobody could lend.
const ROUNDS_MAX: u32 = 8;

/// How long units under way are given to arrive before the next round.
const ROUND_PAUSE: Duration = Duration::from_millis(2);

/// What a haul came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Haul {
    /// Units were added to the bucket: decide again.
    Brought,
    /// Nobody could lend.
    Nothing {
        /// Units left in all buckets and transfers.
        left: u32,
    },
}

/// Fetches up to `want` units for the bucket of `parts`; `most` is the largest single wish.
///
/// # Errors
/// The stock's error when a bucket cannot be changed.
pub async fn haul(parts: &GateParts, most: u32, want: u32) -> Result<Haul, stock::Error> {
    let mut left = 0;
    for _ in 0..ROUNDS_MAX {
        if ask_round(parts, want).await? > 0 {
            return Ok(Haul::Brought);
        }
        // A loan to this bucket whose lender's answer was lost is on record.
        if parts.stock.finish_transfers(parts.key()).await? > 0 {
            return Ok(Haul::Brought);
        }
        left = parts.stock.left(parts.sku.no);
        if left < most {
            break;
        }
        if parts.sku.buckets == 1 {
            // Units came back to this very bucket while it was being asked for others.
            return Ok(Haul::Brought);
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
    Ok(Haul::Nothing { left })
}

/// Asks each sibling once, the next higher bucket first, until there is enough.
async fn ask_round(parts: &GateParts, want: u32) -> Result<u32, stock::Error> {
    let doors = parts.directory.of_sku(parts.sku.no);
    let buckets = parts.sku.buckets;
    let mut total: u32 = 0;
    for distance in 1..buckets {
        let from = BucketNo((parts.bucket.0 + distance) % buckets);
        let Some(door) = doors.get(usize::from(from.0)) else { continue };
        total = total.saturating_add(ask_one(parts, door, from, want - total).await?);
        if total >= want {
            break;
        }
    }
    Ok(total)
}

async fn ask_one(
    parts: &GateParts,
    door: &GateDoor,
    from: BucketNo,
    want: u32,
) -> Result<u32, stock::Error> {
    let Some(gate) = door.address.get() else { return Ok(0) };
    let transfer = parts.directory.next_transfer();
    let (reply, lent) = oneshot::channel();
    if gate.try_send(LendStock { transfer, to: parts.bucket, want, reply }).is_err() {
        return Ok(0);
    }
    let Ok(Ok(units)) = tokio::time::timeout(ANSWER_WAIT, lent).await else { return Ok(0) };
    if units == 0 {
        return Ok(0);
    }
    let lender = BucketKey { sku: parts.sku.no, bucket: from };
    parts.metrics.transfer();
    parts.stock.borrow(lender, parts.bucket, transfer).await
}
