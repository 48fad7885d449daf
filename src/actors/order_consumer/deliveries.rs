//! The deliveries of one subscription: which intents are submitted, and what is acknowledged.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::time::sleep;

use super::ConsumerDeps;
use super::ack_window::AckWindow;
use super::dead_letter_publisher::TaggedDeadLetter;
use super::submission::{InFlightIntent, Submission};
use crate::actors::supervisor::supervised::Supervision;
use crate::broker::{Acknowledger, Delivery, PublishChannel, Route};
use crate::domain::{OrderIntent, Sale, Sku, SkuNo};
use crate::messages::envelope;
use crate::messages::envelope::{DecodedIntents, EnvelopeFlaw, EnvelopeReader, MalformedEnvelope};
use crate::redis::transport;
use crate::runtime::backoff::Backoff;

/// Earlier deliveries of a message after which it is suspected of crashing consumers, and submitted
/// exclusively.
const SUSPECT_AFTER: u32 = 3;

/// The unacknowledged deliveries of one subscription, and what the work on them shares. Delivery
/// tags are valid for one subscription only: all of it is dropped with the subscription.
pub(super) struct Deliveries {
    pub(super) deps: Arc<ConsumerDeps>,
    pub(super) supervision: Supervision,
    pub(super) unacked: RefCell<AckWindow>,
    /// Locked by one call at a time, so that the broker receives each acknowledgement once and in
    /// order.
    acks: Mutex<Box<dyn Acknowledger>>,
    /// Locked by one exclusive submission at a time. The wait after one that failed.
    pub(super) turn: Mutex<Backoff>,
    /// Submissions of a single order that wait for their turn.
    pub(super) num_single: Cell<usize>,
    /// An intent whose order is committed; the canary places it again.
    pub(super) committed_intent: Rc<Cell<Option<OrderIntent>>>,
    pub(super) publish_channel: Mutex<Box<dyn PublishChannel>>,
    /// Locked by one refresh of the catalog at a time.
    refreshing: Mutex<()>,
    /// Refreshes of the catalog that have begun.
    num_refreshes: Cell<u64>,
}

/// Work on a part of the deliveries.
pub(super) enum Work {
    /// Submit until each intent has its outcome.
    Submit(Submission),
    /// Publish until each dead letter is confirmed.
    Publish(Vec<TaggedDeadLetter>),
    /// Validate with a fresh catalog.
    Refresh(Vec<Arc<Delivery>>),
}

impl Deliveries {
    pub(super) fn new(
        deps: Arc<ConsumerDeps>,
        supervision: Supervision,
        committed_intent: Rc<Cell<Option<OrderIntent>>>,
        acks: Box<dyn Acknowledger>,
    ) -> Self {
        Self {
            unacked: RefCell::default(),
            acks: Mutex::new(acks),
            turn: Mutex::new(deps.retry_backoff()),
            num_single: Cell::default(),
            committed_intent,
            publish_channel: Mutex::new(deps.publisher.open_channel(deps.confirm_window.max(1))),
            refreshing: Mutex::default(),
            num_refreshes: Cell::default(),
            deps,
            supervision,
        }
    }

    /// Does the work to its end, or until the consumer is quiet. Returns the work that follows.
    pub(super) async fn work(self: Rc<Self>, work: Work) -> Vec<Work> {
        match work {
            Work::Submit(submission) => self.submit(submission).await,
            Work::Publish(dead_letters) => {
                self.publish(dead_letters).await;
                Vec::new()
            }
            Work::Refresh(deliveries) => {
                let refreshed = self.supervision.wait(self.refresh_catalog()).await;
                refreshed.map(|()| self.check(deliveries, true)).unwrap_or_default()
            }
        }
    }

    /// Adds what the broker has delivered. Returns the work on it, and the number of unacknowledged
    /// deliveries.
    pub(super) fn receive(&self, deliveries: Vec<Delivery>) -> (Vec<Work>, usize) {
        let metrics = &self.deps.metrics;
        for delivery in &deliveries {
            metrics.consumer_deliveries.inc();
            metrics.consumer_redelivered.inc_by(u64::from(delivery.num_previous > 0));
            self.unacked.borrow_mut().add(delivery.tag, delivery.headers.sent_at_ms);
        }
        self.report_unacknowledged();
        let num_held = self.unacked.borrow().len();
        (self.check(deliveries.into_iter().map(Arc::new).collect(), false), num_held)
    }

    /// Validates deliveries; `is_fresh` as in [`validate`]. Returns the work on them.
    fn check(&self, deliveries: Vec<Arc<Delivery>>, is_fresh: bool) -> Vec<Work> {
        let (mut shared, mut dead_letters, mut outdated) = (Vec::new(), Vec::new(), Vec::new());
        let (mut work, batch_max) = (Vec::new(), self.deps.settings.batch_max);
        for delivery in deliveries {
            let lookup = |no| self.deps.catalog.of_sku(no);
            let intents = match validate(&delivery, &self.deps.reader, is_fresh, lookup) {
                Ok(Some(intents)) => intents,
                Ok(None) => {
                    self.unacked.borrow_mut().mark_stuck(delivery.tag);
                    outdated.push(delivery);
                    continue;
                }
                Err(malformed) => {
                    dead_letters.push(self.reject(&delivery, None, &malformed));
                    continue;
                }
            };
            self.unacked.borrow_mut().split(delivery.tag, intents.len());
            let mut items = Vec::with_capacity(intents.len());
            for (position, decoded) in intents.into_iter().enumerate() {
                let delivery = Arc::clone(&delivery);
                match decoded {
                    Ok(intent) => items.push(InFlightIntent { delivery, position, intent }),
                    Err(malformed) => {
                        dead_letters.push(self.reject(&delivery, Some(position), &malformed));
                    }
                }
            }
            if delivery.num_previous >= SUSPECT_AFTER {
                work.extend(Submission::work(&items, batch_max, true));
            } else {
                shared.append(&mut items);
            }
        }
        work.extend(Submission::work(&shared, batch_max, false));
        work.extend((!dead_letters.is_empty()).then_some(Work::Publish(dead_letters)));
        work.extend((!outdated.is_empty()).then_some(Work::Refresh(outdated)));
        work
    }

    /// Returns once the catalog was read after this call. Those who wait for a refresh share the
    /// next one.
    async fn refresh_catalog(&self) {
        let num_refreshes = self.num_refreshes.get();
        let _one_at_a_time = self.refreshing.lock().await;
        let mut backoff = self.deps.retry_backoff();
        // Another call has refreshed the catalog since, if another refresh has begun since.
        while self.num_refreshes.get() == num_refreshes || backoff.failures() > 0 {
            self.num_refreshes.update(|number| number + 1);
            let Err(error) = self.supervision.call((self.deps.refresh)()).await else { return };
            if backoff.failures() == 0 {
                let queue = self.deps.queue;
                tracing::warn!(queue, error, "catalog not refreshed, deliveries wait");
            }
            sleep(backoff.next_wait(fastrand::f64())).await;
        }
    }

    /// The dead letter of a malformed delivery, or of the intent at this position of it.
    fn reject(
        &self,
        delivery: &Delivery,
        position: Option<usize>,
        malformed: &MalformedEnvelope,
    ) -> TaggedDeadLetter {
        let MalformedEnvelope { flaw, what } = malformed;
        let queue = self.deps.queue;
        self.deps.metrics.consumer_poison(*flaw);
        let message = match position {
            None => envelope::dead_letter(delivery, queue, what),
            Some(position) => envelope::dead_letter_of_intent(delivery, position, queue, 0, what),
        };
        self.dead_letter(delivery.tag, message, flaw.name())
    }

    /// Acknowledges the completed deliveries.
    pub(super) async fn acknowledge(&self) {
        let acks = self.acks.lock().await;
        let (up_to, singly) = self.unacked.borrow_mut().take_acks();
        self.report_unacknowledged();
        // Crash here [committed_not_acknowledged]: the orders are committed; a redelivered intent
        // is a repeat, and acknowledged as a success.
        let acknowledging = async {
            if let Some(tag) = up_to {
                acks.up_to(tag).await;
            }
            for tag in singly {
                acks.one(tag).await;
            }
        };
        self.supervision.call(acknowledging).await;
    }

    /// Sets the gauge of unacknowledged deliveries.
    fn report_unacknowledged(&self) {
        self.deps.metrics.consumer_in_flight(self.deps.queue, self.unacked.borrow().len());
    }

    /// Announces the watermark to the reconciler. Without an unacknowledged delivery and with an
    /// empty queue, it is the present time, read before the queue depth.
    pub(super) async fn announce_watermark(&self, name: &str) -> Result<(), transport::Error> {
        let deps = &self.deps;
        let now_ms = deps.clock.wall_ms();
        let is_idle = || self.unacked.borrow().is_empty();
        let depth = if is_idle() {
            // A failed query proves nothing about the queue and this subscription.
            deps.subscriber.depth(Route::Orders(deps.queue)).await.ok()
        } else {
            None
        };
        let is_drained = is_idle() && depth.is_some_and(|depth| depth.is_certainly_empty());
        let consumed_ms = self.unacked.borrow().watermark();
        match if is_drained { Some(now_ms) } else { consumed_ms } {
            Some(watermark_ms) => deps.watermarks.announce(deps.queue, name, watermark_ms).await,
            None => Ok(()),
        }
    }
}

/// Validates the intents of one delivery against the catalog, because the ledger trusts the price,
/// slot and quota of an intent: a lookup for every row would be too expensive. `is_fresh`: the
/// catalog was read from the ledger after the delivery arrived, so that a SKU or epoch it lacks
/// does not exist, and its windows are the present ones. `None`: the catalog may be older than the
/// delivery: refresh it and validate again.
///
/// # Errors
/// The whole delivery is malformed.
pub fn validate(
    delivery: &Delivery,
    reader: &EnvelopeReader,
    is_fresh: bool,
    lookup: impl Fn(SkuNo) -> Option<(Arc<Sale>, Arc<Sku>)>,
) -> Result<Option<DecodedIntents>, MalformedEnvelope> {
    let mut intents = reader.decode(&delivery.headers, &delivery.body)?;
    for decoded in &mut intents {
        let Ok(intent) = decoded else { continue };
        intent.published_at_ms = delivery.headers.sent_at_ms;
        let found = lookup(intent.sku);
        let may_be_newer = |(sale, _): &(Arc<Sale>, Arc<Sku>)| {
            let window = sale.starts_at_ms..sale.ends_at_ms;
            intent.epoch > sale.epoch || !window.contains(&intent.placed_at_ms)
        };
        if !is_fresh && found.as_ref().is_none_or(may_be_newer) {
            return Ok(None);
        }
        let malformed = match found {
            None => {
                let what = format!("no sale has sku {}", intent.sku);
                Some(MalformedEnvelope::new(EnvelopeFlaw::Sku, what))
            }
            Some((sale, sku)) => {
                let terms = intent.contradiction(&sku, sale.epoch);
                let content = terms.map(|what| (EnvelopeFlaw::Content, what));
                let window = || Some((EnvelopeFlaw::Window, intent.window_contradiction(&sale)?));
                content.or_else(window).map(|(flaw, what)| MalformedEnvelope::new(flaw, what))
            }
        };
        if let Some(malformed) = malformed {
            *decoded = Err(malformed);
        }
    }
    Ok(Some(intents))
}

#[cfg(test)]
#[path = "deliveries_tests.rs"]
mod tests;
