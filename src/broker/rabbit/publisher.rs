//! Publishes to RabbitMQ, pipelined, with publisher confirms.
//!
//! A missing confirmation makes the outcome of its whole batch unknown. So a batch is limited to
//! the window, and a queue that confirms nothing gets batches of its own (see
//! [`crate::broker::rabbit::publish_batch`]).

use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, poll};
use lapin::message::BasicReturnMessage;
use lapin::options::BasicPublishOptions;
use lapin::{Channel, Confirmation};

use super::super::topology::PublishAddress;
use super::super::{
    BrokerStatus, Message, PublishChannel, PublishOutcome, Publisher, Route, headers,
};
use super::{Inner, RabbitBroker, error_message};
use crate::broker::rabbit::connection::RabbitConnection;
use crate::broker::rabbit::publish_batch::{Confirmations, QueueHistory};
use crate::runtime::clock::now_monotonic;
use crate::runtime::single_flight::ValueStatus;

/// A [`PublishChannel`] that opens its AMQP channel on first use and after failures.
struct RabbitPublishChannel {
    inner: Arc<Inner>,
    history: QueueHistory,
    confirm_channel: Option<ConfirmChannel>,
}

/// A channel in confirm mode without unconfirmed messages.
struct ConfirmChannel {
    connection: Arc<RabbitConnection>,
    channel: Channel,
    next_number: u64,
}

impl Publisher for RabbitBroker {
    fn open_channel(&self, window: usize) -> Box<dyn PublishChannel> {
        Box::new(RabbitPublishChannel {
            inner: self.inner.clone(),
            history: QueueHistory::new(window),
            confirm_channel: None,
        })
    }

    fn status(&self) -> BrokerStatus {
        let blocked = |connection: Arc<RabbitConnection>| connection.blocked_reason();
        match self.inner.publishing.status() {
            Some(ValueStatus::Expired { .. }) => BrokerStatus::Down,
            Some(ValueStatus::Usable)
                if self.inner.publishing.last().and_then(blocked).is_some() =>
            {
                BrokerStatus::Blocked
            }
            // Before its first use the broker is assumed up.
            Some(ValueStatus::Usable) | None => BrokerStatus::Up,
        }
    }
}

impl RabbitPublishChannel {
    /// The channel, or a new one if it is not usable; verifies the topology first if requested.
    async fn take_channel(&mut self) -> Result<ConfirmChannel, String> {
        let connection = self.inner.publishing().await.map_err(|error| error.to_string())?;
        if let Some(reason) = connection.blocked_reason() {
            return Err(reason);
        }
        self.inner.verify(&connection).await.map_err(|error| error.to_string())?;
        let is_usable = |last: &ConfirmChannel| {
            Arc::ptr_eq(&last.connection, &connection) && last.channel.status().connected()
        };
        if let Some(last) = self.confirm_channel.take().filter(is_usable) {
            return Ok(last);
        }
        let channel = connection.confirming().await.map_err(|error| error.to_string())?;
        Ok(ConfirmChannel { connection, channel, next_number: 1 })
    }

    /// Sends one batch and waits until each message is confirmed or timed out.
    async fn send(&mut self, messages: Vec<Message>) -> Vec<PublishOutcome> {
        let count = messages.len();
        let confirm_channel = match self.take_channel().await {
            Ok(confirm_channel) => confirm_channel,
            Err(reason) => return vec![PublishOutcome::NotSent { reason }; count],
        };
        // On the broker's thread, so that the call continues when the caller drops the future, and
        // confirmations do not wake the caller's thread.
        let io = confirm_channel.connection.io.clone();
        let publishing = io.spawn(publish_batch(self.inner.clone(), confirm_channel, messages));
        if let Ok((outcomes, confirm_channel)) = publishing.await {
            self.confirm_channel = confirm_channel;
            outcomes
        } else {
            let reason = "the connections of this process were closed".to_owned();
            vec![PublishOutcome::Unknown { reason }; count]
        }
    }
}

#[async_trait]
impl PublishChannel for RabbitPublishChannel {
    async fn publish(&mut self, messages: Vec<Message>) -> Vec<PublishOutcome> {
        if messages.is_empty()
            && let Ok(confirm_channel) = self.take_channel().await
        {
            self.confirm_channel = Some(confirm_channel);
        }
        let reason = "earlier messages were not confirmed".to_owned();
        let mut outcomes = vec![PublishOutcome::NotSent { reason }; messages.len()];
        let mut unsent = self.history.ordered(messages);
        while !unsent.is_empty() {
            let (indices, messages) = self.history.next_batch(&mut unsent);
            let routes: Vec<_> = messages.iter().map(|message| message.route).collect();
            let batch_outcomes = self.send(messages).await;
            let may_continue = self.history.record(&routes, &batch_outcomes);
            for (index, batch_outcome) in indices.into_iter().zip(batch_outcomes) {
                if let Some(outcome) = outcomes.get_mut(index) {
                    *outcome = batch_outcome;
                }
            }
            if !may_continue {
                break;
            }
        }
        outcomes
    }
}

/// Publishes a batch. Returns the outcome of each message, and the channel if it can be used again.
/// Messages that are still unconfirmed at the end are awaited in the background.
async fn publish_batch(
    inner: Arc<Inner>,
    mut confirm_channel: ConfirmChannel,
    messages: Vec<Message>,
) -> (Vec<PublishOutcome>, Option<ConfirmChannel>) {
    let ConfirmChannel { connection, channel, next_number } = &mut confirm_channel;
    let first = *next_number;
    // Unsent messages use a number too: a number stands for an index in the batch.
    *next_number = first.wrapping_add(messages.len() as u64);
    let mut confirmations = Confirmations::new(first, messages.len());
    let mut in_flight = FuturesUnordered::new();
    for ((index, message), number) in messages.into_iter().enumerate().zip(first..) {
        if let Some(reason) = stop_reason(connection, channel) {
            confirmations.halt(&reason);
            break;
        }
        let Some(address) = inner.options.topology.address(message.route) else {
            confirmations.refused(index, &format!("there is no queue for {:?}", message.route));
            continue;
        };
        let channel = channel.clone();
        let mut pending =
            Box::pin(async move { (index, publish(channel, address, message, number).await) });
        confirmations.unknown(index, "no confirmation came");
        // The library queues the message at the first poll, which keeps the order.
        match poll!(pending.as_mut()) {
            Poll::Ready((index, answer)) => {
                let failure = answer.as_ref().err().map(error_message);
                record(&inner, connection, &mut confirmations, index, answer);
                if let Some(reason) = failure {
                    confirmations.halt(&reason);
                    break;
                }
            }
            Poll::Pending => in_flight.push(pending),
        }
    }
    let deadline = (now_monotonic() + inner.options.confirm_timeout).into();
    while let Ok(Some((index, answer))) = tokio::time::timeout_at(deadline, in_flight.next()).await
    {
        record(&inner, connection, &mut confirmations, index, answer);
    }
    let outcomes = confirmations.into_outcomes();
    if in_flight.is_empty() {
        // No reuse after a refusal: the broker may keep refusing on this channel after the queue's
        // length limit is removed, because a quorum queue notifies its channels of free space, but
        // not of a changed limit.
        let is_usable = outcomes.iter().all(|outcome| *outcome == PublishOutcome::Confirmed);
        return (outcomes, is_usable.then_some(confirm_channel));
    }
    let ConfirmChannel { connection, channel, .. } = confirm_channel;
    drop(connection.io.clone().spawn(async move {
        let confirmations = async move {
            while in_flight.next().await.is_some() {}
            drop(channel);
        };
        connection.await_abandoned(confirmations).await;
    }));
    (outcomes, None)
}

/// Why no further message can be sent; `None` while the channel is usable.
fn stop_reason(connection: &RabbitConnection, channel: &Channel) -> Option<String> {
    let closed = || connection.close_reason().unwrap_or_else(|| "the channel closed".into());
    let is_connected = channel.status().connected();
    connection.blocked_reason().or_else(|| (!is_connected).then(closed))
}

async fn publish(
    channel: Channel,
    address: PublishAddress,
    message: Message,
    number: u64,
) -> lapin::Result<Confirmation> {
    // Programs that want order events bind queues; without one they are not stored.
    let mandatory = message.route != Route::Events;
    let options = BasicPublishOptions { mandatory, ..BasicPublishOptions::default() };
    let key = message.headers.topic.as_deref().unwrap_or(&address.key).into();
    let exchange = address.exchange.into();
    let properties = headers::pack(&message.headers, number);
    channel.basic_publish(exchange, key, options, &message.body, properties).await?.await
}

/// Records the broker's answer for one message.
fn record(
    inner: &Inner,
    connection: &RabbitConnection,
    confirmations: &mut Confirmations,
    index: usize,
    answer: lapin::Result<Confirmation>,
) {
    let returned = match answer {
        Ok(Confirmation::Ack(returned)) => {
            connection.mark_proven();
            confirmations.acknowledged(index);
            returned
        }
        Ok(Confirmation::Nack(returned)) => {
            confirmations.refused(index, "the broker rejected the message (basic.nack)");
            returned
        }
        Ok(Confirmation::NotRequested) => {
            confirmations.unknown(index, "the channel does not confirm");
            None
        }
        Err(error) => {
            // Only the channel was closed: the exchange may be missing.
            if connection.close_reason().is_none() {
                inner.request_verify();
            }
            confirmations.unknown(index, &error_message(&error));
            None
        }
    };
    if let Some(message) = returned {
        inner.request_verify();
        let BasicReturnMessage { delivery, reply_code, reply_text } = message;
        let reason = format!("no queue takes it: {reply_code} {reply_text}");
        confirmations.returned(headers::number(&delivery.properties), &reason);
    }
}
