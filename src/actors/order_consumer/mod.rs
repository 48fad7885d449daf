//! Flow step 7/12: broker -> order consumer.
//!
//! One consumer per order queue of a process: receives, validates (`validation`), submits to the
//! ledger writer (`submission`), acknowledges (`ack_window`). Up to the prefetch, many submissions
//! are in progress at once; the ledger writer gathers them into transactions.
//!
//! A delivery is acknowledged when each of its intents is an order or a recorded refusal in the
//! ledger, or a confirmed dead letter. The ledger writer writes the results to the stock; the
//! consumer does not wait for them.
//!
//! Owns: unacknowledged deliveries. Limits: `consumer.prefetch` unacknowledged deliveries, and the
//! permits of the ledger writer. On error: while the ledger fails, deliveries stay unacknowledged
//! and are retried with backoff (`retry_queue`), so that the prefetch stops the broker; an order
//! that fails by itself (`evidence`) is tried `consumer.attempts_max` times and becomes a dead
//! letter. On crash: the broker redelivers what was not acknowledged. May repeat: every delivery;
//! the ledger answers `Repeat`, which is a success.

use std::collections::VecDeque;
use std::sync::Arc;

use actix::{Actor, Context, Handler};
use futures_util::future::BoxFuture;
use tokio::sync::{oneshot, watch};

use crate::actors::ledger_writer::handle::LedgerWriterHandle;
use crate::actors::supervisor::supervised::{ExitReason, Incarnation, Supervised, end, step};
use crate::broker::{Acknowledger, Delivery, PublishChannel, Publisher, Subscriber, Subscription};
use crate::config::Settings;
use crate::db::Ledger;
use crate::domain::OrderIntent;
use crate::messages::{Quiet, Stop, reply};
use crate::observe::metrics::Metrics;
use crate::runtime::backoff::Backoff;
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::runtime::unique_name;
use crate::services::catalog::Catalog;
use crate::watermark::Watermarks;

pub mod ack_window;
mod dead_letter;
pub mod evidence;
mod idle_watch;
mod receiving;
pub mod retry_queue;
mod submission;
pub mod validation;
mod watermark;

use ack_window::AckWindow;
use dead_letter::OutgoingDeadLetter;
use idle_watch::IdleWatch;
use retry_queue::RetryQueue;
use submission::Submission;
use watermark::PublishTimes;

/// Brings the catalog up to date with the ledger. The error is a text for operators.
pub type CatalogSync = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Limits and backoffs of an order consumer.
#[derive(Debug, Clone)]
pub struct ConsumerLimits {
    /// Unacknowledged deliveries.
    pub prefetch: u16,
    /// Intents in one submission.
    pub batch_max: usize,
    /// Dead letters published and not confirmed.
    pub confirm_window: usize,
    /// Counted failures of one order that make it a dead letter.
    pub attempts_max: u32,
    /// First and longest wait before a retry at ledger or catalog, milliseconds.
    pub retry_backoff_ms: (u64, u64),
    /// First and longest wait before a retry at the broker, milliseconds.
    pub reconnect_backoff_ms: (u64, u64),
}

impl ConsumerLimits {
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let (consumer, amqp) = (&settings.consumer, &settings.amqp);
        Self {
            prefetch: consumer.prefetch,
            batch_max: consumer.batch_max,
            confirm_window: settings.relay.confirm_window,
            attempts_max: consumer.attempts_max,
            retry_backoff_ms: (consumer.retry_backoff_min_ms, consumer.retry_backoff_max_ms),
            reconnect_backoff_ms: (amqp.reconnect_min_ms, amqp.reconnect_max_ms),
        }
    }
}

/// Dependencies of an order consumer; shared by all its incarnations.
#[derive(Clone)]
pub struct ConsumerDeps {
    /// Number of the order queue.
    pub queue: u16,
    pub subscriber: Arc<dyn Subscriber>,
    /// Publishes dead letters.
    pub publisher: Arc<dyn Publisher>,
    pub orders: LedgerWriterHandle,
    pub catalog: Arc<Catalog>,
    /// Called when the catalog lacks a SKU or an epoch.
    pub refresh: CatalogSync,
    /// Commits the canary when no order shows whether the ledger commits.
    pub ledger: Arc<dyn Ledger>,
    /// Tells whether the ledger fails, and how often it has committed.
    pub breaker: Breaker,
    /// Receives the watermark of this consumer.
    pub watermarks: Arc<dyn Watermarks>,
    /// Messages of other installations are poison.
    pub installation: Arc<str>,
    pub limits: ConsumerLimits,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

impl ConsumerDeps {
    fn retry_backoff(&self) -> Backoff {
        Backoff::new(self.limits.retry_backoff_ms.0, self.limits.retry_backoff_ms.1)
    }

    fn reconnect_backoff(&self) -> Backoff {
        Backoff::new(self.limits.reconnect_backoff_ms.0, self.limits.reconnect_backoff_ms.1)
    }
}

/// The consumer of one order queue.
pub struct OrderConsumer {
    incarnation: Incarnation,
    deps: ConsumerDeps,
    /// Name of this incarnation among the consumers of its queue.
    name: Arc<str>,
    subscription: SubscriptionState,
    /// During shutdown: kept open until the last submissions are acknowledged, then closed.
    closing_subscription: Option<Box<dyn Subscription>>,
    publish_channel: Option<Box<dyn PublishChannel>>,
    in_progress: InProgress,
    backoffs: Backoffs,
    /// An intent whose order is committed; the canary places it again.
    committed_intent: Option<OrderIntent>,
    quiet: Vec<oneshot::Sender<()>>,
    is_quiet: bool,
}

/// State of the present subscription. Delivery tags are valid for one subscription only, so all of
/// it is dropped together.
struct SubscriptionState {
    /// Counts subscriptions: a late completion carries the number that it belongs to.
    number: u64,
    acks: Option<Arc<dyn Acknowledger>>,
    /// Closed with the state: its unfinished submissions are abandoned, because the broker
    /// redelivers them.
    closed: watch::Sender<()>,
    window: AckWindow,
    /// Deliveries with a SKU or an epoch that the catalog lacks.
    awaiting_catalog: Vec<Arc<Delivery>>,
    /// Submissions that the ledger did not write.
    retries: RetryQueue<Submission>,
    /// Dead letters to publish.
    dead_letters: VecDeque<OutgoingDeadLetter>,
    idle: IdleWatch,
    publish_times: PublishTimes,
}

impl SubscriptionState {
    fn new(number: u64, acks: Option<Arc<dyn Acknowledger>>, deps: &ConsumerDeps) -> Self {
        Self {
            number,
            acks,
            closed: watch::Sender::new(()),
            window: AckWindow::default(),
            awaiting_catalog: Vec::new(),
            retries: RetryQueue::new(deps.retry_backoff()),
            dead_letters: VecDeque::new(),
            idle: IdleWatch::default(),
            publish_times: PublishTimes::default(),
        }
    }
}

/// Operations that run beside the mailbox.
#[expect(clippy::struct_excessive_bools, reason = "independent operations, no combined state")]
#[derive(Debug, Clone, Copy, Default)]
struct InProgress {
    reading: bool,
    refreshing: bool,
    acknowledging: bool,
    publishing: bool,
    checking_depth: bool,
    /// Whether a retry of held submissions is scheduled.
    retrying: bool,
    announcing: bool,
    /// Whether the last watermark could not be written.
    watermark_failed: bool,
    /// Submissions inside the ledger writer.
    num_submitted: usize,
}

/// Each is reset when its operation succeeds.
struct Backoffs {
    subscribe: Backoff,
    refresh: Backoff,
    publish: Backoff,
}

impl OrderConsumer {
    /// A consumer without a subscription; subscribes when started.
    #[must_use]
    pub fn new(incarnation: Incarnation, deps: ConsumerDeps) -> Self {
        let backoffs = Backoffs {
            subscribe: deps.reconnect_backoff(),
            refresh: deps.retry_backoff(),
            publish: deps.reconnect_backoff(),
        };
        Self {
            incarnation,
            name: unique_name(),
            subscription: SubscriptionState::new(0, None, &deps),
            deps,
            closing_subscription: None,
            publish_channel: None,
            in_progress: InProgress::default(),
            backoffs,
            committed_intent: None,
            quiet: Vec::new(),
            is_quiet: false,
        }
    }

    /// Once quiet and idle: closes the subscription, which returns the remaining deliveries to the
    /// queue, and answers [`Quiet`].
    fn report_if_idle(&mut self) {
        let InProgress { reading, acknowledging, publishing, num_submitted, .. } = self.in_progress;
        if self.is_quiet && !reading && !acknowledging && !publishing && num_submitted == 0 {
            self.closing_subscription = None;
            self.quiet.drain(..).for_each(|done| reply(done, ()));
        }
    }
}

impl Supervised for OrderConsumer {
    fn incarnation(&mut self) -> &mut Incarnation {
        &mut self.incarnation
    }
}

impl Actor for OrderConsumer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        step(self, ctx, Self::subscribe);
        Self::announce_watermark(ctx);
    }
}

impl Handler<Quiet> for OrderConsumer {
    type Result = ();

    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |consumer, _| {
            consumer.is_quiet = true;
            consumer.quiet.push(quiet.done);
            consumer.report_if_idle();
        });
    }
}

impl Handler<Stop> for OrderConsumer {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
