//! Flow step 6/12: relay -> consumer.
//!
//! The broker between outbox and ledger. It keeps what it confirmed until a consumer acknowledges
//! it, delivers it at least once, and confirms nothing that no queue has: such a message is
//! returned to its publisher, as refused.
//!
//! Publishing and consuming never share a connection: a broker in trouble stops reading from
//! whoever publishes, and acknowledgements must not stop with it. A connection that failed is
//! dropped and rebuilt, topology included; nothing is recovered behind anybody's back.
//!
//! On death of a publisher: what was not confirmed is unknown, and is published again. On death of
//! a consumer: what it did not acknowledge is delivered again. May repeat: every message.

use async_trait::async_trait;
use bytes::Bytes;

use crate::stock::BucketKey;

mod headers;
pub mod rabbit;
pub mod topology;

pub use rabbit::{RabbitBroker, RabbitOptions};
pub use topology::Topology;

/// Why the broker could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It cannot be reached; tried again by whoever needs it.
    #[error("the broker is not available: {reason}")]
    Unavailable {
        /// What is wrong.
        reason: String,
    },
    /// It can be reached, and what is declared there differs from what is needed.
    #[error("the broker's topology does not fit: {what}")]
    Topology {
        /// What differs, and what to do.
        what: String,
    },
    /// The subscription ended: the queue was deleted, the channel closed or the connection lost.
    /// Deliveries that were not acknowledged come again, to somebody.
    #[error("the subscription ended: {reason}")]
    Ended {
        /// Why.
        reason: String,
    },
}

/// How well the broker can be published to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerStatus {
    /// It answers.
    Up,
    /// It is there and accepts no messages for now: memory or disk.
    Blocked,
    /// It is not there.
    Down,
}

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// To consumers, through the order queue of this number.
    Orders(u16),
    /// To the dead letters.
    Dead,
}

impl Route {
    /// To the order queue of a bucket: always the same one, and buckets side by side are spread.
    #[must_use]
    pub fn orders_of(bucket: BucketKey, queues: u16) -> Self {
        let spread = i64::from(bucket.sku.0) + i64::from(bucket.bucket.0);
        Self::Orders(u16::try_from(spread.rem_euclid(i64::from(queues.max(1)))).unwrap_or(0))
    }
}

/// What travels beside the body; see `messages/wire.rs`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers {
    /// Names the message; the same for every copy of it.
    pub message_id: String,
    /// What the body is; `None` for another party's message.
    pub content_type: Option<String>,
    /// Version of the wire format.
    pub version: Option<i64>,
    /// The installation whose ledger it is for, as text.
    pub installation: Option<String>,
    /// The largest opening of a sale that its intents know.
    pub epoch: Option<i64>,
    /// W3C trace context of the first intent.
    pub traceparent: Option<String>,
    /// For dead letters: attempts that failed at the ledger.
    pub attempts: u32,
    /// When it was published, epoch milliseconds.
    pub sent_at_ms: Option<i64>,
    /// For dead letters: why.
    pub reason: Option<String>,
    /// For dead letters: where it came from.
    pub origin: Option<String>,
    /// For dead letters: whether the broker itself gave it up. Only the broker says so; it is not
    /// published.
    pub by_broker: bool,
}

/// One message to publish. All are persistent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where it goes.
    pub route: Route,
    /// What travels beside the body.
    pub headers: Headers,
    /// The body.
    pub body: Bytes,
}

/// What became of one published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishOutcome {
    /// It is in a queue, on disk.
    Confirmed,
    /// It certainly is in no queue: the broker said no to this message.
    Refused {
        /// What it said.
        reason: String,
    },
    /// It certainly is in no queue: nothing was sent, because the broker is away or accepts none.
    NotSent {
        /// What is wrong.
        reason: String,
    },
    /// It was sent and nobody knows: publish it again, never give back.
    Unknown {
        /// What is wrong.
        reason: String,
    },
}

/// A channel to publish on, for one user at a time.
#[async_trait]
pub trait PublishChannel: Send {
    /// Publishes all messages, in order, and waits for the confirmation of each: one result each.
    /// At most `window` of them (given when the channel was made) are unconfirmed at any time. No
    /// messages: connects, if need be, so that [`Publisher::reach`] is fresh.
    async fn publish(&mut self, messages: Vec<Message>) -> Vec<PublishOutcome>;
}

/// Messages to the broker.
#[async_trait]
pub trait Publisher: Send + Sync {
    /// A channel of its own; connects when it is first used. Dropping it closes it.
    fn outgoing(&self, window: usize) -> Box<dyn PublishChannel>;

    /// How well the broker can be published to, as far as is known without asking.
    fn reach(&self) -> BrokerStatus;

    /// Declares and verifies what must be there, on a connection of its own: for checks, repairs,
    /// and before requests are resent that the broker has lost. Every connection that publishes or
    /// consumes does it first, too.
    async fn declare(&self) -> Result<(), Error>;
}

/// A queue to consume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Orders, by number of the queue.
    Orders(u16),
    /// Dead letters.
    Dead,
}

/// One message that was delivered and must be acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Its number in this subscription, from 1, without gaps.
    pub tag: u64,
    /// What travelled beside the body, as far as it can be read.
    pub headers: Headers,
    /// The routing key it was published with.
    pub routing_key: String,
    /// How often it was delivered before.
    pub num_before: u32,
    /// The body.
    pub body: Bytes,
}

/// One subscription to one queue. Dropping it gives back what was not acknowledged.
#[async_trait]
pub trait Subscription: Send {
    /// The next delivery; waits for it. After an error the subscription is over. May be dropped
    /// while it waits without losing a delivery.
    async fn next(&mut self) -> Result<Delivery, Error>;

    /// A hand for acknowledging, usable beside [`Self::next`].
    fn acks(&self) -> Box<dyn Acknowledger>;
}

/// Acknowledges deliveries of one subscription. Errors are not reported: what could not be
/// acknowledged is delivered again.
#[async_trait]
pub trait Acknowledger: Send + Sync {
    /// This delivery and all before it that are not acknowledged.
    async fn up_to(&self, tag: u64);
    /// This delivery alone.
    async fn one(&self, tag: u64);
    /// Back into the queue, to be delivered again.
    async fn give_back(&self, tag: u64);
}

/// How full a queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueDepth {
    /// The queue's name, without the namespace.
    pub queue: String,
    /// Messages that wait to be delivered; delivered and unacknowledged ones are not counted.
    pub num_ready: u64,
    /// Consumers of all processes.
    pub num_consumers: u64,
}

impl QueueDepth {
    /// Whether it is certain that nothing waits here.
    ///
    /// RabbitMQ says of a quorum queue without majority that it has neither messages nor consumers:
    /// an order queue that nobody consumes may be one.
    #[must_use]
    pub fn is_surely_empty(&self) -> bool {
        self.num_ready == 0 && (self.num_consumers > 0 || self.family() != "orders")
    }

    /// What the queue is for: the first word of its name, the same for every order queue.
    #[must_use]
    pub fn family(&self) -> &str {
        self.queue.split_once('.').map_or(&*self.queue, |(family, _)| family)
    }
}

/// Messages from the broker.
#[async_trait]
pub trait Subscriber: Send + Sync {
    /// Subscribes to a queue; at most `prefetch` deliveries are unacknowledged at any time.
    async fn subscribe(
        &self,
        source: Source,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, Error>;

    /// How full every queue is: orders and dead letters.
    async fn depths(&self) -> Result<Vec<QueueDepth>, Error>;

    /// Ends all connections, publishing ones included.
    async fn close(&self);
}
