//! An in-memory broker of one order queue that checks its consumer.
//!
//! An acknowledgement of an undelivered or already acknowledged tag fails the test: RabbitMQ would
//! close the channel.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use floodgate::broker::{
    Acknowledger, BrokerStatus, Delivery, Error, Headers, Message, PublishChannel, PublishOutcome,
    Publisher, QueueDepth, Route, Subscriber, Subscription,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// How the broker answers a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PublishAnswer {
    #[default]
    Yes,
    /// The broker is down: nothing is stored.
    NotSent,
    /// The message is stored, the confirm is lost.
    Unknown,
    /// A nack: nothing is stored.
    Refused,
}

#[derive(Debug, Clone)]
struct Stored {
    headers: Headers,
    routing_key: String,
    body: Bytes,
    num_previous: u32,
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "faults that are independent of each other")]
struct State {
    ready: VecDeque<Stored>,
    /// Number of subscriptions so far; the last one is current, unless `is_over`.
    subscription: u64,
    is_over: bool,
    last_tag: u64,
    unacknowledged: BTreeMap<u64, Stored>,
    num_deliveries: usize,
    num_unacknowledged_max: usize,
    published: Vec<Message>,
    num_publish_attempts: usize,
    publish_answer: PublishAnswer,
    /// Acknowledgements are lost.
    loses_acks: bool,
    /// Subscribing fails.
    is_away: bool,
    /// The current subscription stays open without deliveries.
    is_dormant: bool,
}

/// See the module.
#[derive(Clone, Default)]
pub struct FakeBroker {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

impl FakeBroker {
    /// Puts a message into the queue.
    pub fn put(&self, headers: Headers, routing_key: &str, body: impl Into<Bytes>) {
        let (routing_key, body) = (routing_key.to_owned(), body.into());
        self.state.lock().ready.push_back(Stored { headers, routing_key, body, num_previous: 0 });
        self.changed.notify_waiters();
    }

    /// Sets the delivery count of the ready message at index `at`.
    pub fn set_num_before(&self, at: usize, num_previous: u32) {
        self.state.lock().ready[at].num_previous = num_previous;
    }

    /// Replays the dead letters, as an operator would.
    pub fn replay(&self) {
        let dead = std::mem::take(&mut self.state.lock().published);
        for message in dead {
            self.put(Headers { attempts: 0, ..message.headers }, "0", message.body);
        }
    }

    /// The stored messages, whether confirmed or not.
    pub fn published(&self) -> Vec<Message> {
        self.state.lock().published.clone()
    }

    /// The stored messages, all of which must be dead letters.
    pub fn dead(&self) -> Vec<Message> {
        let dead = self.published();
        assert!(dead.iter().all(|message| message.route == Route::Dead), "{dead:?}");
        dead
    }

    /// Number of messages that were sent, stored or not.
    pub fn num_publish_attempts(&self) -> usize {
        self.state.lock().num_publish_attempts
    }

    /// Sets the answer to every following publish.
    pub fn say(&self, answer: PublishAnswer) {
        self.state.lock().publish_answer = answer;
    }

    /// Sets whether acknowledgements are lost.
    pub fn lose_acks(&self, lost: bool) {
        self.state.lock().loses_acks = lost;
    }

    /// Stops deliveries to the current subscription, which stays open.
    pub fn forget_consumer(&self) {
        self.state.lock().is_dormant = true;
    }

    /// Sets whether subscribing fails.
    pub fn set_unavailable(&self, away: bool) {
        self.state.lock().is_away = away;
    }

    /// Ends the current subscription.
    pub fn end_subscription(&self) {
        self.state.lock().give_back();
        self.changed.notify_waiters();
    }

    /// Messages ready for delivery.
    pub fn num_ready(&self) -> usize {
        self.state.lock().ready.len()
    }

    pub fn num_unacknowledged(&self) -> usize {
        self.state.lock().unacknowledged.len()
    }

    /// Highest [`Self::num_unacknowledged`] so far.
    pub fn num_unacknowledged_max(&self) -> usize {
        self.state.lock().num_unacknowledged_max
    }

    /// Deliveries including redeliveries.
    pub fn num_deliveries(&self) -> usize {
        self.state.lock().num_deliveries
    }

    /// Whether no message is ready or unacknowledged.
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.ready.is_empty() && state.unacknowledged.is_empty()
    }
}

impl State {
    fn give_back(&mut self) {
        self.is_over = true;
        for (_, mut stored) in std::mem::take(&mut self.unacknowledged).into_iter().rev() {
            stored.num_previous += 1;
            self.ready.push_front(stored);
        }
    }

    fn acknowledge(&mut self, subscription: u64, tags: impl Fn(&Self) -> Vec<u64>, tag: u64) {
        if self.loses_acks || self.is_over || subscription != self.subscription {
            return;
        }
        assert!(self.unacknowledged.contains_key(&tag), "tag {tag} is not unacknowledged");
        for tag in tags(self) {
            self.unacknowledged.remove(&tag);
        }
    }
}

struct FakeSubscription {
    broker: FakeBroker,
    number: u64,
    prefetch: usize,
}

#[async_trait]
impl Subscriber for FakeBroker {
    async fn subscribe(&self, _: Route, prefetch: u16) -> Result<Box<dyn Subscription>, Error> {
        let mut state = self.state.lock();
        if state.is_away {
            return Err(Error::Unavailable { reason: "down on purpose".to_owned() });
        }
        assert!(state.unacknowledged.is_empty(), "the old subscription is still there");
        state.subscription += 1;
        state.is_over = false;
        state.is_dormant = false;
        state.last_tag = 0;
        let (broker, number) = (self.clone(), state.subscription);
        Ok(Box::new(FakeSubscription { broker, number, prefetch: prefetch.into() }))
    }

    async fn depth(&self, _: Route) -> Result<QueueDepth, Error> {
        Ok(self.depths().await?.remove(0))
    }

    async fn depths(&self) -> Result<Vec<QueueDepth>, Error> {
        let num_ready = self.num_ready() as u64;
        Ok(vec![QueueDepth { queue: "orders.0".to_owned(), num_ready, num_consumers: 1 }])
    }

    async fn close(&self) {}
}

impl FakeSubscription {
    fn try_next(&self) -> Option<Result<Delivery, Error>> {
        let mut state = self.broker.state.lock();
        if state.is_over || state.subscription != self.number {
            return Some(Err(Error::Ended { reason: "on purpose".to_owned() }));
        }
        if state.is_dormant || state.unacknowledged.len() >= self.prefetch {
            return None;
        }
        let stored = state.ready.pop_front()?;
        state.last_tag += 1;
        state.num_deliveries += 1;
        let tag = state.last_tag;
        state.unacknowledged.insert(tag, stored.clone());
        state.num_unacknowledged_max = state.num_unacknowledged_max.max(state.unacknowledged.len());
        let Stored { headers, routing_key, body, num_previous } = stored;
        Some(Ok(Delivery { tag, headers, routing_key, num_previous, body }))
    }
}

#[async_trait]
impl Subscription for FakeSubscription {
    async fn next(&mut self) -> Result<Delivery, Error> {
        let changed = Arc::clone(&self.broker.changed);
        loop {
            let notified = changed.notified();
            if let Some(next) = self.try_next() {
                return next;
            }
            notified.await;
        }
    }

    fn acks(&self) -> Box<dyn Acknowledger> {
        Box::new(FakeAcks { broker: self.broker.clone(), number: self.number })
    }
}

impl Drop for FakeSubscription {
    fn drop(&mut self) {
        let mut state = self.broker.state.lock();
        if state.subscription == self.number {
            state.give_back();
        }
    }
}

struct FakeAcks {
    broker: FakeBroker,
    number: u64,
}

impl FakeAcks {
    fn acknowledge(&self, tag: u64, tags: impl Fn(&State) -> Vec<u64>) {
        self.broker.state.lock().acknowledge(self.number, tags, tag);
        self.broker.changed.notify_waiters();
    }
}

#[async_trait]
impl Acknowledger for FakeAcks {
    async fn up_to(&self, tag: u64) {
        self.acknowledge(tag, |state| {
            state.unacknowledged.range(..=tag).map(|(tag, _)| *tag).collect()
        });
    }

    async fn one(&self, tag: u64) {
        self.acknowledge(tag, |_| vec![tag]);
    }
}

struct FakeOutgoing(FakeBroker);

#[async_trait]
impl PublishChannel for FakeOutgoing {
    async fn publish(&mut self, messages: Vec<Message>) -> Vec<PublishOutcome> {
        let mut state = self.0.state.lock();
        let reason = || "on purpose".to_owned();
        let sent = messages.into_iter().map(|message| {
            state.num_publish_attempts += 1;
            match state.publish_answer {
                PublishAnswer::NotSent => return PublishOutcome::NotSent { reason: reason() },
                PublishAnswer::Refused => return PublishOutcome::Refused { reason: reason() },
                PublishAnswer::Yes | PublishAnswer::Unknown => {}
            }
            state.published.push(message);
            if state.publish_answer == PublishAnswer::Yes {
                PublishOutcome::Confirmed
            } else {
                PublishOutcome::Unknown { reason: reason() }
            }
        });
        sent.collect()
    }
}

impl Publisher for FakeBroker {
    fn open_channel(&self, _: usize) -> Box<dyn PublishChannel> {
        Box::new(FakeOutgoing(self.clone()))
    }

    fn status(&self) -> BrokerStatus {
        BrokerStatus::Up
    }
}
