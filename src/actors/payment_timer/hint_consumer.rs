//! Runs a pass of the payment timer when the broker's delay queues give back hints.
//!
//! A hint only says that orders may be due now: its content is not read, and the pass asks the
//! ledger. Limits: one pass per run, however many hints there are. Hints are acknowledged whatever
//! became of the pass: after an error, and while the clock is not trusted, a later pass ends the
//! orders. On crash: the broker delivers the hints again. May repeat: everything.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::{TimerDeps, end_due_orders};
use crate::actors::periodic::{RunResult, Task};
use crate::broker::{Inbox, Route, Subscriber};

/// Most unacknowledged hints; one pass is enough for all of them.
const PREFETCH: u16 = 1_000;

/// Longest wait of a run for a hint.
const WAIT: Duration = Duration::from_secs(1);

/// Starts a pass at each batch of hints.
pub struct HintConsumer {
    pub deps: Arc<TimerDeps>,
    pub subscriber: Arc<dyn Subscriber>,
}

/// What one incarnation keeps.
#[derive(Default)]
pub struct Hints {
    inbox: Cell<Option<Inbox>>,
    /// Whether the last run received hints.
    had_hints: Cell<bool>,
}

impl Task for HintConsumer {
    type State = Hints;

    const FAILURE: &'static str = "hints of due orders not read, their orders end a bit later";

    async fn run(&self, hints: &Hints) -> RunResult {
        let mut inbox = match hints.inbox.take() {
            Some(inbox) => inbox,
            None => Inbox::open(&self.subscriber, Route::Due, PREFETCH, &self.deps.clock).await?,
        };
        let received = inbox.next_batch(WAIT, 0).await?;
        // The clock of the process that placed an order may be ahead: the run after the hints, up
        // to `WAIT` later, makes a pass again.
        let had_hints = hints.had_hints.replace(!received.is_empty());
        let must_pass = had_hints || !received.is_empty();
        let (mut num_ended, mut ended) = (0, Ok(()));
        if must_pass {
            ended = end_due_orders(&self.deps, 0, &mut num_ended).await;
        }
        if let Some(last) = received.last() {
            inbox.acks().up_to(last.tag).await;
        }
        hints.inbox.set(Some(inbox));
        self.deps.metrics.orders_ended_by_hint.inc_by(num_ended);
        ended?;
        Ok(())
    }
}
