//! Stock hops, requests do not: fetches units from sibling buckets for a bucket that ran dry.
//!
//! A transfer takes units out of the lender and records the loan there; then it adds them to the
//! borrower, once per loan number, and clears the record. A crash between the steps is finished by
//! the borrower's next gate. Sold out is said only when all buckets and all transfers are empty.

use std::time::Duration;

use actix::Context;
use tokio::sync::oneshot;

use super::{GateDeps, StockGate, answer};
use crate::actors::stock_gate::directory::GateAddress;
use crate::actors::supervisor::supervised::spawn_step;
use crate::domain::{BucketNo, Refusal};
use crate::messages::{BuyAnswer, LendStock};
use crate::stock::{self, BucketKey};

/// How long a sibling may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// How often all siblings are asked while there is stock that nobody could lend.
const ROUNDS_MAX: u32 = 8;

/// How long units under way are given to arrive before the next round.
const ROUND_PAUSE: Duration = Duration::from_millis(2);

/// What a haul came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransferOutcome {
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
        let deps = self.deps.clone();
        let work = async move { haul(&deps, most, want).await };
        spawn_step(self, ctx, work, |gate, ctx, haul| {
            gate.under_way.hauling = false;
            match haul {
                Ok(haul) => gate.hauled(ctx, haul),
                Err(error) => {
                    gate.is_fatal(ctx, &error);
                    gate.dry.drain(..).for_each(|ask| answer(ask, BuyAnswer::Busy));
                    gate.report_if_idle();
                }
            }
        });
    }

    fn hauled(&mut self, ctx: &mut Context<Self>, haul: TransferOutcome) {
        for ask in std::mem::take(&mut self.dry).into_iter().rev() {
            let quantity = ask.reservation.quantity;
            match haul {
                TransferOutcome::Brought => self.pending.push_front(ask),
                TransferOutcome::Nothing { left } if left < quantity => {
                    answer(ask, BuyAnswer::Refused { refusal: Refusal::SoldOut, replayed: false });
                }
                TransferOutcome::Nothing { .. } => answer(ask, BuyAnswer::Busy),
            }
        }
        self.decide(ctx);
        self.report_if_idle();
    }
}

/// Fetches up to `want` units for the bucket of `deps`; `most` is the largest single wish.
///
/// # Errors
/// The stock's error when a bucket cannot be changed.
async fn haul(deps: &GateDeps, most: u32, want: u32) -> Result<TransferOutcome, stock::Error> {
    let mut left = None;
    for _ in 0..ROUNDS_MAX {
        if ask_round(deps, want).await? > 0 {
            return Ok(TransferOutcome::Brought);
        }
        // A loan to this bucket whose lender's answer was lost is on record.
        if deps.stock.finish_transfers(deps.key()).await? > 0 {
            return Ok(TransferOutcome::Brought);
        }
        let before = left.replace(deps.stock.left(deps.sku.no));
        // Buckets are looked at one after the other: units that hop meanwhile may be missed once.
        if left.is_some_and(|left| left == 0 || (left < most && before == Some(left))) {
            break;
        }
        if deps.sku.buckets == 1 {
            // Units came back to this very bucket while it was being asked for others.
            return Ok(TransferOutcome::Brought);
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
    Ok(TransferOutcome::Nothing { left: left.unwrap_or(0) })
}

/// Asks each sibling once, the next higher bucket first, until there is enough.
async fn ask_round(deps: &GateDeps, want: u32) -> Result<u32, stock::Error> {
    let doors = deps.directory.of_sku(deps.sku.no);
    let buckets = deps.sku.buckets;
    let mut total: u32 = 0;
    for distance in 1..buckets {
        let from = BucketNo((deps.bucket.0 + distance) % buckets);
        let Some(door) = doors.get(usize::from(from.0)) else { continue };
        total = total.saturating_add(ask_one(deps, door, from, want - total).await?);
        if total >= want {
            break;
        }
    }
    Ok(total)
}

async fn ask_one(
    deps: &GateDeps,
    door: &GateAddress,
    from: BucketNo,
    want: u32,
) -> Result<u32, stock::Error> {
    let Some(gate) = door.address.get() else { return Ok(0) };
    let (reply, lent) = oneshot::channel();
    if gate.try_send(LendStock { to: deps.bucket, want, reply }).is_err() {
        return Ok(0);
    }
    let Ok(Ok(Some(loan))) = tokio::time::timeout(ANSWER_WAIT, lent).await else { return Ok(0) };
    let lender = BucketKey { sku: deps.sku.no, bucket: from };
    deps.metrics.transfer();
    deps.stock.borrow(lender, deps.bucket, loan).await
}
