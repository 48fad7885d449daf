//! Messages to RabbitMQ, pipelined, each with its confirmation.
//!
//! A confirmation that does not come makes all those doubtful that were sent together (see
//! [`crate::broker::rabbit::confirmations`]). So no more than a window is sent together, and a
//! queue that confirms nothing
//! is kept apart from the others (see [`crate::broker::rabbit::publish_batch`]).

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
use super::{Inner, said};
use crate::broker::rabbit::confirmations::Confirmations;
use crate::broker::rabbit::connection::RabbitConnection;
use crate::broker::rabbit::publish_batch::{PublishBatch, QueueHistory};
use crate::runtime::clock::now_monotonic;

/// One message on its way: its place in the call, and what the broker said.
type PendingConfirm = Pin<Box<dyn Future<Output = (usize, lapin::Result<Confirmation>)> + Send>>;

/// A channel to publish on, made when it is needed.
pub(super) struct RabbitOutgoing {
    inner: Arc<Inner>,
    parcels: QueueHistory,
    pen: Option<ConfirmChannel>,
}

/// A confirming channel on which nothing is under way.
struct ConfirmChannel {
    line: Arc<RabbitConnection>,
    channel: Channel,
    /// The number of the next message.
    next: u64,
}

impl ConfirmChannel {
    fn is_of_use(&self, line: &Arc<RabbitConnection>) -> bool {
        Arc::ptr_eq(&self.line, line) && self.channel.status().connected()
    }
}

impl RabbitOutgoing {
    pub(super) fn new(inner: Arc<Inner>, window: usize) -> Self {
        Self { inner, parcels: QueueHistory::new(window), pen: None }
    }

    /// A channel, verified if there is doubt; or why there is none.
    async fn take_pen(&mut self) -> Result<ConfirmChannel, String> {
        let line = self.inner.publishing().await.map_err(|error| error.to_string())?;
        if let Some(reason) = line.blocked() {
            return Err(format!("the broker accepts no messages: {reason}"));
        }
        self.inner.verify(&line).await.map_err(|error| error.to_string())?;
        if let Some(pen) = self.pen.take().filter(|pen| pen.is_of_use(&line)) {
            return Ok(pen);
        }
        let channel = line.confirming().await.map_err(|error| error.to_string())?;
        Ok(ConfirmChannel { line, channel, next: 1 })
    }

    /// Sends messages together, and waits until each is confirmed or its time is over.
    async fn send(&mut self, messages: Vec<Message>) -> Vec<PublishOutcome> {
        let count = messages.len();
        let pen = match self.take_pen().await {
            Ok(pen) => pen,
            Err(reason) => return vec![PublishOutcome::NotSent { reason }; count],
        };
        if messages.is_empty() {
            self.pen = Some(pen);
            return Vec::new();
        }
        // On the broker's thread: the work goes on when the caller stops waiting, and a
        // confirmation wakes nobody else.
        let (told, results) = tokio::sync::oneshot::channel();
        let inner = self.inner.clone();
        let Ok(io) = self.inner.io() else {
            let reason = "the connections of this process are closed".to_owned();
            return vec![PublishOutcome::NotSent { reason }; count];
        };
        drop(io.spawn(async move {
            let call = PublishCall::new(&inner, pen, messages);
            call.run(|result| drop(told.send(result))).await;
        }));
        if let Ok((pen, results)) = results.await {
            self.pen = pen;
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
        let mut results: Vec<Option<PublishOutcome>> = messages.iter().map(|_| None).collect();
        let mut rest = self.parcels.make(messages);
        while let Some(PublishBatch { places, routes, messages }) = rest.next(&self.parcels) {
            let sent = self.send(messages).await;
            let goes_on = self.parcels.note(&routes, &sent);
            for (place, sent) in places.into_iter().zip(sent) {
                if let Some(result) = results.get_mut(place) {
                    *result = Some(sent);
                }
            }
            if !goes_on {
                break;
            }
        }
        let left =
            || PublishOutcome::NotSent { reason: "earlier messages were not confirmed".to_owned() };
        results.into_iter().map(|result| result.unwrap_or_else(left)).collect()
    }
}

/// Messages that are sent together.
struct PublishCall<'a> {
    inner: &'a Inner,
    topology: &'a Topology,
    pen: ConfirmChannel,
    tally: Confirmations,
    waiting: std::iter::Enumerate<std::vec::IntoIter<Message>>,
    flying: FuturesUnordered<PendingConfirm>,
    /// When each message must be confirmed, in the order in which they were sent.
    deadlines: VecDeque<(usize, Instant)>,
    done: Vec<bool>,
    timeout: Duration,
    /// The broker refused a message.
    is_refused: bool,
}

impl<'a> PublishCall<'a> {
    fn new(inner: &'a Inner, pen: ConfirmChannel, messages: Vec<Message>) -> Self {
        let count = messages.len();
        Self {
            inner,
            topology: &inner.options.topology,
            tally: Confirmations::new(pen.next, count),
            pen,
            waiting: messages.into_iter().enumerate(),
            flying: FuturesUnordered::new(),
            deadlines: VecDeque::new(),
            done: vec![false; count],
            timeout: inner.options.confirm_timeout,
            is_refused: false,
        }
    }

    /// Publishes everything that can be, tells the results, and stays with what is under way.
    async fn run(mut self, tell: impl FnOnce((Option<ConfirmChannel>, Vec<PublishOutcome>))) {
        loop {
            self.send().await;
            let Some(deadline) = self.deadline() else { break };
            match tokio::time::timeout_at(deadline.into(), self.flying.next()).await {
                Ok(Some((index, answer))) => self.hear(index, answer),
                Ok(None) => break,
                Err(_) => {
                    self.tally.halt("earlier messages were not confirmed in time");
                    break;
                }
            }
        }
        if self.tally.any_returned() {
            self.inner.doubt();
        }
        let ConfirmChannel { line, channel, next } = self.pen;
        if self.flying.is_empty() {
            // The broker may go on refusing everything on a channel, although the limit of the
            // queue is gone: a quorum queue tells its channels of room, and not of that.
            let is_of_use = !self.tally.is_halted() && !self.is_refused;
            let pen = is_of_use.then_some(ConfirmChannel { line, channel, next });
            tell((pen, self.tally.close()));
            return;
        }
        tell((None, self.tally.close()));
        let mut flying = self.flying;
        line.leave_to_itself(async move {
            while flying.next().await.is_some() {}
            drop(channel);
        })
        .await;
    }

    /// Sends until nothing more can be sent.
    async fn send(&mut self) {
        while !self.tally.is_halted() {
            if let Some(reason) = self.pen.line.blocked() {
                self.tally.halt(&format!("the broker accepts no messages: {reason}"));
            } else if !self.pen.channel.status().connected() {
                let reason = self.pen.line.end().unwrap_or_else(|| "the channel closed".into());
                self.tally.halt(&reason);
            } else {
                let Some((index, message)) = self.waiting.next() else { return };
                self.send_one(index, message).await;
            }
        }
    }

    async fn send_one(&mut self, index: usize, message: Message) {
        // Every message has its number, sent or not: a number is a place in the call.
        let number = self.pen.next;
        self.pen.next = number.wrapping_add(1);
        let Some(address) = self.topology.address(message.route) else {
            self.tally.refused(index, &format!("there is no queue for {:?}", message.route));
            return;
        };
        let channel = self.pen.channel.clone();
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut flight: PendingConfirm = Box::pin(async move {
            let (exchange, key) = (address.exchange.as_str().into(), address.key.as_str().into());
            let properties = headers::pack(&message.headers, number);
            let sending =
                channel.basic_publish(exchange, key, options, &message.body, properties).await;
            match sending {
                Ok(confirm) => (index, confirm.await),
                Err(error) => (index, Err(error)),
            }
        });
        self.tally.sent(index);
        // The library takes the message at the first look, which keeps the order.
        match poll!(flight.as_mut()) {
            Poll::Ready((index, answer)) => self.hear(index, answer),
            Poll::Pending => {
                self.deadlines.push_back((index, now_monotonic() + self.timeout));
                self.flying.push(flight);
            }
        }
    }

    /// When the oldest message under way must be confirmed.
    fn deadline(&mut self) -> Option<Instant> {
        while let Some((index, deadline)) = self.deadlines.front() {
            if !self.done.get(*index).copied().unwrap_or(true) {
                return Some(*deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }

    fn hear(&mut self, index: usize, answer: lapin::Result<Confirmation>) {
        if let Some(done) = self.done.get_mut(index) {
            *done = true;
        }
        let returned = match answer {
            Ok(Confirmation::Ack(returned)) => {
                self.pen.line.prove();
                self.tally.acknowledged(index);
                returned
            }
            Ok(Confirmation::Nack(returned)) => {
                self.is_refused = true;
                self.tally.refused(index, "the broker did not take it (basic.nack)");
                returned
            }
            Ok(Confirmation::NotRequested) => {
                self.tally.lost(index, "the channel does not confirm");
                None
            }
            Err(error) => {
                // The connection lives and the channel does not: perhaps the exchange is gone.
                if self.pen.line.end().is_none() {
                    self.inner.doubt();
                }
                let reason = said(&error);
                self.tally.lost(index, &reason);
                self.tally.halt(&reason);
                None
            }
        };
        if let Some(message) = returned {
            let BasicReturnMessage { delivery, reply_code, reply_text } = message;
            let reason = format!("no queue wants it: {reply_code} {reply_text}");
            self.tally.returned(headers::number(&delivery.properties), &reason);
        }
    }
}
