//! Keepers of dead letters over a broker, outboxes and a ledger in memory.

use std::sync::Arc;

use actix::Arbiter;
use bytes::Bytes;
use floodgate::actors::DeadLetterCollector;
use floodgate::actors::dead_letter_collector::CollectorDeps;
use floodgate::actors::supervisor::supervised::Address;
use floodgate::actors::supervisor::{ChildSpec, Supervisor};
use floodgate::broker::{Message, PublishOutcome, Publisher, Route, Topology};
use floodgate::db::Ledger;
use floodgate::domain::{Counting, DeadLetter, DeadLetterContent, DeadLetterFilter, OrderIntent};
use floodgate::messages::Stop;
use floodgate::messages::envelope;
use floodgate::observe::metrics::Metrics;
use floodgate::outbox::DeadEntry;
use floodgate::redis::scripts::intent;
use floodgate::runtime::fault_injection::FaultInjector;
use floodgate::runtime::shutdown::Shutdown;
use floodgate::services::dead_letters::DeadLetterService;
use floodgate::stock::MemoryStock;
use floodgate::tier::Pipeline;

use super::faulty_ledger::FaultyLedger;
use super::memory_broker::MemoryBroker;
use super::reconcilers::watermarks;
use super::relays::{FakeOutbox, INSTALLATION, Mishaps, World};
use super::rig::START_MS;
use super::wait::until;

/// Letters in hand at once.
pub const LETTERS_MAX: u16 = 8;

/// What all processes share.
pub struct Office {
    pub world: World,
    pub broker: MemoryBroker,
    pub ledger: Arc<FaultyLedger>,
}

/// One process that keeps letters; killed on drop.
pub struct Keeper {
    pub metrics: Arc<Metrics>,
    pub supervisor: Supervisor,
    address: Address<DeadLetterCollector>,
    shutdown: Shutdown,
}

impl Office {
    /// A sale of one SKU in two buckets, and one order queue.
    pub fn new() -> Self {
        let world = World::new(2);
        let ledger = Arc::new(FaultyLedger::new(world.ledger.clone()));
        let broker = MemoryBroker::new(Topology::new("fg", 1, 5));
        Self { world, broker, ledger }
    }

    pub fn pipeline(&self, broker: &MemoryBroker) -> Pipeline {
        let (store, mishaps) = (self.world.store.clone(), Mishaps::default());
        let clock = self.world.clock.clone();
        Pipeline {
            outbox: Arc::new(FakeOutbox { store, clock, mishaps }),
            publisher: Arc::new(broker.clone()),
            subscriber: Arc::new(broker.clone()),
            watermarks: watermarks(&self.world),
            installation: INSTALLATION.into(),
        }
    }

    /// Starts a keeper.
    pub fn keeper(&self) -> Keeper {
        self.keeper_that_panics(0.0)
    }

    /// A keeper whose steps panic so often, in percent.
    pub fn keeper_that_panics(&self, percent: f64) -> Keeper {
        let (metrics, shutdown) = (Arc::new(Metrics::new()), Shutdown::default());
        let broker = self.broker.elsewhere();
        let parts = Arc::new(CollectorDeps {
            ledger: self.ledger.clone(),
            pipeline: self.pipeline(&broker),
            catalog: self.world.catalog.clone(),
            letters_max: LETTERS_MAX,
            every_ms: 5,
            backoff_min_ms: 1,
            backoff_max_ms: 4,
            clock: self.world.clock.clone(),
            metrics: metrics.clone(),
        });
        let settings = self.world.settings.supervisor.clone();
        let (clock, home) = (self.world.clock.clone(), Arbiter::current());
        let supervisor = Supervisor::new(settings, clock, shutdown.clone(), home);
        let address = supervisor.start(ChildSpec {
            name: "dead_letter_collector".to_owned(),
            kind: "dead_letter_collector",
            arbiter: Arbiter::current(),
            mailbox: 16,
            drill: FaultInjector::new(percent),
            factory: Arc::new(move |life| DeadLetterCollector::new(life, parts.clone())),
        });
        Keeper { metrics, supervisor, address, shutdown }
    }

    /// The operators' desk of one more process.
    pub fn desk(&self) -> DeadLetterService {
        let pipeline = self.pipeline(&self.broker.elsewhere());
        let (ledger, clock) = (self.ledger.clone(), self.world.clock.clone());
        let stock = Arc::new(MemoryStock::new(Counting::Here));
        DeadLetterService::new(ledger, stock, clock, Some(&pipeline), 1)
    }

    /// An entry of an outbox with these requests.
    pub fn body(&self, requests: &[u64]) -> Bytes {
        let mut body = Vec::new();
        for request in requests {
            intent::pack_into(&self.intent(*request), &mut body);
        }
        body.into()
    }

    pub fn intent(&self, request: u64) -> OrderIntent {
        self.world.intent(request)
    }

    /// A message as a relay sends it.
    pub fn message(&self, requests: &[u64], route: Route) -> Message {
        let body = self.body(requests);
        let headers = envelope::headers(&body, INSTALLATION, START_MS).unwrap();
        Message { route, headers, body }
    }

    /// A message as a consumer buries it.
    pub fn dead(&self, requests: &[u64], reason: &str) -> Message {
        let mut message = self.message(requests, Route::Dead);
        message.headers.reason = Some(reason.to_owned());
        message.headers.origin = Some("orders.0".to_owned());
        message
    }

    /// Publishes, and requires that all of it is confirmed.
    pub async fn publish(&self, messages: Vec<Message>) {
        let sent = self.broker.elsewhere().outgoing(64).publish(messages).await;
        assert!(sent.iter().all(|sent| *sent == PublishOutcome::Confirmed), "{sent:?}");
    }

    /// Buries an entry in an outbox, as a relay does.
    pub fn bury(&self, requests: &[u64]) {
        let entry = DeadEntry {
            id: Box::new(requests[0].to_be_bytes()),
            bytes: self.body(requests),
            reason: "it was tried 10 times".to_owned(),
            attempts: 10,
            dead_at_ms: START_MS,
        };
        self.world.store.bury(self.world.bucket_of(requests[0]), entry);
    }

    /// Every letter with its body, oldest first; past any fault of the ledger.
    pub async fn letters(&self) -> Vec<DeadLetterContent> {
        let ledger = &self.world.ledger;
        let mut found = Vec::new();
        for letter in ledger.dead_letters(DeadLetterFilter::default(), 1000).await.unwrap() {
            found.extend(ledger.dead_letter(letter.no).await.unwrap());
        }
        found.reverse();
        found
    }

    /// Waits until there are so many letters.
    pub async fn until_letters(&self, count: usize) -> Vec<DeadLetterContent> {
        until("letters in the ledger", || async {
            let letters = self.letters().await;
            assert!(letters.len() <= count, "{letters:#?}");
            (letters.len() == count).then_some(letters)
        })
        .await
    }
}

impl Keeper {
    /// Ends the process as `kill -9` does: nothing of it moves any more, its connections are gone.
    pub async fn kill(self) {
        self.shutdown.begin();
        if let Some(keeper) = self.address.get() {
            keeper.try_send(Stop).unwrap();
            until("the end of the keeper", || async { (!keeper.connected()).then_some(()) }).await;
        }
    }

    /// The value of a metric without labels, or with these.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.metrics.exposition();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

/// The numbers of the requests in a letter.
pub fn numbers(letter: &DeadLetterContent) -> Vec<u64> {
    letter.requests.iter().map(|request| request.get()).collect()
}

/// A letter by one of its requests.
pub async fn letter_of(office: &Office, request: u64) -> DeadLetter {
    let request = floodgate::domain::RequestId::new(request).unwrap();
    office
        .world
        .ledger
        .dead_letters(DeadLetterFilter::with(request), u32::MAX)
        .await
        .unwrap()
        .remove(0)
}
