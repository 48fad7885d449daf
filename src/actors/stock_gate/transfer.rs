//! Transfers units from sibling buckets to a bucket that cannot serve its reservations. Requests
//! stay in their home bucket; units move.
//!
//! A transfer takes units from the lender and records the loan there, adds them to the borrower,
//! once per loan number, and clears the record. After a crash between the steps, the borrower's
//! next gate finishes the transfer. A request is refused as sold out only when all buckets and all
//! transfers hold too few units.

use std::sync::Arc;
use std::time::Duration;

use actix::{Context, Handler};
use tokio::sync::oneshot;

use super::{GateDeps, StockGate, answer};
use crate::actors::supervisor::supervised::{spawn_step, step};
use crate::domain::{BucketKey, BucketNo, Refusal};
use crate::messages::{BuyAnswer, LendStock, reply};
use crate::runtime::backoff::doubled;
use crate::stock;

/// Longest wait for the answer of a sibling gate.
const LEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Rounds over all siblings while stock is left and none of them lends.
const ROUNDS_MAX: u32 = 8;

/// Wait before the next round, so that transfers in progress can finish.
const ROUND_PAUSE: Duration = Duration::from_millis(2);

/// Longest wait after transfers whose units served no request.
const FRUITLESS_PAUSE_MAX: Duration = Duration::from_millis(64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransferOutcome {
    /// Units were added to the bucket, by this transfer or meanwhile.
    DecideAgain,
    /// No sibling lent units.
    NothingLent {
        /// Units left in all buckets and transfers.
        left: u32,
    },
}

impl StockGate {
    /// Starts a transfer for the reservations that this bucket cannot serve, unless one is in
    /// progress.
    pub(super) fn start_transfer(&mut self, ctx: &mut Context<Self>) {
        if self.in_progress.transferring {
            return;
        }
        self.in_progress.transferring = true;
        let quantities = self.starved.iter().map(|purchase| purchase.intent.quantity);
        let largest = quantities.clone().max().unwrap_or(1);
        let needed = quantities.fold(0, u32::saturating_add);
        let deps = self.deps.clone();
        let num_fruitless = self.in_progress.fruitless;
        let work = async move {
            if num_fruitless > 0 {
                tokio::time::sleep(pause_after(num_fruitless)).await;
            }
            transfer(&deps, largest, needed, num_fruitless).await
        };
        spawn_step(self, ctx, work, |gate, ctx, outcome| {
            gate.in_progress.transferring = false;
            match outcome {
                Ok(outcome) => gate.transferred(ctx, outcome),
                Err(error) => {
                    gate.handle_stock_error(ctx, &error);
                    gate.starved.drain(..).for_each(|purchase| answer(purchase, BuyAnswer::Busy));
                    gate.report_if_idle();
                }
            }
        });
    }

    fn transferred(&mut self, ctx: &mut Context<Self>, outcome: TransferOutcome) {
        self.in_progress.fruitless = match outcome {
            TransferOutcome::DecideAgain => self.in_progress.fruitless.saturating_add(1),
            TransferOutcome::NothingLent { .. } => 0,
        };
        for purchase in std::mem::take(&mut self.starved).into_iter().rev() {
            let quantity = purchase.intent.quantity;
            match outcome {
                TransferOutcome::DecideAgain => self.pending.push_front(purchase),
                TransferOutcome::NothingLent { left } if left < quantity => {
                    answer(purchase, BuyAnswer::refused(Refusal::SoldOut));
                }
                TransferOutcome::NothingLent { .. } => answer(purchase, BuyAnswer::Busy),
            }
        }
        self.decide(ctx);
        self.report_if_idle();
    }
}

impl Handler<LendStock> for StockGate {
    type Result = ();

    fn handle(&mut self, request: LendStock, ctx: &mut Self::Context) {
        step(self, ctx, |gate, ctx| {
            let (stock, key) = (Arc::clone(&gate.deps.stock), gate.deps.key());
            let work = async move { stock.lend(key, request.to, request.want).await };
            spawn_step(gate, ctx, work, move |gate, ctx, loan| match loan {
                // Crash here [lent_not_borrowed]: the loan is on record; the borrower's
                // `finish_transfers` adds it.
                Ok(loan) => reply(request.reply, loan),
                Err(error) => {
                    gate.handle_stock_error(ctx, &error);
                    reply(request.reply, None);
                }
            });
        });
    }
}

/// The wait after transfers whose units served no request. Siblings in want of the last units can
/// lend each other what they have just borrowed, for ever: random waits, each up to twice as long,
/// let one of them reserve first.
fn pause_after(num_fruitless: u32) -> Duration {
    doubled(ROUND_PAUSE, FRUITLESS_PAUSE_MAX, num_fruitless).mul_f64(fastrand::f64())
}

/// Transfers up to `needed` units to the bucket of `deps`; `largest` is the largest quantity of one
/// reservation, and `num_fruitless` the transfers before this one that served none.
async fn transfer(
    deps: &GateDeps,
    largest: u32,
    needed: u32,
    num_fruitless: u32,
) -> Result<TransferOutcome, stock::Error> {
    let mut left = None;
    for _ in 0..ROUNDS_MAX {
        if borrow_round(deps, needed).await? > 0 {
            return Ok(TransferOutcome::DecideAgain);
        }
        // A loan to this bucket whose answer was lost is on record at the lender.
        if deps.stock.finish_transfers(deps.key()).await? > 0 {
            return Ok(TransferOutcome::DecideAgain);
        }
        let before = left.replace(deps.stock.left(deps.sku.no));
        // Buckets are read one after the other, so that one count may miss units in transfer.
        if left.is_some_and(|left| left == 0 || (left < largest && before == Some(left))) {
            break;
        }
        let is_enough = left.is_some_and(|left| left >= largest);
        if deps.sku.buckets == 1 && is_enough && num_fruitless < ROUNDS_MAX {
            // Units were released to this bucket meanwhile; or they are on loan to the ledger.
            return Ok(TransferOutcome::DecideAgain);
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
    Ok(TransferOutcome::NothingLent { left: left.unwrap_or(0) })
}

/// Borrows from each sibling once, the next higher bucket first, until there is enough. Returns the
/// units received.
async fn borrow_round(deps: &GateDeps, needed: u32) -> Result<u32, stock::Error> {
    let buckets = deps.sku.buckets;
    let mut total: u32 = 0;
    for distance in 1..buckets {
        let from = BucketNo((deps.bucket.0 + distance) % buckets);
        let gate = deps.directory.gate(deps.sku.no, from).and_then(|gate| gate.address.get());
        let Some(gate) = gate else { continue };
        let (reply, loan) = oneshot::channel();
        if gate.try_send(LendStock { to: deps.bucket, want: needed - total, reply }).is_err() {
            continue;
        }
        let Ok(Ok(Some(loan))) = tokio::time::timeout(LEND_TIMEOUT, loan).await else { continue };
        let lender = BucketKey { sku: deps.sku.no, bucket: from };
        deps.metrics.transfers.inc();
        total = total.saturating_add(deps.stock.borrow(lender, deps.bucket, loan).await?);
        if total >= needed {
            break;
        }
    }
    Ok(total)
}
