//! Publishes to RabbitMQ, pipelined, with publisher confirms.
//!
//! A missing confirmation makes the outcome of its whole batch unknown (see
//! [`crate::broker::rabbit::confirmations`]). So a batch is limited to the window, and a queue that
//! confirms nothing gets batches of its own (see [`crate::broker::rabbit::publish_batch`]).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::poll;
use futures_util::stream::FuturesUnordered;
use lapin::message::BasicReturnMessage;
use lapin::options::BasicPublishOptions;
use lapin::{Channel, Confirmation};

use super::super::topology::Topology;
use super::super::{Message, PublishChannel, PublishOutcome, headers};
use super::{Inner, error_message};
use crate::broker::rabbit::confirmations::Confirmations;
use crate::broker::rabbit::connection::RabbitConnection;
use crate::broker::rabbit::publish_batch::{PublishBatch, QueueHistory};
use crate::runtime::clock::now_monotonic;

/// An unconfirmed message: resolves to its index in the batch and the broker's answer.
type PendingConfirm = Pin<Box<dyn Future<Output = (usize, lapin::Result<Confirmation>)> + Send>>;

/// A [`PublishChannel`] that opens its AMQP channel on first use and after failures.
pub(super) struct RabbitOutgoing {
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

impl ConfirmChannel {
    fn is_usable(&self, connection: &Arc<RabbitConnection>) -> bool {
        Arc::ptr_eq(&self.connection, connection) && self.channel.status().connected()
    }
}

impl RabbitOutgoing {
    pub(super) fn new(inner: Arc<Inner>, window: usize) -> Self {
        Self { inner, history: QueueHistory::new(window), confirm_channel: None }
    }

    /// The channel, or a new one if it is not usable; verifies the topology first if requested.
    async fn take_channel(&mut self) -> Result<ConfirmChannel, String> {
        let connection = self.inner.publishing().await.map_err(|error| error.to_string())?;
        if let Some(reason) = connection.blocked_reason() {
            return Err(format!("the broker accepts no messages: {reason}"));
        }
        self.inner.verify(&connection).await.map_err(|error| error.to_string())?;
        if let Some(last) = self.confirm_channel.take().filter(|last| last.is_usable(&connection)) {
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
        if messages.is_empty() {
            self.confirm_channel = Some(confirm_channel);
            return Vec::new();
        }
        // On the broker's thread, so that the call continues when the caller drops the future, and
        // confirmations do not wake the caller's thread.
        let (result_sender, results) = tokio::sync::oneshot::channel();
        let inner = self.inner.clone();
        let Ok(io) = self.inner.io() else {
            let reason = "the connections of this process are closed".to_owned();
            return vec![PublishOutcome::NotSent { reason }; count];
        };
        drop(io.spawn(async move {
            let call = PublishCall::new(&inner, confirm_channel, messages);
            call.run(|result| drop(result_sender.send(result))).await;
        }));
        if let Ok((confirm_channel, results)) = results.await {
            self.confirm_channel = confirm_channel;
            results
        } else {
            let reason = "the connections of this process were closed".to_owned();
            vec![PublishOutcome::Unknown { reason }; count]
        }
    }
}

#[async_trait]
impl PublishChannel for RabbitOutgoing {
    async fn publish(&mut self, messages: Vec<Message>) -> Vec<PublishOutcome> {
        if messages.is_empty() {
            return self.send(messages).await;
        }
        let mut outcomes: Vec<Option<PublishOutcome>> = messages.iter().map(|_| None).collect();
        let mut remainder = self.history.split(messages);
        while let Some(PublishBatch { indices, routes, messages }) = remainder.next(&self.history) {
            let sent = self.send(messages).await;
            let may_continue = self.history.record(&routes, &sent);
            for (index, sent) in indices.into_iter().zip(sent) {
                if let Some(outcome) = outcomes.get_mut(index) {
                    *outcome = Some(sent);
                }
            }
            if !may_continue {
                break;
            }
        }
        let not_sent =
            || PublishOutcome::NotSent { reason: "earlier messages were not confirmed".to_owned() };
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(not_sent)).collect()
    }
}

/// The publishing of one batch.
struct PublishCall<'a> {
    inner: &'a Inner,
    topology: &'a Topology,
    confirm_channel: ConfirmChannel,
    confirmations: Confirmations,
    unsent: std::iter::Enumerate<std::vec::IntoIter<Message>>,
    in_flight: FuturesUnordered<PendingConfirm>,
    /// When each message must be confirmed, in send order.
    deadlines: VecDeque<(usize, Instant)>,
    done: Vec<bool>,
    timeout: Duration,
    any_refused: bool,
}

impl<'a> PublishCall<'a> {
    fn new(inner: &'a Inner, confirm_channel: ConfirmChannel, messages: Vec<Message>) -> Self {
        let count = messages.len();
        Self {
            inner,
            topology: &inner.options.topology,
            confirmations: Confirmations::new(confirm_channel.next_number, count),
            confirm_channel,
            unsent: messages.into_iter().enumerate(),
            in_flight: FuturesUnordered::new(),
            deadlines: VecDeque::new(),
            done: vec![false; count],
            timeout: inner.options.confirm_timeout,
            any_refused: false,
        }
    }

    /// Publishes the batch, sends the outcomes to the caller, then awaits the messages that are
    /// still unconfirmed.
    async fn run(
        mut self,
        send_result: impl FnOnce((Option<ConfirmChannel>, Vec<PublishOutcome>)),
    ) {
        loop {
            self.send().await;
            let Some(deadline) = self.deadline() else { break };
            match tokio::time::timeout_at(deadline.into(), self.in_flight.next()).await {
                Ok(Some((index, answer))) => self.record_answer(index, answer),
                Ok(None) => break,
                Err(_) => {
                    self.confirmations.halt("earlier messages were not confirmed in time");
                    break;
                }
            }
        }
        if self.confirmations.any_returned() {
            self.inner.request_verify();
        }
        let ConfirmChannel { connection, channel, next_number } = self.confirm_channel;
        if self.in_flight.is_empty() {
            // No reuse after a refusal: the broker may keep refusing on this channel after the
            // queue's length limit is removed, because a quorum queue notifies its channels of free
            // space, but not of a changed limit.
            let is_usable = !self.confirmations.is_halted() && !self.any_refused;
            let confirm_channel =
                is_usable.then_some(ConfirmChannel { connection, channel, next_number });
            send_result((confirm_channel, self.confirmations.into_outcomes()));
            return;
        }
        send_result((None, self.confirmations.into_outcomes()));
        let mut in_flight = self.in_flight;
        connection
            .await_abandoned(async move {
                while in_flight.next().await.is_some() {}
                drop(channel);
            })
            .await;
    }

    /// Sends until all messages are sent or sending stops.
    async fn send(&mut self) {
        while !self.confirmations.is_halted() {
            if let Some(reason) = self.confirm_channel.connection.blocked_reason() {
                self.confirmations.halt(&format!("the broker accepts no messages: {reason}"));
            } else if !self.confirm_channel.channel.status().connected() {
                let reason = self
                    .confirm_channel
                    .connection
                    .close_reason()
                    .unwrap_or_else(|| "the channel closed".into());
                self.confirmations.halt(&reason);
            } else {
                let Some((index, message)) = self.unsent.next() else { return };
                self.send_one(index, message).await;
            }
        }
    }

    async fn send_one(&mut self, index: usize, message: Message) {
        // Unsent messages use a number too: a number stands for an index in the batch.
        let number = self.confirm_channel.next_number;
        self.confirm_channel.next_number = number.wrapping_add(1);
        let Some(address) = self.topology.address(message.route) else {
            self.confirmations
                .refused(index, &format!("there is no queue for {:?}", message.route));
            return;
        };
        let channel = self.confirm_channel.channel.clone();
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut pending: PendingConfirm = Box::pin(async move {
            let (exchange, key) = (address.exchange.as_str().into(), address.key.as_str().into());
            let properties = headers::pack(&message.headers, number);
            let sending =
                channel.basic_publish(exchange, key, options, &message.body, properties).await;
            match sending {
                Ok(confirm) => (index, confirm.await),
                Err(error) => (index, Err(error)),
            }
        });
        self.confirmations.sent(index);
        // The library queues the message at the first poll, which keeps the order.
        match poll!(pending.as_mut()) {
            Poll::Ready((index, answer)) => self.record_answer(index, answer),
            Poll::Pending => {
                self.deadlines.push_back((index, now_monotonic() + self.timeout));
                self.in_flight.push(pending);
            }
        }
    }

    /// The deadline of the oldest unconfirmed message.
    fn deadline(&mut self) -> Option<Instant> {
        while let Some((index, deadline)) = self.deadlines.front() {
            if !self.done.get(*index).copied().unwrap_or(true) {
                return Some(*deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }

    fn record_answer(&mut self, index: usize, answer: lapin::Result<Confirmation>) {
        if let Some(done) = self.done.get_mut(index) {
            *done = true;
        }
        let returned = match answer {
            Ok(Confirmation::Ack(returned)) => {
                self.confirm_channel.connection.mark_proven();
                self.confirmations.acknowledged(index);
                returned
            }
            Ok(Confirmation::Nack(returned)) => {
                self.any_refused = true;
                self.confirmations.refused(index, "the broker did not take it (basic.nack)");
                returned
            }
            Ok(Confirmation::NotRequested) => {
                self.confirmations.lost(index, "the channel does not confirm");
                None
            }
            Err(error) => {
                // Only the channel was closed: the exchange may be missing.
                if self.confirm_channel.connection.close_reason().is_none() {
                    self.inner.request_verify();
                }
                let reason = error_message(&error);
                self.confirmations.lost(index, &reason);
                self.confirmations.halt(&reason);
                None
            }
        };
        if let Some(message) = returned {
            let BasicReturnMessage { delivery, reply_code, reply_text } = message;
            let reason = format!("no queue takes it: {reply_code} {reply_text}");
            self.confirmations.returned(headers::number(&delivery.properties), &reason);
        }
    }
}
