//! Flow step 7/12: stock gate or order intake -> ledger.
//!
//! The one writer of orders. Whatever its intake is, each submission carries how to settle it; the
//! consumer does not look inside. While one batch is being committed, the next one gathers (natural
//! batching); every intent gets its own outcome, and results are in the stock before anybody is
//! answered.
//!
//! Owns: nothing that is not in the ledger or, as unsettled, in the stock. Limits: permits inside,
//! `consumer.batch_max` per transaction. On error: bounded retries, then `Unavailable` for what
//! certainly was not written, and silence for what may have been. On death: settlements are
//! dropped, gates and intakes submit again. May repeat: every intent.

use std::collections::VecDeque;
use std::sync::Arc;

use actix::{Actor, Context, Handler};
use tokio::sync::oneshot;

use super::child::{ExitReason, Life, Living, end, spawn_step, step};
use super::placing_step::{GiveUp, PlacingParts, write_batch};
use crate::domain::OrderIntent;
use crate::messages::{Landing, PlaceOrders, Quiet, Stop, reply};

/// Writes orders.
pub struct OrderConsumer {
    life: Life,
    parts: Arc<PlacingParts>,
    queue: VecDeque<PlaceOrders>,
    writing: bool,
    quiet: Vec<oneshot::Sender<()>>,
}

impl OrderConsumer {
    /// A consumer with nothing in hand.
    #[must_use]
    pub fn new(life: Life, parts: Arc<PlacingParts>) -> Self {
        Self { life, parts, queue: VecDeque::new(), writing: false, quiet: Vec::new() }
    }

    /// Begins the next transaction, unless one is under way.
    fn write(&mut self, ctx: &mut Context<Self>) {
        if self.writing {
            return;
        }
        let batch = self.next_batch();
        if batch.is_empty() {
            self.quiet.drain(..).for_each(|done| reply(done, ()));
            return;
        }
        self.writing = true;
        for submission in &batch {
            submission.settlement.begin();
        }
        let alone = batch.iter().any(|submission| submission.alone);
        let intents: Vec<OrderIntent> =
            batch.iter().flat_map(|submission| submission.intents.iter().copied()).collect();
        let parts = Arc::clone(&self.parts);
        let work = async move {
            let begun = parts.clock.now();
            let written = write_batch(&parts, &intents, alone).await;
            let took = parts.clock.now().duration_since(begun);
            parts.metrics.consumer_batch(intents.len(), took.as_secs_f64());
            written
        };
        spawn_step(self, ctx, work, |consumer, ctx, written| {
            consumer.writing = false;
            match written {
                Ok(landings) => deliver(batch, landings),
                Err(error) => return consumer.give_up(ctx, &error),
            }
            consumer.write(ctx);
        });
    }

    /// Whole submissions, up to the batch limit, at least one; one that wants to be alone is. What
    /// nobody waits for any more comes again by another way, and is left out.
    fn next_batch(&mut self) -> Vec<PlaceOrders> {
        let mut batch = Vec::new();
        let mut size = 0;
        while let Some(next) = self.queue.front() {
            if next.settlement.is_abandoned() {
                self.queue.pop_front();
                continue;
            }
            size += next.intents.len();
            let alone = next.alone;
            if !batch.is_empty() && (alone || size > self.parts.batch_max) {
                break;
            }
            batch.extend(self.queue.pop_front());
            if alone {
                break;
            }
        }
        batch
    }

    fn give_up(&mut self, ctx: &mut Context<Self>, error: &GiveUp) {
        end(self, ctx, ExitReason::Failed(error.to_string()));
    }
}

/// Settles every submission with its own part of the landings.
fn deliver(batch: Vec<PlaceOrders>, landings: Vec<Landing>) {
    // Crash here [committed_not_answered]: the orders are in the ledger and their results in the
    // stock; whoever hears nothing submits again and is told that the orders are there.
    let mut landings = landings.into_iter();
    for submission in batch {
        let own = landings.by_ref().take(submission.intents.len()).collect();
        submission.settlement.settle(own);
    }
}

impl Living for OrderConsumer {
    fn life(&mut self) -> &mut Life {
        &mut self.life
    }
}

impl Actor for OrderConsumer {
    type Context = Context<Self>;
}

impl Handler<PlaceOrders> for OrderConsumer {
    type Result = ();

    fn handle(&mut self, submission: PlaceOrders, ctx: &mut Self::Context) {
        step(self, ctx, |consumer, ctx| {
            consumer.queue.push_back(submission);
            consumer.write(ctx);
        });
    }
}

impl Handler<Quiet> for OrderConsumer {
    type Result = ();

    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |consumer, ctx| {
            consumer.quiet.push(quiet.done);
            consumer.write(ctx);
        });
    }
}

impl Handler<Stop> for OrderConsumer {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
