//! An in-memory broker with the promises of a real one and with injected faults, for tests of
//! publishers and consumers.
//!
//! Messages are lost with the process. The only limit is the prefetch. Any message may be delivered
//! again.

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
    Publisher, QueueDepth, Route, Subscriber, Subscription,
};

mod state;

use state::State;

/// The broker as seen by one process. Clones belong to the same process; see [`Self::elsewhere`].
#[derive(Clone)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
    owner: u64,
    closed: Arc<AtomicBool>,
}

struct Shared {
    topology: Topology,
    state: Mutex<State>,
    /// Notified after every change of `state`.
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
    /// Changes the state and wakes the waiting calls.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.notify_waiters();
        result
    }

    /// Polls the state after each change until `poll` returns a value.
    async fn until<T>(&self, mut poll: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before the poll, so that no change between poll and wait is missed.
            changed.as_mut().enable();
            if let Some(value) = poll(&mut self.state.lock()) {
                return value;
            }
            changed.await;
        }
    }
}

/// Fault injection and inspection.
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

    /// The same broker as seen by another process.
    #[must_use]
    pub fn elsewhere(&self) -> Self {
        let owner = self.shared.state.lock().fresh_id();
        Self { shared: self.shared.clone(), owner, closed: Arc::default() }
    }

    /// Sets whether the broker is up, blocked or down. `Down` ends all subscriptions.
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

    /// Sets whether publishing waits, as for a slow broker.
    pub fn hold(&self, is_held: bool) {
        self.shared.change(|state| state.is_held = is_held);
    }

    /// Refuses the next `count` messages.
    pub fn nack_next(&self, count: usize) {
        self.shared.change(|state| state.num_nacks = count);
    }

    /// Stores the next `count` messages and loses their confirms.
    pub fn lose_confirms(&self, count: usize) {
        self.shared.change(|state| state.num_lost_confirms = count);
    }

    /// Declares the topology.
    pub fn declare(&self) {
        self.shared.change(State::declare);
    }

    /// Deletes the queue with this name (without namespace).
    pub fn lose_queue(&self, short: &str) {
        self.shared.change(|state| state.delete_queue(short));
    }

    /// The messages ready for delivery in the queue with this name (without namespace).
    #[must_use]
    pub fn waiting(&self, short: &str) -> Vec<(Headers, Bytes)> {
        let waiting = self.shared.state.lock().waiting(short);
        waiting.into_iter().map(|stored| (stored.headers, stored.body)).collect()
    }
}

impl MemoryBroker {
    /// Fails while this process cannot reach the broker.
    fn check(&self) -> Result<(), Error> {
        let unavailable = |reason: &str| Err(Error::Unavailable { reason: reason.to_owned() });
        if self.closed.load(Ordering::SeqCst) {
            return unavailable("the connections of this process are closed");
        }
        match self.shared.state.lock().reach {
            BrokerStatus::Down => unavailable("the broker is down"),
            BrokerStatus::Up | BrokerStatus::Blocked => Ok(()),
        }
    }
}

impl Publisher for MemoryBroker {
    fn open_channel(&self, _window: usize) -> Box<dyn PublishChannel> {
        Box::new(MemoryOutgoing { broker: self.clone(), must_declare: false })
    }

    fn status(&self) -> BrokerStatus {
        self.shared.state.lock().reach
    }
}

struct MemoryOutgoing {
    broker: MemoryBroker,
    /// A message was refused: the next call declares the topology again.
    must_declare: bool,
}

#[async_trait]
impl PublishChannel for MemoryOutgoing {
    async fn publish(&mut self, messages: Vec<Message>) -> Vec<PublishOutcome> {
        let shared = self.broker.shared.clone();
        if std::mem::take(&mut self.must_declare) {
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
            self.must_declare |= matches!(result, PublishOutcome::Refused { .. });
            results.push(result);
        }
        results
    }
}

#[async_trait]
impl Subscriber for MemoryBroker {
    async fn subscribe(
        &self,
        source: Route,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, Error> {
        let queue = self.shared.topology.queue(source)?.name;
        self.check()?;
        let id = self.shared.change(|state| {
            state.declare();
            state.subscribe(self.owner, queue, prefetch)
        });
        Ok(Box::new(MemorySubscription { shared: self.shared.clone(), id }))
    }

    async fn depth(&self, source: Route) -> Result<QueueDepth, Error> {
        let queue = self.shared.topology.queue(source)?;
        let name = self.shared.topology.short(&queue.name);
        let mut depths = self.depths().await?;
        depths.retain(|depth| depth.queue == name);
        Ok(depths.remove(0))
    }

    async fn depths(&self) -> Result<Vec<QueueDepth>, Error> {
        self.check()?;
        Ok(self.shared.state.lock().depths())
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.shared.change(|state| state.end_all_of(self.owner, "closed by this process"));
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
}
