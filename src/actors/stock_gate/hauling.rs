//! Stock hops, requests do not: fetches units from sibling buckets for a bucket that ran dry.
//!
//! A transfer takes units out of the lender and records the loan there; then it adds them to the
//! borrower, once per loan number, and clears the record. A crash between the steps is finished by
//! the borrower's next gate. Sold out is said only when all buckets and all transfers are empty.

use std::time::Duration;

use actix::Context;
use tokio::sync::oneshot;

use super::{GateParts, StockGate, answer};
use crate::actors::child::spawn_step;
use crate::actors::gate_directory::GateDoor;
use crate::domain::{BucketNo, Refusal};
use crate::messages::{Answer, LendStock};
use crate::stock::{self, BucketKey};

/// How long a sibling may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// How often all siblings are asked while there is stock that nobody could lend.
const ROUNDS_MAX: u32 = 8;

/// How long units under way are given to arrive before the next round.
const ROUND_PAUSE: Duration = Duration::from_millis(2);

/// What a haul came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Haul {
    /// Units were added to the bucket: decide again.
    Brought,
    /// Nobody could lend.
    Nothing {
        /// Units left in all buckets and transfers.
        left: u32,
    },
}

impl StockGate {
    /// Fetches units from sibling buckets for the reservations that found this one dry.
    pub(super) fn haul(&mut self, ctx: &mut Context<Self>) {
        if self.under_way.hauling || self.dry.is_empty() {
            return;
        }
        self.under_way.hauling = true;
        let most = self.dry.iter().map(|ask| ask.reservation.quantity).max().unwrap_or(1);
        let sum = self.dry.iter().map(|ask| u64::from(ask.reservation.quantity)).sum::<u64>();
        let want = u32::try_from(sum).unwrap_or(u32::MAX);
        let parts = self.parts.clone();
        let work = async move { haul(&parts, most, want).await };
        spawn_step(self, ctx, work, |gate, ctx, haul| {
            gate.under_way.hauling = false;
            match haul {
                Ok(haul) => gate.hauled(ctx, haul),
                Err(error) => {
                    gate.is_fatal(ctx, &error);
                    gate.dry.drain(..).for_each(|ask| answer(ask, Answer::Busy));
                    gate.report_if_idle();
                }
            }
        });
    }

    fn hauled(&mut self, ctx: &mut Context<Self>, haul: Haul) {
        for ask in std::mem::take(&mut self.dry).into_iter().rev() {
            let quantity = ask.reservation.quantity;
            match haul {
                Haul::Brought => self.pending.push_front(ask),
                Haul::Nothing { left } if left < quantity => {
                    answer(ask, Answer::Refused { refusal: Refusal::SoldOut, replayed: false });
                }
                Haul::Nothing { .. } => answer(ask, Answer::Busy),
            }
        }
        self.decide(ctx);
        self.report_if_idle();
    }
}

/// Fetches up to `want` units for the bucket of `parts`; `most` is the largest single wish.
///
/// # Errors
/// The stock's error when a bucket cannot be changed.
async fn haul(parts: &GateParts, most: u32, want: u32) -> Result<Haul, stock::Error> {
    let mut left = None;
    for _ in 0..ROUNDS_MAX {
        if ask_round(parts, want).await? > 0 {
            return Ok(Haul::Brought);
        }
        // A loan to this bucket whose lender's answer was lost is on record.
        if parts.stock.finish_transfers(parts.key()).await? > 0 {
            return Ok(Haul::Brought);
        }
        let before = left.replace(parts.stock.left(parts.sku.no));
        // Buckets are looked at one after the other: units that hop meanwhile may be missed once.
        if left.is_some_and(|left| left == 0 || (left < most && before == Some(left))) {
            break;
        }
        if parts.sku.buckets == 1 {
            // Units came back to this very bucket while it was being asked for others.
            return Ok(Haul::Brought);
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
    Ok(Haul::Nothing { left: left.unwrap_or(0) })
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
    let (reply, lent) = oneshot::channel();
    if gate.try_send(LendStock { to: parts.bucket, want, reply }).is_err() {
        return Ok(0);
    }
    let Ok(Ok(Some(loan))) = tokio::time::timeout(ANSWER_WAIT, lent).await else { return Ok(0) };
    let lender = BucketKey { sku: parts.sku.no, bucket: from };
    parts.metrics.transfer();
    parts.stock.borrow(lender, parts.bucket, loan).await
}
