//! An in-memory broker that stores what it confirms and can be down, blocked, or refuse or never
//! confirm messages.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use floodgate::broker::{BrokerStatus, Message, PublishChannel, PublishOutcome, Publisher, Route};
use floodgate::domain::RequestId;
use floodgate::messages::envelope;
use parking_lot::Mutex;

use super::injected_faults::{Call, InjectedFaults, When};

#[derive(Debug)]
struct State {
    reach: BrokerStatus,
    /// No message is stored or confirmed.
    confirms_nothing: bool,
    /// Messages with these requests are refused by the order queues.
    refused: HashSet<RequestId>,
    /// What happens to dead letters; `None`: they are stored and confirmed.
    of_dead_letters: Option<PublishOutcome>,
    /// Messages with these requests are never confirmed.
    unconfirmed: HashSet<RequestId>,
    /// While set, outcomes are random.
    random: Option<fastrand::Rng>,
    stored: Vec<Message>,
    /// Most messages in one publish call.
    batch_max: usize,
    /// The confirm window of each opened publish channel.
    windows: Vec<usize>,
}

/// The broker's queues, shared by all processes.
#[derive(Debug)]
pub struct Queues(Mutex<State>);

impl Default for Queues {
    fn default() -> Self {
        Self(Mutex::new(State {
            reach: BrokerStatus::Up,
            confirms_nothing: false,
            refused: HashSet::new(),
            of_dead_letters: None,
            unconfirmed: HashSet::new(),
            random: None,
            stored: Vec::new(),
            batch_max: 0,
            windows: Vec::new(),
        }))
    }
}

impl Queues {
    pub fn set_reach(&self, reach: BrokerStatus) {
        self.0.lock().reach = reach;
    }

    pub fn set_refusing(&self, confirms_nothing: bool) {
        self.0.lock().confirms_nothing = confirms_nothing;
    }

    pub fn refuse(&self, request: u64) {
        self.0.lock().refused.insert(RequestId::new(request).unwrap());
    }

    /// Stores no dead letter, until [`Self::accept_all`].
    pub fn reject_dead_letters(&self, outcome: PublishOutcome) {
        self.0.lock().of_dead_letters = Some(outcome);
    }

    pub fn never_confirm(&self, request: u64) {
        self.0.lock().unconfirmed.insert(RequestId::new(request).unwrap());
    }

    /// Refuses, does not confirm or does not take messages at random, until [`Self::accept_all`].
    pub fn disturb(&self, seed: u64) {
        self.0.lock().random = Some(fastrand::Rng::with_seed(seed));
    }

    /// From now on every message is stored and confirmed.
    pub fn accept_all(&self) {
        let mut state = self.0.lock();
        state.random = None;
        state.confirms_nothing = false;
        state.refused.clear();
        state.of_dead_letters = None;
        state.unconfirmed.clear();
    }

    /// How often each request was stored in the order queues.
    pub fn kept(&self) -> HashMap<u64, usize> {
        let mut counts = HashMap::new();
        for message in self.0.lock().stored.iter().filter(|message| message.route != Route::Dead) {
            for request in envelope::requests_in(&message.body) {
                *counts.entry(request.get()).or_default() += 1;
            }
        }
        counts
    }

    pub fn messages(&self) -> Vec<Message> {
        self.0.lock().stored.clone()
    }

    /// The stored dead letters.
    pub fn dead(&self) -> Vec<Message> {
        let mut messages = self.messages();
        messages.retain(|message| message.route == Route::Dead);
        messages
    }

    pub fn batch_max(&self) -> usize {
        self.0.lock().batch_max
    }

    pub fn windows(&self) -> Vec<usize> {
        self.0.lock().windows.clone()
    }

    fn publish(&self, message: Message) -> PublishOutcome {
        let reason = || "on purpose".to_owned();
        let mut state = self.0.lock();
        let is_dead = message.route == Route::Dead;
        if let Some(outcome) = state.of_dead_letters.clone().filter(|_| is_dead) {
            return outcome;
        }
        let requests = envelope::requests_in(&message.body);
        let holds_any = |ids: &HashSet<RequestId>| requests.iter().any(|id| ids.contains(id));
        let chosen = state.random.as_mut().map_or(7, |random| random.u8(..7));
        if state.reach != BrokerStatus::Up || chosen == 0 {
            PublishOutcome::NotSent { reason: reason() }
        } else if state.confirms_nothing || holds_any(&state.unconfirmed) || chosen == 1 {
            PublishOutcome::Unknown { reason: reason() }
        } else if !is_dead && holds_any(&state.refused) || chosen == 2 {
            PublishOutcome::Refused { reason: reason() }
        } else {
            state.stored.push(message);
            PublishOutcome::Confirmed
        }
    }
}

/// The broker as seen by one process.
#[derive(Debug, Clone)]
pub struct FakeBroker {
    pub queues: Arc<Queues>,
    pub faults: InjectedFaults,
}

#[async_trait]
impl PublishChannel for FakeBroker {
    async fn publish(&mut self, messages: Vec<Message>) -> Vec<PublishOutcome> {
        self.faults.apply(Call::Publish, When::Before).await;
        {
            let mut state = self.queues.0.lock();
            state.batch_max = state.batch_max.max(messages.len());
        }
        let outcomes = messages.into_iter().map(|message| self.queues.publish(message)).collect();
        self.faults.apply(Call::Publish, When::After).await;
        outcomes
    }
}

impl Publisher for FakeBroker {
    fn open_channel(&self, window: usize) -> Box<dyn PublishChannel> {
        self.queues.0.lock().windows.push(window);
        Box::new(self.clone())
    }

    fn status(&self) -> BrokerStatus {
        self.queues.0.lock().reach
    }
}
