//! Dead-letter collectors over an in-memory broker, outbox and ledger.

use std::sync::Arc;

use actix::Arbiter;
use bytes::Bytes;
use floodgate::actors::supervisor::supervised::Address;
use floodgate::actors::supervisor::{ChildSpec, Supervisor};
use floodgate::actors::{DeadLetterCollector, Periodic};
use floodgate::broker::{Delivery, Message, PublishOutcome, Publisher, Route, Topology};
use floodgate::db::DeadLetterStore;
use floodgate::domain::{
    Counting, DeadLetter, DeadLetterContent, DeadLetterFilter, NewDeadLetter, OrderIntent,
};
use floodgate::messages::envelope;
use floodgate::observe::metrics::Metrics;
use floodgate::runtime::fault_injection::FaultInjector;
use floodgate::runtime::shutdown::Shutdown;
use floodgate::services::dead_letters::DeadLetterService;
use floodgate::services::dead_letters::new_dead_letter::from_delivery;
use floodgate::services::request_ending::RequestService;
use floodgate::services::trusted_time::TrustedTime;
use floodgate::stock::MemoryStock;
use floodgate::tier::Pipeline;

use super::dead_letters::read_dead_letters;
use super::faulty_ledger::FaultyLedger;
use super::harness::START_MS;
use super::intents::{pack_into, reader};
use super::memory_broker::MemoryBroker;
use super::metrics::metric;
use super::reconcilers::watermarks;
use super::relays::{FakeOutbox, INSTALLATION, InjectedFaults, Simulation};
use super::wait::until;

/// Limit of unacknowledged dead letters per collector.
pub const DEAD_LETTERS_MAX: u16 = 8;

/// Interval of the collector's runs, the shortest that there is.
const EVERY_MS: u64 = 10;

/// The stores that all processes share.
pub struct DeadLetterFixture {
    pub simulation: Simulation,
    pub broker: MemoryBroker,
    pub ledger: Arc<FaultyLedger>,
}

/// One process with a collector; killed on drop.
pub struct CollectorProcess {
    pub metrics: Arc<Metrics>,
    pub supervisor: Supervisor,
    address: Address<Periodic<DeadLetterCollector>>,
    shutdown: Shutdown,
}

impl DeadLetterFixture {
    /// A sale of one SKU in two buckets, and one order queue.
    pub fn new() -> Self {
        let simulation = Simulation::new(2);
        let ledger = Arc::new(FaultyLedger::new(simulation.ledger.clone()));
        let broker = MemoryBroker::new(Topology::new("fg", 1, 5));
        Self { simulation, broker, ledger }
    }

    pub fn pipeline(&self, broker: &MemoryBroker) -> Pipeline {
        let (store, clock) = (self.simulation.store.clone(), self.simulation.clock.clone());
        let faults = InjectedFaults::default();
        Pipeline {
            outbox: Arc::new(FakeOutbox { store, clock, faults }),
            publisher: Arc::new(broker.clone()),
            subscriber: Arc::new(broker.clone()),
            watermarks: watermarks(&self.simulation),
            reader: reader(INSTALLATION),
        }
    }

    /// Starts a process with a collector.
    pub fn collector(&self) -> CollectorProcess {
        self.panicking_collector(0.0)
    }

    /// Starts a collector whose steps panic with this probability, in percent.
    pub fn panicking_collector(&self, percent: f64) -> CollectorProcess {
        let (metrics, shutdown) = (Arc::new(Metrics::default()), Shutdown::default());
        let mut settings = self.simulation.settings.clone();
        settings.maintenance.dead_letters_max = DEAD_LETTERS_MAX;
        let collector = Arc::new(DeadLetterCollector {
            ledger: self.ledger.clone(),
            subscriber: Arc::new(self.broker.elsewhere()),
            reader: reader(INSTALLATION),
            settings: Arc::new(settings),
            clock: self.simulation.clock.clone(),
            metrics: metrics.clone(),
        });
        let settings = self.simulation.settings.supervisor.clone();
        let (clock, arbiter) = (self.simulation.clock.clone(), Arbiter::current());
        let supervisor = Supervisor::new(settings, clock, shutdown.clone(), arbiter);
        let address = supervisor.start(ChildSpec {
            name: "dead_letter_collector".to_owned(),
            kind: "dead_letter_collector",
            arbiter: Arbiter::current(),
            mailbox: 16,
            ends_with_last_address: false,
            fault_injector: FaultInjector::new(percent),
            factory: Arc::new(move |incarnation| {
                Periodic::new(incarnation, EVERY_MS, collector.clone())
            }),
        });
        CollectorProcess { metrics, supervisor, address, shutdown }
    }

    /// The operators' service in another process.
    pub fn sales(&self) -> DeadLetterService {
        let pipeline = self.pipeline(&self.broker.elsewhere());
        let (ledger, clock) = (self.ledger.clone(), self.simulation.clock.clone());
        DeadLetterService::new(ledger, self.requests(), clock, Some(&pipeline), 1)
    }

    /// Ends requests without a bucket.
    pub fn requests(&self) -> RequestService {
        let stock = Arc::new(MemoryStock::new(Counting::InStock));
        let clock = self.simulation.clock.clone();
        let (ledger, metrics) = (self.ledger.clone(), Arc::<Metrics>::default());
        let time = TrustedTime::new(clock.clone(), ledger.clone(), metrics.clone(), 5_000);
        RequestService::new(ledger, stock, clock, metrics, time)
    }

    /// The body of an outbox entry with these requests.
    pub fn body(&self, requests: &[u64]) -> Bytes {
        let mut body = Vec::new();
        for request in requests {
            pack_into(&self.intent(*request), &mut body);
        }
        body.into()
    }

    pub fn intent(&self, request: u64) -> OrderIntent {
        self.simulation.intent(request)
    }

    /// A message as a relay publishes it.
    pub fn message(&self, requests: &[u64], route: Route) -> Message {
        let body = self.body(requests);
        let headers = envelope::headers(&body, INSTALLATION, START_MS);
        Message { route, headers, body }
    }

    /// A message as a consumer dead-letters it.
    pub fn dead(&self, requests: &[u64], reason: &str) -> Message {
        let mut message = self.message(requests, Route::Dead);
        message.headers.reason = Some(reason.to_owned());
        message.headers.origin = Some("orders.0".to_owned());
        message
    }

    /// Publishes and asserts that every message is confirmed.
    pub async fn publish(&self, messages: Vec<Message>) {
        let outcomes = self.broker.elsewhere().open_channel(64).publish(messages).await;
        let all_confirmed = outcomes.iter().all(|outcome| *outcome == PublishOutcome::Confirmed);
        assert!(all_confirmed, "{outcomes:?}");
    }

    /// A message as a relay dead-letters it.
    pub fn dead_by_relay(&self, requests: &[u64]) -> Message {
        let reason = "refused in 10 attempts";
        envelope::dead_letter_of_entry(&self.body(requests), INSTALLATION, 10, reason)
    }

    /// Every dead letter with its body, oldest first, read without the ledger's injected faults.
    pub async fn dead_letters(&self) -> Vec<DeadLetterContent> {
        let ledger = &self.simulation.ledger;
        let mut found = Vec::new();
        for dead_letter in read_dead_letters(&**ledger, DeadLetterFilter::default(), 1000).await {
            found.extend(ledger.dead_letter(dead_letter.no).await.unwrap());
        }
        found.reverse();
        found
    }

    /// Waits until the ledger has `count` dead letters.
    pub async fn until_dead_letters(&self, count: usize) -> Vec<DeadLetterContent> {
        until("dead letters in the ledger", || async {
            let dead_letters = self.dead_letters().await;
            assert!(dead_letters.len() <= count, "{dead_letters:#?}");
            (dead_letters.len() == count).then_some(dead_letters)
        })
        .await
    }
}

impl CollectorProcess {
    /// Ends the process as `kill -9` does: its actors stop and its connections close.
    pub async fn kill(self) {
        self.shutdown.begin();
        if let Some(collector) = self.address.get() {
            let has_ended = || async { (!collector.connected()).then_some(()) };
            until("the end of the collector", has_ended).await;
        }
    }

    pub fn metric(&self, name: &str) -> u64 {
        metric(&self.metrics, name)
    }
}

impl Drop for CollectorProcess {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

/// The dead letter that a collector makes of a message.
pub fn received(message: Message) -> NewDeadLetter {
    let Message { headers, body, .. } = message;
    let delivery = Delivery { tag: 1, headers, routing_key: String::new(), num_previous: 0, body };
    from_delivery(&delivery, &reader(INSTALLATION), START_MS)
}

/// The request numbers in a dead letter.
pub fn numbers(dead_letter: &DeadLetterContent) -> Vec<u64> {
    dead_letter.requests.iter().map(|request| request.get()).collect()
}

/// The newest dead letter with this request.
pub async fn dead_letter_of(fixture: &DeadLetterFixture, request: u64) -> DeadLetter {
    let request = floodgate::domain::RequestId::new(request).unwrap();
    let ledger = &*fixture.simulation.ledger;
    read_dead_letters(ledger, DeadLetterFilter::with(request), u32::MAX).await.remove(0)
}
