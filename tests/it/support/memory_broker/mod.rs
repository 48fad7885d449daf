//! The broker is this process: a double that keeps the promises of a real one while the process
//! lives, and breaks down when it is told to. For tests of whoever publishes or consumes.
//!
//! Owns: queues and messages, in memory. Limits: none but the prefetch. On error: as told. On
//! death: everything is gone. May repeat: every message.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use floodgate::broker::topology::Topology;
use floodgate::broker::{
    Acknowledger, BrokerStatus, Delivery, Error, Headers, Message, PublishChannel, PublishOutcome,
    Publisher, QueueDepth, Source, Subscriber, Subscription,
};

mod state;

use state::State;

/// The broker as one process has it. Clones are the same process; see [`Self::elsewhere`].
#[derive(Clone)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
    owner: u64,
    closed: Arc<AtomicBool>,
}

struct Shared {
    topology: Topology,
    state: Mutex<State>,
    /// Something changed.
    changed: Notify,
}

impl fmt::Debug for MemoryBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBroker")
            .field("topology", &self.shared.topology)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Changes something and wakes whoever waits.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.notify_waiters();
        result
    }

    /// Waits until a look gives a value.
    async fn until<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before the look, so that no change is missed between look and wait.
            changed.as_mut().enable();
            if let Some(value) = look(&mut self.state.lock()) {
                return value;
            }
            changed.await;
        }
    }
}

/// What a test does to the broker.
impl MemoryBroker {
    /// An empty broker with this topology, declared.
    #[must_use]
    pub fn new(topology: Topology) -> Self {
        let mut state = State::new(topology.clone());
        let owner = state.fresh_id();
        let (state, changed) = (Mutex::new(state), Notify::new());
        let shared = Arc::new(Shared { topology, state, changed });
        Self { shared, owner, closed: Arc::default() }
    }

    /// The same broker as another process has it.
    #[must_use]
    pub fn elsewhere(&self) -> Self {
        let owner = self.shared.state.lock().fresh_id();
        Self { shared: self.shared.clone(), owner, closed: Arc::default() }
    }

    /// It goes away, or comes to accept nothing, or comes back. Going away ends subscriptions.
    pub fn set_reach(&self, reach: BrokerStatus) {
        self.shared.change(|state| {
            state.reach = reach;
            if reach == BrokerStatus::Down {
                state.end_all("the connection was lost");
            }
        });
    }

    /// Ends all subscriptions, as a lost connection does.
    pub fn cut(&self) {
        self.shared.change(|state| state.end_all("the connection was lost"));
    }

    /// Publishing waits, as for a slow broker, until it is let go on.
    pub fn hold(&self, is_held: bool) {
        self.shared.change(|state| state.is_held = is_held);
    }

    /// The next so many messages are not taken.
    pub fn nack_next(&self, count: usize) {
        self.shared.change(|state| state.num_nacks = count);
    }

    /// The next so many messages are taken, and nobody hears of it.
    pub fn lose_confirms(&self, count: usize) {
        self.shared.change(|state| state.num_lost_confirms = count);
    }

    /// Deletes a queue, by its name without the namespace.
    pub fn lose_queue(&self, short: &str) {
        self.shared.change(|state| state.lose(short));
    }

    /// What waits in a queue to be delivered, by its name without the namespace.
    #[must_use]
    pub fn waiting(&self, short: &str) -> Vec<(Headers, Bytes)> {
        let waiting = self.shared.state.lock().waiting(short);
        waiting.into_iter().map(|stored| (stored.headers, stored.body)).collect()
    }
}

impl MemoryBroker {
    /// Why it cannot be asked.
    fn check(&self) -> Result<(), Error> {
        let unavailable = |reason: &str| Err(Error::Unavailable { reason: reason.to_owned() });
        if self.closed.load(Ordering::SeqCst) {
            return unavailable("the connections of this process are closed");
        }
        match self.shared.state.lock().reach {
            BrokerStatus::Down => unavailable("nobody there"),
            BrokerStatus::Up | BrokerStatus::Blocked => Ok(()),
        }
    }
}

#[async_trait]
impl Publisher for MemoryBroker {
    fn outgoing(&self, _window: usize) -> Box<dyn PublishChannel> {
        Box::new(MemoryOutgoing { broker: self.clone(), doubtful: false })
    }

    fn reach(&self) -> BrokerStatus {
        self.shared.state.lock().reach
    }

    async fn declare(&self) -> Result<(), Error> {
        self.check()?;
        self.shared.change(State::declare);
        Ok(())
    }
}

struct MemoryOutgoing {
    broker: MemoryBroker,
    /// A message found no queue.
    doubtful: bool,
}

#[async_trait]
impl PublishChannel for MemoryOutgoing {
    async fn publish(&mut self, messages: Vec<Message>) -> Vec<PublishOutcome> {
        let shared = self.broker.shared.clone();
        if std::mem::take(&mut self.doubtful) {
            shared.change(State::declare);
        }
        let mut results = Vec::with_capacity(messages.len());
        for message in messages {
            shared.until(|state| (!state.is_held).then_some(())).await;
            let result = match self.broker.check() {
                Err(error) => PublishOutcome::NotSent { reason: error.to_string() },
                Ok(()) => shared.change(|state| match state.reach {
                    BrokerStatus::Up => state.publish(message),
                    BrokerStatus::Blocked | BrokerStatus::Down => {
                        let reason = "the broker accepts no messages".to_owned();
                        PublishOutcome::NotSent { reason }
                    }
                }),
            };
            self.doubtful |= matches!(result, PublishOutcome::Refused { .. });
            results.push(result);
        }
        results
    }
}

#[async_trait]
impl Subscriber for MemoryBroker {
    async fn subscribe(
        &self,
        source: Source,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, Error> {
        let queue = self.shared.topology.queue(source);
        let queue = queue.ok_or_else(|| Error::Topology {
            what: format!("there is no queue for {source:?}; see amqp.queues"),
        })?;
        self.check()?;
        let id = self.shared.change(|state| {
            state.declare();
            state.subscribe(self.owner, queue, prefetch)
        });
        Ok(Box::new(MemorySubscription { shared: self.shared.clone(), id }))
    }

    async fn depths(&self) -> Result<Vec<QueueDepth>, Error> {
        self.check()?;
        Ok(self.shared.state.lock().depths())
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.shared.change(|state| state.end_those_of(self.owner, "closed by this process"));
    }
}

struct MemorySubscription {
    shared: Arc<Shared>,
    id: u64,
}

#[async_trait]
impl Subscription for MemorySubscription {
    async fn next(&mut self) -> Result<Delivery, Error> {
        let ended = |reason| Error::Ended { reason };
        self.shared.until(|state| state.next(self.id).transpose()).await.map_err(ended)
    }

    fn acks(&self) -> Box<dyn Acknowledger> {
        Box::new(MemoryAcks { shared: self.shared.clone(), id: self.id })
    }
}

impl Drop for MemorySubscription {
    fn drop(&mut self) {
        self.shared.change(|state| state.unsubscribe(self.id));
    }
}

struct MemoryAcks {
    shared: Arc<Shared>,
    id: u64,
}

#[async_trait]
impl Acknowledger for MemoryAcks {
    async fn up_to(&self, tag: u64) {
        self.shared.change(|state| state.acknowledge(self.id, tag, true));
    }

    async fn one(&self, tag: u64) {
        self.shared.change(|state| state.acknowledge(self.id, tag, false));
    }

    async fn give_back(&self, tag: u64) {
        self.shared.change(|state| state.give_back(self.id, tag));
    }
}
