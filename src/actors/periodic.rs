//! The shell of the actors that repeat a task at an interval, and the buckets that maintenance work
//! visits.
//!
//! Takes no input but its timer, [`RunNow`] and [`Quiet`]. On error: the next run retries. On
//! crash: the next incarnation begins with an empty state.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};

use crate::actors::supervisor::supervised::{Incarnation, LastError, Supervised, spawn_step, step};
use crate::domain::BucketKey;
use crate::messages::{Quiet, RunNow};
use crate::services::catalog::Catalog;

/// Passes per pass that includes the sales closed for long.
const PASSES_PER_FULL_PASS: u32 = 60;

/// How a run ended; operators read its error.
pub type RunResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Work that an actor repeats; shared by its incarnations.
pub trait Task: Send + Sync + 'static {
    /// What one incarnation keeps from run to run.
    type State: Default + 'static;

    /// The log message of a failed run.
    const FAILURE: &'static str;

    /// Whether a run may begin beside `num_runs` others.
    fn can_begin(_state: &Self::State, num_runs: usize) -> bool {
        num_runs == 0
    }

    /// One run. Without an answered call for `supervisor.stalled_after_ms` it is a stall.
    fn run(&self, state: &Self::State) -> impl Future<Output = RunResult>;

    /// Gives up what the task holds, once the actor is quiet and its last run has ended.
    fn release(&self) -> impl Future<Output = ()> {
        async {}
    }
}

/// Repeats a [`Task`].
pub struct Periodic<T: Task> {
    incarnation: Incarnation,
    task: Arc<T>,
    state: Rc<T::State>,
    every: Duration,
    num_runs: usize,
    /// Asked to run while it could not begin.
    runs_again: bool,
    last_error: LastError,
}

impl<T: Task> Periodic<T> {
    /// Runs `task` every `every_ms` milliseconds, at least 10.
    pub fn new(incarnation: Incarnation, every_ms: u64, task: Arc<T>) -> Self {
        Self {
            incarnation,
            task,
            state: Rc::default(),
            every: Duration::from_millis(every_ms.max(10)),
            num_runs: 0,
            runs_again: false,
            last_error: LastError::default(),
        }
    }

    fn begin_run(&mut self, ctx: &mut Context<Self>) {
        if self.incarnation.is_quiet() || !T::can_begin(&self.state, self.num_runs) {
            return;
        }
        let is_alone = self.num_runs == 0;
        self.num_runs += 1;
        let (task, state) = (Arc::clone(&self.task), Rc::clone(&self.state));
        let run = async move { task.run(&state).await };
        spawn_step(self, ctx, run, move |actor, ctx, ended| {
            actor.num_runs -= 1;
            // A run beside another one skips what that one does: its success ends no error.
            let is_proof = is_alone || ended.is_err();
            if is_proof && let Some(error) = actor.last_error.changed(ended) {
                tracing::warn!(error = &*error as &dyn std::error::Error, "{}", T::FAILURE);
            }
            actor.release_if_quiet(ctx);
            if std::mem::take(&mut actor.runs_again) {
                actor.begin_run(ctx);
            }
        });
    }

    fn release_if_quiet(&mut self, ctx: &mut Context<Self>) {
        if !self.incarnation.is_quiet() || self.num_runs > 0 {
            return;
        }
        let task = Arc::clone(&self.task);
        spawn_step(self, ctx, async move { task.release().await }, |actor, _, ()| {
            actor.incarnation.report_quiet();
        });
    }
}

impl<T: Task> Supervised for Periodic<T> {
    fn incarnation(&mut self) -> &mut Incarnation {
        &mut self.incarnation
    }
}

impl<T: Task> Actor for Periodic<T> {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(self.every, |actor, ctx| step(actor, ctx, Self::begin_run));
    }
}

impl<T: Task> Handler<RunNow> for Periodic<T> {
    type Result = ();

    fn handle(&mut self, _: RunNow, ctx: &mut Self::Context) {
        step(self, ctx, |actor, ctx| {
            actor.runs_again |= !T::can_begin(&actor.state, actor.num_runs);
            actor.begin_run(ctx);
        });
    }
}

impl<T: Task> Handler<Quiet> for Periodic<T> {
    type Result = ();

    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |actor, ctx| {
            actor.incarnation.quiet(quiet);
            actor.release_if_quiet(ctx);
        });
    }
}

/// Selects the buckets of consecutive maintenance passes.
#[derive(Debug, Default)]
pub struct BucketRotation(Cell<u32>);

impl BucketRotation {
    /// The buckets of the next pass: those of every sale except drafts and purged ones. Sales
    /// closed for long are included in the first pass and every 60th after it.
    pub(super) fn next(&self, catalog: &Catalog, wall_ms: i64) -> Vec<BucketKey> {
        let is_full = self.0.get().is_multiple_of(PASSES_PER_FULL_PASS);
        self.0.set(self.0.get().wrapping_add(1));
        let sales = catalog.all();
        let sales = sales
            .iter()
            .filter(|sale| sale.has_buckets() && (is_full || !sale.is_dormant(wall_ms)));
        sales.flat_map(|sale| &sale.skus).flat_map(|sku| BucketKey::all_of(sku)).collect()
    }
}
