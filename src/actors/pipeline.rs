//! The actors between gates and ledger in tier `pipeline`: the actors of each role, and the order
//! in which they are quieted.

use std::sync::Arc;

use actix::Handler;
use actix_rt::{Arbiter, ArbiterHandle};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::dead_letter_collector::DeadLetterCollector;
use super::event_publisher::EventPublisher;
use super::orphan_rescuer::OrphanRescuer;
use super::outbox_relay::{OutboxRelay, RelayDeps};
use super::periodic::Task;
use super::reconciler::Reconciler;
use super::system::{ActorSystem, fault_injector};
use crate::actors::order_consumer::{CatalogSync, ConsumerDeps, OrderConsumer};
use crate::actors::supervisor::supervised::{Address, Supervised, quiet_one};
use crate::lease::TaskLease;
use crate::messages::Quiet;
use crate::runtime::backoff::Backoff;
use crate::runtime::unique_name;
use crate::services::order_feed::OrderFeed;
use crate::tier::Pipeline;

/// Quiets one actor, once it is polled.
pub(super) type Quieting = BoxFuture<'static, ()>;

/// Starts the actors of the configured role. Returns what quiets them, stage by stage: the rescuer
/// stops; then the relays finish their round and give their entries back; then the consumers finish
/// the deliveries in flight, and the broker delivers the others elsewhere.
pub(super) fn start(
    system: &ActorSystem,
    pipeline: &Pipeline,
    refresh: &CatalogSync,
) -> [Vec<Quieting>; 3] {
    let role = system.settings.role;
    // A thread of their own: publishing must not delay the gates.
    let needs_thread = role.relays() || role.maintains();
    let arbiter = if needs_thread { Arbiter::new().handle() } else { Arbiter::current() };
    let relays = if role.relays() { start_relays(system, pipeline, &arbiter) } else { Vec::new() };
    let queues = if role.consumes() { 0..system.settings.amqp.queues } else { 0..0 };
    let start = |queue| start_consumer(system, pipeline, refresh, queue);
    let consumers = quieting(queues.map(start));
    let every_ms = system.settings.maintenance.rescue_every_ms;
    let rescuer = role.maintains().then(|| {
        start_dead_letter_collector(system, pipeline, &arbiter);
        let rescuer = OrphanRescuer {
            outbox: Arc::clone(&pipeline.outbox),
            catalog: Arc::clone(&system.catalog),
            clock: Arc::clone(&system.clock),
            metrics: Arc::clone(&system.metrics),
        };
        system.start_periodic("orphan_rescuer", &arbiter, every_ms, rescuer)
    });
    if role.maintains() {
        let reconciler = |lease| Reconciler {
            backends: system.backends.clone(),
            pipeline: pipeline.clone(),
            catalog: Arc::clone(&system.catalog),
            requests: system.requests.clone(),
            lease,
            settings: Arc::clone(&system.settings),
            clock: Arc::clone(&system.clock),
            metrics: Arc::clone(&system.metrics),
        };
        system.start_leased("reconciler", &arbiter, every_ms, reconciler);
        if system.settings.events.exchange {
            start_event_publisher(system, pipeline, &arbiter);
        }
    }
    // A rescuer reclaims the entries of a relay that crashes while it is quieted.
    [quieting(rescuer), quieting(relays), consumers]
}

fn quieting<A: Supervised + Handler<Quiet>>(
    addresses: impl IntoIterator<Item = Address<A>>,
) -> Vec<Quieting> {
    addresses.into_iter().map(|address| quiet_one(address).boxed()).collect()
}

impl ActorSystem {
    /// As [`Self::start_periodic`], for a task that holds a lease of its name: at the shutdown it
    /// finishes its run and releases the lease, so that another process takes it at once.
    pub(super) fn start_leased<T: Task>(
        &self,
        name: &'static str,
        arbiter: &ArbiterHandle,
        every_ms: u64,
        task: impl FnOnce(TaskLease) -> T,
    ) {
        let ttl_ms = self.settings.maintenance.lease_ttl_ms;
        let lease = TaskLease::new(&self.backends.lease, name, ttl_ms, &self.clock);
        let address = self.start_periodic(name, arbiter, every_ms, task(lease));
        self.leased.lock().push(quiet_one(address).boxed());
    }
}

fn start_relays(
    system: &ActorSystem,
    pipeline: &Pipeline,
    arbiter: &ArbiterHandle,
) -> Vec<Address<OutboxRelay>> {
    let amqp = &system.settings.amqp;
    let deps = RelayDeps {
        outbox: Arc::clone(&pipeline.outbox),
        publisher: Arc::clone(&pipeline.publisher),
        catalog: Arc::clone(&system.catalog),
        process: unique_name(),
        relay_handle: system.relay_handle.clone(),
        installation: Arc::clone(&pipeline.reader.installation),
        queues: amqp.queues,
        backoff: Backoff::new(amqp.reconnect_min_ms, amqp.reconnect_max_ms),
        settings: system.settings.relay.clone(),
        clock: Arc::clone(&system.clock),
        metrics: Arc::clone(&system.metrics),
    };
    let fault_injector = fault_injector(&system.settings, "outbox_relay");
    deps.start_workers(&system.supervisor, arbiter, fault_injector)
}

fn start_consumer(
    system: &ActorSystem,
    pipeline: &Pipeline,
    refresh: &CatalogSync,
    queue: u16,
) -> Address<OrderConsumer> {
    let amqp = &system.settings.amqp;
    let deps = ConsumerDeps {
        queue,
        subscriber: Arc::clone(&pipeline.subscriber),
        publisher: Arc::clone(&pipeline.publisher),
        ledger_writer: system.ledger_writer.clone(),
        catalog: Arc::clone(&system.catalog),
        refresh: Arc::clone(refresh),
        ledger: Arc::clone(&system.backends.ledger),
        breaker: system.breaker.clone(),
        watermarks: Arc::clone(&pipeline.watermarks),
        reader: pipeline.reader.clone(),
        settings: system.settings.consumer.clone(),
        confirm_window: system.settings.relay.confirm_window,
        reconnect: Backoff::new(amqp.reconnect_min_ms, amqp.reconnect_max_ms),
        clock: Arc::clone(&system.clock),
        metrics: Arc::clone(&system.metrics),
    };
    let name = format!("order_consumer/{queue}");
    let factory = move |incarnation| OrderConsumer::new(incarnation, deps.clone());
    system.start_actor(&name, "order_consumer", &system.engine, factory)
}

fn start_event_publisher(system: &ActorSystem, pipeline: &Pipeline, arbiter: &ArbiterHandle) {
    let (ledger, clock) = (&system.backends.ledger, &system.clock);
    let publisher = |lease| EventPublisher {
        feed: OrderFeed::new(
            Arc::clone(ledger),
            Arc::clone(&system.catalog),
            Arc::clone(clock),
            Arc::clone(&pipeline.reader.installation),
        ),
        ledger: Arc::clone(ledger),
        publisher: Arc::clone(&pipeline.publisher),
        lease,
        window: system.settings.relay.confirm_window,
        metrics: Arc::clone(&system.metrics),
    };
    let every_ms = system.settings.maintenance.every_ms;
    system.start_leased("event_publisher", arbiter, every_ms, publisher);
}

fn start_dead_letter_collector(system: &ActorSystem, pipeline: &Pipeline, arbiter: &ArbiterHandle) {
    let collector = DeadLetterCollector {
        ledger: Arc::clone(&system.backends.ledger),
        subscriber: Arc::clone(&pipeline.subscriber),
        reader: pipeline.reader.clone(),
        settings: Arc::clone(&system.settings),
        clock: Arc::clone(&system.clock),
        metrics: Arc::clone(&system.metrics),
    };
    let every_ms = system.settings.maintenance.rescue_every_ms;
    system.start_periodic("dead_letter_collector", arbiter, every_ms, collector);
}
