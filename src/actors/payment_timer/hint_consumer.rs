//! Ends the orders of hints that the broker's delay queues give back at the end of their windows.
//!
//! A hint only says where to look: the ledger decides which orders are due, in the same way as for
//! the payment timer. Limits: orders per run, as one batch of the payment timer, so that a flood of
//! hints waits in the queue. Hints are acknowledged whatever became of them: after an error, and
//! while the clock is not trusted or once it has stepped, the payment timer ends the orders. On
//! crash: the broker delivers the hints again. May repeat: everything.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::TimerDeps;
use crate::actors::periodic::{RunResult, Task};
use crate::broker::{self, Inbox, Route, Subscriber};
use crate::db;
use crate::domain::OrderKey;
use crate::messages::due_hint;

/// Most unacknowledged hints.
const PREFETCH: u16 = 16;

/// Longest wait of a run for a hint.
const WAIT: Duration = Duration::from_secs(1);

/// Ends the orders of hints.
pub struct HintConsumer {
    pub deps: Arc<TimerDeps>,
    pub subscriber: Arc<dyn Subscriber>,
    pub installation: Arc<str>,
}

/// The subscription of one incarnation.
pub type Hints = Cell<Option<Inbox>>;

impl Task for HintConsumer {
    type State = Hints;

    const FAILURE: &'static str = "hints of due orders not read, their orders end a bit later";

    async fn run(&self, hints: &Hints) -> RunResult {
        let mut inbox = match hints.take() {
            Some(inbox) => inbox,
            None => Inbox::open(&self.subscriber, Route::Due, PREFETCH, &self.deps.clock).await?,
        };
        let (orders, last) = self.receive(&mut inbox).await?;
        let ended = self.end(orders).await;
        if let Some(last) = last {
            inbox.acks().up_to(last).await;
        }
        hints.set(Some(inbox));
        Ok(ended?)
    }
}

impl HintConsumer {
    /// The orders of about one batch of hints, and the last hint; waits for the first one.
    async fn receive(
        &self,
        inbox: &mut Inbox,
    ) -> Result<(Vec<OrderKey>, Option<u64>), broker::Error> {
        let batch = usize::try_from(self.deps.settings.batch).unwrap_or(usize::MAX);
        let (mut orders, mut last, mut num_hints, mut wait) = (Vec::new(), None, 0, WAIT);
        while orders.len() < batch
            && num_hints < usize::from(PREFETCH)
            && let Some(hint) = inbox.next(wait, num_hints).await?
        {
            let of_hint = due_hint::orders_in(&hint.headers, &hint.body, &self.installation);
            if of_hint.is_none() {
                tracing::warn!(message_id = hint.headers.message_id, "hint: not ours");
            }
            orders.extend(of_hint.unwrap_or_default());
            (last, wait) = (Some(hint.tag), Duration::ZERO);
            num_hints += 1;
        }
        orders.sort_unstable();
        orders.dedup();
        Ok((orders, last))
    }

    async fn end(&self, orders: Vec<OrderKey>) -> Result<(), db::Error> {
        let deps = &self.deps;
        if orders.is_empty() {
            return Ok(());
        }
        // The ledger compares the time of the clock, with its steps.
        let is_steady = deps.time.now().await?.is_some_and(|now| !now.has_stepped());
        if !is_steady {
            return Ok(());
        }
        let num_ended = deps.orders.end_due(orders).await? as u64;
        deps.metrics.orders_timed_out.inc_by(num_ended);
        deps.metrics.orders_ended_by_hint.inc_by(num_ended);
        Ok(())
    }
}
