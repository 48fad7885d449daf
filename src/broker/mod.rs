//! Flow step 6/12: relay -> order consumer.
//!
//! The broker between outbox and ledger. It stores confirmed messages until a consumer acknowledges
//! them and delivers them at least once. An unroutable message is returned to its publisher and
//! counts as refused; an order event without a bound queue counts as confirmed.
//!
//! Publishing and consuming use separate connections: a broker with a resource alarm stops reading
//! from connections that publish, and acknowledgements must still get through. A failed connection
//! is dropped and rebuilt, topology included, without automatic recovery.
//!
//! On crash of a publisher: the outcome of unconfirmed messages is unknown, and they are published
//! again. On crash of a consumer: unacknowledged messages are delivered again. May repeat: every
//! message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::domain::BucketKey;
use crate::runtime::clock::SharedClock;

mod headers;
pub mod rabbit;
pub mod topology;

pub use headers::SIGNATURE_HEADERS;
pub use rabbit::{RabbitBroker, RabbitOptions};
pub use topology::Topology;

/// Time without a delivery after which the queue's depth is read.
const SILENT_MAX: Duration = Duration::from_secs(20);

/// Why a broker operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The broker cannot be reached or gave no answer in time. The caller retries.
    #[error("the broker is not available: {reason}")]
    Unavailable { reason: String },
    /// The topology declared in the broker differs from the required one.
    #[error("the broker's topology does not fit: {what}")]
    Topology {
        /// The difference and the remedy.
        what: String,
    },
    /// The subscription ended: the queue was deleted, the channel closed or the connection lost.
    /// Unacknowledged deliveries are delivered again, to any consumer.
    #[error("the subscription ended: {reason}")]
    Ended { reason: String },
}

impl Error {
    fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into() }
    }
}

/// Whether the broker accepts messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerStatus {
    Up,
    /// The broker is connected and blocks publishers: memory or disk alarm.
    Blocked,
    Down,
}

/// Destination of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// The order queue of this number.
    Orders(u16),
    Dead,
    /// The exchange for order events; the message's `topic` is its routing key.
    Events,
    /// The queue for payment events.
    Payments,
    /// The delay queue of this length, seconds; its messages go on to [`Self::Due`].
    Delay(u32),
    /// The queue of messages that have left a delay queue.
    Due,
}

impl Route {
    pub fn orders_of(bucket: BucketKey, queues: u16) -> Self {
        Self::Orders(order_queue_of(bucket, queues))
    }
}

/// The order queue of a bucket: constant per bucket, and different for neighbouring buckets.
pub fn order_queue_of(bucket: BucketKey, queues: u16) -> u16 {
    let hash = i64::from(bucket.sku.0) + i64::from(bucket.bucket.0);
    u16::try_from(hash.rem_euclid(i64::from(queues.max(1)))).unwrap_or(0)
}

/// Message properties and headers; see `messages/envelope.rs`. As JSON, those that a stored dead
/// letter keeps beside its own columns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Headers {
    /// The same for every copy of the message.
    #[serde(skip)]
    pub message_id: String,
    /// `None` for a message of another program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Version of the wire format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// The installation whose ledger the message is for, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub installation: Option<String>,
    /// The highest sale epoch among the intents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
    /// W3C trace context of the first intent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// For order events: the routing key. Not read from deliveries.
    #[serde(skip)]
    pub topic: Option<String>,
    /// For payment events: the headers of the webhook that sign the body, by their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signature: Vec<(String, String)>,
    /// For dead letters: failed attempts, of a relay at the broker, else at the ledger.
    #[serde(skip)]
    pub attempts: u32,
    /// Publish time, Unix epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_at_ms: Option<i64>,
    /// For dead letters: why the message was dead-lettered.
    #[serde(skip)]
    pub reason: Option<String>,
    /// For dead letters: the queue or component it came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// For dead letters: whether the broker itself dead-lettered it. Read from the broker's
    /// headers, never published.
    #[serde(skip)]
    pub by_broker: bool,
}

/// One message to publish, persistent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub route: Route,
    pub headers: Headers,
    pub body: Bytes,
}

/// The outcome of publishing one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The message is in a queue, on disk; an order event: in every bound queue.
    Confirmed,
    /// The message is certainly in no queue: the broker rejected or returned it.
    Refused { reason: String },
    /// The message is certainly in no queue: it was not sent, because the broker is down or
    /// blocked.
    NotSent { reason: String },
    /// The message was sent and not confirmed: publish it again, never give the stock back.
    Unknown { reason: String },
}

/// A publishing channel with one user at a time.
#[async_trait]
pub trait PublishChannel: Send {
    /// Publishes all messages in order and waits for their confirmations. Returns one outcome per
    /// message. At most `window` messages (see [`Publisher::open_channel`]) are unconfirmed at any
    /// time. Without messages it only connects if needed, which updates [`Publisher::status`].
    async fn publish(&mut self, messages: Vec<Message>) -> Vec<PublishOutcome>;
}

/// The publishing side of the broker.
pub trait Publisher: Send + Sync {
    /// A new channel with at most `window` unconfirmed messages. It connects on first use and
    /// closes when dropped.
    fn open_channel(&self, window: usize) -> Box<dyn PublishChannel>;

    /// The last known status, without a request to the broker.
    fn status(&self) -> BrokerStatus;
}

/// A delivered message, to be acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Delivery tag: counts from 1 in each subscription, without gaps.
    pub tag: u64,
    /// Unreadable headers are missing.
    pub headers: Headers,
    pub routing_key: String,
    /// Number of earlier deliveries.
    pub num_previous: u32,
    pub body: Bytes,
}

/// A subscription to one queue. Dropping it returns unacknowledged deliveries to the queue.
#[async_trait]
pub trait Subscription: Send {
    /// Waits for the next delivery. Cancel-safe: dropping the future loses no delivery.
    ///
    /// # Errors
    /// The subscription has ended; subscribe again.
    async fn next(&mut self) -> Result<Delivery, Error>;

    /// The acknowledging side, usable concurrently with [`Self::next`].
    fn acks(&self) -> Box<dyn Acknowledger>;
}

/// Acknowledges deliveries of one subscription. Errors are not reported: an unacknowledged delivery
/// is delivered again.
#[async_trait]
pub trait Acknowledger: Send + Sync {
    /// Acknowledges this delivery and all unacknowledged ones before it.
    async fn up_to(&self, tag: u64);
    /// Acknowledges only this delivery.
    async fn one(&self, tag: u64);
}

/// Messages and consumers of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueDepth {
    /// Queue name without the namespace.
    pub queue: String,
    /// Messages ready for delivery, without the delivered and unacknowledged ones.
    pub num_ready: u64,
    /// Consumers of all processes.
    pub num_consumers: u64,
}

impl QueueDepth {
    /// Whether the queue certainly has no ready messages.
    ///
    /// RabbitMQ reports 0 messages and 0 consumers for a quorum queue without majority. An order
    /// queue without consumers may be such a queue, and does not count as empty.
    pub fn is_certainly_empty(&self) -> bool {
        self.num_ready == 0 && (self.num_consumers > 0 || self.family() != "orders")
    }

    /// Whether its messages may contain accepted requests.
    pub fn may_hold_requests(&self) -> bool {
        matches!(self.family(), "orders" | "dead")
    }

    /// The part of the name before the first dot, the same for every order queue.
    pub fn family(&self) -> &str {
        self.queue.split_once('.').map_or(&*self.queue, |(family, _)| family)
    }
}

/// The consuming side of the broker.
#[async_trait]
pub trait Subscriber: Send + Sync {
    /// Subscribes to a queue; at most `prefetch` deliveries are unacknowledged at any time.
    async fn subscribe(&self, source: Route, prefetch: u16)
    -> Result<Box<dyn Subscription>, Error>;

    /// The depth of one queue.
    async fn depth(&self, source: Route) -> Result<QueueDepth, Error>;

    /// The depth of every queue but `unreadable`.
    async fn depths(&self) -> Result<Vec<QueueDepth>, Error>;

    /// Closes all connections, publishing ones included. Returns within the connect time-out.
    async fn close(&self);
}

/// Reads a subscription in batches, and ends it if the broker has forgotten it: the connection is
/// up, messages are ready in the queue, and none is delivered.
pub struct Inbox {
    subscriber: Arc<dyn Subscriber>,
    subscription: Box<dyn Subscription>,
    source: Route,
    prefetch: u16,
    clock: SharedClock,
    /// The last time at which a delivery arrived or was unacknowledged, or the depth was read.
    silent_since: Instant,
    /// Whether messages were ready then.
    were_ready: bool,
}

impl Inbox {
    /// Subscribes; at most `prefetch` deliveries are unacknowledged at any time.
    pub async fn open(
        subscriber: &Arc<dyn Subscriber>,
        source: Route,
        prefetch: u16,
        clock: &SharedClock,
    ) -> Result<Self, Error> {
        let subscription = subscriber.subscribe(source, prefetch).await?;
        Ok(Self {
            subscriber: Arc::clone(subscriber),
            subscription,
            source,
            prefetch,
            clock: Arc::clone(clock),
            silent_since: clock.now(),
            were_ready: false,
        })
    }

    /// The acknowledging side.
    pub fn acks(&self) -> Box<dyn Acknowledger> {
        self.subscription.acks()
    }

    /// Waits up to `wait` for a delivery. `num_held`: deliveries that the caller has not
    /// acknowledged.
    ///
    /// # Errors
    /// The subscription has ended, or was forgotten; open another one.
    pub async fn next(
        &mut self,
        wait: Duration,
        num_held: usize,
    ) -> Result<Option<Delivery>, Error> {
        let next = tokio::time::timeout(wait, self.subscription.next()).await.ok().transpose()?;
        if next.is_some() || num_held > 0 {
            (self.silent_since, self.were_ready) = (self.clock.now(), false);
        } else if self.clock.now().duration_since(self.silent_since) >= SILENT_MAX {
            self.check_ready().await?;
        }
        Ok(next)
    }

    /// Waits up to `wait` for a delivery, and takes those that are already there.
    pub async fn next_batch(
        &mut self,
        mut wait: Duration,
        num_held: usize,
    ) -> Result<Vec<Delivery>, Error> {
        let max = usize::from(self.prefetch).saturating_sub(num_held).max(1);
        let mut deliveries = Vec::new();
        while deliveries.len() < max
            && let Some(delivery) = self.next(wait, num_held + deliveries.len()).await?
        {
            deliveries.push(delivery);
            wait = Duration::ZERO;
        }
        Ok(deliveries)
    }

    /// Ends the subscription if messages are ready in its queue, as they were [`SILENT_MAX`] ago.
    async fn check_ready(&mut self) -> Result<(), Error> {
        // A failed query proves nothing about the queue.
        let depth = self.subscriber.depth(self.source).await;
        let are_ready = depth.is_ok_and(|depth| depth.num_ready > 0);
        self.silent_since = self.clock.now();
        if std::mem::replace(&mut self.were_ready, are_ready) && are_ready {
            let reason = "messages are ready and none is delivered".to_owned();
            return Err(Error::Ended { reason });
        }
        Ok(())
    }
}
