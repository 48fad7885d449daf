//! Relays and rescuers of several processes over one in-memory outbox, broker and clock. A test can
//! kill or pause a process between any two steps.

use std::sync::Arc;
use std::time::Duration;

use actix::Arbiter;
use floodgate::actors::outbox_relay::RelayDeps;
use floodgate::actors::supervisor::supervised::Address;
use floodgate::actors::supervisor::{ChildSpec, Supervisor};
use floodgate::actors::{OrphanRescuer, OutboxRelay, Periodic, RelayHandle};
use floodgate::config::{Settings, Tier};
use floodgate::domain::{
    BucketKey, BucketNo, BuyerId, Counting, Currency, Epoch, LoaderToken, OrderIntent, Phase, Sale,
    Sku, SkuHistory, SkuNo, SlotReturns, TraceId,
};
use floodgate::messages::Quiet;
use floodgate::observe::metrics::Metrics;
use floodgate::runtime::backoff::Backoff;
use floodgate::runtime::clock::{Clock, ManualClock, SharedClock};
use floodgate::runtime::fault_injection::FaultInjector;
use floodgate::runtime::progress::ChildReport;
use floodgate::runtime::shutdown::Shutdown;
use floodgate::runtime::unique_name;
use floodgate::services::catalog::Catalog;
use floodgate::stock::{MemoryStock, Stock};
use tokio::sync::oneshot;

use super::defective_ledger::{DefectiveLedger, LedgerDefect};
use super::harness::{START_MS, UNLIMITED, settings};
use super::intents;
use super::metrics::metric;
use super::offers;
use super::wait::until;

mod broker;
mod injected_faults;
mod lease;
mod outbox;

pub use broker::{FakeBroker, Queues};
pub use injected_faults::{Call, InjectedFault, InjectedFaults, When};
pub use lease::{FakeLease, Holders};
pub use outbox::{FakeOutbox, Store};

pub const SKU: SkuNo = SkuNo(7);
pub const INSTALLATION: &str = "0000000a";

/// The stores that all processes share.
pub struct Simulation {
    pub store: Arc<Store>,
    pub queues: Arc<Queues>,
    pub holders: Arc<Holders>,
    pub clock: Arc<ManualClock>,
    pub catalog: Arc<Catalog>,
    pub stock: Arc<MemoryStock>,
    pub ledger: Arc<DefectiveLedger>,
    pub settings: Settings,
    buckets: u16,
}

/// One process with relays or a rescuer; killed on drop.
pub struct Process {
    pub faults: InjectedFaults,
    /// Prefix of the process's worker names.
    pub name: Arc<str>,
    pub relay_handle: RelayHandle,
    pub metrics: Arc<Metrics>,
    pub supervisor: Supervisor,
    workers: Vec<Address<OutboxRelay>>,
    rescuer: Option<Address<Periodic<OrphanRescuer>>>,
    shutdown: Shutdown,
    fault_injector: f64,
}

impl Simulation {
    /// An open sale of one SKU with this many buckets, and empty stores.
    pub fn new(buckets: u16) -> Self {
        let mut settings = settings(Tier::Pipeline);
        settings.supervisor.restarts_max = 100_000;
        // Workers announce by real time; heartbeats expire by the test's clock.
        settings.relay.heartbeat_ttl_ms = 60;
        settings.maintenance.rescue_every_ms = 10;
        settings.relay.workers = 2;
        settings.amqp.reconnect_min_ms = 1;
        settings.amqp.reconnect_max_ms = 4;
        let simulation = Self {
            store: Arc::default(),
            queues: Arc::default(),
            holders: Arc::default(),
            clock: Arc::new(ManualClock::new(START_MS)),
            catalog: Arc::default(),
            stock: Arc::new(MemoryStock::new(Counting::InStock)),
            ledger: Arc::new(DefectiveLedger::new(LedgerDefect::None)),
            settings,
            buckets,
        };
        let sku = simulation.offer(SKU, buckets, Phase::Open);
        simulation.ledger.put_units(SKU, sku.initial);
        simulation
    }

    pub fn offer(&self, no: SkuNo, buckets: u16, phase: Phase) -> Sku {
        let sku = Sku {
            no,
            id: "sku".parse().unwrap(),
            title: "SKU".to_owned(),
            price: 100,
            initial: 10_000,
            policy: UNLIMITED,
            buckets,
            payment_window_s: 900,
            bar_lapsed: false,
            slot_returns: SlotReturns::default(),
            ends_max: 3,
            queue_timeout_s: 0,
            history: SkuHistory::default(),
        };
        self.catalog.put(&Sale {
            no: no.0,
            id: format!("sale-{no}").parse().unwrap(),
            title: "Sale".to_owned(),
            starts_at_ms: 0,
            ends_at_ms: i64::MAX,
            closed_at_ms: None,
            phase,
            epoch: Epoch(1),
            currency: Currency::default(),
            ticket_required: false,
            retention: floodgate::domain::Retention::default(),
            skus: vec![Arc::new(sku.clone())],
        });
        sku
    }

    /// The intent of one unit for a request.
    pub fn intent(&self, request: u64) -> OrderIntent {
        let (_, sku) = self.catalog.of_sku(SKU).unwrap();
        OrderIntent {
            bucket: self.bucket_of(request).bucket,
            ..offers::intent(&sku, request, 1, 1)
        }
    }

    pub fn bucket_of(&self, request: u64) -> BucketKey {
        let bucket = u16::try_from(request % u64::from(self.buckets)).unwrap();
        BucketKey { sku: SKU, bucket: BucketNo(bucket) }
    }

    /// Puts one outbox entry per request, in the request's bucket.
    pub fn accept(&self, requests: impl IntoIterator<Item = u64>) {
        for request in requests {
            let bytes = intents::pack(&self.intent(request));
            self.store.put(self.bucket_of(request), bytes.into());
        }
    }

    fn process(&self) -> Process {
        let shutdown = Shutdown::default();
        let supervisor = Supervisor::new(
            self.settings.supervisor.clone(),
            self.shared_clock(),
            shutdown.clone(),
            Arbiter::current(),
        );
        Process {
            faults: InjectedFaults::default(),
            name: unique_name(),
            relay_handle: RelayHandle::default(),
            metrics: Arc::new(Metrics::default()),
            supervisor,
            workers: Vec::new(),
            rescuer: None,
            shutdown,
            fault_injector: 0.0,
        }
    }

    fn shared_clock(&self) -> SharedClock {
        self.clock.clone()
    }

    fn outbox(&self, faults: &InjectedFaults) -> Arc<FakeOutbox> {
        let (store, clock) = (self.store.clone(), self.shared_clock());
        Arc::new(FakeOutbox { store, clock, faults: faults.clone() })
    }

    fn broker(&self, faults: &InjectedFaults) -> Arc<FakeBroker> {
        Arc::new(FakeBroker { queues: self.queues.clone(), faults: faults.clone() })
    }

    /// Starts a process with relays.
    pub fn relays(&self) -> Process {
        self.relays_with(|_| {})
    }

    /// [`Self::relays`]; `before` runs before the relays start, to arm faults.
    pub fn relays_with(&self, before: impl FnOnce(&mut Process)) -> Process {
        let mut process = self.process();
        before(&mut process);
        let amqp = &self.settings.amqp;
        let deps = RelayDeps {
            outbox: self.outbox(&process.faults),
            publisher: self.broker(&process.faults),
            catalog: self.catalog.clone(),
            process: process.name.clone(),
            relay_handle: process.relay_handle.clone(),
            installation: INSTALLATION.into(),
            queues: 1,
            backoff: Backoff::new(amqp.reconnect_min_ms, amqp.reconnect_max_ms),
            settings: self.settings.relay.clone(),
            clock: self.shared_clock(),
            metrics: process.metrics.clone(),
        };
        let fault_injector = FaultInjector::new(process.fault_injector);
        process.workers =
            deps.start_workers(&process.supervisor, &Arbiter::current(), fault_injector);
        process
    }

    /// Starts a process with an orphan rescuer.
    pub fn rescuer(&self) -> Process {
        self.rescuer_with(|_| {})
    }

    /// [`Self::rescuer`]; `before` runs before the rescuer starts, to arm faults.
    pub fn rescuer_with(&self, before: impl FnOnce(&mut Process)) -> Process {
        let mut process = self.process();
        before(&mut process);
        let faults = &process.faults;
        let every_ms = self.settings.maintenance.rescue_every_ms;
        let rescuer = Arc::new(OrphanRescuer {
            outbox: self.outbox(faults),
            catalog: self.catalog.clone(),
            clock: self.shared_clock(),
            metrics: process.metrics.clone(),
        });
        process.rescuer = Some(process.supervisor.start(ChildSpec {
            name: "orphan_rescuer".to_owned(),
            kind: "orphan_rescuer",
            arbiter: Arbiter::current(),
            mailbox: 16,
            ends_with_last_address: false,
            fault_injector: FaultInjector::default(),
            factory: Arc::new(move |incarnation| {
                Periodic::new(incarnation, every_ms, rescuer.clone())
            }),
        }));
        process
    }

    /// Advances the clock until every heartbeat expires except those of the `live` processes, which
    /// are renewed.
    pub async fn outlive_heartbeats(&self, live: &[&Process]) {
        let ttl = Duration::from_millis(self.settings.relay.heartbeat_ttl_ms);
        for _ in 0..4 {
            self.clock.advance(ttl / 3);
            for process in live {
                until("a heartbeat of each worker", || async {
                    let due = self.clock.now() + ttl;
                    let heartbeats = self.store.heartbeats().into_iter();
                    let fresh = heartbeats
                        .filter(|(name, until)| name.starts_with(&*process.name) && *until >= due);
                    (fresh.count() >= self.settings.relay.workers).then_some(())
                })
                .await;
            }
        }
    }

    /// Waits until the outbox is empty, then asserts that each of these requests is in a broker
    /// queue or a dead letter.
    pub async fn until_published(&self, requests: impl IntoIterator<Item = u64> + Clone) {
        until("an empty outbox", || async { (self.store.counts() == (0, 0)).then_some(()) }).await;
        let published = self.queues.kept();
        let dead = self.queues.dead();
        let is_dead = |request: &u64| {
            dead.iter().any(|message| {
                let requests = floodgate::messages::envelope::requests_in(&message.body);
                requests.iter().any(|id| id.get() == *request)
            })
        };
        let lost: Vec<u64> = requests
            .into_iter()
            .filter(|request| !published.contains_key(request) && !is_dead(request))
            .collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
    }

    /// Loads the stock and reserves there only, as if outbox entries or messages had been lost.
    pub async fn lose(&self, requests: impl IntoIterator<Item = u64>) {
        let (_, sku) = self.catalog.of_sku(SKU).unwrap();
        let loading = self.stock.load(sku.clone(), LoaderToken(1)).await.unwrap();
        loading.publish(sku.initial, Phase::Open, Epoch(1)).await.unwrap();
        self.reserve(requests).await;
    }

    /// Reserves in the stock without outbox entries, each for a buyer at home in the request's
    /// bucket.
    pub async fn reserve(&self, requests: impl IntoIterator<Item = u64>) {
        for request in requests {
            let (intent, placed_at_ms) = (self.intent(request), self.clock.wall_ms());
            let is_home =
                |buyer: &BuyerId| BucketNo::home_of(*buyer, self.buckets) == intent.bucket;
            let buyer = (1..1_000).map(offers::buyer).find(is_home).unwrap();
            let lost = OrderIntent { buyer, placed_at_ms, trace: TraceId(0), ..intent };
            self.stock.reserve(self.bucket_of(request), vec![lost]).await.unwrap();
        }
    }
}

impl Process {
    /// Sets the probability of a panic in each step, in percent.
    pub fn fault_injector(&mut self, percent: f64) {
        self.fault_injector = percent;
    }

    /// Ends the process as `kill -9` does: its actors stop and its calls are suspended.
    pub fn kill(&self) {
        self.shutdown.begin();
        self.faults.freeze();
    }

    /// Quiets the process, as an operator does.
    pub async fn quiet(&self) {
        let relays = self.workers.iter().filter_map(Address::get).map(async |relay| {
            let (done, idle) = oneshot::channel();
            // A relay that crashes is quiet.
            if relay.try_send(Quiet { done }).is_ok() {
                drop(idle.await);
            }
        });
        futures_util::future::join_all(relays).await;
        if let Some(rescuer) = self.rescuer.as_ref().and_then(Address::get) {
            let (done, idle) = oneshot::channel();
            rescuer.try_send(Quiet { done }).unwrap();
            idle.await.unwrap();
        }
    }

    pub fn reports(&self, kind: &str) -> Vec<ChildReport> {
        self.supervisor.report().into_iter().filter(|report| report.kind == kind).collect()
    }

    pub fn metric(&self, name: &str) -> u64 {
        metric(&self.metrics, name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
