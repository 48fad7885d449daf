//! Reconcilers of several processes over the stores of a [`World`], and watermarks in memory.

use std::collections::HashMap;
use std::sync::Arc;

use actix::Arbiter;
use async_trait::async_trait;
use floodgate::actors::Reconciler;
use floodgate::actors::reconciler::{ReconcilerDeps, ReconcilerLimits};
use floodgate::actors::supervisor::supervised::Address;
use floodgate::actors::supervisor::{ChildSpec, Supervisor};
use floodgate::messages::Quiet;
use floodgate::observe::metrics::Metrics;
use floodgate::runtime::clock::{Clock, ManualClock};
use floodgate::runtime::fault_injection::FaultInjector;
use floodgate::runtime::shutdown::Shutdown;
use floodgate::watermark::{Error, Watermarks};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::relays::{FakeBroker, FakeLease, FakeOutbox, Holders, INSTALLATION, Mishaps, World};
use super::wait::until;

/// What the consumers of one order queue announce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumers {
    /// Nothing in hand, nothing in the queue.
    Idle,
    /// The oldest delivery in hand was published then.
    At(i64),
    /// There are none.
    None,
    /// Nobody can say.
    Unreadable,
}

/// Watermarks that a test sets; consumers are idle until then.
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
            Consumers::Unreadable => Err(Error { queue, reason: "on purpose".to_owned() }),
        }
    }
}

/// One process that reconciles.
pub struct Process {
    pub metrics: Arc<Metrics>,
    supervisor: Supervisor,
    address: Address<Reconciler>,
    shutdown: Shutdown,
}

impl Process {
    /// Waits until so many more passes have ended.
    pub async fn passes(&self, num: u64) {
        let steps = || self.supervisor.report()[0].steps;
        let before = steps();
        // A tick and its end, and one that may have been under way.
        until("some passes", || async { (steps() > before + num * 2).then_some(()) }).await;
    }

    /// The way down that an operator asks for.
    pub async fn quiet(&self) {
        let (done, idle) = oneshot::channel();
        self.address.wait_up().await.try_send(Quiet { done }).unwrap();
        idle.await.unwrap();
    }

    /// The value of a metric, by name and labels.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.metrics.exposition();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    }

    /// Buckets that are blocked for this reason.
    pub fn blocked(&self, reason: &str) -> u64 {
        self.metric(&format!("floodgate_reconcile_blocked{{reason=\"{reason}\"}}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

/// Watermarks for the reconcilers of a world.
pub fn watermarks(world: &World) -> Arc<FakeWatermarks> {
    Arc::new(FakeWatermarks { clock: world.clock.clone(), queues: Mutex::default() })
}

/// A process that reconciles, if it gets one of these leases.
pub fn reconciler_with(
    world: &World,
    watermarks: &Arc<FakeWatermarks>,
    holders: &Arc<Holders>,
) -> Process {
    let (mishaps, shutdown) = (Mishaps::default(), Shutdown::default());
    let metrics = Arc::new(Metrics::new());
    let settings = &world.settings;
    let supervisor = Supervisor::new(
        settings.supervisor.clone(),
        world.clock.clone(),
        shutdown.clone(),
        Arbiter::current(),
    );
    let parts = ReconcilerDeps {
        outbox: Arc::new(FakeOutbox {
            store: world.store.clone(),
            clock: world.clock.clone(),
            mishaps: mishaps.clone(),
        }),
        watermarks: watermarks.clone(),
        publisher: Arc::new(FakeBroker { queues: world.queues.clone(), mishaps: mishaps.clone() }),
        stock: world.stock.clone(),
        ledger: world.ledger.clone(),
        lease: Arc::new(FakeLease {
            holders: holders.clone(),
            clock: world.clock.clone(),
            mishaps,
        }),
        catalog: world.catalog.clone(),
        holder: format!("reconciler-{:016x}", fastrand::u64(..)).into(),
        installation: INSTALLATION.into(),
        limits: ReconcilerLimits::of(settings),
        clock: world.clock.clone(),
        metrics: metrics.clone(),
    };
    let address = supervisor.start(ChildSpec {
        name: "reconciler".to_owned(),
        kind: "reconciler",
        arbiter: Arbiter::current(),
        mailbox: 16,
        drill: FaultInjector::default(),
        factory: Arc::new(move |life| Reconciler::new(life, parts.clone())),
    });
    Process { metrics, supervisor, address, shutdown }
}

/// A process that reconciles.
pub fn reconciler(world: &World, watermarks: &Arc<FakeWatermarks>) -> Process {
    reconciler_with(world, watermarks, &world.holders)
}
