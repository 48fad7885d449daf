//! From the gate to the ledger: submissions, and what was accepted without anybody bringing it.

use actix::{AsyncContext, Context};

use super::{
    Arc, Backoff, Dispatch, LedgerWriterHandle, StockGate, reply, spawn_step, spawn_wait, stock,
};
use crate::domain::{Counting, Order, OrderIntent, PlaceOutcome, RequestId};
use crate::messages::{BuyAnswer, GateReply};

/// So many sweeps in a row are left out by a gate that is busy.
const SKIPS_MAX: u32 = 4;

impl StockGate {
    /// Hands accepted intents to the consumer, in pieces that fit one transaction: an outcome that
    /// is not known holds up its own piece only. Nothing to do where there is an outbox.
    pub(super) fn submit(&mut self, ctx: &mut Context<Self>, intents: Vec<OrderIntent>) {
        let Dispatch::Consumer(orders) = self.deps.handing.clone() else { return };
        self.submitting.extend(intents.iter().map(|intent| intent.request));
        for piece in intents.chunks(self.deps.settings.batch_max) {
            let backoff = self.deps.backoff();
            self.place(ctx, orders.clone(), piece.to_vec(), backoff);
        }
    }

    /// Submits to the consumer, and again while an outcome is not known: to give units back on a
    /// doubt could sell them twice.
    fn place(
        &mut self,
        ctx: &mut Context<Self>,
        orders: LedgerWriterHandle,
        intents: Vec<OrderIntent>,
        mut backoff: Backoff,
    ) {
        let work = async move {
            let outcomes = orders.place(intents.clone()).await;
            (orders, intents, outcomes)
        };
        spawn_wait(self, ctx, work, move |gate, ctx, (orders, intents, outcomes)| {
            let mut unknown = Vec::new();
            for (intent, outcome) in intents.into_iter().zip(outcomes) {
                match outcome {
                    Some(outcome) => gate.settled(intent.request, &outcome),
                    None => unknown.push(intent),
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
                "outcome unknown, asking the ledger again with the same request ids"
            );
            ctx.run_later(wait, move |gate, ctx| gate.place(ctx, orders, unknown, backoff));
        });
    }

    /// Answers every buyer who waits for this request.
    fn settled(&mut self, request: RequestId, outcome: &PlaceOutcome) {
        self.submitting.remove(&request);
        for waiter in self.waiting.remove(&request).unwrap_or_default() {
            let answer = answer_of(outcome, self.deps.counting, waiter.replayed);
            reply(waiter.reply, GateReply::Final(answer));
        }
    }

    /// Looks for what was accepted before that time and has no outcome, and submits what this gate
    /// does not have in hand: left by a gate or a process that died, by an answer that was lost, or
    /// by a ledger that was away.
    ///
    /// A gate that starts also finishes transfers to its bucket. Where there is an outbox, what
    /// was accepted is in the care of relays and rescuers.
    pub(super) fn sweep(&mut self, ctx: &mut Context<Self>, asked_before_ms: i64) {
        if self.under_way.sweeping || self.is_quiet {
            return;
        }
        // A gate that is busy with its own work leaves that of others to them; for a while, because
        // it may be the only one, and busy without end.
        if !self.submitting.is_empty() && self.under_way.skipped < SKIPS_MAX {
            self.under_way.skipped += 1;
            return;
        }
        self.under_way.skipped = 0;
        self.under_way.sweeping = true;
        let (stock, key) = (Arc::clone(&self.deps.stock), self.deps.key());
        let submits = matches!(self.deps.handing, Dispatch::Consumer(_));
        let work = async move {
            if asked_before_ms == i64::MAX {
                stock.finish_transfers(key).await?;
            }
            if submits { stock.unsettled(key, asked_before_ms).await } else { Ok(Vec::new()) }
        };
        spawn_step(self, ctx, work, |gate, ctx, unsettled| {
            gate.under_way.sweeping = false;
            match unsettled {
                Ok(mut intents) => {
                    intents.retain(|intent| !gate.submitting.contains(&intent.request));
                    gate.submit(ctx, intents);
                }
                // A bucket that nobody has loaded has nothing to sweep.
                Err(stock::Error::NotLoaded(_)) => {}
                Err(error) => {
                    gate.is_fatal(ctx, &error);
                }
            }
        });
    }
}

/// What a buyer hears of an outcome. A ledger that counts keeps no record of its refusals and
/// decides anew each time: none of them is a repeat of the last.
fn answer_of(outcome: &PlaceOutcome, counting: Counting, replayed: bool) -> BuyAnswer {
    match outcome {
        PlaceOutcome::Placed(order) | PlaceOutcome::Repeat(order) => {
            let Order { quantity, placed_at_ms, state, .. } = *order;
            BuyAnswer::Placed { quantity, placed_at_ms, state, replayed }
        }
        PlaceOutcome::Refused(refusal) => {
            let replayed = replayed && counting == Counting::Here;
            BuyAnswer::Refused { refusal: *refusal, replayed }
        }
        // The next sweep submits it again.
        PlaceOutcome::Unavailable => undecided(counting, replayed),
    }
}

/// What a buyer hears while the ledger has not decided. Where the ledger counts the units, only its
/// COMMIT accepts a request: until then the buyer is promised nothing.
pub(super) fn undecided(counting: Counting, replayed: bool) -> BuyAnswer {
    match counting {
        Counting::Here => BuyAnswer::Queued { replayed },
        Counting::InLedger => BuyAnswer::Unknown,
    }
}
