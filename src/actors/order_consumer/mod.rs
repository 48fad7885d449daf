//! Flow step 7/12: broker -> order consumer.
//!
//! One consumer per order queue of a process: receives and validates (`deliveries`), submits to the
//! ledger writer (`submission`), acknowledges (`ack_window`). Up to the prefetch,
//! many submissions are in progress at once; the ledger writer gathers them into transactions.
//!
//! A delivery is acknowledged when each of its intents is an order or a recorded refusal in the
//! ledger, or a confirmed dead letter. The ledger writer writes the results to the stock; the
//! consumer does not wait for them.
//!
//! Owns: unacknowledged deliveries. Limits: `consumer.prefetch` unacknowledged deliveries, and the
//! permits of the ledger writer. On error: while the ledger fails, deliveries stay unacknowledged
//! and are retried with backoff (`retry_queue`), so that the prefetch stops the broker; an order
//! that fails by itself becomes a dead letter after `consumer.attempts_max` counted failures
//! (`evidence`). On crash: the broker redelivers what was not acknowledged. May repeat: every
//! delivery; the ledger answers `Repeat`, which is a success.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::actors::ledger_writer::LedgerWriterHandle;
use crate::actors::supervisor::supervised::{
    Incarnation, spawn_step, spawn_wait, step, supervised,
};
use crate::broker::{
    Acknowledger, Delivery, Inbox, Message, PublishChannel, Publisher, Subscriber,
};
use crate::config::ConsumerSettings;
use crate::db::Ledger;
use crate::domain::OrderIntent;
use crate::messages::Quiet;
use crate::messages::envelope::EnvelopeReader;
use crate::observe::metrics::Metrics;
use crate::runtime::backoff::Backoff;
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::runtime::unique_name;
use crate::services::catalog::Catalog;
use crate::watermark::{ANNOUNCED_EVERY, Watermarks};

mod ack_window;
mod dead_letter_publisher;
mod deliveries;
mod evidence;
mod retry_queue;
mod submission;
mod watermark;

use ack_window::AckWindow;
pub use deliveries::{flaw_of, validate};
use retry_queue::RetryQueue;
use submission::Submission;

/// Brings the catalog up to date with the ledger. The error is a text for operators.
pub type CatalogSync = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Dependencies of an order consumer; shared by all its incarnations.
#[derive(Clone)]
pub struct ConsumerDeps {
    /// Number of the order queue.
    pub queue: u16,
    pub subscriber: Arc<dyn Subscriber>,
    /// Publishes dead letters.
    pub publisher: Arc<dyn Publisher>,
    pub ledger_writer: LedgerWriterHandle,
    pub catalog: Arc<Catalog>,
    /// Called when the catalog lacks a SKU or an epoch.
    pub refresh: CatalogSync,
    /// Commits the canary when no order shows whether the ledger commits.
    pub ledger: Arc<dyn Ledger>,
    /// Tells whether the ledger fails, and how often it has committed.
    pub breaker: Breaker,
    /// Receives the watermark of this consumer.
    pub watermarks: Arc<dyn Watermarks>,
    pub reader: EnvelopeReader,
    pub settings: ConsumerSettings,
    /// Most dead letters that are published and not confirmed.
    pub confirm_window: usize,
    /// Waits before a retry at the broker.
    pub reconnect: Backoff,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl ConsumerDeps {
    /// Waits before a retry at ledger or catalog.
    fn retry_backoff(&self) -> Backoff {
        Backoff::new(self.settings.retry_backoff_min_ms, self.settings.retry_backoff_max_ms)
    }
}

/// The consumer of one order queue.
pub struct OrderConsumer {
    incarnation: Incarnation,
    deps: ConsumerDeps,
    /// Name of this incarnation among the consumers of its queue.
    name: Arc<str>,
    subscription: SubscriptionState,
    /// Whether the consumer is subscribing or waits for deliveries.
    is_reading: bool,
    subscribe_backoff: Backoff,
    /// During shutdown: kept open until the last submissions are acknowledged, then closed.
    closing_subscription: Option<Inbox>,
    publish_channel: Option<Box<dyn PublishChannel>>,
    /// An intent whose order is committed; the canary places it again.
    committed_intent: Option<OrderIntent>,
    /// Whether the last watermark could not be written.
    watermark_failed: bool,
}

/// An asynchronous operation of a subscription, or the wait before its retry. At most one of each
/// kind is running.
///
/// `Retry` resubmits held submissions; `Publish` publishes dead letters; `Announce` writes the
/// watermark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Refresh,
    Retry,
    Acknowledge,
    Publish,
    Announce,
}

/// State of the present subscription. Delivery tags are valid for one subscription only, so all of
/// it is dropped together.
struct SubscriptionState {
    /// Counts subscriptions: a late completion carries the number that it belongs to.
    number: u64,
    /// `None` while not subscribed.
    acknowledger: Option<Arc<dyn Acknowledger>>,
    /// Closed with the state: its unfinished submissions are abandoned, because the broker
    /// redelivers them.
    closed: watch::Sender<()>,
    running: BTreeSet<Operation>,
    /// Submissions inside the ledger writer.
    num_submissions: usize,
    unacked: AckWindow,
    /// Deliveries with a SKU or an epoch that the catalog lacks.
    awaiting_catalog: Vec<Arc<Delivery>>,
    refresh_backoff: Backoff,
    /// Submissions that the ledger did not write.
    retries: RetryQueue<Submission>,
    /// Dead letters to publish, each with the tag of the delivery that it completes a part of.
    dead_letters: VecDeque<(u64, Message)>,
    publish_backoff: Backoff,
}

impl SubscriptionState {
    fn new(number: u64, acknowledger: Option<Arc<dyn Acknowledger>>, deps: &ConsumerDeps) -> Self {
        Self {
            number,
            acknowledger,
            closed: watch::Sender::new(()),
            running: BTreeSet::new(),
            num_submissions: 0,
            unacked: AckWindow::default(),
            awaiting_catalog: Vec::new(),
            refresh_backoff: deps.retry_backoff(),
            retries: RetryQueue::new(deps.retry_backoff()),
            dead_letters: VecDeque::new(),
            publish_backoff: deps.reconnect,
        }
    }

    fn is_running(&self, operation: Operation) -> bool {
        self.running.contains(&operation)
    }
}

impl OrderConsumer {
    /// A consumer without a subscription; subscribes when started.
    pub fn new(incarnation: Incarnation, deps: ConsumerDeps) -> Self {
        Self {
            incarnation,
            name: unique_name(),
            subscription: SubscriptionState::new(0, None, &deps),
            is_reading: false,
            subscribe_backoff: deps.reconnect,
            deps,
            closing_subscription: None,
            publish_channel: None,
            committed_intent: None,
            watermark_failed: false,
        }
    }

    /// A completion for the present subscription only; a late one does nothing.
    fn scoped<T, F>(&self, then: F) -> impl FnOnce(&mut Self, &mut Context<Self>, T) + use<T, F>
    where
        F: FnOnce(&mut Self, &mut Context<Self>, T),
    {
        let number = self.subscription.number;
        move |consumer: &mut Self, ctx: &mut Context<Self>, done| {
            if number == consumer.subscription.number {
                then(consumer, ctx, done);
            }
            consumer.report_if_idle();
        }
    }

    /// Runs an operation of the present subscription, then `then`.
    fn spawn<T: 'static>(
        &mut self,
        ctx: &mut Context<Self>,
        operation: Operation,
        work: impl Future<Output = T> + 'static,
        then: impl FnOnce(&mut Self, &mut Context<Self>, T) + 'static,
    ) {
        self.subscription.running.insert(operation);
        let then = self.scoped(move |consumer, ctx, done| {
            consumer.subscription.running.remove(&operation);
            then(consumer, ctx, done);
        });
        spawn_step(self, ctx, work, then);
    }

    /// Retries an operation after a wait, unless the consumer is quiet by then.
    fn retry_later(
        &mut self,
        ctx: &mut Context<Self>,
        operation: Operation,
        wait: Duration,
        retry: impl FnOnce(&mut Self, &mut Context<Self>) + 'static,
    ) {
        self.subscription.running.insert(operation);
        let then = self.scoped(move |consumer, ctx, ()| {
            consumer.subscription.running.remove(&operation);
            if !consumer.incarnation.is_quiet() {
                retry(consumer, ctx);
            }
        });
        spawn_wait(self, ctx, tokio::time::sleep(wait), then);
    }

    /// Once quiet and idle: closes the subscription, which returns the remaining deliveries to the
    /// queue, and answers [`Quiet`].
    fn report_if_idle(&mut self) {
        let subscription = &self.subscription;
        let has_work = subscription.num_submissions > 0
            || subscription.is_running(Operation::Acknowledge)
            || subscription.is_running(Operation::Publish);
        if self.incarnation.is_quiet() && !self.is_reading && !has_work {
            self.closing_subscription = None;
            self.incarnation.report_quiet();
        }
    }
}

supervised!(OrderConsumer);

impl Actor for OrderConsumer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        step(self, ctx, Self::subscribe);
        ctx.run_interval(ANNOUNCED_EVERY, |consumer, ctx| {
            step(consumer, ctx, Self::announce_watermark);
        });
    }
}

impl Handler<Quiet> for OrderConsumer {
    type Result = ();

    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |consumer, _| {
            consumer.incarnation.quiet(quiet);
            consumer.report_if_idle();
        });
    }
}
