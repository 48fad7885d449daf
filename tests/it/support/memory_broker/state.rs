//! What the broker in memory holds. Plain data under one lock; nothing waits here.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use floodgate::broker::topology::Topology;
use floodgate::broker::{
    BrokerStatus, Delivery, Headers, Message, PublishOutcome, QueueDepth, Route, Source,
};

/// One message in a queue.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) headers: Headers,
    key: String,
    pub(super) body: Bytes,
    num_before: u32,
}

/// One subscription.
#[derive(Debug)]
struct Consumer {
    owner: u64,
    queue: String,
    prefetch: usize,
    next_tag: u64,
    unacknowledged: BTreeMap<u64, Stored>,
    ended: Option<String>,
}

/// Everything.
#[derive(Debug)]
pub(super) struct State {
    topology: Topology,
    deliveries_max: u32,
    /// Only queues that are declared.
    queues: BTreeMap<String, VecDeque<Stored>>,
    consumers: BTreeMap<u64, Consumer>,
    next_id: u64,
    pub(super) reach: BrokerStatus,
    /// Publishing waits while this is set.
    pub(super) is_held: bool,
    /// The next so many messages are not taken.
    pub(super) num_nacks: usize,
    /// The confirmations of the next so many messages get lost.
    pub(super) num_lost_confirms: usize,
}

impl State {
    pub(super) fn new(topology: Topology) -> Self {
        let mut state = Self {
            deliveries_max: topology.deliveries_max(),
            topology,
            queues: BTreeMap::new(),
            consumers: BTreeMap::new(),
            next_id: 1,
            reach: BrokerStatus::Up,
            is_held: false,
            num_nacks: 0,
            num_lost_confirms: 0,
        };
        state.declare();
        state
    }

    pub(super) fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn declare(&mut self) {
        for queue in self.topology.queues() {
            self.queues.entry(queue.name).or_default();
        }
    }

    pub(super) fn lose(&mut self, short: &str) {
        let name = self.full(short);
        self.queues.remove(&name);
        self.end(|consumer| consumer.queue == name, "the queue was deleted");
    }

    fn full(&self, short: &str) -> String {
        format!("{}{short}", self.topology.prefix())
    }

    pub(super) fn publish(&mut self, message: Message) -> PublishOutcome {
        let Some(address) = self.topology.address(message.route) else {
            let reason = format!("there is no queue for {:?}", message.route);
            return PublishOutcome::Refused { reason };
        };
        if self.num_nacks > 0 {
            self.num_nacks -= 1;
            return PublishOutcome::Refused { reason: "the broker did not take it".to_owned() };
        }
        let queue = match message.route {
            Route::Orders(number) => self.topology.queue(Source::Orders(number)),
            Route::Dead => self.topology.queue(Source::Dead),
        };
        let Message { headers, body, .. } = message;
        if !self.enqueue(queue, Stored { headers, key: address.key, body, num_before: 0 }) {
            return PublishOutcome::Refused { reason: "no queue wants it".to_owned() };
        }
        if self.num_lost_confirms > 0 {
            self.num_lost_confirms -= 1;
            return PublishOutcome::Unknown { reason: "no confirmation came".to_owned() };
        }
        PublishOutcome::Confirmed
    }

    /// Puts a message into its queue, if that is there.
    fn enqueue(&mut self, queue: Option<String>, stored: Stored) -> bool {
        let Some(queue) = queue.and_then(|name| self.queues.get_mut(&name)) else { return false };
        queue.push_back(stored);
        true
    }

    pub(super) fn subscribe(&mut self, owner: u64, queue: String, prefetch: u16) -> u64 {
        let id = self.fresh_id();
        let consumer = Consumer {
            owner,
            queue,
            prefetch: prefetch.max(1).into(),
            next_tag: 1,
            unacknowledged: BTreeMap::new(),
            ended: None,
        };
        self.consumers.insert(id, consumer);
        id
    }

    /// The next delivery of a subscription, if there is one; or why it is over.
    pub(super) fn next(&mut self, id: u64) -> Result<Option<Delivery>, String> {
        let gone = || "it is not there any more".to_owned();
        let consumer = self.consumers.get_mut(&id).ok_or_else(gone)?;
        if let Some(reason) = &consumer.ended {
            return Err(reason.clone());
        }
        if consumer.unacknowledged.len() >= consumer.prefetch {
            return Ok(None);
        }
        let waiting = self.queues.get_mut(&consumer.queue);
        let Some(stored) = waiting.and_then(VecDeque::pop_front) else { return Ok(None) };
        let tag = consumer.next_tag;
        consumer.next_tag += 1;
        let delivery = Delivery {
            tag,
            headers: stored.headers.clone(),
            routing_key: stored.key.clone(),
            num_before: stored.num_before,
            body: stored.body.clone(),
        };
        consumer.unacknowledged.insert(tag, stored);
        Ok(Some(delivery))
    }

    pub(super) fn acknowledge(&mut self, id: u64, tag: u64, all_before: bool) {
        if let Some(consumer) = self.consumers.get_mut(&id) {
            if all_before {
                consumer.unacknowledged.retain(|other, _| *other > tag);
            } else {
                consumer.unacknowledged.remove(&tag);
            }
        }
    }

    pub(super) fn give_back(&mut self, id: u64, tag: u64) {
        let Some(consumer) = self.consumers.get_mut(&id) else { return };
        let queue = consumer.queue.clone();
        let returned = consumer.unacknowledged.remove(&tag);
        self.requeue(&queue, returned.into_iter().collect());
    }

    /// Forgets a subscription; what it had comes again.
    pub(super) fn unsubscribe(&mut self, id: u64) {
        if let Some(consumer) = self.consumers.remove(&id) {
            self.requeue(&consumer.queue, consumer.unacknowledged.into_values().collect());
        }
    }

    /// Ends subscriptions; what they had comes again.
    fn end(&mut self, which: impl Fn(&Consumer) -> bool, reason: &str) {
        let mut returned = Vec::new();
        for consumer in self.consumers.values_mut().filter(|consumer| which(consumer)) {
            consumer.ended.get_or_insert_with(|| reason.to_owned());
            let had = std::mem::take(&mut consumer.unacknowledged);
            returned.push((consumer.queue.clone(), had.into_values().collect()));
        }
        for (queue, had) in returned {
            self.requeue(&queue, had);
        }
    }

    pub(super) fn end_all(&mut self, reason: &str) {
        self.end(|_| true, reason);
    }

    pub(super) fn end_those_of(&mut self, owner: u64, reason: &str) {
        self.end(|consumer| consumer.owner == owner, reason);
    }

    /// Back to the front, in order; what was delivered too often is a dead letter.
    fn requeue(&mut self, queue: &str, returned: Vec<Stored>) {
        let is_limited = queue.starts_with(&self.full("orders."));
        for mut stored in returned.into_iter().rev() {
            stored.num_before = stored.num_before.saturating_add(1);
            if is_limited && stored.num_before > self.deliveries_max {
                stored.headers.reason = Some("the broker: delivery_limit".to_owned());
                stored.headers.origin = Some(queue.to_owned());
                stored.headers.by_broker = true;
                stored.num_before = 0;
                let dead = self.topology.queue(Source::Dead);
                self.enqueue(dead, stored);
            } else if let Some(queue) = self.queues.get_mut(queue) {
                queue.push_front(stored);
            }
        }
    }

    pub(super) fn depths(&self) -> Vec<QueueDepth> {
        let depth = |name: String| {
            let ready = self.queues.get(&name).map_or(0, VecDeque::len);
            let consumes =
                |consumer: &&Consumer| consumer.queue == name && consumer.ended.is_none();
            QueueDepth {
                queue: self.topology.short(&name).to_owned(),
                num_ready: ready as u64,
                num_consumers: self.consumers.values().filter(consumes).count() as u64,
            }
        };
        let queues = self.topology.queues().into_iter();
        let consumed = queues.filter(|queue| !self.topology.is_end(queue));
        consumed.map(|queue| depth(queue.name)).collect()
    }

    /// What waits in a queue, in order.
    pub(super) fn waiting(&self, short: &str) -> Vec<Stored> {
        self.queues.get(&self.full(short)).into_iter().flatten().cloned().collect()
    }
}
