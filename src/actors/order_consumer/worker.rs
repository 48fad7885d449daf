//! The rounds of one order consumer: reads its queue, and runs the tasks of what it has read.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::sleep;

use super::ConsumerDeps;
use super::deliveries::{Deliveries, Work};
use crate::actors::supervisor::supervised::{LastError, Supervision};
use crate::broker::{Delivery, Error, Inbox, Route};
use crate::domain::OrderIntent;
use crate::redis::transport;
use crate::runtime::backoff::Backoff;
use crate::runtime::unique_name;
use crate::watermark::ANNOUNCED_EVERY;

/// Longest wait for a delivery; the end of the read shows progress to the supervisor.
const READ_TIMEOUT: Duration = Duration::from_millis(200);

/// What is in progress: many futures, or one at most.
type Running<T> = FuturesUnordered<LocalBoxFuture<'static, T>>;

/// One order consumer, without its actor.
pub(super) struct ConsumerWorker {
    deps: Arc<ConsumerDeps>,
    supervision: Supervision,
    /// Name among the consumers of the queue.
    name: Arc<str>,
    subscribe_backoff: Backoff,
    /// An intent whose order is committed, for the canary.
    committed_intent: Rc<Cell<Option<OrderIntent>>>,
    announce_error: LastError,
    /// Subscribes, or reads the subscription.
    reading: Running<Result<(Inbox, Vec<Delivery>), Error>>,
    /// `None` while not subscribed.
    deliveries: Option<Rc<Deliveries>>,
    /// The work on the deliveries. Each ends with the work that follows it.
    tasks: Running<Vec<Work>>,
    announcing: Running<Result<(), transport::Error>>,
}

impl ConsumerWorker {
    /// A worker that subscribes after `wait`.
    pub(super) fn new(deps: Arc<ConsumerDeps>, supervision: Supervision, wait: Duration) -> Self {
        let worker = Self {
            name: unique_name(),
            subscribe_backoff: deps.reconnect,
            committed_intent: Rc::default(),
            announce_error: LastError::default(),
            reading: Running::default(),
            deliveries: None,
            tasks: Running::default(),
            announcing: Running::default(),
            deps,
            supervision,
        };
        worker.subscribe(wait);
        worker.announce_later();
        worker
    }

    /// Waits for the end of a read or a task, and starts what follows. Once quiet, nothing is read
    /// any more.
    pub(super) async fn round(&mut self) {
        let supervision = self.supervision.clone();
        let is_quiet = supervision.is_quiet();
        tokio::select! {
            () = supervision.quiet(), if !is_quiet => {}
            Some(next) = self.tasks.next() => self.start(next),
            Some(announced) = self.announcing.next() => {
                if let Some(error) = self.announce_error.changed(announced) {
                    let queue = self.deps.queue;
                    tracing::warn!(queue, %error, "watermark not announced, retrying");
                }
                self.announce_later();
            }
            Some(read) = self.reading.next(), if !is_quiet => match read {
                Ok((inbox, deliveries)) => self.receive(inbox, deliveries),
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
        if self.deliveries.is_none() && self.subscribe_backoff.failures() > 0 {
            tracing::info!(queue = self.deps.queue, "order queue: subscribed again");
        }
        if !deliveries.is_empty() {
            self.subscribe_backoff.reset();
        }
        let open = self.deliveries.get_or_insert_with(|| {
            let (deps, supervision) = (Arc::clone(&self.deps), self.supervision.clone());
            let committed_intent = Rc::clone(&self.committed_intent);
            Rc::new(Deliveries::new(deps, supervision, committed_intent, inbox.acks()))
        });
        let (work, num_held) = open.receive(deliveries);
        self.start(work);
        let supervision = self.supervision.clone();
        let reading = async move {
            let read = supervision.call(inbox.next_batch(READ_TIMEOUT, num_held)).await;
            read.map(|deliveries| (inbox, deliveries))
        };
        self.reading.push(reading.boxed_local());
    }

    /// Drops the work of the subscription, submissions inside the ledger writer included, and
    /// subscribes again: the broker redelivers all unacknowledged deliveries to the consumers of
    /// the queue.
    fn subscription_lost(&mut self, error: &Error) {
        let queue = self.deps.queue;
        if self.subscribe_backoff.failures() == 0 {
            tracing::warn!(queue, error = error as &dyn std::error::Error, "no orders delivered");
        }
        let wait = self.subscribe_backoff.next_wait(fastrand::f64());
        *self = Self {
            name: Arc::clone(&self.name),
            subscribe_backoff: self.subscribe_backoff,
            committed_intent: Rc::clone(&self.committed_intent),
            ..Self::new(Arc::clone(&self.deps), self.supervision.clone(), wait)
        };
        self.deps.metrics.consumer_in_flight(queue, 0);
    }

    fn start(&self, work: Vec<Work>) {
        let Some(open) = &self.deliveries else { return };
        for work in work {
            self.tasks.push(Rc::clone(open).work(work).boxed_local());
        }
    }

    /// Announces the watermark after the interval. Without a subscription there is none: this
    /// consumer consumes nothing.
    fn announce_later(&self) {
        let (supervision, name) = (self.supervision.clone(), Arc::clone(&self.name));
        let open = self.deliveries.clone();
        let announcing = async move {
            sleep(ANNOUNCED_EVERY).await;
            let Some(open) = open else { return Ok(()) };
            supervision.call(open.announce_watermark(&name)).await
        };
        self.announcing.push(announcing.boxed_local());
    }
}
