//! A broker in memory for one order queue, that watches whoever consumes it.
//!
//! It closes its eyes to nothing: an acknowledgement of what was not delivered, or was acknowledged
//! before, ends the test, as RabbitMQ would end the channel.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use floodgate::broker::{
    Acknowledger, BrokerStatus, Delivery, Error, Headers, Message, PublishChannel, PublishOutcome,
    Publisher, QueueDepth, Route, Source, Subscriber, Subscription,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// What a broker says to whoever publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Says {
    #[default]
    Yes,
    /// It is away.
    NotSent,
    /// It has the message, and nobody hears of it.
    Unknown,
    /// It says no.
    Refused,
}

#[derive(Debug, Clone)]
struct Stored {
    headers: Headers,
    routing_key: String,
    body: Bytes,
    num_before: u32,
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "faults that are independent of each other")]
struct State {
    ready: VecDeque<Stored>,
    /// Counts subscriptions; the last one is the present one, unless it ended.
    subscription: u64,
    is_over: bool,
    last_tag: u64,
    unacknowledged: BTreeMap<u64, Stored>,
    num_deliveries: usize,
    num_unacknowledged_max: usize,
    published: Vec<Message>,
    num_tried: usize,
    says: Says,
    /// Acknowledgements are lost on their way.
    is_deaf: bool,
    is_away: bool,
    /// The present subscription gets nothing more, and does not know it.
    is_forgotten: bool,
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
        self.state.lock().ready.push_back(Stored { headers, routing_key, body, num_before: 0 });
        self.changed.notify_waiters();
    }

    /// Makes the message that waits at this place look as if it had been delivered so often.
    pub fn set_num_before(&self, at: usize, num_before: u32) {
        self.state.lock().ready[at].num_before = num_before;
    }

    /// Brings the dead letters back, as an operator would.
    pub fn replay(&self) {
        let dead = std::mem::take(&mut self.state.lock().published);
        for message in dead {
            self.put(Headers { attempts: 0, ..message.headers }, "0", message.body);
        }
    }

    /// What was confirmed, or is there without anybody knowing.
    pub fn published(&self) -> Vec<Message> {
        self.state.lock().published.clone()
    }

    /// The dead letters.
    pub fn dead(&self) -> Vec<Message> {
        let dead = self.published();
        assert!(dead.iter().all(|message| message.route == Route::Dead), "{dead:?}");
        dead
    }

    /// How often anybody tried to publish anything.
    pub fn num_tried(&self) -> usize {
        self.state.lock().num_tried
    }

    /// What publishers hear from now on.
    pub fn say(&self, says: Says) {
        self.state.lock().says = says;
    }

    /// Loses acknowledgements, or not.
    pub fn lose_acks(&self, lost: bool) {
        self.state.lock().is_deaf = lost;
    }

    /// Forgets the present consumer: its subscription lives, and nothing is delivered to it.
    pub fn forget_consumer(&self) {
        self.state.lock().is_forgotten = true;
    }

    /// Cannot be subscribed to, or can.
    pub fn go_away(&self, away: bool) {
        self.state.lock().is_away = away;
    }

    /// Ends the present subscription.
    pub fn end_subscription(&self) {
        self.state.lock().give_back();
        self.changed.notify_waiters();
    }

    /// Messages that wait to be delivered.
    pub fn num_ready(&self) -> usize {
        self.state.lock().ready.len()
    }

    /// Messages that were delivered and not acknowledged.
    pub fn num_unacknowledged(&self) -> usize {
        self.state.lock().unacknowledged.len()
    }

    /// The most there ever were.
    pub fn num_unacknowledged_max(&self) -> usize {
        self.state.lock().num_unacknowledged_max
    }

    /// Deliveries, the second one of a message counted again.
    pub fn num_deliveries(&self) -> usize {
        self.state.lock().num_deliveries
    }

    /// Whether nothing waits and nothing is unacknowledged.
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.ready.is_empty() && state.unacknowledged.is_empty()
    }
}

impl State {
    fn give_back(&mut self) {
        self.is_over = true;
        for (_, mut stored) in std::mem::take(&mut self.unacknowledged).into_iter().rev() {
            stored.num_before += 1;
            self.ready.push_front(stored);
        }
    }

    fn acknowledge(&mut self, subscription: u64, tags: impl Fn(&Self) -> Vec<u64>, tag: u64) {
        if self.is_deaf || self.is_over || subscription != self.subscription {
            return;
        }
        assert!(self.unacknowledged.contains_key(&tag), "{tag} was not to be acknowledged");
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
    async fn subscribe(&self, _: Source, prefetch: u16) -> Result<Box<dyn Subscription>, Error> {
        let mut state = self.state.lock();
        if state.is_away {
            return Err(Error::Unavailable { reason: "away on purpose".to_owned() });
        }
        assert!(state.unacknowledged.is_empty(), "the old subscription is still there");
        state.subscription += 1;
        state.is_over = false;
        state.is_forgotten = false;
        state.last_tag = 0;
        let (broker, number) = (self.clone(), state.subscription);
        Ok(Box::new(FakeSubscription { broker, number, prefetch: prefetch.into() }))
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
        if state.is_forgotten || state.unacknowledged.len() >= self.prefetch {
            return None;
        }
        let stored = state.ready.pop_front()?;
        state.last_tag += 1;
        state.num_deliveries += 1;
        let tag = state.last_tag;
        state.unacknowledged.insert(tag, stored.clone());
        state.num_unacknowledged_max = state.num_unacknowledged_max.max(state.unacknowledged.len());
        let Stored { headers, routing_key, body, num_before } = stored;
        Some(Ok(Delivery { tag, headers, routing_key, num_before, body }))
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
    fn hear(&self, tag: u64, tags: impl Fn(&State) -> Vec<u64>) {
        self.broker.state.lock().acknowledge(self.number, tags, tag);
        self.broker.changed.notify_waiters();
    }
}

#[async_trait]
impl Acknowledger for FakeAcks {
    async fn up_to(&self, tag: u64) {
        self.hear(tag, |state| state.unacknowledged.range(..=tag).map(|(tag, _)| *tag).collect());
    }

    async fn one(&self, tag: u64) {
        self.hear(tag, |_| vec![tag]);
    }

    async fn give_back(&self, _: u64) {
        panic!("an intake gives nothing back while it lives");
    }
}

struct FakeOutgoing(FakeBroker);

#[async_trait]
impl PublishChannel for FakeOutgoing {
    async fn publish(&mut self, messages: Vec<Message>) -> Vec<PublishOutcome> {
        let mut state = self.0.state.lock();
        let reason = || "on purpose".to_owned();
        let sent = messages.into_iter().map(|message| {
            state.num_tried += 1;
            match state.says {
                Says::NotSent => return PublishOutcome::NotSent { reason: reason() },
                Says::Refused => return PublishOutcome::Refused { reason: reason() },
                Says::Yes | Says::Unknown => {}
            }
            state.published.push(message);
            if state.says == Says::Yes {
                PublishOutcome::Confirmed
            } else {
                PublishOutcome::Unknown { reason: reason() }
            }
        });
        sent.collect()
    }
}

#[async_trait]
impl Publisher for FakeBroker {
    fn outgoing(&self, _: usize) -> Box<dyn PublishChannel> {
        Box::new(FakeOutgoing(self.clone()))
    }

    fn reach(&self) -> BrokerStatus {
        BrokerStatus::Up
    }

    async fn declare(&self) -> Result<(), Error> {
        Ok(())
    }
}
