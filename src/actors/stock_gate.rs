//! Flow step 2/12: buy handler -> stock gate.
//!
//! One gate answers for one bucket of one SKU. While one batch of reservations is with the stock,
//! the next one gathers: no timers, so a single buyer waits for nobody, and a crowd is decided in
//! few steps. What the stock accepts goes to the order consumer at once; the buyer is answered when
//! the ledger has answered.
//!
//! Owns: the buyers that wait. Limits: permits inside, `gate.batch_max` per step, one transfer at a
//! time. On error: a stock that is half-written ends the gate. On death: waiting buyers ask again;
//! what was reserved and not settled is in the stock, and the next gate submits it again (see
//! [`Actor::started`] here). May repeat: submissions, by request id.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use actix::{Actor, Context, Handler};
use tokio::sync::oneshot;

use super::child::{ExitReason, Life, Living, end, spawn_step, step};
use super::gate_directory::GateDirectory;
use super::order_door::OrderDoor;
use super::permits::Permit;
use super::transfer::{self, Haul};
use crate::domain::{
    BucketNo, Order, OrderIntent, Outcome, Refusal, RequestId, Sku, Standing, Verdict,
};
use crate::messages::{Answer, GateAnswer, LendStock, Quiet, Reserve, Stop, reply};
use crate::metrics::Metrics;
use crate::stock::{self, BucketKey, Stock};

/// What a gate works with; the same for every gate that follows it in its bucket.
#[derive(Clone)]
pub struct GateParts {
    /// The SKU.
    pub sku: Arc<Sku>,
    /// The bucket.
    pub bucket: BucketNo,
    /// Where units are counted.
    pub stock: Arc<dyn Stock>,
    /// The way to the ledger.
    pub orders: OrderDoor,
    /// Sibling gates.
    pub directory: Arc<GateDirectory>,
    /// Most reservations decided in one step.
    pub batch_max: usize,
    /// What operators see.
    pub metrics: Arc<Metrics>,
}

impl GateParts {
    /// The bucket's key.
    #[must_use]
    pub fn key(&self) -> BucketKey {
        BucketKey { sku: self.sku.no, bucket: self.bucket }
    }
}

/// A buyer who waits for the ledger.
struct Waiter {
    reply: oneshot::Sender<GateAnswer>,
    replayed: bool,
    _permit: Permit,
}

/// The gate of one bucket.
pub struct StockGate {
    life: Life,
    parts: GateParts,
    pending: VecDeque<Reserve>,
    /// Reservations that this bucket alone cannot serve.
    dry: VecDeque<Reserve>,
    waiting: HashMap<RequestId, Vec<Waiter>>,
    deciding: bool,
    hauling: bool,
    num_submissions: usize,
    quiet: Vec<oneshot::Sender<()>>,
    is_quiet: bool,
}

impl StockGate {
    /// A gate with nobody inside.
    #[must_use]
    pub fn new(life: Life, parts: GateParts) -> Self {
        Self {
            life,
            parts,
            pending: VecDeque::new(),
            dry: VecDeque::new(),
            waiting: HashMap::new(),
            deciding: false,
            hauling: false,
            num_submissions: 0,
            quiet: Vec::new(),
            is_quiet: false,
        }
    }

    /// Sends the next batch to the stock, unless one is there already.
    fn decide(&mut self, ctx: &mut Context<Self>) {
        if self.deciding || self.pending.is_empty() {
            return;
        }
        self.deciding = true;
        let size = self.pending.len().min(self.parts.batch_max);
        let batch: Vec<Reserve> = self.pending.drain(..size).collect();
        self.parts.metrics.gate_batch(size);
        let reservations = batch.iter().map(|ask| ask.reservation).collect();
        let (stock, key) = (Arc::clone(&self.parts.stock), self.parts.key());
        let work = async move { stock.reserve(key, reservations).await };
        spawn_step(self, ctx, work, move |gate, ctx, verdicts| {
            gate.deciding = false;
            match verdicts {
                Ok(verdicts) => gate.decided(ctx, batch, verdicts),
                Err(error) => gate.cannot_decide(ctx, batch, &error),
            }
        });
    }

    fn decided(&mut self, ctx: &mut Context<Self>, batch: Vec<Reserve>, verdicts: Vec<Verdict>) {
        // Crash here [reserved_not_submitted]: the units are taken and no ledger knows; the next
        // gate of the bucket finds the intents in the stock and submits them.
        let mut intents = Vec::with_capacity(batch.len());
        for (ask, verdict) in batch.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Reserved => {
                    intents.push(ask.reservation.intent(&self.parts.sku));
                    self.wait(ask, false);
                }
                Verdict::Repeat(Standing::Queued) => self.wait(ask, true),
                Verdict::Repeat(Standing::Ordered { quantity, placed_at_ms, state }) => {
                    answer(ask, Answer::Placed { quantity, placed_at_ms, state, replayed: true });
                }
                Verdict::Repeat(Standing::Failed(refusal)) => {
                    answer(ask, Answer::Refused { refusal, replayed: true });
                }
                Verdict::Refused(refusal) => {
                    answer(ask, Answer::Refused { refusal, replayed: false });
                }
                Verdict::StaleEpoch => reply(ask.reply, GateAnswer::StaleEpoch),
                Verdict::Short => self.dry.push_back(ask),
            }
        }
        self.submit(ctx, intents);
        self.haul(ctx);
        self.decide(ctx);
        self.report_if_idle();
    }

    fn cannot_decide(
        &mut self,
        ctx: &mut Context<Self>,
        batch: Vec<Reserve>,
        error: &stock::Error,
    ) {
        for ask in batch {
            answer(ask, Answer::Busy);
        }
        end(self, ctx, ExitReason::Failed(error.to_string()));
    }

    fn wait(&mut self, ask: Reserve, replayed: bool) {
        let Reserve { reservation, reply, permit } = ask;
        let waiter = Waiter { reply, replayed, _permit: permit };
        self.waiting.entry(reservation.request).or_default().push(waiter);
    }

    /// Hands accepted intents to the consumer.
    fn submit(&mut self, ctx: &mut Context<Self>, intents: Vec<OrderIntent>) {
        if intents.is_empty() {
            return;
        }
        self.num_submissions += 1;
        let (stock, orders, key) =
            (Arc::clone(&self.parts.stock), self.parts.orders.clone(), self.parts.key());
        let work = async move {
            let outcomes = orders.place_until_known(intents.clone()).await;
            let withdrawn: Vec<_> = intents
                .iter()
                .zip(&outcomes)
                .filter(|(_, outcome)| **outcome == Outcome::Unavailable)
                .map(|(intent, _)| intent.request)
                .collect();
            if !withdrawn.is_empty() {
                stock.withdraw(key, withdrawn).await?;
            }
            Ok::<_, stock::Error>((intents, outcomes))
        };
        spawn_step(self, ctx, work, |gate, ctx, done| {
            gate.num_submissions -= 1;
            match done {
                Ok((intents, outcomes)) => gate.settled(&intents, &outcomes),
                Err(error) => end(gate, ctx, ExitReason::Failed(error.to_string())),
            }
        });
    }

    fn settled(&mut self, intents: &[OrderIntent], outcomes: &[Outcome]) {
        for (intent, outcome) in intents.iter().zip(outcomes) {
            for waiter in self.waiting.remove(&intent.request).unwrap_or_default() {
                let answer = answer_of(outcome, waiter.replayed);
                reply(waiter.reply, GateAnswer::Final(answer));
            }
        }
        self.report_if_idle();
    }

    /// Fetches units from sibling buckets for the reservations that found this one dry.
    fn haul(&mut self, ctx: &mut Context<Self>) {
        if self.hauling || self.dry.is_empty() {
            return;
        }
        self.hauling = true;
        let most = self.dry.iter().map(|ask| ask.reservation.quantity).max().unwrap_or(1);
        let sum = self.dry.iter().map(|ask| u64::from(ask.reservation.quantity)).sum::<u64>();
        let want = u32::try_from(sum).unwrap_or(u32::MAX);
        let parts = self.parts.clone();
        let work = async move { transfer::haul(&parts, most, want).await };
        spawn_step(self, ctx, work, |gate, ctx, haul| {
            gate.hauling = false;
            match haul {
                Ok(haul) => gate.hauled(ctx, haul),
                Err(error) => end(gate, ctx, ExitReason::Failed(error.to_string())),
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

    fn report_if_idle(&mut self) {
        let idle = self.pending.is_empty()
            && self.dry.is_empty()
            && !self.deciding
            && !self.hauling
            && self.num_submissions == 0;
        if self.is_quiet && idle {
            self.quiet.drain(..).for_each(|done| reply(done, ()));
        }
    }
}

/// What a buyer hears of an outcome.
fn answer_of(outcome: &Outcome, replayed: bool) -> Answer {
    match outcome {
        Outcome::Placed(order) | Outcome::Repeat(order) => {
            let Order { quantity, placed_at_ms, state, .. } = *order;
            Answer::Placed { quantity, placed_at_ms, state, replayed }
        }
        Outcome::Refused(refusal) => Answer::Refused { refusal: *refusal, replayed },
        Outcome::Unavailable => Answer::Busy,
    }
}

/// Answers one buyer; a buyer who went away meanwhile reads the result later.
fn answer(ask: Reserve, answer: Answer) {
    reply(ask.reply, GateAnswer::Final(answer));
}

impl Living for StockGate {
    fn life(&mut self) -> &mut Life {
        &mut self.life
    }
}

impl Actor for StockGate {
    type Context = Context<Self>;

    /// Takes over what an earlier gate of this bucket left undone.
    fn started(&mut self, ctx: &mut Self::Context) {
        let (stock, key) = (Arc::clone(&self.parts.stock), self.parts.key());
        let work = async move {
            stock.finish_transfers(key).await?;
            stock.unsettled(key).await
        };
        spawn_step(self, ctx, work, |gate, ctx, unsettled| match unsettled {
            Ok(intents) => gate.submit(ctx, intents),
            Err(error) => end(gate, ctx, ExitReason::Failed(error.to_string())),
        });
    }
}

impl Handler<Reserve> for StockGate {
    type Result = ();

    fn handle(&mut self, ask: Reserve, ctx: &mut Self::Context) {
        step(self, ctx, |gate, ctx| {
            if gate.is_quiet {
                answer(ask, Answer::Busy);
            } else {
                gate.pending.push_back(ask);
                gate.decide(ctx);
            }
        });
    }
}

impl Handler<LendStock> for StockGate {
    type Result = ();

    fn handle(&mut self, ask: LendStock, ctx: &mut Self::Context) {
        step(self, ctx, |gate, ctx| {
            let (stock, key) = (Arc::clone(&gate.parts.stock), gate.parts.key());
            let work = async move { stock.lend(key, ask.to, ask.transfer, ask.want).await };
            spawn_step(gate, ctx, work, move |gate, ctx, units| match units {
                // Crash here [lent_not_borrowed]: the loan is on record; the borrower's
                // `finish_transfers` adds it.
                Ok(units) => reply(ask.reply, units),
                Err(error) => end(gate, ctx, ExitReason::Failed(error.to_string())),
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
