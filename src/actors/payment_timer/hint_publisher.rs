//! Publishes a hint, an empty message, to the delay queue of each payment window that has just
//! begun, so that its end comes from the broker.
//!
//! Follows the feed of order events, off the path of purchases. A lease selects one process, which
//! begins with the last page. Limits: events per page, unconfirmed messages. On error and on crash:
//! hints are lost, and the payment timer, which looks at every order in the ledger, ends those
//! orders a little later. May repeat: everything.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use crate::actors::periodic::{RunResult, Task};
use crate::broker::{Headers, Message, PublishOutcome, Publisher, Route};
use crate::db::{FeedEvent, Ledger};
use crate::domain::OrderEvent;
use crate::lease::TaskLease;
use crate::observe::metrics::{Metrics, OutcomeLabel};
use crate::runtime::clock::SharedClock;

/// Events per read of the ledger.
const EVENTS_PER_PAGE: u32 = 1_000;

/// Age from which a placed order gets no hint: it would come too late to be of use.
const AGE_MAX_MS: i64 = 10_000;

/// Publishes hints.
pub struct HintPublisher {
    pub ledger: Arc<dyn Ledger>,
    pub publisher: Arc<dyn Publisher>,
    pub lease: TaskLease,
    /// The lengths of the windows with a delay queue, seconds.
    pub windows_s: Vec<u32>,
    /// Most unconfirmed messages.
    pub window: usize,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl Task for HintPublisher {
    /// The last feed number that was read; 0: none since the process got the lease.
    type State = Cell<i64>;

    const FAILURE: &'static str = "hints of due orders not published, their orders end a bit later";

    async fn run(&self, read_to: &Cell<i64>) -> RunResult {
        if !self.lease.acquire().await? {
            read_to.set(0);
            return Ok(());
        }
        while self.ledger.number_events(EVENTS_PER_PAGE).await? >= EVENTS_PER_PAGE {}
        let last = self.ledger.last_feed_no().await?;
        // A ledger that was restored gives numbers that were read before to other events.
        if read_to.get() == 0 || read_to.get() > last {
            read_to.set((last - i64::from(EVENTS_PER_PAGE)).max(0));
        }
        let mut lost: RunResult = Ok(());
        while self.lease.acquire().await? {
            let events = self.ledger.events_after(read_to.get(), EVENTS_PER_PAGE).await?;
            let Some(last) = events.last() else { break };
            read_to.set(last.feed_no());
            let events: Vec<_> = events.into_iter().filter_map(FeedEvent::into_order).collect();
            lost = lost.and(self.publish(&events).await);
        }
        lost
    }

    async fn release(&self) {
        self.lease.release().await;
    }
}

impl HintPublisher {
    async fn publish(&self, events: &[OrderEvent]) -> RunResult {
        let hint = |window_s| Message {
            route: Route::Delay(window_s),
            headers: Headers::default(),
            body: Bytes::new(),
        };
        let hints: Vec<Message> = self.fresh_windows(events).map(hint).collect();
        if hints.is_empty() {
            return Ok(());
        }
        let mut lost = self.publisher.open_channel(self.window).publish(hints).await;
        let num_hints = lost.len();
        lost.retain(|outcome| *outcome != PublishOutcome::Confirmed);
        self.count("published", num_hints - lost.len());
        self.count("lost", lost.len());
        match lost.first() {
            Some(first) => Err(format!("{} hints not confirmed: {first:?}", lost.len()).into()),
            None => Ok(()),
        }
    }

    fn count(&self, outcome: &'static str, num_messages: usize) {
        let counter = self.metrics.due_hints.get_or_create(&OutcomeLabel { outcome });
        counter.inc_by(num_messages as u64);
    }

    /// The lengths of the newly placed orders' windows, of those that have a delay queue.
    fn fresh_windows(&self, events: &[OrderEvent]) -> impl Iterator<Item = u32> {
        let now_ms = self.clock.wall_ms();
        let is_fresh = |event: &&OrderEvent| {
            event.order.version == 0 && now_ms.saturating_sub(event.at_ms) <= AGE_MAX_MS
        };
        let window_ms = |event: &OrderEvent| Some(event.order.due_ms?.saturating_sub(event.at_ms));
        let fresh: BTreeSet<i64> = events.iter().filter(is_fresh).filter_map(window_ms).collect();
        let is_begun = move |window_s: &u32| fresh.contains(&(i64::from(*window_s) * 1_000));
        self.windows_s.iter().copied().filter(is_begun)
    }
}
