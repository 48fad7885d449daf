//! Consumes from RabbitMQ with explicit acknowledgements.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::join_all;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::FieldTable;
use lapin::{Channel, Consumer, ErrorKind};
use parking_lot::Mutex;

use super::super::{
    Acknowledger, Delivery, Error, QueueDepth, Route, Subscriber, Subscription, headers,
};
use super::declare::{has_code, is_missing};
use super::{Inner, RabbitBroker, declare, error_message};
use crate::broker::rabbit::connection::RabbitConnection;
use crate::broker::topology::Queue;
use crate::runtime::clock::now_monotonic;

/// Earlier deliveries from which an order message may be the one that crashes its consumers. With a
/// larger prefetch its neighbours would reach the delivery limit with it.
const DELIVERIES_BEFORE_QUARANTINE: u32 = 10;

/// A consumer on a channel of its own.
struct RabbitSubscription {
    consumer: Consumer,
    shared: Arc<SharedSubscription>,
    /// The requested prefetch; 1 applies during a quarantine.
    prefetch: u16,
}

/// State shared by the subscription and its acknowledgers.
struct SharedSubscription {
    inner: Arc<Inner>,
    channel: Channel,
    connection: Arc<RabbitConnection>,
    source: Route,
    /// Whether one message at a time is read.
    is_quarantined: bool,
    /// Unacknowledged delivery tags; `None` once the subscription has ended.
    unacknowledged: Mutex<Option<BTreeSet<u64>>>,
}

#[async_trait]
impl Subscriber for RabbitBroker {
    async fn subscribe(
        &self,
        source: Route,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, Error> {
        let inner = &self.inner;
        let queue = inner.options.topology.queue(source)?.name;
        let connection = inner.consuming().await?;
        inner.verify(&connection).await?;
        let is_quarantined = inner.quarantine.is_active(source, now_monotonic());
        let prefetch_now = if is_quarantined { 1 } else { prefetch };
        let subscribe = format!("{queue}: subscribe");
        let consuming =
            || connection.within_limit(&subscribe, consume(&connection, &queue, prefetch_now));
        let (channel, consumer) = match consuming().await? {
            // The queue was deleted since the topology was verified.
            Err(error) if is_missing(&error) => {
                inner.request_verify();
                inner.verify(&connection).await?;
                consuming().await?
            }
            other => other,
        }
        .map_err(|error| Error::unavailable(format!("{queue}: {}", error_message(&error))))?;
        connection.mark_proven();
        let inner = inner.clone();
        let unacknowledged = Mutex::new(Some(BTreeSet::new()));
        let shared = SharedSubscription {
            inner,
            channel,
            connection,
            source,
            is_quarantined,
            unacknowledged,
        };
        Ok(Box::new(RabbitSubscription { consumer, shared: Arc::new(shared), prefetch }))
    }

    async fn depth(&self, source: Route) -> Result<QueueDepth, Error> {
        self.depth_of(&self.inner.options.topology.queue(source)?).await
    }

    async fn depths(&self) -> Result<Vec<QueueDepth>, Error> {
        let mut depths = Vec::new();
        for queue in self.inner.options.topology.live_queues() {
            depths.push(self.depth_of(&queue).await?);
        }
        Ok(depths)
    }

    async fn close(&self) {
        if self.inner.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        let connections = [self.inner.publishing.last(), self.inner.consuming.last()];
        join_all(connections.iter().flatten().map(|connection| connection.close())).await;
    }
}

impl RabbitBroker {
    /// A missing queue counts as empty.
    async fn depth_of(&self, queue: &Queue) -> Result<QueueDepth, Error> {
        let inner = &self.inner;
        let name = inner.options.topology.short(&queue.name).to_owned();
        let connection = inner.consuming().await?;
        let channel = connection.channel().await?;
        let request = declare::queue(&channel, queue, true);
        let answer = tokio::time::timeout(inner.options.connect_timeout, request).await;
        let (num_ready, num_consumers) = match answer {
            Ok(Ok(answer)) => (answer.message_count().into(), answer.consumer_count().into()),
            Ok(Err(error)) if is_missing(&error) => {
                inner.request_verify();
                (0, 0)
            }
            Ok(Err(error)) => {
                return Err(Error::unavailable(format!("{name}: {}", error_message(&error))));
            }
            Err(_elapsed) => {
                return Err(Error::unavailable(format!("{name}: no answer in time")));
            }
        };
        connection.mark_proven();
        Ok(QueueDepth { queue: name, num_ready, num_consumers })
    }
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

impl RabbitSubscription {
    /// Starts a quarantine because of a frequently delivered order message. Returns false if the
    /// delivery can be processed now. Dead letters are exempt: those that the ledger refuses are
    /// delivered often without crashing their consumer.
    fn start_quarantine(&self) -> bool {
        let SharedSubscription { inner, source, is_quarantined, .. } = self.shared.as_ref();
        if !matches!(source, Route::Orders(_)) || *is_quarantined || self.prefetch == 1 {
            return false;
        }
        let started = inner.quarantine.start_once(*source, self.prefetch, now_monotonic());
        if started {
            tracing::warn!(
                ?source,
                "broker queue: a message was delivered often, reading one at a time"
            );
        }
        started
    }
}

#[async_trait]
impl Subscription for RabbitSubscription {
    async fn next(&mut self) -> Result<Delivery, Error> {
        let SharedSubscription { inner, connection, source, is_quarantined, .. } = &*self.shared;
        if *is_quarantined && !inner.quarantine.is_active(*source, now_monotonic()) {
            let reason = "the quarantine is over, subscribe with the full prefetch";
            return Err(self.shared.end(reason.to_owned()));
        }
        let delivery = match self.consumer.next().await {
            Some(Ok(delivery)) => delivery,
            Some(Err(error)) => {
                if matches!(error.kind(), ErrorKind::ParsingError(_)) {
                    inner.quarantine.start(*source, self.prefetch, now_monotonic());
                    tracing::error!(
                        ?source,
                        "broker queue: a message is not parsable, reading one at a time"
                    );
                } else if has_code(&error, AMQPSoftError::PRECONDITIONFAILED.get_id()) {
                    // A delivery exceeded `consumer_timeout`, as while the ledger is down.
                    inner.quarantine.put_off(*source, now_monotonic());
                }
                inner.request_verify();
                return Err(self.shared.end(error_message(&error)));
            }
            None => {
                inner.request_verify();
                let reason = connection.close_reason().unwrap_or_else(|| {
                    format!("the broker cancelled it: was {} deleted?", self.consumer.queue())
                });
                return Err(self.shared.end(reason));
            }
        };
        let num_previous = headers::num_previous(&delivery.properties, delivery.redelivered);
        if num_previous >= DELIVERIES_BEFORE_QUARANTINE && self.start_quarantine() {
            let reason = format!("a message was delivered {num_previous} times before");
            return Err(self.shared.end(reason));
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
        Box::new(self.shared.clone())
    }
}

impl Drop for RabbitSubscription {
    fn drop(&mut self) {
        *self.shared.unacknowledged.lock() = None;
        let channel = self.shared.channel.clone();
        // Closing returns all unacknowledged deliveries at once, even while acknowledgers exist.
        drop(self.shared.connection.io.spawn(async move {
            drop(channel.close(200, "unsubscribed".into()).await);
        }));
    }
}

impl SharedSubscription {
    /// Ends the subscription: its deliveries can no longer be acknowledged.
    fn end(&self, reason: String) -> Error {
        *self.unacknowledged.lock() = None;
        Error::Ended { reason }
    }

    /// Removes unacknowledged tags, so that none is acknowledged twice: the broker would close the
    /// channel.
    fn take(&self, remove: impl FnOnce(&mut BTreeSet<u64>) -> Option<u64>) -> Option<u64> {
        self.unacknowledged.lock().as_mut().and_then(remove)
    }

    /// Counts an acknowledgement for the quarantine. After an error the broker delivers again.
    fn record_result(&self, outcome: lapin::Result<()>) {
        match outcome {
            Ok(()) if self.is_quarantined => self.inner.quarantine.count_acknowledged(self.source),
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(error = error_message(&error), "acknowledgement not sent");
            }
        }
    }
}

#[async_trait]
impl Acknowledger for Arc<SharedSubscription> {
    async fn up_to(&self, tag: u64) {
        let last = self.take(|tags| {
            let later = tags.split_off(&tag.saturating_add(1));
            std::mem::replace(tags, later).pop_last()
        });
        if let Some(last) = last {
            let options = BasicAckOptions { multiple: true };
            self.record_result(self.channel.basic_ack(last, options).await);
        }
    }

    async fn one(&self, tag: u64) {
        if let Some(tag) = self.take(|tags| tags.take(&tag)) {
            let options = BasicAckOptions { multiple: false };
            self.record_result(self.channel.basic_ack(tag, options).await);
        }
    }
}
