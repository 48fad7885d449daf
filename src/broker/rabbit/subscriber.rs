//! Messages from RabbitMQ, acknowledged by hand.

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
use super::{Inner, said};
use crate::broker::rabbit::connection::RabbitConnection;
use crate::broker::rabbit::quarantine::Quarantine;
use crate::runtime::clock::now_monotonic;

/// An order message that was delivered so often before may be what ends the processes that take it
/// in. Read many at a time, its neighbours would be given up by the broker as often as itself.
const NUM_BEFORE_MAX: u32 = 10;

/// A consumer on a channel of its own.
struct RabbitSubscription {
    inner: Arc<Inner>,
    consumer: Consumer,
    open: Arc<SharedSubscription>,
    io: Handle,
    /// What was asked for; with caution it is one for a while.
    prefetch: u16,
}

/// What subscription and acknowledgements share.
struct SharedSubscription {
    channel: Channel,
    line: Arc<RabbitConnection>,
    source: Source,
    /// There if one message at a time is read.
    caution: Option<Arc<Quarantine>>,
    /// Tags that are out; `None` once the subscription is over.
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
    let line = inner.consuming().await?;
    inner.verify(&line).await?;
    let careful = inner.caution.is_on(source, now_monotonic());
    let at_once = if careful { 1 } else { prefetch };
    let consuming = || in_time(inner, &line, &queue, consume(&line, &queue, at_once));
    let (channel, consumer) = match consuming().await? {
        // It was deleted since anybody looked.
        Err(error) if is_missing(&error) => {
            inner.doubt();
            inner.verify(&line).await?;
            consuming().await?
        }
        other => other,
    }
    .map_err(|error| Error::Unavailable { reason: format!("{queue}: {}", said(&error)) })?;
    line.prove();
    let unacknowledged = Mutex::new(Some(BTreeSet::new()));
    let caution = careful.then(|| Arc::clone(&inner.caution));
    let open = Arc::new(SharedSubscription { channel, line, source, caution, unacknowledged });
    let io = inner.io()?.clone();
    Ok(Box::new(RabbitSubscription { inner: inner.clone(), consumer, open, io, prefetch }))
}

/// What is not answered in time ends the connection, like everything else that is asked of it; what
/// is answered, the caller wants to know.
async fn in_time<T>(
    inner: &Inner,
    line: &RabbitConnection,
    queue: &str,
    asking: impl Future<Output = lapin::Result<T>>,
) -> Result<lapin::Result<T>, Error> {
    let limit = inner.options.connect_timeout;
    tokio::time::timeout(limit, asking).await.map_err(|_elapsed| {
        let reason = format!("{queue}: no subscription was to be had within {limit:?}");
        line.give_up(&reason);
        Error::Unavailable { reason }
    })
}

async fn consume(
    line: &RabbitConnection,
    queue: &str,
    prefetch: u16,
) -> lapin::Result<(Channel, Consumer)> {
    let channel = line.open().await?;
    channel.basic_qos(prefetch.max(1), BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let arguments = FieldTable::default();
    let consumer = channel.basic_consume(queue.into(), "".into(), options, arguments).await?;
    Ok((channel, consumer))
}

pub(super) fn is_missing(error: &lapin::Error) -> bool {
    let missing = AMQPSoftError::NOTFOUND.get_id();
    matches!(error.kind(), ErrorKind::ProtocolError(answer) if answer.get_id() == missing)
}

impl RabbitSubscription {
    /// Whether one message at a time was read, and many may be again.
    fn is_past_caution(&self) -> bool {
        let caution = self.open.caution.as_ref();
        caution.is_some_and(|caution| !caution.is_on(self.open.source, now_monotonic()))
    }

    /// A message came often: whether it must come again, alone. A dead letter that the ledger
    /// refuses comes often, and ends nothing.
    fn must_slow_down(&self) -> bool {
        let SharedSubscription { source, caution, .. } = self.open.as_ref();
        if !matches!(source, Source::Orders(_)) || caution.is_some() || self.prefetch == 1 {
            return false;
        }
        let begun = self.inner.caution.begin_once(*source, self.prefetch, now_monotonic());
        if begun {
            tracing::warn!(?source, "a message came often; one at a time is taken now");
        }
        begun
    }

    fn end(&self, reason: String) -> Error {
        *self.open.unacknowledged.lock() = None;
        self.inner.doubt();
        Error::Ended { reason }
    }
}

#[async_trait]
impl Subscription for RabbitSubscription {
    async fn next(&mut self) -> Result<Delivery, Error> {
        if self.is_past_caution() {
            *self.open.unacknowledged.lock() = None;
            let reason = "one message at a time was read, and many are again".to_owned();
            return Err(Error::Ended { reason });
        }
        let delivery = match self.consumer.next().await {
            Some(Ok(delivery)) => delivery,
            Some(Err(error)) => {
                if matches!(error.kind(), ErrorKind::ParsingError(_)) {
                    let (source, prefetch) = (self.open.source, self.prefetch);
                    self.inner.caution.begin(source, prefetch, now_monotonic());
                    tracing::error!(
                        ?source,
                        "a message cannot be read; one at a time is taken now"
                    );
                }
                return Err(self.end(said(&error)));
            }
            None => {
                let over = self.open.line.end();
                let reason = over.unwrap_or_else(|| {
                    format!("the broker cancelled it: was {} deleted?", self.consumer.queue())
                });
                return Err(self.end(reason));
            }
        };
        let num_before = headers::num_before(&delivery.properties, delivery.redelivered);
        if num_before >= NUM_BEFORE_MAX && self.must_slow_down() {
            *self.open.unacknowledged.lock() = None;
            let reason = format!("a message was delivered {num_before} times before");
            return Err(Error::Ended { reason });
        }
        let tag = delivery.delivery_tag;
        if let Some(tags) = self.open.unacknowledged.lock().as_mut() {
            tags.insert(tag);
        }
        Ok(Delivery {
            tag,
            headers: headers::unpack(&delivery.properties),
            routing_key: delivery.routing_key.as_str().to_owned(),
            num_before,
            body: delivery.data.into(),
        })
    }

    fn acks(&self) -> Box<dyn Acknowledger> {
        Box::new(RabbitAcks(self.open.clone()))
    }
}

impl Drop for RabbitSubscription {
    fn drop(&mut self) {
        *self.open.unacknowledged.lock() = None;
        let channel = self.open.channel.clone();
        // Closing gives everything back at once, however long somebody keeps the acknowledgements.
        drop(self.io.spawn(async move {
            drop(channel.close(200, "unsubscribed".into()).await);
        }));
    }
}

impl SharedSubscription {
    /// Takes tags that are out, so that none is acknowledged twice: the broker would close the
    /// channel.
    fn take(&self, wanted: impl FnOnce(&mut BTreeSet<u64>) -> Option<u64>) -> Option<u64> {
        self.unacknowledged.lock().as_mut().and_then(wanted)
    }

    /// What cannot be acknowledged is delivered again.
    fn heed(&self, outcome: lapin::Result<()>) {
        match (outcome, &self.caution) {
            (Ok(()), Some(caution)) => caution.passed(self.source),
            (Ok(()), None) => {}
            (Err(error), _) => {
                tracing::debug!(error = said(&error), "acknowledgement not sent");
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
            self.0.heed(self.0.channel.basic_ack(last, options).await);
        }
    }

    async fn one(&self, tag: u64) {
        if let Some(tag) = self.0.take(|tags| tags.take(&tag)) {
            let options = BasicAckOptions { multiple: false };
            self.0.heed(self.0.channel.basic_ack(tag, options).await);
        }
    }

    async fn give_back(&self, tag: u64) {
        if let Some(tag) = self.0.take(|tags| tags.take(&tag)) {
            let options = BasicNackOptions { multiple: false, requeue: true };
            self.0.heed(self.0.channel.basic_nack(tag, options).await);
        }
    }
}

/// How full every queue is that somebody consumes. A queue that is not there is empty.
pub(super) async fn depths(inner: &Inner) -> Result<Vec<QueueDepth>, Error> {
    let line = inner.consuming().await?;
    let topology = &inner.options.topology;
    let mut depths = Vec::new();
    let mut channel = line.channel().await?;
    for queue in topology.queues().into_iter().filter(|queue| !topology.is_end(queue)) {
        let short = topology.short(&queue.name).to_owned();
        let options = QueueDeclareOptions::durable().passive();
        let asking = channel.queue_declare(queue.name.into(), options, FieldTable::default());
        let (num_ready, num_consumers) =
            match tokio::time::timeout(inner.options.connect_timeout, asking).await {
                Ok(Ok(seen)) => (seen.message_count().into(), seen.consumer_count().into()),
                Ok(Err(error)) if is_missing(&error) => {
                    inner.doubt();
                    channel = line.channel().await?;
                    (0, 0)
                }
                Ok(Err(error)) => {
                    return Err(Error::Unavailable {
                        reason: format!("{short}: {}", said(&error)),
                    });
                }
                Err(_) => {
                    let reason = format!("{short}: no answer in time");
                    return Err(Error::Unavailable { reason });
                }
            };
        depths.push(QueueDepth { queue: short, num_ready, num_consumers });
    }
    line.prove();
    Ok(depths)
}
