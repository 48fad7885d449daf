//! A broker in memory: keeps what it confirms, and can be away, blocked, deaf or choosy.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use floodgate::broker::{
    Depth, Error, Message, Outgoing, Publisher, Reach, Sent, Source, Subscriber, Subscription,
};
use floodgate::domain::RequestId;
use floodgate::messages::wire;
use parking_lot::Mutex;

use super::mishaps::{Call, Mishaps, When};

/// How the broker is.
#[derive(Debug)]
struct State {
    reach: Reach,
    /// Nothing is confirmed, nothing kept.
    is_deaf: bool,
    /// Says no to messages with these.
    refused: HashSet<RequestId>,
    /// Never confirms messages with these.
    unheard: HashSet<RequestId>,
    kept: Vec<Message>,
    /// Largest number of messages in one call, and the windows that were asked for.
    batch_max: usize,
    windows: Vec<usize>,
    /// What the consumers have not taken yet, by queue.
    depths: HashMap<String, u64>,
}

/// What all processes share.
#[derive(Debug)]
pub struct Queues(Mutex<State>);

impl Default for Queues {
    fn default() -> Self {
        Self(Mutex::new(State {
            reach: Reach::Up,
            is_deaf: false,
            refused: HashSet::new(),
            unheard: HashSet::new(),
            kept: Vec::new(),
            batch_max: 0,
            windows: Vec::new(),
            depths: HashMap::new(),
        }))
    }
}

impl Queues {
    pub fn set_reach(&self, reach: Reach) {
        self.0.lock().reach = reach;
    }

    pub fn set_deaf(&self, is_deaf: bool) {
        self.0.lock().is_deaf = is_deaf;
    }

    pub fn refuse(&self, request: u64) {
        self.0.lock().refused.insert(RequestId::new(request).unwrap());
    }

    pub fn never_confirm(&self, request: u64) {
        self.0.lock().unheard.insert(RequestId::new(request).unwrap());
    }

    pub fn set_depth(&self, queue: &str, num: u64) {
        self.0.lock().depths.insert(queue.to_owned(), num);
    }

    /// How often each request was kept.
    pub fn kept(&self) -> HashMap<u64, usize> {
        let mut kept = HashMap::new();
        for message in &self.0.lock().kept {
            for request in wire::requests_in(&message.body) {
                *kept.entry(request.get()).or_default() += 1;
            }
        }
        kept
    }

    pub fn messages(&self) -> Vec<Message> {
        self.0.lock().kept.clone()
    }

    pub fn batch_max(&self) -> usize {
        self.0.lock().batch_max
    }

    pub fn windows(&self) -> Vec<usize> {
        self.0.lock().windows.clone()
    }

    fn take(&self, message: Message) -> Sent {
        let reason = || "on purpose".to_owned();
        let mut state = self.0.lock();
        let requests = wire::requests_in(&message.body);
        let is_among = |some: &HashSet<RequestId>| requests.iter().any(|id| some.contains(id));
        if state.reach != Reach::Up {
            Sent::NotSent { reason: reason() }
        } else if state.is_deaf || is_among(&state.unheard) {
            Sent::Unknown { reason: reason() }
        } else if is_among(&state.refused) {
            Sent::Refused { reason: reason() }
        } else {
            state.kept.push(message);
            Sent::Confirmed
        }
    }
}

/// The broker as one process reaches it.
#[derive(Debug, Clone)]
pub struct FakeBroker {
    pub queues: Arc<Queues>,
    pub mishaps: Mishaps,
}

#[async_trait]
impl Outgoing for FakeBroker {
    async fn publish(&mut self, messages: Vec<Message>) -> Vec<Sent> {
        self.mishaps.meet(Call::Publish, When::Before).await;
        {
            let mut state = self.queues.0.lock();
            state.batch_max = state.batch_max.max(messages.len());
        }
        let sent = messages.into_iter().map(|message| self.queues.take(message)).collect();
        self.mishaps.meet(Call::Publish, When::After).await;
        sent
    }
}

#[async_trait]
impl Publisher for FakeBroker {
    fn outgoing(&self, window: usize) -> Box<dyn Outgoing> {
        self.queues.0.lock().windows.push(window);
        Box::new(self.clone())
    }

    fn reach(&self) -> Reach {
        self.queues.0.lock().reach
    }

    async fn declare(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[async_trait]
impl Subscriber for FakeBroker {
    async fn subscribe(&self, _: Source, _: u16) -> Result<Box<dyn Subscription>, Error> {
        Err(Error::Unavailable { reason: "nobody consumes here".to_owned() })
    }

    async fn depths(&self) -> Result<Vec<Depth>, Error> {
        let depths = self.queues.0.lock().depths.clone().into_iter();
        let depth = |(queue, num_ready)| Depth { queue, num_ready, num_consumers: 1 };
        Ok(depths.map(depth).collect())
    }

    async fn close(&self) {}
}
