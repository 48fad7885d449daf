//! Relays and rescuers of several processes over one outbox, one broker and one clock, all in
//! memory. A process can be killed or paused between any two steps.

use std::sync::Arc;
use std::time::Duration;

use actix::Arbiter;
use floodgate::actors::orphan_rescuer::RescuerDeps;
use floodgate::actors::outbox_relay::RelayDeps;
use floodgate::actors::supervisor::supervised::Address;
use floodgate::actors::supervisor::{ChildReport, ChildSpec, Supervisor};
use floodgate::actors::{OrphanRescuer, RelayHandle, RelayPool};
use floodgate::config::{Settings, Tier};
use floodgate::domain::{
    BucketNo, Counting, Epoch, OrderIntent, Phase, RequestId, Reservation, Sale, Sku, SkuNo,
    TraceId,
};
use floodgate::messages::Quiet;
use floodgate::observe::metrics::Metrics;
use floodgate::redis::scripts::intent;
use floodgate::runtime::clock::{Clock, ManualClock, SharedClock};
use floodgate::runtime::fault_injection::FaultInjector;
use floodgate::runtime::process::unique_name;
use floodgate::runtime::shutdown::Shutdown;
use floodgate::services::catalog::Catalog;
use floodgate::stock::{BucketKey, LoaderToken, MemoryStock, Stock};
use tokio::sync::oneshot;

use super::lying_ledger::{Lie, LyingLedger};
use super::offers;
use super::rig::{START_MS, UNLIMITED, settings};
use super::wait::until;

mod broker;
mod lease;
mod mishaps;
mod outbox;

pub use broker::{FakeBroker, Queues};
pub use lease::{FakeLease, Holders};
pub use mishaps::{Call, Mishap, Mishaps, When};
pub use outbox::{FakeOutbox, Store};

pub const SKU: SkuNo = SkuNo(7);
pub const INSTALLATION: &str = "0000000a";

/// What all processes share.
pub struct World {
    pub store: Arc<Store>,
    pub queues: Arc<Queues>,
    pub holders: Arc<Holders>,
    pub clock: Arc<ManualClock>,
    pub catalog: Arc<Catalog>,
    pub stock: Arc<MemoryStock>,
    pub ledger: Arc<LyingLedger>,
    pub settings: Settings,
    buckets: u16,
}

/// One process: relays, a rescuer, or both.
pub struct Process {
    pub mishaps: Mishaps,
    /// How the names of its workers begin.
    pub name: Arc<str>,
    pub door: RelayHandle,
    pub metrics: Arc<Metrics>,
    pub supervisor: Supervisor,
    crew: Option<RelayPool>,
    rescuer: Option<Address<OrphanRescuer>>,
    shutdown: Shutdown,
    drill: f64,
}

impl World {
    /// A sale of one SKU with so many buckets; nothing waits.
    pub fn new(buckets: u16) -> Self {
        let mut settings = settings(Tier::Pipeline);
        settings.supervisor.restarts_max = 100_000;
        // Real time: how often workers announce themselves. Heartbeats end by the test's clock.
        settings.relay.heartbeat_ttl_ms = 60;
        settings.maintenance.rescue_every_ms = 10;
        settings.relay.workers = 2;
        settings.amqp.reconnect_min_ms = 1;
        settings.amqp.reconnect_max_ms = 4;
        let world = Self {
            store: Arc::default(),
            queues: Arc::default(),
            holders: Arc::default(),
            clock: Arc::new(ManualClock::new(START_MS)),
            catalog: Arc::default(),
            stock: Arc::new(MemoryStock::new(Counting::Here)),
            ledger: Arc::new(LyingLedger::new(Lie::Honest)),
            settings,
            buckets,
        };
        world.offer(SKU, buckets, Phase::Open);
        world
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
        };
        self.catalog.put(&Sale {
            no: no.0,
            id: format!("sale-{no}").parse().unwrap(),
            title: "Sale".to_owned(),
            starts_at_ms: 0,
            ends_at_ms: i64::MAX,
            phase,
            epoch: Epoch(1),
            skus: vec![sku.clone()],
        });
        sku
    }

    /// One accepted request.
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

    /// Accepts requests; each is one entry, and buckets take turns.
    pub fn accept(&self, requests: impl IntoIterator<Item = u64>) {
        for request in requests {
            let bytes = intent::pack(&self.intent(request));
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
            mishaps: Mishaps::default(),
            name: unique_name(),
            door: RelayHandle::default(),
            metrics: Arc::new(Metrics::new()),
            supervisor,
            crew: None,
            rescuer: None,
            shutdown,
            drill: 0.0,
        }
    }

    fn shared_clock(&self) -> SharedClock {
        self.clock.clone()
    }

    fn outbox(&self, mishaps: &Mishaps) -> Arc<FakeOutbox> {
        let (store, clock) = (self.store.clone(), self.shared_clock());
        Arc::new(FakeOutbox { store, clock, mishaps: mishaps.clone() })
    }

    fn broker(&self, mishaps: &Mishaps) -> Arc<FakeBroker> {
        Arc::new(FakeBroker { queues: self.queues.clone(), mishaps: mishaps.clone() })
    }

    /// A process that relays.
    pub fn relays(&self) -> Process {
        self.relays_with(|_| {})
    }

    /// The same, after a word with its mishaps.
    pub fn relays_with(&self, before: impl FnOnce(&mut Process)) -> Process {
        let mut process = self.process();
        before(&mut process);
        let retry = |ms| Duration::from_millis(ms);
        let amqp = &self.settings.amqp;
        let parts = RelayDeps {
            outbox: self.outbox(&process.mishaps),
            publisher: self.broker(&process.mishaps),
            catalog: self.catalog.clone(),
            process: process.name.clone(),
            door: process.door.clone(),
            installation: INSTALLATION.into(),
            queues: 1,
            retry: (retry(amqp.reconnect_min_ms), retry(amqp.reconnect_max_ms)),
            settings: self.settings.relay.clone(),
            clock: self.shared_clock(),
            metrics: process.metrics.clone(),
        };
        let drill = FaultInjector::new(process.drill);
        let crew = RelayPool::start(&parts, &process.supervisor, &Arbiter::current(), drill);
        process.crew = Some(crew);
        process
    }

    /// A process that rescues.
    pub fn rescuer(&self) -> Process {
        self.rescuer_with(|_| {})
    }

    /// The same, after a word with its mishaps.
    pub fn rescuer_with(&self, before: impl FnOnce(&mut Process)) -> Process {
        let mut process = self.process();
        before(&mut process);
        let mishaps = &process.mishaps;
        let parts = RescuerDeps {
            outbox: self.outbox(mishaps),
            catalog: self.catalog.clone(),
            every: Duration::from_millis(self.settings.maintenance.rescue_every_ms),
            clock: self.shared_clock(),
            metrics: process.metrics.clone(),
        };
        process.rescuer = Some(process.supervisor.start(ChildSpec {
            name: "orphan_rescuer".to_owned(),
            kind: "orphan_rescuer",
            arbiter: Arbiter::current(),
            mailbox: 16,
            drill: FaultInjector::default(),
            factory: Arc::new(move |life| OrphanRescuer::new(life, parts.clone())),
        }));
        process
    }

    /// Lets time pass until every heartbeat that is not repeated has ended; `alive` repeat theirs.
    pub async fn outlive_heartbeats(&self, alive: &[&Process]) {
        let ttl = Duration::from_millis(self.settings.relay.heartbeat_ttl_ms);
        for _ in 0..4 {
            self.clock.advance(ttl / 3);
            for process in alive {
                until("a heartbeat of each worker", || async {
                    let due = self.clock.now() + ttl;
                    let beats = self.store.heartbeats().into_iter();
                    let fresh = beats
                        .filter(|(name, until)| name.starts_with(&*process.name) && *until >= due);
                    (fresh.count() >= self.settings.relay.workers).then_some(())
                })
                .await;
            }
        }
    }

    /// Waits until every one of these requests is in a queue of the broker, or a dead letter, and
    /// the outbox holds nothing.
    pub async fn until_out(&self, requests: impl IntoIterator<Item = u64> + Clone) {
        until("an empty outbox", || async { (self.store.counts() == (0, 0)).then_some(()) }).await;
        let kept = self.queues.kept();
        let dead = self.store.dead();
        let is_dead = |request: &u64| {
            dead.iter().any(|letter| {
                let requests = floodgate::messages::envelope::requests_in(&letter.bytes);
                requests.iter().any(|id| id.get() == *request)
            })
        };
        let lost: Vec<u64> = requests
            .into_iter()
            .filter(|request| !kept.contains_key(request) && !is_dead(request))
            .collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
    }

    /// Opens the stock and reserves there, as if entries or messages had been lost.
    pub async fn lose(&self, requests: impl IntoIterator<Item = u64>) {
        let (_, sku) = self.catalog.of_sku(SKU).unwrap();
        let loading = self.stock.load(sku.clone(), 0, LoaderToken(1)).await.unwrap();
        loading.publish(sku.initial, Phase::Open, Epoch(1)).await.unwrap();
        self.reserve(requests).await;
    }

    /// Reserves in the stock, and nowhere else.
    pub async fn reserve(&self, requests: impl IntoIterator<Item = u64>) {
        for request in requests {
            let intent = self.intent(request);
            let reservation = Reservation {
                request: RequestId::new(request).unwrap(),
                sku: SKU,
                bucket: intent.bucket,
                epoch: Epoch(1),
                buyer: intent.buyer,
                quantity: 1,
                asked_at_ms: self.clock.wall_ms(),
                trace: TraceId(0),
            };
            self.stock.reserve(self.bucket_of(request), vec![reservation]).await.unwrap();
        }
    }
}

impl Process {
    /// Makes every step panic so often, in percent.
    pub fn drill(&mut self, percent: f64) {
        self.drill = percent;
    }

    /// Ends the process as `kill -9` does: nothing of it moves any more.
    pub fn kill(&self) {
        self.shutdown.begin();
        self.mishaps.freeze();
    }

    /// The way down that an operator asks for.
    pub async fn quiet(&self) {
        if let Some(crew) = &self.crew {
            crew.quiet().await;
        }
        if let Some(rescuer) = self.rescuer.as_ref().and_then(Address::get) {
            let (done, idle) = oneshot::channel();
            rescuer.try_send(Quiet { done }).unwrap();
            idle.await.unwrap();
        }
    }

    pub fn reports(&self, kind: &str) -> Vec<ChildReport> {
        self.supervisor.report().into_iter().filter(|report| report.kind == kind).collect()
    }

    /// The value of a metric without labels, or with these.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.metrics.exposition();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
