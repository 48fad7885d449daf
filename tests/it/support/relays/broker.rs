//! A broker in memory: keeps what it confirms, and can be away, blocked, deaf or choosy.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use floodgate::broker::{BrokerStatus, Error, Message, PublishChannel, PublishOutcome, Publisher};
use floodgate::domain::RequestId;
use floodgate::messages::envelope;
use parking_lot::Mutex;

use super::mishaps::{Call, Mishaps, When};

/// How the broker is.
#[derive(Debug)]
struct State {
    reach: BrokerStatus,
    /// Nothing is confirmed, nothing kept.
    is_deaf: bool,
    /// Says no to messages with these.
    refused: HashSet<RequestId>,
    /// Never confirms messages with these.
    unheard: HashSet<RequestId>,
    /// Messages are confirmed and come to another queue, until the topology is declared.
    is_diverted: bool,
    kept: Vec<Message>,
    /// Largest number of messages in one call, and the windows that were asked for.
    batch_max: usize,
    windows: Vec<usize>,
}

/// What all processes share.
#[derive(Debug)]
pub struct Queues(Mutex<State>);

impl Default for Queues {
    fn default() -> Self {
        Self(Mutex::new(State {
            reach: BrokerStatus::Up,
            is_deaf: false,
            refused: HashSet::new(),
            unheard: HashSet::new(),
            is_diverted: false,
            kept: Vec::new(),
            batch_max: 0,
            windows: Vec::new(),
        }))
    }
}

impl Queues {
    pub fn set_reach(&self, reach: BrokerStatus) {
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

    /// A binding is gone, and somebody else's is there.
    pub fn divert(&self) {
        self.0.lock().is_diverted = true;
    }

    /// From here on nothing is refused, and every message confirmed.
    pub fn accept_all(&self) {
        let mut state = self.0.lock();
        state.is_deaf = false;
        state.refused.clear();
        state.unheard.clear();
    }

    /// How often each request was kept.
    pub fn kept(&self) -> HashMap<u64, usize> {
        let mut kept = HashMap::new();
        for message in &self.0.lock().kept {
            for request in envelope::requests_in(&message.body) {
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

    fn take(&self, message: Message) -> PublishOutcome {
        let reason = || "on purpose".to_owned();
        let mut state = self.0.lock();
        let requests = envelope::requests_in(&message.body);
        let is_among = |some: &HashSet<RequestId>| requests.iter().any(|id| some.contains(id));
        if state.reach != BrokerStatus::Up {
            PublishOutcome::NotSent { reason: reason() }
        } else if state.is_deaf || is_among(&state.unheard) {
            PublishOutcome::Unknown { reason: reason() }
        } else if is_among(&state.refused) {
            PublishOutcome::Refused { reason: reason() }
        } else {
            if !state.is_diverted {
                state.kept.push(message);
            }
            PublishOutcome::Confirmed
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
impl PublishChannel for FakeBroker {
    async fn publish(&mut self, messages: Vec<Message>) -> Vec<PublishOutcome> {
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
    fn outgoing(&self, window: usize) -> Box<dyn PublishChannel> {
        self.queues.0.lock().windows.push(window);
        Box::new(self.clone())
    }

    fn reach(&self) -> BrokerStatus {
        self.queues.0.lock().reach
    }

    async fn declare(&self) -> Result<(), Error> {
        self.queues.0.lock().is_diverted = false;
        Ok(())
    }
}
