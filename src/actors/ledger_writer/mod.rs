//! Flow step 7/12: stock gate or order consumer -> ledger writer.
//!
//! The single writer of orders. While one batch is being committed, the next one gathers (natural
//! batching), and every intent gets its own outcome. Order consumers are answered at COMMIT. Gates
//! are answered after the results are written to the stock, because their buyers may read the stock
//! next. Results are written once, concurrently with the next batch, so that a slow stock delays no
//! commit.
//!
//! Owns: no state of its own; orders are in the ledger, undecided requests in the stock. Limits:
//! permits inside, `consumer.batch_max` per transaction, eight batches whose results are being
//! written. On error: bounded retries, then an error for each intent that says whether it may have
//! been written. On crash: replies are dropped; gates and order consumers resubmit. May repeat:
//! every intent.

pub mod batch;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::{Actor, Context, Handler};
use tokio::sync::oneshot;

use crate::actors::ledger_writer::batch::{WriterDeps, write_batch, write_results};
use crate::actors::supervisor::supervised::{
    Address, ExitReason, Incarnation, end, spawn_step, step, supervised,
};
use crate::domain::OrderIntent;
use crate::messages::{PlaceOrders, Quiet, WriteError, WriteResult, reply};
use crate::runtime::permits::Permits;

/// Batches whose results are being written to the stock. Beyond this limit the stock is failing:
/// the results of further batches are left to the next submission or the reconciler.
const RESULTS_MAX: usize = 8;

/// Submits intents to the ledger writer, and awaits their outcomes. Cheap to clone.
#[derive(Clone)]
pub struct LedgerWriterHandle {
    /// Bound the intents inside the ledger writer.
    pub permits: Permits,
    pub address: Address<LedgerWriter>,
}

impl LedgerWriterHandle {
    /// Submits for a gate, answered when the results are written to the stock. Returns one result
    /// per intent, in order.
    pub async fn place_and_settle(&self, intents: Vec<OrderIntent>) -> Vec<WriteResult> {
        self.submit(intents, false, false).await
    }

    /// Submits for an order consumer, answered at COMMIT. Returns one result per intent, in order.
    pub async fn place(&self, intents: Vec<OrderIntent>, is_exclusive: bool) -> Vec<WriteResult> {
        self.submit(intents, is_exclusive, true).await
    }

    async fn submit(
        &self,
        intents: Vec<OrderIntent>,
        is_exclusive: bool,
        at_commit: bool,
    ) -> Vec<WriteResult> {
        let expected = intents.len();
        let (reply, written) = oneshot::channel();
        let begun = Arc::<AtomicBool>::default();
        let sent = async {
            let permit = self.permits.take(expected).await?;
            let writer = self.address.wait_up().await;
            let begun = Arc::clone(&begun);
            let orders = PlaceOrders { intents, is_exclusive, at_commit, reply, begun, permit };
            writer.try_send(orders).ok()
        };
        let written = match sent.await {
            Some(()) => written.await.ok().filter(|written| written.len() == expected),
            None => None,
        };
        written.unwrap_or_else(|| {
            let is_begun = begun.load(Ordering::Acquire);
            let error = if is_begun { WriteError::Crashed } else { WriteError::NotTried };
            vec![Err(error); expected]
        })
    }
}

/// Writes orders to the ledger.
pub struct LedgerWriter {
    incarnation: Incarnation,
    deps: Arc<WriterDeps>,
    queue: VecDeque<PlaceOrders>,
    is_writing: bool,
    /// Batches whose results are being written to the stock.
    num_results: usize,
}

impl LedgerWriter {
    pub fn new(incarnation: Incarnation, deps: Arc<WriterDeps>) -> Self {
        Self { incarnation, deps, queue: VecDeque::new(), is_writing: false, num_results: 0 }
    }

    /// Starts to write the next batch, unless one is being written.
    fn write(&mut self, ctx: &mut Context<Self>) {
        if self.is_writing {
            return;
        }
        let batch = self.next_batch();
        if batch.is_empty() {
            return self.report_if_idle();
        }
        self.is_writing = true;
        for submission in &batch {
            submission.begun.store(true, Ordering::Release);
        }
        let is_exclusive = batch.iter().any(|submission| submission.is_exclusive);
        let intents: Vec<OrderIntent> =
            batch.iter().flat_map(|submission| submission.intents.iter().copied()).collect();
        let deps = Arc::clone(&self.deps);
        let work = async move {
            let started_at = deps.clock.now();
            let written = write_batch(&deps, &intents, is_exclusive).await;
            let took = deps.clock.now().duration_since(started_at);
            deps.metrics.writer_batch_size.observe(intents.len() as f64);
            deps.metrics.ledger_commit.observe(took.as_secs_f64());
            (intents, written)
        };
        spawn_step(self, ctx, work, |writer, ctx, (intents, written)| {
            writer.is_writing = false;
            match written {
                Ok(written) => writer.committed(ctx, batch, intents, written),
                Err(error) => return end(writer, ctx, ExitReason::Failed(error.to_string())),
            }
            writer.write(ctx);
        });
    }

    /// Answers the submissions that wait for COMMIT only, and the others after the results are
    /// written to the stock.
    fn committed(
        &mut self,
        ctx: &mut Context<Self>,
        batch: Vec<PlaceOrders>,
        intents: Vec<OrderIntent>,
        written: Vec<WriteResult>,
    ) {
        // Crash here [committed_not_answered]: the orders are committed; a sender without an answer
        // resubmits, and the ledger answers `Repeat`.
        let mut waiting: Vec<(oneshot::Sender<Vec<WriteResult>>, Vec<WriteResult>)> = Vec::new();
        let mut results = written.iter();
        for submission in batch {
            let own = results.by_ref().take(submission.intents.len()).cloned().collect();
            if submission.at_commit {
                reply(submission.reply, own);
            } else {
                waiting.push((submission.reply, own));
            }
        }
        let answer = || waiting.into_iter().for_each(|(to, own)| reply(to, own));
        if self.num_results >= RESULTS_MAX {
            self.deps.metrics.results_not_written.inc_by(intents.len() as u64);
            return answer();
        }
        self.num_results += 1;
        let deps = Arc::clone(&self.deps);
        let work = async move { write_results(&deps, &intents, &written).await };
        spawn_step(self, ctx, work, move |writer, ctx, result| {
            writer.num_results -= 1;
            if result.is_err() {
                let reason = "results cannot be entered in the stock".to_owned();
                return end(writer, ctx, ExitReason::Failed(reason));
            }
            answer();
            writer.report_if_idle();
        });
    }

    fn report_if_idle(&mut self) {
        if !self.is_writing && self.queue.is_empty() && self.num_results == 0 {
            self.incarnation.report_quiet();
        }
    }

    /// Takes whole submissions up to `batch_max` intents, at least one. An exclusive submission
    /// forms its own batch. Submissions whose sender has closed the channel are skipped: it submits
    /// the same intents again, and writing these would only delay others.
    fn next_batch(&mut self) -> Vec<PlaceOrders> {
        let mut batch = Vec::new();
        let mut size = 0;
        while let Some(next) = self.queue.front() {
            if next.reply.is_closed() {
                self.queue.pop_front();
                continue;
            }
            size += next.intents.len();
            let is_exclusive = next.is_exclusive;
            if !batch.is_empty() && (is_exclusive || size > self.deps.settings.batch_max) {
                break;
            }
            batch.extend(self.queue.pop_front());
            if is_exclusive {
                break;
            }
        }
        batch
    }
}

supervised!(LedgerWriter);

impl Actor for LedgerWriter {
    type Context = Context<Self>;
}

impl Handler<PlaceOrders> for LedgerWriter {
    type Result = ();

    fn handle(&mut self, submission: PlaceOrders, ctx: &mut Self::Context) {
        step(self, ctx, |writer, ctx| {
            writer.queue.push_back(submission);
            writer.write(ctx);
        });
    }
}

impl Handler<Quiet> for LedgerWriter {
    type Result = ();

    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |writer, ctx| {
            writer.incarnation.quiet(quiet);
            writer.write(ctx);
        });
    }
}
