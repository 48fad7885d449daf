//! The actors between gates and ledger, in tier `pipeline`: which of them a role runs, and in which
//! order they become quiet.

use std::sync::Arc;
use std::time::Duration;

use actix_rt::{Arbiter, ArbiterHandle};

use super::orphan_rescuer::{OrphanRescuer, RescuerDeps};
use super::outbox_relay::{RelayDeps, RelayHandle, RelayPool};
use super::reconciler::{Reconciler, ReconcilerDeps, ReconcilerLimits};
use super::supervisor::{ChildSpec, Supervisor};
use crate::actors::dead_letter_collector::{CollectorDeps, DeadLetterCollector};
use crate::actors::ledger_writer::handle::LedgerWriterHandle;
use crate::actors::order_consumer::{CatalogSync, ConsumerDeps, ConsumerLimits, OrderConsumer};
use crate::actors::supervisor::supervised::{Address, quiet_one};
use crate::config::Settings;
use crate::observe::metrics::Metrics;
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::runtime::fault_injection::FaultInjector;
use crate::runtime::process::unique_name;
use crate::services::catalog::Catalog;
use crate::tier::{Backends, Pipeline};

/// Room for `Quiet` and `Stop`.
const MAILBOX: usize = 16;

/// What the actors of the pipeline work with.
pub(super) struct PipelineDeps<'a> {
    pub(super) settings: &'a Settings,
    pub(super) backends: &'a Backends,
    pub(super) pipeline: &'a Pipeline,
    pub(super) catalog: &'a Arc<Catalog>,
    pub(super) metrics: &'a Arc<Metrics>,
    pub(super) clock: &'a SharedClock,
    pub(super) supervisor: &'a Supervisor,
    /// The thread of gates and consumer.
    pub(super) engine: &'a ArbiterHandle,
    pub(super) breaker: &'a Breaker,
    pub(super) orders: &'a LedgerWriterHandle,
    pub(super) door: &'a RelayHandle,
    pub(super) refresh: CatalogSync,
    pub(super) drill: fn(&Settings, &str) -> FaultInjector,
}

/// The running actors.
pub(super) struct PipelineActors {
    relays: Option<RelayPool>,
    intakes: Vec<Address<OrderConsumer>>,
    rescuer: Option<Address<OrphanRescuer>>,
    reconciler: Option<Address<Reconciler>>,
}

impl PipelineActors {
    /// Starts those of the role.
    pub(super) fn start(deps: &PipelineDeps<'_>) -> Self {
        let role = deps.settings.role;
        // A thread of their own: publishing must not hold up decisions.
        let arbiter = || Arbiter::new().handle();
        let arbiter =
            if role.relays() || role.maintains() { arbiter() } else { Arbiter::current() };
        let relays = role.relays().then(|| deps.start_relays(&arbiter));
        let queues = if role.consumes() { 0..deps.settings.amqp.queues } else { 0..0 };
        let intakes = queues.map(|queue| deps.start_intake(queue)).collect();
        let rescuer = role.maintains().then(|| {
            deps.start_letter_keeper(arbiter.clone());
            deps.start_rescuer(arbiter.clone())
        });
        let reconciler = role.maintains().then(|| deps.start_reconciler(arbiter));
        Self { relays, intakes, rescuer, reconciler }
    }

    /// The rescuer stops and the reconciler leaves its task to others; relays finish their round
    /// and give back what they hold; then intakes finish what is in hand, and the broker delivers
    /// the rest to others.
    pub(super) async fn quiet(&self) {
        if let Some(rescuer) = &self.rescuer {
            quiet_one(rescuer).await;
        }
        if let Some(reconciler) = &self.reconciler {
            quiet_one(reconciler).await;
        }
        if let Some(relays) = &self.relays {
            relays.quiet().await;
        }
        for intake in &self.intakes {
            quiet_one(intake).await;
        }
    }
}

impl PipelineDeps<'_> {
    fn start_relays(&self, arbiter: &ArbiterHandle) -> RelayPool {
        let amqp = &self.settings.amqp;
        let retry = [amqp.reconnect_min_ms, amqp.reconnect_max_ms].map(Duration::from_millis);
        let deps = RelayDeps {
            outbox: Arc::clone(&self.pipeline.outbox),
            publisher: Arc::clone(&self.pipeline.publisher),
            catalog: Arc::clone(self.catalog),
            process: unique_name(),
            door: self.door.clone(),
            installation: Arc::clone(&self.pipeline.installation),
            queues: amqp.queues,
            retry: retry.into(),
            settings: self.settings.relay.clone(),
            clock: Arc::clone(self.clock),
            metrics: Arc::clone(self.metrics),
        };
        let drill = (self.drill)(self.settings, "outbox_relay");
        RelayPool::start(&deps, self.supervisor, arbiter, drill)
    }

    fn start_intake(&self, queue: u16) -> Address<OrderConsumer> {
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
            limits: ConsumerLimits::of(self.settings),
            clock: Arc::clone(self.clock),
            metrics: Arc::clone(self.metrics),
        };
        self.supervisor.start(ChildSpec {
            name: format!("order_consumer/{queue}"),
            kind: "order_consumer",
            arbiter: self.engine.clone(),
            mailbox: MAILBOX,
            drill: (self.drill)(self.settings, "order_consumer"),
            factory: Arc::new(move |life| OrderConsumer::new(life, deps.clone())),
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
            drill: (self.drill)(self.settings, "orphan_rescuer"),
            factory: Arc::new(move |life| OrphanRescuer::new(life, deps.clone())),
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
            drill: (self.drill)(self.settings, "reconciler"),
            factory: Arc::new(move |life| Reconciler::new(life, deps.clone())),
        })
    }

    fn start_letter_keeper(&self, arbiter: ArbiterHandle) {
        let amqp = &self.settings.amqp;
        let deps = Arc::new(CollectorDeps {
            ledger: Arc::clone(&self.backends.ledger),
            pipeline: self.pipeline.clone(),
            catalog: Arc::clone(self.catalog),
            letters_max: self.settings.maintenance.dead_letters_max,
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
            drill: (self.drill)(self.settings, "dead_letter_collector"),
            factory: Arc::new(move |life| DeadLetterCollector::new(life, Arc::clone(&deps))),
        });
    }
}
