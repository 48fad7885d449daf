//! Submits accepted intents to the ledger writer, and resubmits those that have no outcome.

use std::sync::Arc;
use std::time::Duration;

use actix::Context;

use super::{Dispatch, StockGate, answer};
use crate::actors::supervisor::supervised::{spawn_step, spawn_wait, step_later};
use crate::domain::{Counting, OrderIntent, PlaceOutcome, RequestRecord};
use crate::messages::{BuyAnswer, Reserve, WriteResult};
use crate::runtime::backoff::Backoff;
use crate::stock;

/// Resubmission passes in a row that a busy gate may skip.
const SKIPS_MAX: u32 = 4;

/// Shortest time between two lines of the log about a full outbox.
const FULL_LOGGED_EVERY: Duration = Duration::from_secs(60);

/// A buyer who waits for the ledger.
pub(super) struct Waiter {
    pub(super) purchase: Reserve,
    pub(super) replayed: bool,
}

impl StockGate {
    /// Submits accepted intents to the ledger writer, in chunks that fit one transaction, so that
    /// an unknown outcome delays its own chunk only.
    pub(super) fn submit(&mut self, ctx: &mut Context<Self>, intents: Vec<OrderIntent>) {
        for intent in &intents {
            self.submitting.entry(intent.request).or_default();
        }
        for chunk in intents.chunks(self.deps.settings.batch_max) {
            self.place(ctx, chunk.to_vec(), self.deps.backoff());
        }
    }

    /// Logs that the outbox of the bucket is full, at most once in [`FULL_LOGGED_EVERY`].
    pub(super) fn log_full_outbox(&mut self) {
        let now = self.deps.clock.now();
        let is_due = |at| now.duration_since(at) >= FULL_LOGGED_EVERY;
        if self.full_logged_at.is_none_or(is_due) {
            self.full_logged_at = Some(now);
            let (sku, bucket) = (self.deps.sku.no, self.deps.bucket);
            tracing::warn!(%sku, %bucket, "outbox full: new buyers read busy");
        }
    }

    /// Submits, and resubmits while an outcome is unknown: to release the units of an unknown
    /// outcome could sell them twice. With an outbox there is nothing to submit.
    fn place(&mut self, ctx: &mut Context<Self>, intents: Vec<OrderIntent>, mut backoff: Backoff) {
        let Dispatch::LedgerWriter(ledger_writer) = self.deps.dispatch.clone() else { return };
        let work = async move {
            let written = ledger_writer.place_and_settle(intents.clone()).await;
            (intents, written)
        };
        spawn_wait(self, ctx, work, move |gate, ctx, (intents, written)| {
            let mut unknown = Vec::new();
            for (intent, written) in intents.into_iter().zip(written) {
                if written.as_ref().is_err_and(|error| !error.is_unwritten()) {
                    unknown.push(intent);
                } else {
                    for waiter in gate.submitting.remove(&intent.request).unwrap_or_default() {
                        let Waiter { purchase, replayed } = waiter;
                        answer(purchase, answer_of(&written, gate.deps.counting, replayed));
                    }
                }
            }
            if unknown.is_empty() {
                gate.report_if_idle();
                return;
            }
            let wait = backoff.next_wait(fastrand::f64());
            tracing::warn!(
                intents = unknown.len(),
                attempt = backoff.failures(),
                "order outcome unknown, resubmitting with the same request ids"
            );
            step_later(ctx, wait, move |gate: &mut Self, ctx| gate.place(ctx, unknown, backoff));
        });
    }

    /// Reads the intents that have no outcome, and submits those that this gate is not submitting
    /// already. They were left by a gate or process that crashed, by a lost answer, or by a ledger
    /// that was unavailable. Those that were queued for longer than the SKU allows are ended
    /// instead. With an outbox, relays and the orphan rescuer do this, and the reconciler ends
    /// requests.
    ///
    /// The first pass of a gate also finishes transfers to its bucket; the others leave young
    /// intents to those who submit them now.
    pub(super) fn resubmit_unsettled(&mut self, ctx: &mut Context<Self>, is_first: bool) {
        if self.in_progress.resubmitting || self.incarnation.is_quiet() {
            return;
        }
        // A gate that is submitting leaves the intents of others to an idle gate of the bucket; for
        // a few passes only, because it may be the only gate, and always busy.
        if !self.submitting.is_empty() && self.in_progress.skipped < SKIPS_MAX {
            self.in_progress.skipped += 1;
            return;
        }
        self.in_progress.skipped = 0;
        self.in_progress.resubmitting = true;
        let (stock, key) = (Arc::clone(&self.deps.stock), self.deps.key());
        let has_no_outbox = matches!(self.deps.dispatch, Dispatch::LedgerWriter(_));
        let after_ms = self.deps.settings.resubmit_after_ms;
        let work = async move {
            if is_first {
                stock.finish_transfers(key).await?;
            }
            if has_no_outbox { stock.unsettled(key).await } else { Ok(Vec::new()) }
        };
        spawn_step(self, ctx, work, move |gate, ctx, unsettled| {
            gate.in_progress.resubmitting = false;
            match unsettled {
                Ok(mut intents) => {
                    // One of the future is old, too: the clock has stepped back since.
                    let now_ms = gate.deps.clock.wall_ms();
                    let is_old = |at_ms: i64| at_ms.abs_diff(now_ms) > after_ms;
                    intents.retain(|intent| is_first || is_old(intent.placed_at_ms));
                    gate.end_expired(ctx, intents);
                }
                // A bucket that is not loaded has no unsettled intents.
                Err(stock::Error::NotLoaded(_)) => {}
                Err(error) => {
                    gate.handle_stock_error(ctx, &error);
                }
            }
        });
    }

    /// Ends the intents that were queued for too long, and resubmits the others. Those that cannot
    /// be ended, because the ledger is away, wait for the next pass; the ledger writer reports it.
    fn end_expired(&mut self, ctx: &mut Context<Self>, mut intents: Vec<OrderIntent>) {
        if self.deps.sku.queue_timeout_s == 0 {
            self.submit_others(ctx, intents);
            return;
        }
        self.in_progress.resubmitting = true;
        let (requests, sku) = (self.deps.requests.clone(), Arc::clone(&self.deps.sku));
        let work = async move {
            let ended = requests.end_expired(&sku, &mut intents).await;
            (intents, ended)
        };
        spawn_wait(self, ctx, work, |gate, ctx, (intents, ended)| {
            gate.in_progress.resubmitting = false;
            if let Err(error) = ended {
                gate.deps.metrics.ledger_error(error.class());
            }
            gate.submit_others(ctx, intents);
        });
    }

    /// Submits the intents that this gate is not submitting already.
    fn submit_others(&mut self, ctx: &mut Context<Self>, mut intents: Vec<OrderIntent>) {
        intents.retain(|intent| !self.submitting.contains_key(&intent.request));
        self.submit(ctx, intents);
    }
}

/// The answer to a buyer for a result. A ledger that counts does not record its refusals and
/// decides each time: its refusal is never a replay.
fn answer_of(written: &WriteResult, counting: Counting, replayed: bool) -> BuyAnswer {
    match written {
        Ok(PlaceOutcome::Placed(order) | PlaceOutcome::Repeat(order)) => {
            BuyAnswer::Ordered { record: RequestRecord::ordered(order), replayed }
        }
        Ok(PlaceOutcome::Refused(refusal)) => {
            let replayed = replayed && counting == Counting::InStock;
            BuyAnswer::Refused { refusal: *refusal, replayed }
        }
        // The next resubmission pass submits it again.
        Err(_) => pending_answer(counting, replayed),
    }
}

/// The answer to a buyer while the ledger has not decided. Where the ledger counts the units, only
/// its COMMIT accepts a request: until then the answer is `Unknown`.
pub(super) fn pending_answer(counting: Counting, replayed: bool) -> BuyAnswer {
    match counting {
        Counting::InStock => BuyAnswer::Queued { replayed },
        Counting::InLedger => BuyAnswer::Unknown,
    }
}
