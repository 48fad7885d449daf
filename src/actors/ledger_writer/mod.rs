//! Flow step 7/12: stock gate or order consumer -> ledger.
//!
//! The one writer of orders. While one batch is being committed, the next one gathers (natural
//! batching), and every intent gets its own outcome. Intakes are answered at COMMIT; gates, whose
//! buyers may read the stock next, once the results were written there. Results are written once
//! and beside the next batch: a stock in trouble holds up no commit.
//!
//! Owns: nothing that is not in the ledger or, as unsettled, in the stock. Limits: permits inside,
//! `consumer.batch_max` per transaction, a few batches whose results are being written. On error:
//! bounded retries, then `Unavailable` for what certainly was not written, and silence for what may
//! have been. On death: settlements are dropped, gates and intakes submit again. May repeat: every
//! intent.

pub mod handle;
pub mod placing;

use std::collections::VecDeque;
use std::sync::Arc;

use actix::{Actor, Context, Handler};
use tokio::sync::oneshot;

use crate::actors::ledger_writer::placing::{
    WriterDeps, WriterFailure, enter_results, write_batch,
};
use crate::actors::supervisor::supervised::{
    ExitReason, Incarnation, Supervised, end, spawn_step, step,
};
use crate::domain::OrderIntent;
use crate::messages::{PlaceOrders, Quiet, Settlement, Stop, WriteResult, reply};

pub use handle::LedgerWriterHandle;

/// Batches whose results are being written to the stock. A stock that is slower than so many
/// commits is in trouble: the results of further ones are left to whoever compares stock and
/// ledger.
const RESULTS_MAX: usize = 8;

/// Writes orders.
pub struct LedgerWriter {
    life: Incarnation,
    deps: Arc<WriterDeps>,
    queue: VecDeque<PlaceOrders>,
    writing: bool,
    /// Batches whose results are being written to the stock.
    num_results: usize,
    quiet: Vec<oneshot::Sender<()>>,
}

impl LedgerWriter {
    /// A consumer with nothing in hand.
    #[must_use]
    pub fn new(life: Incarnation, deps: Arc<WriterDeps>) -> Self {
        Self {
            life,
            deps,
            queue: VecDeque::new(),
            writing: false,
            num_results: 0,
            quiet: Vec::new(),
        }
    }

    /// Begins the next transaction, unless one is under way.
    fn write(&mut self, ctx: &mut Context<Self>) {
        if self.writing {
            return;
        }
        let batch = self.next_batch();
        if batch.is_empty() {
            return self.report_if_idle();
        }
        self.writing = true;
        for submission in &batch {
            submission.settlement.begin();
        }
        let exclusive = batch.iter().any(|submission| submission.exclusive);
        let intents: Vec<OrderIntent> =
            batch.iter().flat_map(|submission| submission.intents.iter().copied()).collect();
        let deps = Arc::clone(&self.deps);
        let work = async move {
            let begun = deps.clock.now();
            let written = write_batch(&deps, &intents, exclusive).await;
            let took = deps.clock.now().duration_since(begun);
            deps.metrics.consumer_batch(intents.len(), took.as_secs_f64());
            (intents, written)
        };
        spawn_step(self, ctx, work, |consumer, ctx, (intents, written)| {
            consumer.writing = false;
            match written {
                Ok(written) => consumer.committed(ctx, batch, intents, written),
                Err(error) => return consumer.give_up(ctx, &error),
            }
            consumer.write(ctx);
        });
    }

    /// Answers who waits for the commit, and the others when the stock was told.
    fn committed(
        &mut self,
        ctx: &mut Context<Self>,
        batch: Vec<PlaceOrders>,
        intents: Vec<OrderIntent>,
        written: Vec<WriteResult>,
    ) {
        // Crash here [committed_not_answered]: the orders are in the ledger; whoever hears nothing
        // submits again and is told that they are there.
        let mut waiting: Vec<(Settlement, Vec<WriteResult>)> = Vec::new();
        let mut results = written.iter();
        for submission in batch {
            let own = results.by_ref().take(submission.intents.len()).cloned().collect();
            if submission.settlement.is_at_commit() {
                submission.settlement.settle(own);
            } else {
                waiting.push((submission.settlement, own));
            }
        }
        let settle_all = |waiting: Vec<(Settlement, Vec<WriteResult>)>| {
            for (settlement, own) in waiting {
                settlement.settle(own);
            }
        };
        if self.num_results >= RESULTS_MAX {
            self.deps.metrics.results_left(intents.len());
            return settle_all(waiting);
        }
        self.num_results += 1;
        let deps = Arc::clone(&self.deps);
        let work = async move { enter_results(&deps, &intents, &written).await };
        spawn_step(self, ctx, work, move |consumer, ctx, entered| {
            consumer.num_results -= 1;
            match entered {
                Ok(()) => settle_all(waiting),
                Err(error) => return consumer.give_up(ctx, &error),
            }
            consumer.report_if_idle();
        });
    }

    fn report_if_idle(&mut self) {
        if !self.writing && self.queue.is_empty() && self.num_results == 0 {
            self.quiet.drain(..).for_each(|done| reply(done, ()));
        }
    }

    /// Whole submissions, up to `batch_max`, at least one; an exclusive one forms its own batch.
    /// Abandoned submissions are skipped: their sender submits again.
    fn next_batch(&mut self) -> Vec<PlaceOrders> {
        let mut batch = Vec::new();
        let mut size = 0;
        while let Some(next) = self.queue.front() {
            if next.settlement.is_abandoned() {
                self.queue.pop_front();
                continue;
            }
            size += next.intents.len();
            let exclusive = next.exclusive;
            if !batch.is_empty() && (exclusive || size > self.deps.batch_max) {
                break;
            }
            batch.extend(self.queue.pop_front());
            if exclusive {
                break;
            }
        }
        batch
    }

    fn give_up(&mut self, ctx: &mut Context<Self>, error: &WriterFailure) {
        end(self, ctx, ExitReason::Failed(error.to_string()));
    }
}

impl Supervised for LedgerWriter {
    fn life(&mut self) -> &mut Incarnation {
        &mut self.life
    }
}

impl Actor for LedgerWriter {
    type Context = Context<Self>;
}

impl Handler<PlaceOrders> for LedgerWriter {
    type Result = ();

    fn handle(&mut self, submission: PlaceOrders, ctx: &mut Self::Context) {
        step(self, ctx, |consumer, ctx| {
            consumer.queue.push_back(submission);
            consumer.write(ctx);
        });
    }
}

impl Handler<Quiet> for LedgerWriter {
    type Result = ();

    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |consumer, ctx| {
            consumer.quiet.push(quiet.done);
            consumer.write(ctx);
        });
    }
}

impl Handler<Stop> for LedgerWriter {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
