//! Flow step 7/12: broker -> order consumer.
//!
//! One intake for each order queue of a process. It opens what is delivered, keeps out what the
//! sale contradicts (`judging`), puts the rest to the order consumer and acknowledges what is at
//! its end (`settling`). Many submissions are inside at once, up to the prefetch; the consumer
//! gathers them into transactions.
//!
//! A delivery is acknowledged when each of its intents is at an end: an order or a recorded refusal
//! whose result the stock has, or a confirmed copy in a delay queue or among the dead letters
//! (`retrying`, `posting`). An order that fails sends a copy of itself alone; its neighbours go on.
//!
//! Owns: deliveries that are not acknowledged. Limits: `consumer.prefetch` deliveries in hand, and
//! what the permits of the consumer let in. On error: while ledger or stock are away everything
//! stays in hand and is tried again with growing waits (`holding`), so that the broker stops by
//! itself; an intent that fails while the ledger answers goes through the delay queues and then to
//! the dead letters. On death: the broker delivers again what was not acknowledged. May repeat:
//! every delivery; the ledger says `Repeat`, which is a success.

use std::collections::VecDeque;
use std::sync::Arc;

use actix::{Actor, Context, Handler};
use futures_util::future::BoxFuture;
use tokio::sync::{oneshot, watch};

use super::breaker::Breaker;
use super::child::{ExitReason, Life, Living, end, step};
use super::order_door::OrderDoor;
use crate::backoff::Backoff;
use crate::broker::{Acks, Delivery, Outgoing, Publisher, Subscriber, Subscription};
use crate::catalog::Catalog;
use crate::clock::SharedClock;
use crate::config::Settings;
use crate::messages::{Quiet, Stop, reply};
use crate::metrics::Metrics;

pub mod holding;
pub mod judging;
mod landing;
mod posting;
mod receiving;
pub mod retrying;
pub mod settling;
mod watching;

use holding::Holding;
use landing::Piece;
use posting::Letter;
use settling::Window;
use watching::Silence;

/// Brings the catalog up to date with the ledger; fails with what people should know.
pub type Refresh = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Limits and waits of an intake.
#[derive(Debug, Clone)]
pub struct IntakeLimits {
    /// Deliveries in hand.
    pub prefetch: u16,
    /// Most intents in one submission.
    pub batch_max: usize,
    /// Copies that may be unconfirmed at once.
    pub confirm_window: usize,
    /// Delay steps.
    pub num_delays: usize,
    /// First and longest wait before ledger, stock or catalog are asked again, milliseconds.
    pub ask_again_ms: (u64, u64),
    /// First and longest wait before the broker is asked again, milliseconds.
    pub reconnect_ms: (u64, u64),
}

impl IntakeLimits {
    /// As configured.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let (consumer, amqp) = (&settings.consumer, &settings.amqp);
        Self {
            prefetch: consumer.prefetch,
            batch_max: consumer.batch_max,
            confirm_window: settings.relay.confirm_window,
            num_delays: amqp.retry_delays_ms.len(),
            ask_again_ms: (consumer.retry_backoff_min_ms, consumer.retry_backoff_max_ms),
            reconnect_ms: (amqp.reconnect_min_ms, amqp.reconnect_max_ms),
        }
    }
}

/// What an intake works with; the same for every intake that follows it at its queue.
#[derive(Clone)]
pub struct IntakeParts {
    /// The order queue.
    pub queue: u16,
    /// Where deliveries come from.
    pub subscriber: Arc<dyn Subscriber>,
    /// Where copies go: another attempt later, or a dead letter.
    pub publisher: Arc<dyn Publisher>,
    /// The way to the ledger.
    pub orders: OrderDoor,
    /// What the sales say.
    pub catalog: Arc<Catalog>,
    /// Asked when the catalog does not know a SKU or an opening, and when nobody knows whether the
    /// ledger is there.
    pub refresh: Refresh,
    /// Whether the ledger fails.
    pub breaker: Breaker,
    /// Whose messages are ours.
    pub installation: Arc<str>,
    /// Limits and waits.
    pub limits: IntakeLimits,
    /// The time of copies.
    pub clock: SharedClock,
    /// What operators see.
    pub metrics: Arc<Metrics>,
}

impl IntakeParts {
    fn ask_again(&self) -> Backoff {
        Backoff::new(self.limits.ask_again_ms.0, self.limits.ask_again_ms.1)
    }

    fn reconnect(&self) -> Backoff {
        Backoff::new(self.limits.reconnect_ms.0, self.limits.reconnect_ms.1)
    }
}

/// The intake of one order queue.
pub struct OrderIntake {
    life: Life,
    parts: IntakeParts,
    hand: Hand,
    /// Kept while the last submissions come back, after the last delivery was read.
    unread: Option<Box<dyn Subscription>>,
    outgoing: Option<Box<dyn Outgoing>>,
    under_way: UnderWay,
    waits: Waits,
    quiet: Vec<oneshot::Sender<()>>,
    is_quiet: bool,
}

/// What is in hand of the present subscription. The numbers of its deliveries mean nothing to any
/// other, so all of it is forgotten together.
struct Hand {
    /// Counts subscriptions: what comes back late names the one that it belongs to.
    subscription: u64,
    acks: Option<Arc<dyn Acks>>,
    /// Closed when the hand is forgotten: submissions of it that have not begun are withdrawn, for
    /// all of it is delivered again.
    held: watch::Sender<()>,
    window: Window,
    /// Deliveries that wait for the catalog.
    strangers: Vec<Arc<Delivery>>,
    /// Submissions that wait for ledger or stock.
    holding: Holding<Piece>,
    /// Copies to be published.
    letters: VecDeque<Letter>,
    silence: Silence,
}

impl Hand {
    fn new(subscription: u64, acks: Option<Arc<dyn Acks>>, parts: &IntakeParts) -> Self {
        Self {
            subscription,
            acks,
            held: watch::Sender::new(()),
            window: Window::default(),
            strangers: Vec::new(),
            holding: Holding::new(parts.ask_again()),
            letters: VecDeque::new(),
            silence: Silence::default(),
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
    posting: bool,
    watching: bool,
    /// Whether somebody looks at what is held, later.
    looking: bool,
    /// Submissions inside the consumer.
    inside: usize,
}

/// The waits of what is tried again, each until it succeeds.
struct Waits {
    subscribe: Backoff,
    refresh: Backoff,
    post: Backoff,
}

impl OrderIntake {
    /// An intake with nothing in hand.
    #[must_use]
    pub fn new(life: Life, parts: IntakeParts) -> Self {
        let waits = Waits {
            subscribe: parts.reconnect(),
            refresh: parts.ask_again(),
            post: parts.reconnect(),
        };
        Self {
            life,
            hand: Hand::new(0, None, &parts),
            parts,
            unread: None,
            outgoing: None,
            under_way: UnderWay::default(),
            waits,
            quiet: Vec::new(),
            is_quiet: false,
        }
    }

    /// Once nothing is under way any more, what is still in hand goes back to the queue.
    fn report_if_idle(&mut self) {
        let UnderWay { reading, acknowledging, posting, inside, .. } = self.under_way;
        if self.is_quiet && !reading && !acknowledging && !posting && inside == 0 {
            self.unread = None;
            self.quiet.drain(..).for_each(|done| reply(done, ()));
        }
    }
}

impl Living for OrderIntake {
    fn life(&mut self) -> &mut Life {
        &mut self.life
    }
}

impl Actor for OrderIntake {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        step(self, ctx, Self::subscribe);
    }
}

impl Handler<Quiet> for OrderIntake {
    type Result = ();

    fn handle(&mut self, quiet: Quiet, ctx: &mut Self::Context) {
        step(self, ctx, |intake, _| {
            intake.is_quiet = true;
            intake.quiet.push(quiet.done);
            intake.report_if_idle();
        });
    }
}

impl Handler<Stop> for OrderIntake {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}
