//! The rounds of one order consumer: reads its queue, and runs the tasks of what it has read.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, LocalBoxStream, unfold};
use futures_util::{FutureExt, StreamExt};
use tokio::time::sleep;

use super::ConsumerDeps;
use super::deliveries::{Deliveries, Work};
use crate::actors::supervisor::supervised::{LastError, Supervision};
use crate::broker::{Delivery, Error, Inbox, Route};
use crate::domain::OrderIntent;
use crate::runtime::backoff::Backoff;
use crate::runtime::unique_name;
use crate::watermark::ANNOUNCED_EVERY;

/// Longest wait for a delivery; the end of the read shows progress to the supervisor.
const READ_TIMEOUT: Duration = Duration::from_millis(200);

/// Futures in progress.
type Running<T> = FuturesUnordered<LocalBoxFuture<'static, T>>;

/// One order consumer, without its actor.
pub(super) struct ConsumerWorker {
    deps: Arc<ConsumerDeps>,
    supervision: Supervision,
    subscribe_backoff: Backoff,
    /// An intent whose order is committed, for the canary.
    committed_intent: Rc<Cell<Option<OrderIntent>>>,
    /// Subscribes, or reads the subscription.
    reading: Running<Result<(Inbox, Vec<Delivery>), Error>>,
    /// `None` while not subscribed.
    deliveries: Rc<RefCell<Option<Rc<Deliveries>>>>,
    /// The work on the deliveries. Each ends with the work that follows it.
    tasks: Running<Vec<Work>>,
    announcements: LocalBoxStream<'static, ()>,
}

impl ConsumerWorker {
    /// A worker that subscribes at once.
    pub(super) fn new(deps: Arc<ConsumerDeps>, supervision: Supervision) -> Self {
        let deliveries = Rc::default();
        let worker = Self {
            subscribe_backoff: deps.reconnect,
            committed_intent: Rc::default(),
            reading: Running::default(),
            announcements: announcements(&deps, &supervision, &deliveries),
            deliveries,
            tasks: Running::default(),
            deps,
            supervision,
        };
        worker.subscribe(Duration::ZERO);
        worker
    }

    /// Waits for the end of a read or a task, and starts what follows. Once quiet, nothing is
    /// received any more.
    pub(super) async fn round(&mut self) {
        let supervision = self.supervision.clone();
        // Once quiet, it would return at once.
        let awaits_quiet = !supervision.is_quiet() || self.tasks.is_empty();
        tokio::select! {
            () = supervision.quiet(), if awaits_quiet => {}
            Some(()) = self.announcements.next() => {}
            Some(next) = self.tasks.next() => self.start(next),
            Some(read) = self.reading.next() => match read {
                Ok((inbox, _)) if supervision.is_quiet() => self.keep_open(inbox),
                Ok((inbox, deliveries)) => self.receive(inbox, deliveries),
                // The deliveries cannot be acknowledged any more.
                Err(_) if supervision.is_quiet() => self.tasks.clear(),
                Err(error) => self.subscription_lost(&error),
            },
        }
    }

    /// Whether the worker is quiet and has no work in flight.
    pub(super) fn has_ended(&self) -> bool {
        self.supervision.is_quiet() && self.tasks.is_empty()
    }

    fn subscribe(&self, wait: Duration) {
        let (deps, supervision) = (Arc::clone(&self.deps), self.supervision.clone());
        let subscribing = async move {
            sleep(wait).await;
            let (source, prefetch) = (Route::Orders(deps.queue), deps.settings.prefetch);
            let opening = Inbox::open(&deps.subscriber, source, prefetch, &deps.clock);
            supervision.call(opening).await.map(|inbox| (inbox, Vec::new()))
        };
        self.reading.push(subscribing.boxed_local());
    }

    /// Starts the work on what was read, and reads on meanwhile.
    fn receive(&mut self, mut inbox: Inbox, deliveries: Vec<Delivery>) {
        let is_first = self.deliveries.borrow().is_none();
        if is_first && self.subscribe_backoff.failures() > 0 {
            tracing::info!(queue = self.deps.queue, "order queue: subscribed again");
        }
        if !deliveries.is_empty() {
            self.subscribe_backoff.reset();
        }
        let open = Rc::clone(self.deliveries.borrow_mut().get_or_insert_with(|| {
            let (deps, supervision) = (Arc::clone(&self.deps), self.supervision.clone());
            let committed_intent = Rc::clone(&self.committed_intent);
            Rc::new(Deliveries::new(deps, supervision, committed_intent, inbox.acks()))
        }));
        let (work, num_held) = open.receive(deliveries);
        self.start(work);
        let supervision = self.supervision.clone();
        let reading = async move {
            let read = supervision.call(inbox.next_batch(READ_TIMEOUT, num_held)).await;
            read.map(|deliveries| (inbox, deliveries))
        };
        self.reading.push(reading.boxed_local());
    }

    /// Keeps the subscription open without reading it: what is in flight is acknowledged on it.
    fn keep_open(&self, inbox: Inbox) {
        let open = async move {
            let _inbox = inbox;
            pending().await
        };
        self.reading.push(open.boxed_local());
    }

    /// Drops the work of the subscription, which withdraws the submissions that the ledger writer
    /// has not begun, and subscribes again: the broker redelivers all unacknowledged deliveries to
    /// the consumers of the queue.
    fn subscription_lost(&mut self, error: &Error) {
        let queue = self.deps.queue;
        if self.subscribe_backoff.failures() == 0 {
            tracing::warn!(queue, error = error as &dyn std::error::Error, "no orders delivered");
        }
        self.tasks.clear();
        self.deliveries.take();
        self.deps.metrics.consumer_in_flight(queue, 0);
        let wait = self.subscribe_backoff.next_wait(fastrand::f64());
        self.subscribe(wait);
    }

    fn start(&self, work: Vec<Work>) {
        let open = self.deliveries.borrow();
        let Some(open) = open.as_ref() else { return };
        for work in work {
            self.tasks.push(Rc::clone(open).work(work).boxed_local());
        }
    }
}

/// Announces the watermark of the subscription in intervals, without an end. Without a subscription
/// there is none: this consumer consumes nothing.
fn announcements(
    deps: &Arc<ConsumerDeps>,
    supervision: &Supervision,
    deliveries: &Rc<RefCell<Option<Rc<Deliveries>>>>,
) -> LocalBoxStream<'static, ()> {
    let (queue, name, supervision) = (deps.queue, unique_name(), supervision.clone());
    let deliveries = Rc::clone(deliveries);
    let announced = unfold(LastError::default(), move |mut last_error| {
        let (name, supervision) = (Arc::clone(&name), supervision.clone());
        let deliveries = Rc::clone(&deliveries);
        async move {
            sleep(ANNOUNCED_EVERY).await;
            let open = deliveries.borrow().clone();
            if let Some(open) = open {
                let announced = supervision.call(open.announce_watermark(&name)).await;
                if let Some(error) = last_error.changed(announced) {
                    tracing::warn!(queue, %error, "watermark not announced, retrying");
                }
            }
            Some(((), last_error))
        }
    });
    announced.boxed_local()
}
