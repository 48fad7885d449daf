//! Flow step 10/12: outbox, broker -> ledger.
//!
//! Brings what was given up into the ledger, where operators find it: dead letters of the broker
//! and dead entries of the outboxes. Nothing is acknowledged or collected before the ledger has it.
//!
//! Owns: nothing; everything in hand is still where it came from. Limits:
//! `keeper.dead_letters_max` letters in hand of each source, a mebibyte each. On error: while the
//! ledger is away everything is held and tried again; a letter that the ledger refuses alone is
//! set aside, unacknowledged, and the others go on. On death: what was not acknowledged is
//! delivered again, and known by its digest. May repeat: every letter.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};

use self::collecting::Collecting;
use self::consuming::Consuming;
use super::child::{ExitReason, Life, Living, end, spawn_step, step};
use crate::catalog::Catalog;
use crate::clock::SharedClock;
use crate::db::Ledger;
use crate::messages::Stop;
use crate::metrics::Metrics;
use crate::tier::Pipeline;

mod collecting;
mod consuming;
mod deciding;
mod storing;

/// What the keeper works with.
#[derive(Clone)]
pub struct LetterKeeperParts {
    /// Where letters are kept.
    pub ledger: Arc<dyn Ledger>,
    /// Where they come from.
    pub pipeline: Pipeline,
    /// Which buckets there are.
    pub catalog: Arc<Catalog>,
    /// Letters of one source in hand at once.
    pub letters_max: u16,
    /// How often outboxes are looked at, and the longest wait for a delivery, milliseconds.
    pub every_ms: u64,
    /// First wait after an error, milliseconds.
    pub backoff_min_ms: u64,
    /// Longest such wait, milliseconds.
    pub backoff_max_ms: u64,
    /// Time.
    pub clock: SharedClock,
    /// What operators see.
    pub metrics: Arc<Metrics>,
}

/// Keeps dead letters. Each source has a lane of its own, so that none waits for another.
pub struct DeadLetterKeeper {
    life: Life,
    parts: Arc<LetterKeeperParts>,
}

impl DeadLetterKeeper {
    /// A keeper with nothing in hand.
    #[must_use]
    pub fn new(life: Life, parts: Arc<LetterKeeperParts>) -> Self {
        Self { life, parts }
    }

    /// One round after the other; a lane that has trouble rests in between.
    fn consume(&mut self, ctx: &mut Context<Self>, mut lane: Consuming) {
        let parts = Arc::clone(&self.parts);
        let work = async move {
            let rest = lane.round(&parts).await;
            (lane, rest)
        };
        spawn_step(self, ctx, work, |keeper, ctx, (lane, rest)| match rest {
            None => keeper.consume(ctx, lane),
            Some(rest) => keeper.later(ctx, rest, move |keeper, ctx| keeper.consume(ctx, lane)),
        });
    }

    fn collect(&mut self, ctx: &mut Context<Self>, mut lane: Collecting) {
        let parts = Arc::clone(&self.parts);
        let work = async move {
            let rest = lane.round(&parts).await;
            (lane, rest)
        };
        spawn_step(self, ctx, work, |keeper, ctx, (lane, rest)| {
            keeper.later(ctx, rest, move |keeper, ctx| keeper.collect(ctx, lane));
        });
    }

    /// Not a step: a wait is no work, and must not look like a stall.
    #[expect(clippy::unused_self, reason = "reads as what the keeper does")]
    fn later(
        &self,
        ctx: &mut Context<Self>,
        rest: Duration,
        then: impl FnOnce(&mut Self, &mut Context<Self>) + 'static,
    ) {
        ctx.run_later(rest, move |keeper, ctx| step(keeper, ctx, then));
    }
}

impl Living for DeadLetterKeeper {
    fn life(&mut self) -> &mut Life {
        &mut self.life
    }
}

impl Actor for DeadLetterKeeper {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let lane = Consuming::new(&self.parts);
        self.consume(ctx, lane);
        let lane = Collecting::new(&self.parts);
        self.collect(ctx, lane);
    }
}

impl Handler<Stop> for DeadLetterKeeper {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
