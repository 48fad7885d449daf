//! Publishes hints of placed orders to the delay queue of their payment window, so that the end of
//! the window comes from the broker.
//!
//! Reads the feed of order events after its cursor, off the path of purchases. A lease selects one
//! process. Limits: events per page, unconfirmed messages. On error and on crash: hints are lost,
//! and the payment timer, which looks at every order in the ledger, ends those orders a little
//! later. May repeat: everything.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::actors::periodic::{RunResult, Task};
use crate::broker::{Message, PublishOutcome, Publisher, Route};
use crate::db::{FeedEvent, Ledger};
use crate::domain::{OrderEvent, OrderKey};
use crate::lease::TaskLease;
use crate::messages::due_hint;
use crate::observe::metrics::{Metrics, OutcomeLabel};
use crate::runtime::clock::SharedClock;

/// The name of the cursor in the ledger.
const CURSOR: &str = "due_hints";

/// Events per read of the ledger.
const EVENTS_PER_PAGE: u32 = 1_000;

/// Age from which a placed order gets no hint: it would come too late to be of use.
const AGE_MAX_MS: i64 = 10_000;

/// Publishes hints.
pub struct HintPublisher {
    pub ledger: Arc<dyn Ledger>,
    pub publisher: Arc<dyn Publisher>,
    pub lease: TaskLease,
    pub installation: Arc<str>,
    /// The lengths of the windows with a delay queue, seconds.
    pub windows_s: Vec<u32>,
    /// Most unconfirmed messages.
    pub window: usize,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl Task for HintPublisher {
    type State = ();

    const FAILURE: &'static str = "hints of due orders not published, their orders end a bit later";

    async fn run(&self, (): &()) -> RunResult {
        if !self.lease.acquire().await? {
            return Ok(());
        }
        while self.ledger.number_events(EVENTS_PER_PAGE).await? >= EVENTS_PER_PAGE {}
        let mut read_to = self.ledger.cursor(CURSOR).await?;
        if read_to == 0 {
            // Of the orders of before, only the last page can be fresh.
            let last = self.ledger.last_feed_no().await?;
            read_to = (last - i64::from(EVENTS_PER_PAGE)).max(0);
        }
        let mut lost: RunResult = Ok(());
        while self.lease.acquire().await? {
            let events = self.ledger.events_after(read_to, EVENTS_PER_PAGE).await?;
            let Some(last) = events.last() else { break };
            read_to = last.feed_no();
            let events: Vec<_> = events.into_iter().filter_map(FeedEvent::into_order).collect();
            let published = self.publish(&events).await;
            // Crash here [hints_published]: the next run publishes the same hints again.
            self.ledger.move_cursor(CURSOR, read_to).await?;
            lost = lost.and(published);
        }
        lost
    }

    async fn release(&self) {
        self.lease.release().await;
    }
}

impl HintPublisher {
    async fn publish(&self, events: &[OrderEvent]) -> RunResult {
        let now_ms = self.clock.wall_ms();
        let mut messages: Vec<Message> = Vec::new();
        for (window_s, orders) in self.placed(events, now_ms) {
            for orders in orders.chunks(due_hint::ORDERS_MAX) {
                let route = Route::Delay(window_s);
                messages.push(due_hint::message(route, orders, &self.installation, now_ms));
            }
        }
        if messages.is_empty() {
            return Ok(());
        }
        let num_messages = messages.len();
        let outcomes = self.publisher.open_channel(self.window).publish(messages).await;
        let mut lost = outcomes.into_iter().filter(|it| *it != PublishOutcome::Confirmed);
        let first = lost.next();
        let num_lost = lost.count() + usize::from(first.is_some());
        self.count("published", num_messages - num_lost);
        self.count("lost", num_lost);
        match first {
            Some(first) => Err(format!("{num_lost} hints were not confirmed: {first:?}").into()),
            None => Ok(()),
        }
    }

    fn count(&self, outcome: &'static str, num_messages: usize) {
        let counter = self.metrics.due_hints.get_or_create(&OutcomeLabel { outcome });
        counter.inc_by(num_messages as u64);
    }

    /// The newly placed orders by the length of their window, of those that have a delay queue.
    fn placed(&self, events: &[OrderEvent], now_ms: i64) -> BTreeMap<u32, Vec<OrderKey>> {
        let mut placed: BTreeMap<u32, Vec<OrderKey>> = BTreeMap::new();
        for event in events.iter().filter(|event| event.order.version == 0) {
            let window_ms = event.order.due_ms.map(|due_ms| due_ms.saturating_sub(event.at_ms));
            let of_queue = |window_s: &&u32| window_ms == Some(i64::from(**window_s) * 1_000);
            let is_fresh = now_ms.saturating_sub(event.at_ms) <= AGE_MAX_MS;
            if let Some(window_s) = self.windows_s.iter().find(of_queue).filter(|_| is_fresh) {
                placed.entry(*window_s).or_default().push(event.order.key());
            }
        }
        placed
    }
}
