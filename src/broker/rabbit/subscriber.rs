//! Consumes from RabbitMQ with explicit acknowledgements.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::protocol::AMQPSoftError;
use lapin::types::FieldTable;
use lapin::{Channel, Consumer, ErrorKind};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::super::{Acknowledger, Delivery, Error, QueueDepth, Source, Subscription, headers};
use super::{Inner, error_message};
use crate::broker::rabbit::connection::RabbitConnection;
use crate::broker::rabbit::quarantine::Quarantine;
use crate::runtime::clock::now_monotonic;

/// Earlier deliveries from which an order message may be the one that crashes its consumers. With a
/// larger prefetch its neighbours would reach the delivery limit with it.
const DELIVERIES_BEFORE_QUARANTINE: u32 = 10;

/// A consumer on a channel of its own.
struct RabbitSubscription {
    inner: Arc<Inner>,
    consumer: Consumer,
    shared: Arc<SharedSubscription>,
    io: Handle,
    /// The requested prefetch; 1 applies during a quarantine.
    prefetch: u16,
}

/// State shared by the subscription and its acknowledgers.
struct SharedSubscription {
    channel: Channel,
    connection: Arc<RabbitConnection>,
    source: Source,
    /// Set if one message at a time is read.
    quarantine: Option<Arc<Quarantine>>,
    /// Unacknowledged delivery tags; `None` once the subscription has ended.
    unacknowledged: Mutex<Option<BTreeSet<u64>>>,
}

struct RabbitAcks(Arc<SharedSubscription>);

pub(super) async fn subscribe(
    inner: &Arc<Inner>,
    source: Source,
    prefetch: u16,
) -> Result<Box<dyn Subscription>, Error> {
    let queue = inner.options.topology.queue(source);
    let queue = queue.ok_or_else(|| Error::Topology {
        what: format!("there is no queue for {source:?}; see amqp.queues"),
    })?;
    let connection = inner.consuming().await?;
    inner.verify(&connection).await?;
    let is_quarantined = inner.quarantine.is_active(source, now_monotonic());
    let prefetch_now = if is_quarantined { 1 } else { prefetch };
    let consuming =
        || or_abort(inner, &connection, &queue, consume(&connection, &queue, prefetch_now));
    let (channel, consumer) = match consuming().await? {
        // The queue was deleted since the topology was verified.
        Err(error) if is_missing(&error) => {
            inner.request_verify();
            inner.verify(&connection).await?;
            consuming().await?
        }
        other => other,
    }
    .map_err(|error| Error::Unavailable {
        reason: format!("{queue}: {}", error_message(&error)),
    })?;
    connection.mark_proven();
    let unacknowledged = Mutex::new(Some(BTreeSet::new()));
    let quarantine = is_quarantined.then(|| Arc::clone(&inner.quarantine));
    let shared =
        Arc::new(SharedSubscription { channel, connection, source, quarantine, unacknowledged });
    let io = inner.io()?.clone();
    Ok(Box::new(RabbitSubscription { inner: inner.clone(), consumer, shared, io, prefetch }))
}

/// Awaits an answer of the broker, and aborts the connection on a time-out. Errors of the broker
/// are returned for the caller to classify.
async fn or_abort<T>(
    inner: &Inner,
    connection: &RabbitConnection,
    queue: &str,
    request: impl Future<Output = lapin::Result<T>>,
) -> Result<lapin::Result<T>, Error> {
    let limit = inner.options.connect_timeout;
    tokio::time::timeout(limit, request).await.map_err(|_elapsed| {
        let reason = format!("{queue}: subscribe timed out after {limit:?}");
        connection.abort(&reason);
        Error::Unavailable { reason }
    })
}

async fn consume(
    connection: &RabbitConnection,
    queue: &str,
    prefetch: u16,
) -> lapin::Result<(Channel, Consumer)> {
    let channel = connection.create_channel().await?;
    channel.basic_qos(prefetch.max(1), BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let arguments = FieldTable::default();
    let consumer = channel.basic_consume(queue.into(), "".into(), options, arguments).await?;
    Ok((channel, consumer))
}

/// Whether the broker answered `NOT_FOUND`.
pub(super) fn is_missing(error: &lapin::Error) -> bool {
    let missing = AMQPSoftError::NOTFOUND.get_id();
    matches!(error.kind(), ErrorKind::ProtocolError(answer) if answer.get_id() == missing)
}

impl RabbitSubscription {
    /// Whether the subscription was made in a quarantine that has ended.
    fn is_quarantine_over(&self) -> bool {
        let quarantine = self.shared.quarantine.as_ref();
        quarantine
            .is_some_and(|quarantine| !quarantine.is_active(self.shared.source, now_monotonic()))
    }

    /// Starts a quarantine because of a frequently delivered order message. Returns false if the
    /// delivery can be processed now. Dead letters are exempt: those that the ledger refuses are
    /// delivered often without crashing their consumer.
    fn start_quarantine(&self) -> bool {
        let SharedSubscription { source, quarantine, .. } = self.shared.as_ref();
        if !matches!(source, Source::Orders(_)) || quarantine.is_some() || self.prefetch == 1 {
            return false;
        }
        let started = self.inner.quarantine.start_once(*source, self.prefetch, now_monotonic());
        if started {
            tracing::warn!(
                ?source,
                "broker queue: a message was delivered often, reading one at a time"
            );
        }
        started
    }

    /// Ends the subscription and requests a topology check.
    fn end(&self, reason: String) -> Error {
        *self.shared.unacknowledged.lock() = None;
        self.inner.request_verify();
        Error::Ended { reason }
    }
}

#[async_trait]
impl Subscription for RabbitSubscription {
    async fn next(&mut self) -> Result<Delivery, Error> {
        if self.is_quarantine_over() {
            *self.shared.unacknowledged.lock() = None;
            let reason = "the quarantine is over, subscribe with the full prefetch".to_owned();
            return Err(Error::Ended { reason });
        }
        let delivery = match self.consumer.next().await {
            Some(Ok(delivery)) => delivery,
            Some(Err(error)) => {
                if matches!(error.kind(), ErrorKind::ParsingError(_)) {
                    let (source, prefetch) = (self.shared.source, self.prefetch);
                    self.inner.quarantine.start(source, prefetch, now_monotonic());
                    tracing::error!(
                        ?source,
                        "broker queue: a message is not parsable, reading one at a time"
                    );
                }
                return Err(self.end(error_message(&error)));
            }
            None => {
                let close_reason = self.shared.connection.close_reason();
                let reason = close_reason.unwrap_or_else(|| {
                    format!("the broker cancelled it: was {} deleted?", self.consumer.queue())
                });
                return Err(self.end(reason));
            }
        };
        let num_previous = headers::num_previous(&delivery.properties, delivery.redelivered);
        if num_previous >= DELIVERIES_BEFORE_QUARANTINE && self.start_quarantine() {
            *self.shared.unacknowledged.lock() = None;
            let reason = format!("a message was delivered {num_previous} times before");
            return Err(Error::Ended { reason });
        }
        let tag = delivery.delivery_tag;
        if let Some(tags) = self.shared.unacknowledged.lock().as_mut() {
            tags.insert(tag);
        }
        Ok(Delivery {
            tag,
            headers: headers::unpack(&delivery.properties),
            routing_key: delivery.routing_key.as_str().to_owned(),
            num_previous,
            body: delivery.data.into(),
        })
    }

    fn acks(&self) -> Box<dyn Acknowledger> {
        Box::new(RabbitAcks(self.shared.clone()))
    }
}

impl Drop for RabbitSubscription {
    fn drop(&mut self) {
        *self.shared.unacknowledged.lock() = None;
        let channel = self.shared.channel.clone();
        // Closing returns all unacknowledged deliveries at once, even while acknowledgers exist.
        drop(self.io.spawn(async move {
            drop(channel.close(200, "unsubscribed".into()).await);
        }));
    }
}

impl SharedSubscription {
    /// Removes unacknowledged tags, so that none is acknowledged twice: the broker would close the
    /// channel.
    fn take(&self, remove: impl FnOnce(&mut BTreeSet<u64>) -> Option<u64>) -> Option<u64> {
        self.unacknowledged.lock().as_mut().and_then(remove)
    }

    /// Counts an acknowledgement for the quarantine. After an error the broker delivers again.
    fn record_result(&self, outcome: lapin::Result<()>) {
        match (outcome, &self.quarantine) {
            (Ok(()), Some(quarantine)) => quarantine.count_acknowledged(self.source),
            (Ok(()), None) => {}
            (Err(error), _) => {
                tracing::debug!(error = error_message(&error), "acknowledgement not sent");
            }
        }
    }
}

#[async_trait]
impl Acknowledger for RabbitAcks {
    async fn up_to(&self, tag: u64) {
        let last = self.0.take(|tags| {
            let later = tags.split_off(&tag.saturating_add(1));
            std::mem::replace(tags, later).pop_last()
        });
        if let Some(last) = last {
            let options = BasicAckOptions { multiple: true };
            self.0.record_result(self.0.channel.basic_ack(last, options).await);
        }
    }

    async fn one(&self, tag: u64) {
        if let Some(tag) = self.0.take(|tags| tags.take(&tag)) {
            let options = BasicAckOptions { multiple: false };
            self.0.record_result(self.0.channel.basic_ack(tag, options).await);
        }
    }

    async fn give_back(&self, tag: u64) {
        if let Some(tag) = self.0.take(|tags| tags.take(&tag)) {
            let options = BasicNackOptions { multiple: false, requeue: true };
            self.0.record_result(self.0.channel.basic_nack(tag, options).await);
        }
    }
}

/// The depth of every queue with consumers, that is all but `unreadable`. A missing queue counts as
/// empty.
pub(super) async fn depths(inner: &Inner) -> Result<Vec<QueueDepth>, Error> {
    let connection = inner.consuming().await?;
    let topology = &inner.options.topology;
    let mut depths = Vec::new();
    let mut channel = connection.channel().await?;
    for queue in topology.queues().into_iter().filter(|queue| !topology.is_end(queue)) {
        let name = topology.short(&queue.name).to_owned();
        let options = QueueDeclareOptions::durable().passive();
        let request = channel.queue_declare(queue.name.into(), options, FieldTable::default());
        let (num_ready, num_consumers) =
            match tokio::time::timeout(inner.options.connect_timeout, request).await {
                Ok(Ok(answer)) => (answer.message_count().into(), answer.consumer_count().into()),
                Ok(Err(error)) if is_missing(&error) => {
                    inner.request_verify();
                    channel = connection.channel().await?;
                    (0, 0)
                }
                Ok(Err(error)) => {
                    return Err(Error::Unavailable {
                        reason: format!("{name}: {}", error_message(&error)),
                    });
                }
                Err(_) => {
                    let reason = format!("{name}: no answer in time");
                    return Err(Error::Unavailable { reason });
                }
            };
        depths.push(QueueDepth { queue: name, num_ready, num_consumers });
    }
    connection.mark_proven();
    Ok(depths)
}
