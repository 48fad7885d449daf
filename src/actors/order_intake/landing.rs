//! From the intake to the ledger and back: submissions, and what each intent came to.

use actix::{AsyncContext, Context};
use bytes::Bytes;

use super::retrying::{DOUBTS_MAX, Next, Trial, next};
use super::settling::Ack;
use super::{Arc, Delivery, OrderIntake};
use crate::actors::child::spawn_step;
use crate::db::Class;
use crate::domain::{OrderIntent, Outcome};
use crate::messages::{Died, Fault, Landing};

/// One intent in hand.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) delivery: Arc<Delivery>,
    pub(super) bytes: Bytes,
    pub(super) intent: OrderIntent,
    /// How often the ledger had answered when this failed without other deliveries.
    answers: Option<u64>,
    /// How often in a row nothing was heard of it, without other deliveries.
    doubts: u32,
}

impl Item {
    /// An intent that nobody has tried.
    pub(super) fn new(delivery: Arc<Delivery>, bytes: Bytes, intent: OrderIntent) -> Self {
        Self { delivery, bytes, intent, answers: None, doubts: 0 }
    }

    /// It waits, after it failed without other deliveries or for another reason.
    fn hold(&mut self, landing: Option<&Landing>, num_answers: u64) {
        self.answers = landing.map(|_| num_answers);
        self.doubts = if is_doubt(landing) { self.doubts.saturating_add(1) } else { 0 };
    }

    /// It is tried with less around it: what was learned of it in its company says nothing of it
    /// alone.
    fn part(&mut self) {
        self.answers = None;
        self.doubts = 0;
    }
}

/// Whether nobody knows what the ledger did.
fn is_doubt(landing: Option<&Landing>) -> bool {
    let fault = landing.and_then(|landing| landing.fault.as_ref());
    matches!(fault, Some(Fault::Ledger { class: Class::Unknown, .. }))
}

/// One submission.
#[derive(Debug)]
pub(super) struct Piece {
    /// The subscription that its deliveries belong to.
    subscription: u64,
    items: Vec<Item>,
    /// Whether it must have its transactions to itself.
    is_alone: bool,
    /// Whether it was held.
    was_held: bool,
}

impl Piece {
    /// A submission that must have its transactions to itself.
    pub(super) fn alone(subscription: u64, items: Vec<Item>) -> Self {
        Self { subscription, items, is_alone: true, was_held: false }
    }

    /// Whether one doubt more is one too many to wait for what the ledger answers others: perhaps
    /// nobody else brings it anything.
    fn is_doubted(&self) -> bool {
        self.is_alone && self.items.iter().any(|item| item.doubts + 1 >= DOUBTS_MAX)
    }
}

impl OrderIntake {
    /// Submits what came together, in pieces that fit one transaction.
    pub(super) fn submit_together(&mut self, ctx: &mut Context<Self>, items: Vec<Item>) {
        if self.parts.breaker.is_open() && !self.hand.holding.is_empty() {
            self.hold(items);
            return self.look_later(ctx);
        }
        for items in items.chunks(self.parts.limits.batch_max.max(1)) {
            let subscription = self.hand.subscription;
            let items = items.to_vec();
            self.submit(ctx, Piece { subscription, items, is_alone: false, was_held: false });
        }
    }

    pub(super) fn submit(&mut self, ctx: &mut Context<Self>, piece: Piece) {
        if piece.items.is_empty() {
            return;
        }
        // Crash here [delivered_not_submitted]: nothing is written and nothing acknowledged; the
        // broker delivers again.
        self.under_way.inside += 1;
        let orders = self.parts.orders.clone();
        let intents: Vec<OrderIntent> = piece.items.iter().map(|item| item.intent).collect();
        let (is_alone, is_doubted) = (piece.is_alone, piece.is_doubted());
        let refresh = Arc::clone(&self.parts.refresh);
        let mut held = self.hand.held.subscribe();
        let work = async move {
            let trying = async {
                let landings = orders.land(intents, is_alone).await;
                let doubt = |all: &Vec<Landing>| all.iter().any(|one| is_doubt(Some(one)));
                // The ledger is asked something else: if it answers that, it is there.
                let answers =
                    is_doubted && landings.as_ref().is_ok_and(doubt) && refresh().await.is_ok();
                (landings, answers)
            };
            tokio::select! {
                tried = trying => Some(tried),
                // Fails once the hand is forgotten, and never ends otherwise.
                _forgotten = held.changed() => None,
            }
        };
        spawn_step(self, ctx, work, move |intake, ctx, tried| {
            intake.under_way.inside -= 1;
            // Numbers of an older subscription name other deliveries now.
            if let Some((landings, answers)) = tried
                && piece.subscription == intake.hand.subscription
            {
                intake.landed(ctx, piece, landings, answers);
            }
            intake.report_if_idle();
        });
    }

    fn landed(
        &mut self,
        ctx: &mut Context<Self>,
        piece: Piece,
        landings: Result<Vec<Landing>, Died>,
        answers: bool,
    ) {
        let was_alone = piece.is_alone && piece.items.len() == 1;
        let (mut held, mut apart) = (Vec::new(), Vec::new());
        for (at, mut item) in piece.items.into_iter().enumerate() {
            // There is one landing for each intent.
            let landing = landings.as_ref().map_err(|died| *died);
            let landing = landing.and_then(|all| all.get(at).ok_or(Died::Before));
            let num_answers = self.parts.breaker.num_answers();
            let next = next(&Trial {
                landing,
                attempts: item.delivery.headers.attempts,
                was_alone,
                others_answered: answers || item.answers.is_some_and(|before| num_answers > before),
                ledger_fails: self.parts.breaker.is_open(),
                num_delays: self.parts.limits.num_delays,
            });
            match next {
                Next::Done => self.done(&item, landing.ok()),
                Next::Hold => {
                    item.hold(landing.ok().filter(|_| piece.is_alone), num_answers);
                    held.push(item);
                }
                Next::Apart => {
                    item.part();
                    apart.push(item);
                }
                Next::Delay { step } => self.delay(&item, step, &said_of(landing.ok())),
                Next::Dead => self.bury_failed(&item, &said_of(landing.ok())),
            }
        }
        let is_well = held.is_empty();
        self.hold(held);
        if piece.was_held {
            self.hand.holding.back(is_well);
        }
        self.look_later(ctx);
        self.submit_apart(ctx, apart, piece.is_alone);
        self.post(ctx);
        self.acknowledge(ctx);
    }

    /// One intent is at its end.
    fn done(&mut self, item: &Item, landing: Option<&Landing>) {
        let Item { delivery, intent, .. } = item;
        let outcome = landing.and_then(|landing| landing.outcome.as_ref());
        if matches!(outcome, Some(Outcome::Placed(_))) {
            let took_ms = self.parts.clock.wall_ms().saturating_sub(intent.placed_at_ms);
            self.parts.metrics.landing(took_ms);
        }
        if let Some(Fault::Stock { said, .. }) = landing.and_then(|it| it.fault.as_ref()) {
            tracing::warn!(
                request = %intent.request,
                trace_id = %intent.trace,
                said = &**said,
                "the ledger has it, the stock does not want to hear of it"
            );
        }
        tracing::debug!(
            request = %intent.request,
            trace_id = %intent.trace,
            queue = self.parts.queue,
            ?outcome,
            "landed"
        );
        self.hand.window.end_one(delivery.tag);
    }

    /// Tries again at once what failed among others: first without other deliveries, then each
    /// intent alone.
    fn submit_apart(&mut self, ctx: &mut Context<Self>, items: Vec<Item>, was_alone: bool) {
        if self.is_quiet {
            return;
        }
        for items in by_delivery(items) {
            let subscription = self.hand.subscription;
            if was_alone {
                for item in items {
                    self.submit(ctx, Piece::alone(subscription, vec![item]));
                }
            } else {
                self.submit(ctx, Piece::alone(subscription, items));
            }
        }
    }

    /// Keeps what waits for ledger or stock, delivery by delivery.
    fn hold(&mut self, items: Vec<Item>) {
        let subscription = self.hand.subscription;
        for items in by_delivery(items) {
            for item in &items {
                self.hand.window.stick(item.delivery.tag);
            }
            let piece = Piece { was_held: true, ..Piece::alone(subscription, items) };
            self.hand.holding.push(piece);
        }
    }

    /// Tries what is held when its time has come.
    fn look_later(&mut self, ctx: &mut Context<Self>) {
        if self.under_way.looking || self.is_quiet {
            return;
        }
        let Some(wait) = self.hand.holding.next_wait(fastrand::f64()) else { return };
        self.under_way.looking = true;
        ctx.run_later(wait, |intake, ctx| {
            intake.under_way.looking = false;
            if intake.is_quiet {
                return;
            }
            for piece in intake.hand.holding.take() {
                intake.submit(ctx, piece);
            }
        });
    }

    /// Acknowledges what is at its end; one call at a time, so that the broker hears of every
    /// delivery once and in order.
    pub(super) fn acknowledge(&mut self, ctx: &mut Context<Self>) {
        if self.under_way.acknowledging {
            return;
        }
        let Some(acks) = self.hand.acks.clone() else { return };
        let due = self.hand.window.take_acks();
        if due.is_empty() {
            return;
        }
        self.note_in_hand();
        self.under_way.acknowledging = true;
        // Crash here [landed_not_acknowledged]: the ledger has the orders and the stock their
        // results; what is delivered again is a repeat, and acknowledged as a success.
        let work = async move {
            for ack in due {
                match ack {
                    Ack::UpTo(tag) => acks.up_to(tag).await,
                    Ack::One(tag) => acks.one(tag).await,
                }
            }
        };
        spawn_step(self, ctx, work, |intake, ctx, ()| {
            intake.under_way.acknowledging = false;
            intake.acknowledge(ctx);
            intake.report_if_idle();
        });
    }

    pub(super) fn note_in_hand(&self) {
        self.parts.metrics.intake_in_hand(self.parts.queue, self.hand.window.len());
    }
}

/// Items of one delivery each; those of one delivery stand together.
fn by_delivery(items: Vec<Item>) -> Vec<Vec<Item>> {
    let own = items.chunk_by(|one, other| one.delivery.tag == other.delivery.tag);
    own.map(<[Item]>::to_vec).collect()
}

/// What the ledger or the stock said, for people.
fn said_of(landing: Option<&Landing>) -> Arc<str> {
    match landing.and_then(|landing| landing.fault.as_ref()) {
        Some(Fault::Ledger { said, .. } | Fault::Stock { said, .. }) => Arc::clone(said),
        None => "the consumer died over it".into(),
    }
}
