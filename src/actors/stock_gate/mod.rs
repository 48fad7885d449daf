//! Flow step 2/12: buy handler -> stock gate.
//!
//! One gate answers for one bucket of one SKU. While one batch of reservations is with the stock,
//! the next one gathers: no timers, so a single buyer waits for nobody, and a crowd is decided in
//! few steps. What the stock accepts goes to the order consumer at once (`submitting`), and the
//! buyer is answered when the ledger has answered; or, where there is an outbox, it is in there
//! already, and the buyer hears `queued` at once. A bucket that runs dry fetches units from its
//! siblings (`hauling`).
//!
//! Owns: the buyers that wait. Limits: permits inside, `gate.batch_max` per step, one transfer at a
//! time. On error: a stock that is half-written ends the gate; one that cannot be asked is asked
//! again a few times, then buyers hear `busy`, or `unknown` where it may have accepted. On death:
//! waiting buyers ask again; what was reserved and not settled is in the stock, and whichever gate
//! of the bucket looks there next submits it again. May repeat: reservations and submissions, by
//! request id.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};
use tokio::sync::oneshot;

use crate::actors::ledger_writer::handle::LedgerWriterHandle;
use crate::actors::supervisor::supervised::{
    ExitReason, Incarnation, Supervised, end, spawn_step, spawn_wait, step,
};
use crate::domain::{Epoch, OrderIntent, RequestId, RequestStatus, Verdict};
use crate::messages::{BuyAnswer, GateReply, LendStock, Quiet, Reserve, Stop, reply};
use crate::runtime::backoff::Backoff;
use crate::runtime::permits::Permit;
use crate::stock;

pub use deps::{Dispatch, GateDeps};
pub use directory::GateDirectory;
pub use handle::GateHandle;

mod deps;
pub mod directory;
pub mod handle;
mod submission;
mod transfer;

/// The epoch before the first opening: the stock answers its repeats, and takes nothing for it.
const NO_OPENING: Epoch = Epoch(0);

/// A buyer who waits for the ledger.
struct Waiter {
    reply: oneshot::Sender<GateReply>,
    replayed: bool,
    _permit: Permit,
}

/// The gate of one bucket.
pub struct StockGate {
    life: Incarnation,
    deps: GateDeps,
    pending: VecDeque<Reserve>,
    /// Reservations that this bucket alone cannot serve.
    dry: VecDeque<Reserve>,
    waiting: HashMap<RequestId, Vec<Waiter>>,
    /// Accepted requests that this gate is bringing to the ledger.
    submitting: HashSet<RequestId>,
    under_way: UnderWay,
    /// The last error of the stock, until it answers again; for one log line at each change.
    trouble: Option<String>,
    quiet: Vec<oneshot::Sender<()>>,
    is_quiet: bool,
}

impl StockGate {
    /// A gate with nobody inside.
    #[must_use]
    pub fn new(life: Incarnation, deps: GateDeps) -> Self {
        Self {
            life,
            deps,
            pending: VecDeque::new(),
            dry: VecDeque::new(),
            waiting: HashMap::new(),
            submitting: HashSet::new(),
            under_way: UnderWay::default(),
            trouble: None,
            quiet: Vec::new(),
            is_quiet: false,
        }
    }

    /// Sends the next batch to the stock, unless one is there already.
    fn decide(&mut self, ctx: &mut Context<Self>) {
        if self.under_way.deciding || self.pending.is_empty() {
            return;
        }
        self.under_way.deciding = true;
        let size = self.pending.len().min(self.deps.settings.batch_max);
        self.deps.metrics.gate_batch(size);
        let batch = self.pending.drain(..size).collect();
        let tries = ReserveAttempts { backoff: self.deps.backoff(), in_doubt: false };
        self.ask_stock(ctx, batch, tries);
    }

    fn ask_stock(&mut self, ctx: &mut Context<Self>, batch: Vec<Reserve>, tries: ReserveAttempts) {
        let reservations = batch.iter().map(|ask| ask.reservation).collect();
        let (stock, key) = (Arc::clone(&self.deps.stock), self.deps.key());
        let work = async move { stock.reserve(key, reservations).await };
        spawn_step(self, ctx, work, move |gate, ctx, verdicts| match verdicts {
            Ok(verdicts) => {
                gate.under_way.deciding = false;
                gate.well();
                gate.decided(ctx, batch, verdicts);
            }
            Err(error) => gate.not_decided(ctx, batch, &error, tries),
        });
    }

    fn decided(&mut self, ctx: &mut Context<Self>, batch: Vec<Reserve>, verdicts: Vec<Verdict>) {
        // Crash here [reserved_not_submitted]: the units are taken and no ledger knows; the next
        // gate of the bucket finds the intents in the stock. Those in an outbox need no gate.
        let mut intents = Vec::with_capacity(batch.len());
        for (ask, verdict) in batch.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Reserved => self.hand_on(ask, false, &mut intents),
                // Accepted by an earlier question whose answer was lost, or by another process: to
                // submit it twice is harmless, to wait for somebody who died is not.
                Verdict::Repeat(RequestStatus::Queued) if is_of_no_opening(&ask) => {
                    answer(ask, submission::undecided(self.deps.counting, true));
                }
                Verdict::Repeat(RequestStatus::Queued) => self.hand_on(ask, true, &mut intents),
                Verdict::Repeat(RequestStatus::Ordered { quantity, placed_at_ms, state }) => {
                    answer(
                        ask,
                        BuyAnswer::Placed { quantity, placed_at_ms, state, replayed: true },
                    );
                }
                Verdict::Repeat(RequestStatus::Failed(refusal)) => {
                    answer(ask, BuyAnswer::Refused { refusal, replayed: true });
                }
                Verdict::Refused(refusal) => {
                    answer(ask, BuyAnswer::Refused { refusal, replayed: false });
                }
                Verdict::StaleEpoch if !is_of_no_opening(&ask) => {
                    reply(ask.reply, GateReply::StaleEpoch);
                }
                Verdict::StaleEpoch | Verdict::Full => answer(ask, BuyAnswer::Busy),
                Verdict::Short => self.dry.push_back(ask),
            }
        }
        self.submit(ctx, intents);
        self.haul(ctx);
        self.decide(ctx);
        self.report_if_idle();
    }

    /// Whether what is accepted now has a way on. An outbox takes it whatever the ledger does,
    /// until it is full.
    fn is_worth_asking(&self) -> bool {
        matches!(self.deps.handing, Dispatch::Outbox(_)) || self.deps.breaker.lets_through()
    }

    /// Takes care of one accepted request.
    fn hand_on(&mut self, ask: Reserve, replayed: bool, intents: &mut Vec<OrderIntent>) {
        match &self.deps.handing {
            Dispatch::Consumer(_) => {
                if self.submitting.insert(ask.reservation.request) {
                    intents.push(ask.reservation.intent(&self.deps.sku));
                }
                self.wait(ask, replayed);
            }
            Dispatch::Outbox(relays) => {
                if let Some(relays) = relays {
                    relays.poke(self.deps.key());
                }
                answer(ask, BuyAnswer::Queued { replayed });
            }
        }
    }

    /// The stock did not decide. It is asked again with the same request ids, a few times; whatever
    /// it accepted without an answer is found by [`Self::sweep`].
    fn not_decided(
        &mut self,
        ctx: &mut Context<Self>,
        batch: Vec<Reserve>,
        error: &stock::Error,
        mut tries: ReserveAttempts,
    ) {
        if self.is_fatal(ctx, error) {
            for ask in batch {
                answer(ask, BuyAnswer::Busy);
            }
            return;
        }
        let may_pass =
            matches!(error, stock::Error::Unavailable { .. } | stock::Error::Unknown { .. });
        tries.in_doubt |= !error.is_certain();
        let wait = tries.backoff.next_wait(fastrand::f64());
        if may_pass && tries.backoff.failures() < self.deps.settings.reserve_attempts_max {
            ctx.run_later(wait, move |gate, ctx| gate.ask_stock(ctx, batch, tries));
            return;
        }
        self.under_way.deciding = false;
        let told = if tries.in_doubt { BuyAnswer::Unknown } else { BuyAnswer::Busy };
        for ask in batch {
            answer(ask, told);
        }
        self.decide(ctx);
        self.report_if_idle();
    }

    /// Notes an error of the stock; true when it ends the gate.
    fn is_fatal(&mut self, ctx: &mut Context<Self>, error: &stock::Error) -> bool {
        self.deps.metrics.stock_error(error);
        if matches!(error, stock::Error::HalfWritten { .. }) {
            end(self, ctx, ExitReason::Failed(error.to_string()));
            return true;
        }
        let said = error.to_string();
        if self.trouble.as_ref() != Some(&said) {
            let (sku, bucket) = (self.deps.sku.no, self.deps.bucket);
            tracing::warn!(%sku, %bucket, said, "the gate cannot decide");
            self.trouble = Some(said);
        }
        false
    }

    fn well(&mut self) {
        if self.trouble.take().is_some() {
            let (sku, bucket) = (self.deps.sku.no, self.deps.bucket);
            tracing::info!(%sku, %bucket, "the gate decides again");
        }
    }

    fn wait(&mut self, ask: Reserve, replayed: bool) {
        let Reserve { reservation, reply, permit } = ask;
        let waiter = Waiter { reply, replayed, _permit: permit };
        self.waiting.entry(reservation.request).or_default().push(waiter);
    }

    fn report_if_idle(&mut self) {
        let idle = self.pending.is_empty()
            && self.dry.is_empty()
            && !self.under_way.deciding
            && !self.under_way.hauling
            && self.submitting.is_empty();
        if self.is_quiet && idle {
            self.quiet.drain(..).for_each(|done| reply(done, ()));
        }
    }
}

/// What goes on beside the mailbox; each at most once.
#[derive(Debug, Clone, Copy, Default)]
struct UnderWay {
    deciding: bool,
    hauling: bool,
    sweeping: bool,
    /// Sweeps that were left out since the last one.
    skipped: u32,
}

/// How often a batch was put to the stock.
#[derive(Debug, Clone, Copy)]
struct ReserveAttempts {
    backoff: Backoff,
    /// Whether the stock may have accepted it.
    in_doubt: bool,
}

/// Whether this is only to be answered if it is a repeat.
fn is_of_no_opening(ask: &Reserve) -> bool {
    ask.reservation.epoch == NO_OPENING
}

/// Answers one buyer; a buyer who went away meanwhile reads the result later.
fn answer(ask: Reserve, answer: BuyAnswer) {
    reply(ask.reply, GateReply::Final(answer));
}

impl Supervised for StockGate {
    fn life(&mut self) -> &mut Incarnation {
        &mut self.life
    }
}

impl Actor for StockGate {
    type Context = Context<Self>;

    /// Takes over what an earlier gate of this bucket left undone.
    fn started(&mut self, ctx: &mut Self::Context) {
        self.sweep(ctx, i64::MAX);
        let every = Duration::from_millis(self.deps.settings.resubmit_every_ms);
        ctx.run_interval(every, |gate, ctx| {
            let after_ms = i64::try_from(gate.deps.settings.resubmit_after_ms).unwrap_or(i64::MAX);
            let asked_before_ms = gate.deps.clock.wall_ms().saturating_sub(after_ms);
            gate.sweep(ctx, asked_before_ms);
        });
    }
}

impl Handler<Reserve> for StockGate {
    type Result = ();

    fn handle(&mut self, mut ask: Reserve, ctx: &mut Self::Context) {
        step(self, ctx, |gate, ctx| {
            // While the stock is in trouble one batch asks it again; the others need not wait.
            let in_trouble = gate.under_way.deciding && gate.trouble.is_some();
            if gate.is_quiet || in_trouble {
                answer(ask, BuyAnswer::Busy);
                return;
            }
            if !gate.is_worth_asking() {
                ask.reservation.epoch = NO_OPENING;
            }
            gate.pending.push_back(ask);
            gate.decide(ctx);
        });
    }
}

impl Handler<LendStock> for StockGate {
    type Result = ();

    fn handle(&mut self, ask: LendStock, ctx: &mut Self::Context) {
        step(self, ctx, |gate, ctx| {
            let (stock, key) = (Arc::clone(&gate.deps.stock), gate.deps.key());
            let work = async move { stock.lend(key, ask.to, ask.want).await };
            spawn_step(gate, ctx, work, move |gate, ctx, loan| match loan {
                // Crash here [lent_not_borrowed]: the loan is on record; the borrower's
                // `finish_transfers` adds it.
                Ok(loan) => reply(ask.reply, loan),
                Err(error) => {
                    gate.is_fatal(ctx, &error);
                    reply(ask.reply, None);
                }
            });
        });
    }
}

impl Handler<Quiet> for StockGate {
    type Result = ();

    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |gate, _| {
            gate.is_quiet = true;
            gate.quiet.push(quiet.done);
            gate.report_if_idle();
        });
    }
}

impl Handler<Stop> for StockGate {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
