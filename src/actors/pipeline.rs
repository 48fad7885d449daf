//! The actors between gates and ledger in tier `pipeline`: the actors of each role, and the order
//! of their shutdown.

use std::sync::Arc;
use std::time::Duration;

use actix_rt::{Arbiter, ArbiterHandle};
use futures_util::future::join_all;

use super::orphan_rescuer::{OrphanRescuer, RescuerDeps};
use super::outbox_relay::{OutboxRelay, RelayDeps, RelayHandle};
use super::reconciler::{Reconciler, ReconcilerDeps, ReconcilerLimits};
use super::supervisor::{ChildSpec, Supervisor};
use crate::actors::dead_letter_collector::{CollectorDeps, DeadLetterCollector};
use crate::actors::ledger_writer::handle::LedgerWriterHandle;
use crate::actors::order_consumer::{CatalogSync, ConsumerDeps, OrderConsumer};
use crate::actors::supervisor::supervised::{Address, quiet_one};
use crate::config::Settings;
use crate::observe::metrics::Metrics;
use crate::runtime::backoff::Backoff;
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::runtime::fault_injection::FaultInjector;
use crate::runtime::unique_name;
use crate::services::catalog::Catalog;
use crate::tier::{Backends, Pipeline};

/// Room for `Quiet` and `Stop`.
const MAILBOX: usize = 16;

/// Dependencies of the pipeline actors.
pub(super) struct PipelineDeps<'a> {
    pub(super) settings: &'a Settings,
    pub(super) backends: &'a Backends,
    pub(super) pipeline: &'a Pipeline,
    pub(super) catalog: &'a Arc<Catalog>,
    pub(super) metrics: &'a Arc<Metrics>,
    pub(super) clock: &'a SharedClock,
    pub(super) supervisor: &'a Supervisor,
    /// The thread of gates, consumers and ledger writer.
    pub(super) engine: &'a ArbiterHandle,
    pub(super) breaker: &'a Breaker,
    pub(super) orders: &'a LedgerWriterHandle,
    pub(super) relay_handle: &'a RelayHandle,
    pub(super) refresh: CatalogSync,
    pub(super) fault_injector: fn(&Settings, &str) -> FaultInjector,
}

/// The running pipeline actors.
pub(super) struct PipelineActors {
    relays: Vec<Address<OutboxRelay>>,
    consumers: Vec<Address<OrderConsumer>>,
    rescuer: Option<Address<OrphanRescuer>>,
    reconciler: Option<Address<Reconciler>>,
}

impl PipelineActors {
    /// Starts the actors of the configured role.
    pub(super) fn start(deps: &PipelineDeps<'_>) -> Self {
        let role = deps.settings.role;
        // A thread of their own: publishing must not delay the gates.
        let needs_thread = role.relays() || role.maintains();
        let arbiter = if needs_thread { Arbiter::new().handle() } else { Arbiter::current() };
        let relays = if role.relays() { deps.start_relays(&arbiter) } else { Vec::new() };
        let queues = if role.consumes() { 0..deps.settings.amqp.queues } else { 0..0 };
        let consumers = queues.map(|queue| deps.start_consumer(queue)).collect();
        let rescuer = role.maintains().then(|| {
            deps.start_dead_letter_collector(arbiter.clone());
            deps.start_rescuer(arbiter.clone())
        });
        let reconciler = role.maintains().then(|| deps.start_reconciler(arbiter));
        Self { relays, consumers, rescuer, reconciler }
    }

    /// Waits until the rescuer has stopped and the reconciler has released its lease, then until
    /// the relays have finished their round and given their entries back, then until the consumers
    /// have finished the deliveries in flight; the broker delivers the others elsewhere.
    pub(super) async fn quiet(&self) {
        if let Some(rescuer) = &self.rescuer {
            quiet_one(rescuer).await;
        }
        if let Some(reconciler) = &self.reconciler {
            quiet_one(reconciler).await;
        }
        // A rescuer reclaims the entries of a relay that crashes now.
        join_all(self.relays.iter().map(quiet_one)).await;
        for consumer in &self.consumers {
            quiet_one(consumer).await;
        }
    }
}

impl PipelineDeps<'_> {
    fn start_relays(&self, arbiter: &ArbiterHandle) -> Vec<Address<OutboxRelay>> {
        let amqp = &self.settings.amqp;
        let deps = RelayDeps {
            outbox: Arc::clone(&self.pipeline.outbox),
            publisher: Arc::clone(&self.pipeline.publisher),
            catalog: Arc::clone(self.catalog),
            process: unique_name(),
            relay_handle: self.relay_handle.clone(),
            installation: Arc::clone(&self.pipeline.installation),
            queues: amqp.queues,
            backoff: Backoff::new(amqp.reconnect_min_ms, amqp.reconnect_max_ms),
            settings: self.settings.relay.clone(),
            clock: Arc::clone(self.clock),
            metrics: Arc::clone(self.metrics),
        };
        let fault_injector = (self.fault_injector)(self.settings, "outbox_relay");
        deps.start_workers(self.supervisor, arbiter, fault_injector)
    }

    fn start_consumer(&self, queue: u16) -> Address<OrderConsumer> {
        let amqp = &self.settings.amqp;
        let deps = ConsumerDeps {
            queue,
            subscriber: Arc::clone(&self.pipeline.subscriber),
            publisher: Arc::clone(&self.pipeline.publisher),
            orders: self.orders.clone(),
            catalog: Arc::clone(self.catalog),
            refresh: Arc::clone(&self.refresh),
            ledger: Arc::clone(&self.backends.ledger),
            breaker: self.breaker.clone(),
            watermarks: Arc::clone(&self.pipeline.watermarks),
            installation: Arc::clone(&self.pipeline.installation),
            settings: self.settings.consumer.clone(),
            confirm_window: self.settings.relay.confirm_window,
            reconnect: Backoff::new(amqp.reconnect_min_ms, amqp.reconnect_max_ms),
            clock: Arc::clone(self.clock),
            metrics: Arc::clone(self.metrics),
        };
        self.supervisor.start(ChildSpec {
            name: format!("order_consumer/{queue}"),
            kind: "order_consumer",
            arbiter: self.engine.clone(),
            mailbox: MAILBOX,
            fault_injector: (self.fault_injector)(self.settings, "order_consumer"),
            factory: Arc::new(move |incarnation| OrderConsumer::new(incarnation, deps.clone())),
        })
    }

    fn start_rescuer(&self, arbiter: ArbiterHandle) -> Address<OrphanRescuer> {
        let deps = RescuerDeps {
            outbox: Arc::clone(&self.pipeline.outbox),
            catalog: Arc::clone(self.catalog),
            every: Duration::from_millis(self.settings.maintenance.rescue_every_ms),
            clock: Arc::clone(self.clock),
            metrics: Arc::clone(self.metrics),
        };
        self.supervisor.start(ChildSpec {
            name: "orphan_rescuer".to_owned(),
            kind: "orphan_rescuer",
            arbiter,
            mailbox: MAILBOX,
            fault_injector: (self.fault_injector)(self.settings, "orphan_rescuer"),
            factory: Arc::new(move |incarnation| OrphanRescuer::new(incarnation, deps.clone())),
        })
    }

    fn start_reconciler(&self, arbiter: ArbiterHandle) -> Address<Reconciler> {
        let deps = ReconcilerDeps {
            outbox: Arc::clone(&self.pipeline.outbox),
            watermarks: Arc::clone(&self.pipeline.watermarks),
            publisher: Arc::clone(&self.pipeline.publisher),
            stock: Arc::clone(&self.backends.stock),
            ledger: Arc::clone(&self.backends.ledger),
            lease: Arc::clone(&self.backends.lease),
            catalog: Arc::clone(self.catalog),
            holder: unique_name(),
            installation: Arc::clone(&self.pipeline.installation),
            limits: ReconcilerLimits::of(self.settings),
            clock: Arc::clone(self.clock),
            metrics: Arc::clone(self.metrics),
        };
        self.supervisor.start(ChildSpec {
            name: "reconciler".to_owned(),
            kind: "reconciler",
            arbiter,
            mailbox: MAILBOX,
            fault_injector: (self.fault_injector)(self.settings, "reconciler"),
            factory: Arc::new(move |incarnation| Reconciler::new(incarnation, deps.clone())),
        })
    }

    fn start_dead_letter_collector(&self, arbiter: ArbiterHandle) {
        let amqp = &self.settings.amqp;
        let deps = Arc::new(CollectorDeps {
            ledger: Arc::clone(&self.backends.ledger),
            pipeline: self.pipeline.clone(),
            catalog: Arc::clone(self.catalog),
            dead_letters_max: self.settings.maintenance.dead_letters_max,
            every_ms: self.settings.maintenance.rescue_every_ms,
            backoff_min_ms: amqp.reconnect_min_ms,
            backoff_max_ms: amqp.reconnect_max_ms,
            clock: Arc::clone(self.clock),
            metrics: Arc::clone(self.metrics),
        });
        let _address = self.supervisor.start(ChildSpec {
            name: "dead_letter_collector".to_owned(),
            kind: "dead_letter_collector",
            arbiter,
            mailbox: MAILBOX,
            fault_injector: (self.fault_injector)(self.settings, "dead_letter_collector"),
            factory: Arc::new(move |incarnation| {
                DeadLetterCollector::new(incarnation, Arc::clone(&deps))
            }),
        });
    }
}
