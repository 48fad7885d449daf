//! Flow step 7/12: broker -> order consumer.
//!
//! One intake for each order queue of a process: receive, validate (`judging`), submit to the order
//! consumer, acknowledge. Many submissions are inside at once, up to the prefetch; the consumer
//! gathers them into transactions.
//!
//! A delivery is acknowledged (`settling`) when each of its intents is an order or a recorded
//! refusal in the ledger, or a confirmed dead letter. Results reach the stock from the order
//! consumer; the intake does not wait for them.
//!
//! Owns: deliveries that are not acknowledged. Limits: `consumer.prefetch` deliveries in hand, and
//! what the permits of the consumer let in. On error: while the ledger fails, everything stays in
//! hand as it is and is tried again with growing waits (`retry_queue`), so that the broker stops by
//! itself; an order whose failure is its own (`evidence`) is tried `consumer.attempts_max` times
//! and becomes a dead letter. On death: the broker delivers again what was not acknowledged. May
//! repeat: every delivery; the ledger says `Repeat`, which is a success.

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
use crate::runtime::process::unique_name;
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

/// Brings the catalog up to date with the ledger; fails with what people should know.
pub type CatalogSync = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Limits and waits of an intake.
#[derive(Debug, Clone)]
pub struct ConsumerLimits {
    /// Deliveries in hand.
    pub prefetch: u16,
    /// Most intents in one submission.
    pub batch_max: usize,
    /// Dead letters that may be unconfirmed at once.
    pub confirm_window: usize,
    /// Failures of one order that are its own, until it becomes a dead letter.
    pub attempts_max: u32,
    /// First and longest wait before ledger or catalog are asked again, milliseconds.
    pub ask_again_ms: (u64, u64),
    /// First and longest wait before the broker is asked again, milliseconds.
    pub reconnect_ms: (u64, u64),
}

impl ConsumerLimits {
    /// As configured.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let (consumer, amqp) = (&settings.consumer, &settings.amqp);
        Self {
            prefetch: consumer.prefetch,
            batch_max: consumer.batch_max,
            confirm_window: settings.relay.confirm_window,
            attempts_max: consumer.attempts_max,
            ask_again_ms: (consumer.retry_backoff_min_ms, consumer.retry_backoff_max_ms),
            reconnect_ms: (amqp.reconnect_min_ms, amqp.reconnect_max_ms),
        }
    }
}

/// What an intake works with; the same for every intake that follows it at its queue.
#[derive(Clone)]
pub struct ConsumerDeps {
    /// The order queue.
    pub queue: u16,
    /// Where deliveries come from.
    pub subscriber: Arc<dyn Subscriber>,
    /// Where dead letters go.
    pub publisher: Arc<dyn Publisher>,
    /// The way to the ledger.
    pub orders: LedgerWriterHandle,
    /// What the sales say.
    pub catalog: Arc<Catalog>,
    /// Asked when the catalog does not know a SKU or an opening.
    pub refresh: CatalogSync,
    /// Asked to commit something where no order tells whether it does.
    pub ledger: Arc<dyn Ledger>,
    /// Whether the ledger fails, and how often it has committed.
    pub breaker: Breaker,
    /// Where this consumer announces how far it has come.
    pub watermarks: Arc<dyn Watermarks>,
    /// Whose messages are ours.
    pub installation: Arc<str>,
    /// Limits and waits.
    pub limits: ConsumerLimits,
    /// Time.
    pub clock: SharedClock,
    /// What operators see.
    pub metrics: Arc<Metrics>,
}

impl ConsumerDeps {
    fn ask_again(&self) -> Backoff {
        Backoff::new(self.limits.ask_again_ms.0, self.limits.ask_again_ms.1)
    }

    fn reconnect(&self) -> Backoff {
        Backoff::new(self.limits.reconnect_ms.0, self.limits.reconnect_ms.1)
    }
}

/// The intake of one order queue.
pub struct OrderConsumer {
    life: Incarnation,
    deps: ConsumerDeps,
    /// Names this incarnation among the consumers of its queue.
    consumer: Arc<str>,
    hand: SubscriptionState,
    /// Kept while the last submissions come back, after the last delivery was read.
    unread: Option<Box<dyn Subscription>>,
    outgoing: Option<Box<dyn PublishChannel>>,
    under_way: UnderWay,
    waits: Backoffs,
    /// An order that the ledger has.
    known: Option<OrderIntent>,
    quiet: Vec<oneshot::Sender<()>>,
    is_quiet: bool,
}

/// What is in hand of the present subscription. The numbers of its deliveries mean nothing to any
/// other, so all of it is forgotten together.
struct SubscriptionState {
    /// Counts subscriptions: what comes back late names the one that it belongs to.
    subscription: u64,
    acks: Option<Arc<dyn Acknowledger>>,
    /// Closed when the hand is forgotten: submissions of it that have not begun are withdrawn, for
    /// all of it is delivered again.
    held: watch::Sender<()>,
    window: AckWindow,
    /// Deliveries that wait for the catalog.
    strangers: Vec<Arc<Delivery>>,
    /// Submissions that the ledger did not write.
    retries: RetryQueue<Submission>,
    /// Dead letters to be published.
    letters: VecDeque<OutgoingDeadLetter>,
    silence: IdleWatch,
    published: PublishTimes,
}

impl SubscriptionState {
    fn new(subscription: u64, acks: Option<Arc<dyn Acknowledger>>, deps: &ConsumerDeps) -> Self {
        Self {
            subscription,
            acks,
            held: watch::Sender::new(()),
            window: AckWindow::default(),
            strangers: Vec::new(),
            retries: RetryQueue::new(deps.ask_again()),
            letters: VecDeque::new(),
            silence: IdleWatch::default(),
            published: PublishTimes::default(),
        }
    }
}

/// What goes on beside the mailbox.
#[expect(clippy::struct_excessive_bools, reason = "each goes on or not, whatever the others do")]
#[derive(Debug, Clone, Copy, Default)]
struct UnderWay {
    reading: bool,
    refreshing: bool,
    acknowledging: bool,
    publishing: bool,
    watching: bool,
    /// Whether what is held will be tried again.
    retrying: bool,
    announcing: bool,
    /// Whether the last watermark could not be written.
    unannounced: bool,
    /// Submissions inside the consumer.
    inside: usize,
}

/// The waits of what is tried again, each until it succeeds.
struct Backoffs {
    subscribe: Backoff,
    refresh: Backoff,
    publish: Backoff,
}

impl OrderConsumer {
    /// An intake with nothing in hand.
    #[must_use]
    pub fn new(life: Incarnation, deps: ConsumerDeps) -> Self {
        let waits = Backoffs {
            subscribe: deps.reconnect(),
            refresh: deps.ask_again(),
            publish: deps.reconnect(),
        };
        Self {
            life,
            consumer: unique_name(),
            hand: SubscriptionState::new(0, None, &deps),
            deps,
            unread: None,
            outgoing: None,
            under_way: UnderWay::default(),
            waits,
            known: None,
            quiet: Vec::new(),
            is_quiet: false,
        }
    }

    /// Once nothing is under way any more, what is still in hand goes back to the queue.
    fn report_if_idle(&mut self) {
        let UnderWay { reading, acknowledging, publishing, inside, .. } = self.under_way;
        if self.is_quiet && !reading && !acknowledging && !publishing && inside == 0 {
            self.unread = None;
            self.quiet.drain(..).for_each(|done| reply(done, ()));
        }
    }
}

impl Supervised for OrderConsumer {
    fn life(&mut self) -> &mut Incarnation {
        &mut self.life
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
        step(self, ctx, |intake, _| {
            intake.is_quiet = true;
            intake.quiet.push(quiet.done);
            intake.report_if_idle();
        });
    }
}

impl Handler<Stop> for OrderConsumer {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
