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

use super::super::{Acks, Delivery, Depth, Error, Source, Subscription, headers};
use super::line::Line;
use super::{Inner, said};

/// A consumer on a channel of its own.
struct RabbitSubscription {
    inner: Arc<Inner>,
    consumer: Consumer,
    open: Arc<Open>,
    io: Handle,
}

/// What subscription and acknowledgements share.
struct Open {
    channel: Channel,
    line: Arc<Line>,
    /// Tags that are out; `None` once the subscription is over.
    unacknowledged: Mutex<Option<BTreeSet<u64>>>,
}

struct RabbitAcks(Arc<Open>);

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
    let (channel, consumer) = match consume(&line, &queue, prefetch).await {
        // It was deleted since anybody looked.
        Err(error) if is_missing(&error) => {
            inner.doubt();
            inner.verify(&line).await?;
            consume(&line, &queue, prefetch).await
        }
        other => other,
    }
    .map_err(|error| Error::Unavailable { reason: format!("{queue}: {}", said(&error)) })?;
    line.prove();
    let unacknowledged = Mutex::new(Some(BTreeSet::new()));
    let open = Arc::new(Open { channel, line, unacknowledged });
    let io = inner.io()?.clone();
    Ok(Box::new(RabbitSubscription { inner: inner.clone(), consumer, open, io }))
}

async fn consume(line: &Line, queue: &str, prefetch: u16) -> lapin::Result<(Channel, Consumer)> {
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
    fn end(&self, reason: String) -> Error {
        *self.open.unacknowledged.lock() = None;
        self.inner.doubt();
        Error::Ended { reason }
    }
}

#[async_trait]
impl Subscription for RabbitSubscription {
    async fn next(&mut self) -> Result<Delivery, Error> {
        let delivery = match self.consumer.next().await {
            Some(Ok(delivery)) => delivery,
            Some(Err(error)) => return Err(self.end(said(&error))),
            None => {
                let over = self.open.line.end();
                let reason = over.unwrap_or_else(|| {
                    format!("the broker cancelled it: was {} deleted?", self.consumer.queue())
                });
                return Err(self.end(reason));
            }
        };
        let tag = delivery.delivery_tag;
        if let Some(tags) = self.open.unacknowledged.lock().as_mut() {
            tags.insert(tag);
        }
        Ok(Delivery {
            tag,
            headers: headers::unpack(&delivery.properties),
            routing_key: delivery.routing_key.as_str().to_owned(),
            num_before: headers::num_before(&delivery.properties, delivery.redelivered),
            body: delivery.data.into(),
        })
    }

    fn acks(&self) -> Box<dyn Acks> {
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

impl Open {
    /// Takes tags that are out, so that none is acknowledged twice: the broker would close the
    /// channel.
    fn take(&self, wanted: impl FnOnce(&mut BTreeSet<u64>) -> Option<u64>) -> Option<u64> {
        self.unacknowledged.lock().as_mut().and_then(wanted)
    }

    /// What cannot be acknowledged is delivered again.
    fn heed(outcome: lapin::Result<()>) {
        if let Err(error) = outcome {
            tracing::debug!(error = said(&error), "acknowledgement not sent");
        }
    }
}

#[async_trait]
impl Acks for RabbitAcks {
    async fn up_to(&self, tag: u64) {
        let last = self.0.take(|tags| {
            let later = tags.split_off(&tag.saturating_add(1));
            std::mem::replace(tags, later).pop_last()
        });
        if let Some(last) = last {
            let options = BasicAckOptions { multiple: true };
            Open::heed(self.0.channel.basic_ack(last, options).await);
        }
    }

    async fn one(&self, tag: u64) {
        if let Some(tag) = self.0.take(|tags| tags.take(&tag)) {
            let options = BasicAckOptions { multiple: false };
            Open::heed(self.0.channel.basic_ack(tag, options).await);
        }
    }

    async fn give_back(&self, tag: u64) {
        if let Some(tag) = self.0.take(|tags| tags.take(&tag)) {
            let options = BasicNackOptions { multiple: false, requeue: true };
            Open::heed(self.0.channel.basic_nack(tag, options).await);
        }
    }
}

/// How full every queue is. A queue that is not there is empty.
pub(super) async fn depths(inner: &Inner) -> Result<Vec<Depth>, Error> {
    let line = inner.consuming().await?;
    let topology = &inner.options.topology;
    let mut depths = Vec::new();
    let mut channel = line.channel().await?;
    for queue in topology.queues() {
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
        depths.push(Depth { queue: short, num_ready, num_consumers });
    }
    line.prove();
    Ok(depths)
}
