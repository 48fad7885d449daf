//! Reconcilers of several processes over the stores of a [`Simulation`], and in-memory watermarks.

use std::collections::HashMap;
use std::sync::Arc;

use actix::Arbiter;
use async_trait::async_trait;
use floodgate::actors::supervisor::supervised::Address;
use floodgate::actors::supervisor::{ChildSpec, Supervisor};
use floodgate::actors::{Periodic, Reconciler};
use floodgate::broker::Topology;
use floodgate::db::Ledger;
use floodgate::domain::Counting;
use floodgate::lease::{Lease, TaskLease};
use floodgate::messages::Quiet;
use floodgate::observe::metrics::Metrics;
use floodgate::redis::transport::Error;
use floodgate::runtime::clock::{Clock, ManualClock, SharedClock};
use floodgate::runtime::fault_injection::FaultInjector;
use floodgate::runtime::shutdown::Shutdown;
use floodgate::services::request_ending::RequestService;
use floodgate::services::trusted_time::TrustedTime;
use floodgate::stock::Stock;
use floodgate::tickets::MemoryTicketUses;
use floodgate::tier::{Backends, Pipeline};
use floodgate::watermark::Watermarks;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::intents;
use super::memory_broker::MemoryBroker;
use super::metrics::metric;
use super::relays::{
    FakeBroker, FakeLease, FakeOutbox, Holders, INSTALLATION, InjectedFaults, Simulation,
};
use super::wait::until;

/// What the consumers of one order queue announce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumers {
    /// No in-flight delivery, and an empty queue.
    Idle,
    /// The publish time of the oldest in-flight delivery.
    At(i64),
    /// No consumer announces.
    None,
    /// Reading the watermark fails.
    Unreadable,
}

/// Watermarks that a test sets. Consumers are idle by default.
#[derive(Debug)]
pub struct FakeWatermarks {
    clock: Arc<ManualClock>,
    queues: Mutex<HashMap<u16, Consumers>>,
}

impl FakeWatermarks {
    pub fn set(&self, queue: u16, consumers: Consumers) {
        self.queues.lock().insert(queue, consumers);
    }
}

#[async_trait]
impl Watermarks for FakeWatermarks {
    async fn announce(&self, queue: u16, _: &str, watermark_ms: i64) -> Result<(), Error> {
        self.set(queue, Consumers::At(watermark_ms));
        Ok(())
    }

    async fn of_queue(&self, queue: u16) -> Result<Option<i64>, Error> {
        match self.queues.lock().get(&queue).copied().unwrap_or(Consumers::Idle) {
            Consumers::Idle => Ok(Some(self.clock.wall_ms())),
            Consumers::At(watermark_ms) => Ok(Some(watermark_ms)),
            Consumers::None => Ok(None),
            Consumers::Unreadable => Err(Error::NotSent { reason: "on purpose".to_owned() }),
        }
    }
}

/// One process with a reconciler.
pub struct Process {
    pub metrics: Arc<Metrics>,
    supervisor: Supervisor,
    address: Address<Periodic<Reconciler>>,
    shutdown: Shutdown,
}

impl Process {
    /// Waits for `num` more complete passes.
    pub async fn passes(&self, num: u64) {
        let steps = || self.supervisor.report()[0].steps;
        let before = steps();
        // Each pass takes two steps, and the first one may end a pass already in flight.
        until("some passes", || async { (steps() > before + num * 2).then_some(()) }).await;
    }

    /// Quiets the reconciler, as an operator does.
    pub async fn quiet(&self) {
        let (done, idle) = oneshot::channel();
        self.address.wait_up().await.try_send(Quiet { done }).unwrap();
        idle.await.unwrap();
    }

    pub fn metric(&self, name: &str) -> u64 {
        metric(&self.metrics, name)
    }

    /// Number of buckets blocked for this reason.
    pub fn blocked(&self, reason: &str) -> u64 {
        self.metric(&format!("floodgate_reconcile_blocked{{reason=\"{reason}\"}}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

/// Watermarks on the clock of a simulation.
pub fn watermarks(simulation: &Simulation) -> Arc<FakeWatermarks> {
    Arc::new(FakeWatermarks { clock: simulation.clock.clone(), queues: Mutex::default() })
}

fn requests(
    simulation: &Simulation,
    ledger: Arc<dyn Ledger>,
    stock: Arc<dyn Stock>,
    metrics: &Arc<Metrics>,
) -> RequestService {
    let clock = simulation.clock.clone();
    let time = TrustedTime::new(clock.clone(), ledger.clone(), metrics.clone(), 5_000);
    RequestService::new(ledger, stock, clock, metrics.clone(), time)
}

fn start(
    simulation: &Simulation,
    watermarks: &Arc<FakeWatermarks>,
    holders: &Arc<Holders>,
    ledger: Arc<dyn Ledger>,
    stock: Arc<dyn Stock>,
) -> Process {
    let (faults, shutdown) = (InjectedFaults::default(), Shutdown::default());
    let metrics = Arc::new(Metrics::default());
    let settings = &simulation.settings;
    let supervisor = Supervisor::new(
        settings.supervisor.clone(),
        simulation.clock.clone(),
        shutdown.clone(),
        Arbiter::current(),
    );
    let every_ms = settings.maintenance.rescue_every_ms;
    let outbox = FakeOutbox {
        store: simulation.store.clone(),
        clock: simulation.clock.clone(),
        faults: faults.clone(),
    };
    let publisher = FakeBroker { queues: simulation.queues.clone(), faults: faults.clone() };
    let clock: SharedClock = simulation.clock.clone();
    let lease: Arc<dyn Lease> =
        Arc::new(FakeLease { holders: holders.clone(), clock: simulation.clock.clone(), faults });
    let reconciler = Arc::new(Reconciler {
        backends: Backends {
            ledger: ledger.clone(),
            stock: stock.clone(),
            counting: Counting::InStock,
            lease: lease.clone(),
            ticket_uses: Arc::new(MemoryTicketUses::new(simulation.clock.clone())),
            shared_limits: None,
            is_shared: true,
            pipeline: None,
        },
        pipeline: Pipeline {
            outbox: Arc::new(outbox),
            publisher: Arc::new(publisher),
            subscriber: Arc::new(MemoryBroker::new(Topology::new("fg", 1, 5))),
            watermarks: watermarks.clone(),
            reader: intents::reader(INSTALLATION),
        },
        catalog: simulation.catalog.clone(),
        requests: requests(simulation, ledger, stock, &metrics),
        lease: TaskLease::new(&lease, "reconciler", settings.maintenance.lease_ttl_ms, &clock),
        settings: Arc::new(settings.clone()),
        clock: simulation.clock.clone(),
        metrics: metrics.clone(),
    });
    let address = supervisor.start(ChildSpec {
        name: "reconciler".to_owned(),
        kind: "reconciler",
        arbiter: Arbiter::current(),
        mailbox: 16,
        ends_with_last_address: false,
        fault_injector: FaultInjector::default(),
        factory: Arc::new(move |incarnation| {
            Periodic::new(incarnation, every_ms, reconciler.clone())
        }),
    });
    Process { metrics, supervisor, address, shutdown }
}

/// Starts a process whose reconciler competes for these leases.
pub fn reconciler_with(
    simulation: &Simulation,
    watermarks: &Arc<FakeWatermarks>,
    holders: &Arc<Holders>,
) -> Process {
    let (ledger, stock) = (simulation.ledger.clone(), simulation.stock.clone());
    start(simulation, watermarks, holders, ledger, stock)
}

/// Starts a process whose reconciler reads and writes this stock.
pub fn reconciler_on(
    simulation: &Simulation,
    watermarks: &Arc<FakeWatermarks>,
    stock: Arc<dyn Stock>,
) -> Process {
    start(simulation, watermarks, &simulation.holders, simulation.ledger.clone(), stock)
}

/// Starts a process whose reconciler reads and writes this ledger.
pub fn reconciler_over(
    simulation: &Simulation,
    watermarks: &Arc<FakeWatermarks>,
    ledger: Arc<dyn Ledger>,
) -> Process {
    start(simulation, watermarks, &simulation.holders, ledger, simulation.stock.clone())
}

/// Starts a process with a reconciler.
pub fn reconciler(simulation: &Simulation, watermarks: &Arc<FakeWatermarks>) -> Process {
    reconciler_with(simulation, watermarks, &simulation.holders)
}
