//! Flow step 2/12: buy handler -> stock gate.
//!
//! One gate serves one bucket of one SKU. While one batch of reservations is with the stock, the
//! next one gathers: without timers, a single buyer waits for no other, and a crowd is decided in
//! few steps. Accepted requests are submitted to the ledger writer at once (`submission`), and
//! their buyers are answered after the ledger. With an outbox, the stock has already enqueued them,
//! and their buyers are answered `queued` at once. A bucket that cannot serve its reservations
//! borrows units from its siblings (`transfer`).
//!
//! Owns: the waiting buyers. Limits: permits inside, `gate.batch_max` per step, one transfer at a
//! time. On error: a half-written stock ends the gate; an unavailable one is retried a few times,
//! then buyers are answered `busy`, or `unknown` where it may have accepted. On crash: the handle
//! sends waiting requests again; unsettled reservations are in the stock, and any gate of the
//! bucket resubmits them. May repeat: reservations and submissions, by request id.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, AsyncContext, Context, Handler};

use crate::actors::ledger_writer::LedgerWriterHandle;
use crate::actors::outbox_relay::RelayHandle;
use crate::actors::supervisor::supervised::{
    ExitReason, Incarnation, LastError, end, spawn_step, step, step_later, supervised,
};
use crate::config::GateSettings;
use crate::domain::{BucketKey, BucketNo, Counting, Epoch, OrderIntent, RequestId, Sku, Verdict};
use crate::messages::{BuyAnswer, Quiet, Reserve, reply};
use crate::observe::metrics::Metrics;
use crate::runtime::backoff::Backoff;
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::services::request_ending::RequestService;
use crate::stock::{self, Stock};

pub use handle::{GateDirectory, GateHandle};

pub mod handle;
mod submission;
mod transfer;

use submission::Waiter;

/// The epoch before the first opening of a sale: the stock answers repeats and accepts nothing new.
const NO_OPENING: Epoch = Epoch(0);

/// Where a gate sends the requests that its stock accepted.
#[derive(Clone)]
pub enum Dispatch {
    /// To the ledger writer; the buyers wait for the ledger.
    LedgerWriter(LedgerWriterHandle),
    /// The stock writes them to the outbox in the same atomic step. The buyers are answered
    /// `queued`, and the relays of this process, if any, are notified.
    Outbox(Option<RelayHandle>),
}

/// Dependencies of a gate; shared by all incarnations of the gate of a bucket.
#[derive(Clone)]
pub struct GateDeps {
    pub sku: Arc<Sku>,
    pub bucket: BucketNo,
    pub stock: Arc<dyn Stock>,
    /// Whether the stock counts the units, or the ledger.
    pub counting: Counting,
    pub dispatch: Dispatch,
    /// The sibling gates.
    pub directory: Arc<GateDirectory>,
    pub requests: RequestService,
    pub settings: GateSettings,
    /// Open while the ledger fails.
    pub breaker: Breaker,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl GateDeps {
    pub fn key(&self) -> BucketKey {
        BucketKey { sku: self.sku.no, bucket: self.bucket }
    }

    fn backoff(&self) -> Backoff {
        let settings = &self.settings;
        Backoff::new(settings.resubmit_backoff_min_ms, settings.resubmit_backoff_max_ms)
    }
}

/// The gate of one bucket.
pub struct StockGate {
    incarnation: Incarnation,
    deps: GateDeps,
    /// Purchases that no batch has yet.
    pending: VecDeque<Reserve>,
    /// Purchases that this bucket alone cannot serve.
    starved: VecDeque<Reserve>,
    /// Accepted requests that this gate has submitted to the ledger writer, each with the buyers
    /// who wait for it.
    submitting: HashMap<RequestId, Vec<Waiter>>,
    in_progress: InProgress,
    /// The last error of the stock, until it succeeds again.
    last_error: LastError,
    /// When it last logged that the outbox is full.
    full_logged_at: Option<Instant>,
}

impl StockGate {
    pub fn new(incarnation: Incarnation, deps: GateDeps) -> Self {
        Self {
            incarnation,
            deps,
            pending: VecDeque::new(),
            starved: VecDeque::new(),
            submitting: HashMap::new(),
            in_progress: InProgress::default(),
            last_error: LastError::default(),
            full_logged_at: None,
        }
    }

    /// Sends the next batch to the stock, unless one is being decided. A request whose sender has
    /// stopped waiting is left out: a repeat of it may have been told since that the sale is over.
    fn decide(&mut self, ctx: &mut Context<Self>) {
        if self.in_progress.deciding {
            return;
        }
        let mut batch = Vec::with_capacity(self.pending.len().min(self.deps.settings.batch_max));
        while batch.len() < self.deps.settings.batch_max
            && let Some(purchase) = self.pending.pop_front()
        {
            if !purchase.reply.is_closed() {
                batch.push(purchase);
            }
        }
        if batch.is_empty() {
            return;
        }
        self.in_progress.deciding = true;
        self.deps.metrics.gate_batch_size.observe(batch.len() as f64);
        let failed = FailedAttempts { backoff: self.deps.backoff(), is_unknown: false };
        self.reserve(ctx, batch, failed);
    }

    fn reserve(&mut self, ctx: &mut Context<Self>, batch: Vec<Reserve>, failed: FailedAttempts) {
        let intents = batch.iter().map(|purchase| purchase.intent).collect();
        let (stock, key) = (Arc::clone(&self.deps.stock), self.deps.key());
        let work = async move { stock.reserve(key, intents).await };
        spawn_step(self, ctx, work, move |gate, ctx, verdicts| match verdicts {
            Ok(verdicts) => {
                if gate.last_error.clear() {
                    let (sku, bucket) = (gate.deps.sku.no, gate.deps.bucket);
                    tracing::info!(%sku, %bucket, "stock gate: stock available again");
                }
                gate.decided(ctx, batch, verdicts);
            }
            Err(error) => gate.not_decided(ctx, batch, &error, failed),
        });
    }

    fn decided(&mut self, ctx: &mut Context<Self>, batch: Vec<Reserve>, verdicts: Vec<Verdict>) {
        if verdicts.contains(&Verdict::Reserved) {
            self.in_progress.fruitless = 0;
        }
        let is_accepted = |it: &Verdict| matches!(it, Verdict::Reserved | Verdict::Queued { .. });
        if let Dispatch::Outbox(Some(relays)) = &self.deps.dispatch
            && verdicts.iter().any(is_accepted)
        {
            relays.notify(self.deps.key());
        }
        // Crash here [reserved_not_submitted]: the units are taken and the ledger has no order; the
        // next gate of the bucket reads the intents from the stock. With an outbox, a relay
        // publishes them.
        let mut intents = Vec::with_capacity(batch.len());
        for (purchase, verdict) in batch.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Reserved => {
                    let intent = Some(purchase.intent);
                    self.dispatch(purchase, intent, false, &mut intents);
                }
                // Accepted by an earlier call whose answer was lost, or by another process, which
                // may have crashed. With an outbox it is only answered; without one it is submitted
                // again, and a second submission is a repeat.
                Verdict::Queued { .. } if is_repeat_only(&purchase) => {
                    answer(purchase, submission::pending_answer(self.deps.counting, true));
                }
                Verdict::Queued { intent } => {
                    self.dispatch(purchase, intent, true, &mut intents);
                }
                Verdict::Repeat(record) => answer(purchase, BuyAnswer::repeat(record)),
                Verdict::Refused(refusal) => answer(purchase, BuyAnswer::refused(refusal)),
                Verdict::StaleEpoch if !is_repeat_only(&purchase) => {
                    reply(purchase.reply, None);
                }
                Verdict::StaleEpoch => answer(purchase, BuyAnswer::Busy),
                Verdict::Full => {
                    self.log_full_outbox();
                    answer(purchase, BuyAnswer::Busy);
                }
                Verdict::Short => self.starved.push_back(purchase),
            }
        }
        if !intents.is_empty() {
            self.submit(ctx, intents);
        }
        if !self.starved.is_empty() {
            self.start_transfer(ctx);
        }
        self.decide_next(ctx);
    }

    /// Dispatches one accepted request to the ledger writer or, with an outbox, answers it. A
    /// repeat is dispatched as it was accepted: the terms of the sale may have changed since.
    fn dispatch(
        &mut self,
        purchase: Reserve,
        intent: Option<OrderIntent>,
        replayed: bool,
        intents: &mut Vec<OrderIntent>,
    ) {
        match &self.deps.dispatch {
            Dispatch::LedgerWriter(_) => {
                match (self.submitting.entry(purchase.intent.request), intent) {
                    (Entry::Occupied(mut waiters), _) => {
                        waiters.get_mut().push(Waiter { purchase, replayed });
                    }
                    (Entry::Vacant(waiters), Some(intent)) => {
                        intents.push(intent);
                        waiters.insert(vec![Waiter { purchase, replayed }]);
                    }
                    (Entry::Vacant(_), None) => {
                        answer(purchase, submission::pending_answer(self.deps.counting, replayed));
                    }
                }
            }
            Dispatch::Outbox(_) => answer(purchase, BuyAnswer::Queued { replayed }),
        }
    }

    /// Retries a batch after an error of the stock, a few times, with the same request ids. A
    /// request that the stock accepted without an answer is in the outbox, where a relay finds it,
    /// or is found by [`Self::resubmit_unsettled`].
    fn not_decided(
        &mut self,
        ctx: &mut Context<Self>,
        mut batch: Vec<Reserve>,
        error: &stock::Error,
        mut failed: FailedAttempts,
    ) {
        if self.handle_stock_error(ctx, error) {
            for purchase in batch {
                answer(purchase, BuyAnswer::Busy);
            }
            return;
        }
        let is_transient =
            matches!(error, stock::Error::Unavailable { .. } | stock::Error::Unknown { .. });
        failed.is_unknown |= !error.is_certain();
        let wait = failed.backoff.next_wait(fastrand::f64());
        if is_transient && failed.backoff.failures() < self.deps.settings.reserve_attempts_max {
            step_later(ctx, wait, move |gate: &mut Self, ctx| {
                // As in `decide`: meanwhile a sender may have stopped waiting.
                batch.retain(|purchase| !purchase.reply.is_closed());
                if batch.is_empty() {
                    gate.decide_next(ctx);
                } else {
                    gate.reserve(ctx, batch, failed);
                }
            });
            return;
        }
        let undecided = if failed.is_unknown { BuyAnswer::Unknown } else { BuyAnswer::Busy };
        for purchase in batch {
            answer(purchase, undecided);
        }
        self.decide_next(ctx);
    }

    /// The stock has answered a batch: sends the next one.
    fn decide_next(&mut self, ctx: &mut Context<Self>) {
        self.in_progress.deciding = false;
        self.decide(ctx);
        self.report_if_idle();
    }

    /// Counts and logs an error of the stock. A half-written stock ends the gate. Returns whether
    /// the gate ended.
    fn handle_stock_error(&mut self, ctx: &mut Context<Self>, error: &stock::Error) -> bool {
        self.deps.metrics.stock_error(error);
        if matches!(error, stock::Error::HalfWritten { .. }) {
            end(self, ctx, ExitReason::Failed(error.to_string()));
            return true;
        }
        if let Some(error) = self.last_error.changed(Err(error)) {
            let (sku, bucket) = (self.deps.sku.no, self.deps.bucket);
            tracing::warn!(%sku, %bucket, %error, "stock gate: stock call failed");
        }
        false
    }

    fn report_if_idle(&mut self) {
        let is_idle = self.pending.is_empty()
            && self.starved.is_empty()
            && !self.in_progress.deciding
            && !self.in_progress.transferring
            && self.submitting.is_empty();
        if self.incarnation.is_quiet() && is_idle {
            self.incarnation.report_quiet();
        }
    }
}

/// Operations that run beside the mailbox, at most one of each.
#[derive(Debug, Clone, Copy, Default)]
struct InProgress {
    deciding: bool,
    transferring: bool,
    /// Transfers whose units served no request yet.
    fruitless: u32,
    resubmitting: bool,
    /// Resubmission passes skipped since the last one.
    skipped: u32,
}

/// Failed attempts to reserve one batch.
#[derive(Debug, Clone, Copy)]
struct FailedAttempts {
    backoff: Backoff,
    /// Whether the stock may have accepted the batch.
    is_unknown: bool,
}

/// Whether the stock may answer the purchase only as a repeat, because the breaker is open.
fn is_repeat_only(purchase: &Reserve) -> bool {
    purchase.intent.epoch == NO_OPENING
}

/// Answers one buyer; a buyer who has disconnected reads the result later.
fn answer(purchase: Reserve, answer: BuyAnswer) {
    reply(purchase.reply, Some(answer));
}

supervised!(StockGate);

impl Actor for StockGate {
    type Context = Context<Self>;

    /// Takes over the unsettled intents and unfinished transfers of an earlier gate of this bucket.
    fn started(&mut self, ctx: &mut Self::Context) {
        step(self, ctx, |gate, ctx| gate.resubmit_unsettled(ctx, true));
        let every = Duration::from_millis(self.deps.settings.resubmit_every_ms);
        ctx.run_interval(every, |gate, ctx| {
            step(gate, ctx, |gate, ctx| gate.resubmit_unsettled(ctx, false));
        });
    }
}

impl Handler<Reserve> for StockGate {
    type Result = ();

    fn handle(&mut self, mut purchase: Reserve, ctx: &mut Self::Context) {
        step(self, ctx, |gate, ctx| {
            // While the stock fails, one batch retries it; new requests are rejected at once.
            let is_retrying = gate.in_progress.deciding && gate.last_error.is_some();
            if gate.incarnation.is_quiet() || is_retrying {
                answer(purchase, BuyAnswer::Busy);
                return;
            }
            // A new request is admitted if it can be dispatched: always with an outbox, else while
            // the breaker is closed or as its probe.
            let has_outbox = matches!(gate.deps.dispatch, Dispatch::Outbox(_));
            if !has_outbox && !gate.deps.breaker.try_admit() {
                purchase.intent.epoch = NO_OPENING;
            }
            gate.pending.push_back(purchase);
            gate.decide(ctx);
        });
    }
}

impl Handler<Quiet> for StockGate {
    type Result = ();

    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |gate, _| {
            gate.incarnation.quiet(quiet);
            gate.report_if_idle();
        });
    }
}
