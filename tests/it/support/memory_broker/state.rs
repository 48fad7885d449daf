//! The state of the in-memory broker: plain data under one lock.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use floodgate::broker::topology::Topology;
use floodgate::broker::{
    BrokerStatus, Delivery, Headers, Message, PublishOutcome, QueueDepth, Route,
};

#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) headers: Headers,
    key: String,
    pub(super) body: Bytes,
    num_previous: u32,
}

#[derive(Debug)]
struct Consumer {
    owner: u64,
    queue: String,
    prefetch: usize,
    next_tag: u64,
    unacknowledged: BTreeMap<u64, Stored>,
    ended: Option<String>,
}

#[derive(Debug)]
pub(super) struct State {
    topology: Topology,
    /// Of an order queue.
    deliveries_max: i64,
    /// The declared queues.
    queues: BTreeMap<String, VecDeque<Stored>>,
    consumers: BTreeMap<u64, Consumer>,
    next_id: u64,
    pub(super) reach: BrokerStatus,
    /// Publishing waits while this is set.
    pub(super) is_held: bool,
    /// How many of the next messages are refused.
    pub(super) num_nacks: usize,
    /// How many of the next confirms are lost.
    pub(super) num_lost_confirms: usize,
}

impl State {
    pub(super) fn new(topology: Topology) -> Self {
        let mut state = Self {
            deliveries_max: topology.queues().last().unwrap().deliveries_max,
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

    pub(super) fn delete_queue(&mut self, short: &str) {
        let name = self.full_name(short);
        self.queues.remove(&name);
        self.end(|consumer| consumer.queue == name, "the queue was deleted");
    }

    fn full_name(&self, short: &str) -> String {
        format!("{}{short}", self.topology.prefix())
    }

    pub(super) fn publish(&mut self, message: Message) -> PublishOutcome {
        let Some(address) = self.topology.address(message.route) else {
            let reason = format!("there is no queue for {:?}", message.route);
            return PublishOutcome::Refused { reason };
        };
        if self.num_nacks > 0 {
            self.num_nacks -= 1;
            return PublishOutcome::Refused { reason: "the broker refused the message".to_owned() };
        }
        if message.route == Route::Events {
            return PublishOutcome::Confirmed;
        }
        let queue = self.topology.queue(message.route).ok().map(|queue| queue.name);
        let Message { headers, body, .. } = message;
        if !self.enqueue(queue, Stored { headers, key: address.key, body, num_previous: 0 }) {
            return PublishOutcome::Refused { reason: "no queue is bound to the route".to_owned() };
        }
        if self.num_lost_confirms > 0 {
            self.num_lost_confirms -= 1;
            return PublishOutcome::Unknown { reason: "the confirm was lost".to_owned() };
        }
        PublishOutcome::Confirmed
    }

    /// Appends a message to its queue; false if the queue is not declared.
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

    /// The next delivery of a subscription, if any; the reason if the subscription ended.
    pub(super) fn next(&mut self, id: u64) -> Result<Option<Delivery>, String> {
        let unknown = || "no such subscription".to_owned();
        let consumer = self.consumers.get_mut(&id).ok_or_else(unknown)?;
        if let Some(reason) = &consumer.ended {
            return Err(reason.clone());
        }
        if consumer.unacknowledged.len() >= consumer.prefetch {
            return Ok(None);
        }
        let queue = self.queues.get_mut(&consumer.queue);
        let Some(stored) = queue.and_then(VecDeque::pop_front) else { return Ok(None) };
        let tag = consumer.next_tag;
        consumer.next_tag += 1;
        let delivery = Delivery {
            tag,
            headers: stored.headers.clone(),
            routing_key: stored.key.clone(),
            num_previous: stored.num_previous,
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

    /// Removes a subscription and requeues its unacknowledged messages.
    pub(super) fn unsubscribe(&mut self, id: u64) {
        if let Some(consumer) = self.consumers.remove(&id) {
            self.requeue(&consumer.queue, consumer.unacknowledged.into_values().collect());
        }
    }

    /// Ends the matching subscriptions and requeues their unacknowledged messages.
    fn end(&mut self, which: impl Fn(&Consumer) -> bool, reason: &str) {
        let mut returned = Vec::new();
        for consumer in self.consumers.values_mut().filter(|consumer| which(consumer)) {
            consumer.ended.get_or_insert_with(|| reason.to_owned());
            let unacknowledged = std::mem::take(&mut consumer.unacknowledged);
            returned.push((consumer.queue.clone(), unacknowledged.into_values().collect()));
        }
        for (queue, messages) in returned {
            self.requeue(&queue, messages);
        }
    }

    pub(super) fn end_all(&mut self, reason: &str) {
        self.end(|_| true, reason);
    }

    pub(super) fn end_all_of(&mut self, owner: u64, reason: &str) {
        self.end(|consumer| consumer.owner == owner, reason);
    }

    /// Puts messages back to the front, in order. Order messages beyond the delivery limit become
    /// dead letters.
    fn requeue(&mut self, queue: &str, returned: Vec<Stored>) {
        let is_limited = queue.starts_with(&self.full_name("orders."));
        for mut stored in returned.into_iter().rev() {
            stored.num_previous = stored.num_previous.saturating_add(1);
            if is_limited && i64::from(stored.num_previous) > self.deliveries_max {
                stored.headers.reason = Some("the broker: delivery_limit".to_owned());
                stored.headers.origin = Some(queue.to_owned());
                stored.headers.by_broker = true;
                stored.num_previous = 0;
                let dead = self.topology.queue(Route::Dead).ok().map(|queue| queue.name);
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
        self.topology.live_queues().into_iter().map(|queue| depth(queue.name)).collect()
    }

    /// The messages ready in a queue, in order.
    pub(super) fn waiting(&self, short: &str) -> Vec<Stored> {
        self.queues.get(&self.full_name(short)).into_iter().flatten().cloned().collect()
    }
}
