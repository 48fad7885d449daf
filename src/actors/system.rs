//! Starts every actor of the tier, gives access to their handles, and quiets them during shutdown.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix_rt::{Arbiter, ArbiterHandle};
use futures_util::FutureExt;
use futures_util::future::join_all;
use parking_lot::Mutex;

use super::outbox_relay::RelayHandle;
use super::periodic::{Periodic, Task};
use super::pipeline::{self, Quieting};
use super::stock_gate::{Dispatch, GateDeps, GateDirectory, GateHandle, StockGate};
use super::supervisor::{ChildSpec, Supervisor};
use crate::actors::dead_letter_collector::{DeadLetterCounter, ROUNDS_PER_COUNT};
use crate::actors::ledger_writer::batch::WriterDeps;
use crate::actors::ledger_writer::{LedgerWriter, LedgerWriterHandle};
use crate::actors::order_consumer::CatalogSync;
use crate::actors::sale_loader::SaleLoader;
use crate::actors::series_sampler::SeriesSampler;
use crate::actors::status_watcher::{
    LISTEN_EVERY_MS, POLL_EVERY_MS, ResultListener, StatusWatcher, StreamRegistry,
};
use crate::actors::stock_gate::handle::GateAddress;
use crate::actors::stock_refresher::StockRefresher;
use crate::actors::stock_returner::StockReturner;
use crate::actors::supervisor::supervised::{Address, Incarnation, Supervised, quiet_one};
use crate::config::Settings;
use crate::domain::{BucketNo, Counting, Sku, SkuNo};
use crate::messages::RunNow;
use crate::observe::metrics::Metrics;
use crate::observe::series::{self, SampleHistory};
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::runtime::fault_injection::FaultInjector;
use crate::runtime::permits::Permits;
use crate::runtime::shutdown::Shutdown;
use crate::services::catalog::Catalog;
use crate::services::request_ending::RequestService;
use crate::services::sales::{Gates, SalesService};
use crate::services::trusted_time::TrustedTime;
use crate::tier::Backends;

/// Mailbox slots beyond the permits: room for messages without a permit, which are few.
const MAILBOX_SPARE: usize = 1024;

/// The groups of [`ActorSystem::quiet`].
const GATES: &str = "stock gates";
const LEASED: &str = "tasks with a lease";
const PIPELINE: &str = "relays and order consumers";
const WRITER: &str = "ledger writer";

/// The running actors.
pub struct ActorSystem {
    pub(super) settings: Arc<Settings>,
    pub(super) backends: Backends,
    pub(super) catalog: Arc<Catalog>,
    pub(super) clock: SharedClock,
    /// The circuit breaker of the ledger.
    pub breaker: Breaker,
    pub(super) metrics: Arc<Metrics>,
    pub supervisor: Supervisor,
    pub directory: Arc<GateDirectory>,
    pub ledger_writer: LedgerWriterHandle,
    /// Ends queued requests.
    pub requests: RequestService,
    pub(super) time: Arc<TrustedTime>,
    /// The gates notify the relays through this handle.
    pub(super) relay_handle: RelayHandle,
    /// The last hour of this process.
    pub history: Arc<SampleHistory>,
    /// The event streams of this process.
    pub streams: Arc<StreamRegistry>,
    stock_returner: OnceLock<Address<Periodic<StockReturner>>>,
    /// What quiets the actors with a lease.
    pub(super) leased: Mutex<Vec<Quieting>>,
    /// What quiets the relays and order consumers, stage by stage.
    pipeline: Mutex<[Vec<Quieting>; 3]>,
    /// One thread for gates and ledger writer: a submission is then a push to a local queue.
    pub(super) engine: ArbiterHandle,
}

impl ActorSystem {
    /// Starts the actors that do not depend on a sale. Must be called inside an actix system, whose
    /// thread runs the supervisor.
    #[must_use]
    pub fn start(
        settings: &Settings,
        backends: &Backends,
        catalog: &Arc<Catalog>,
        metrics: &Arc<Metrics>,
        clock: &SharedClock,
        shutdown: &Shutdown,
    ) -> Self {
        let supervisor = Supervisor::new(
            settings.supervisor.clone(),
            Arc::clone(clock),
            shutdown.clone(),
            Arbiter::current(),
        );
        let engine = Arbiter::new().handle();
        let breaker = Breaker::new(Arc::clone(clock));
        let deps = Arc::new(WriterDeps {
            ledger: Arc::clone(&backends.ledger),
            stock: Arc::clone(&backends.stock),
            counting: backends.counting,
            settings: settings.consumer.clone(),
            breaker: breaker.clone(),
            clock: Arc::clone(clock),
            metrics: Arc::clone(metrics),
        });
        let permits = Permits::new(settings.consumer.permits);
        let address = supervisor.start(ChildSpec {
            name: "ledger_writer".to_owned(),
            kind: "ledger_writer",
            arbiter: engine.clone(),
            mailbox: permits.total() + MAILBOX_SPARE,
            ends_with_last_address: false,
            fault_injector: fault_injector(settings, "ledger_writer"),
            factory: Arc::new(move |incarnation| LedgerWriter::new(incarnation, Arc::clone(&deps))),
        });
        let time = TrustedTime::new(
            Arc::clone(clock),
            Arc::clone(&backends.ledger),
            Arc::clone(metrics),
            settings.payment.clock_skew_max_ms,
        );
        let system = Self {
            settings: Arc::new(settings.clone()),
            backends: backends.clone(),
            catalog: Arc::clone(catalog),
            clock: Arc::clone(clock),
            breaker,
            metrics: Arc::clone(metrics),
            supervisor,
            directory: Arc::default(),
            ledger_writer: LedgerWriterHandle { permits, address },
            requests: requests(backends, metrics, clock, &time),
            time,
            relay_handle: RelayHandle::default(),
            history: Arc::default(),
            streams: Arc::new(StreamRegistry::new(
                settings.http.connections_max,
                Arc::clone(metrics),
            )),
            stock_returner: OnceLock::new(),
            leased: Mutex::default(),
            pipeline: Mutex::default(),
            engine,
        };
        system.start_readers();
        system
    }

    /// Starts the actors that only read: units left, the samples of this process, numbers of dead
    /// letters, and statuses for event streams.
    fn start_readers(&self) {
        let backends = &self.backends;
        if backends.counting == Counting::InLedger || backends.is_shared {
            let refresher = StockRefresher {
                catalog: Arc::clone(&self.catalog),
                ledger: Arc::clone(&backends.ledger),
                stock: Arc::clone(&backends.stock),
                counting: backends.counting,
                clock: Arc::clone(&self.clock),
            };
            let every_ms = self.settings.http.sales_refresh_ms;
            self.start_periodic("stock_refresher", &self.engine, every_ms, refresher);
        }
        let sampler = SeriesSampler {
            metrics: Arc::clone(&self.metrics),
            history: Arc::clone(&self.history),
            directory: Arc::clone(&self.directory),
            permits: self.ledger_writer.permits.clone(),
            breaker: self.breaker.clone(),
            clock: Arc::clone(&self.clock),
        };
        self.start_periodic("series_sampler", &self.engine, series::EVERY_MS, sampler);
        if self.settings.role.maintains() {
            let counter = DeadLetterCounter {
                ledger: Arc::clone(&backends.ledger),
                metrics: Arc::clone(&self.metrics),
            };
            let round_ms = self.settings.maintenance.rescue_every_ms;
            let every_ms = round_ms.saturating_mul(ROUNDS_PER_COUNT);
            self.start_periodic("dead_letter_counter", &self.engine, every_ms, counter);
        }
        if !self.settings.role.sells() {
            return;
        }
        let (registry, stock) = (&self.streams, &backends.stock);
        let watcher = StatusWatcher {
            registry: Arc::clone(registry),
            stock: Arc::clone(stock),
            clock: Arc::clone(&self.clock),
        };
        self.start_periodic("status_watcher", &self.engine, POLL_EVERY_MS, watcher);
        if backends.is_shared {
            let listener =
                ResultListener { registry: Arc::clone(registry), stock: Arc::clone(stock) };
            self.start_periodic("result_listener", &self.engine, LISTEN_EVERY_MS, listener);
        }
    }

    /// Starts an actor that ends with the process.
    pub(super) fn start_actor<A: Supervised>(
        &self,
        name: &str,
        kind: &'static str,
        arbiter: &ArbiterHandle,
        factory: impl Fn(Incarnation) -> A + Send + Sync + 'static,
    ) -> Address<A> {
        self.supervisor.start(ChildSpec {
            name: name.to_owned(),
            kind,
            arbiter: arbiter.clone(),
            mailbox: MAILBOX_SPARE,
            ends_with_last_address: false,
            fault_injector: fault_injector(&self.settings, kind),
            factory: Arc::new(factory),
        })
    }

    /// Starts an actor that repeats a task, and is named by it.
    pub(super) fn start_periodic<T: Task>(
        &self,
        name: &'static str,
        arbiter: &ArbiterHandle,
        every_ms: u64,
        task: T,
    ) -> Address<Periodic<T>> {
        let task = Arc::new(task);
        self.start_actor(name, name, arbiter, move |incarnation| {
            Periodic::new(incarnation, every_ms, Arc::clone(&task))
        })
    }

    fn start_gate(&self, sku: &Arc<Sku>, bucket: BucketNo) -> GateAddress {
        let relays = self.settings.role.relays().then(|| self.relay_handle.clone());
        let deps = GateDeps {
            sku: Arc::clone(sku),
            bucket,
            stock: Arc::clone(&self.backends.stock),
            counting: self.backends.counting,
            dispatch: match self.backends.pipeline {
                Some(_) => Dispatch::Outbox(relays),
                None => Dispatch::LedgerWriter(self.ledger_writer.clone()),
            },
            directory: Arc::clone(&self.directory),
            requests: self.requests.clone(),
            settings: self.settings.gate.clone(),
            breaker: self.breaker.clone(),
            clock: Arc::clone(&self.clock),
            metrics: Arc::clone(&self.metrics),
        };
        let permits = Permits::new(self.settings.gate.permits);
        let address = self.supervisor.start(ChildSpec {
            name: format!("stock_gate/{}/{bucket}", sku.no),
            kind: "stock_gate",
            arbiter: self.engine.clone(),
            mailbox: permits.total() + MAILBOX_SPARE,
            ends_with_last_address: true,
            fault_injector: fault_injector(&self.settings, "stock_gate"),
            factory: Arc::new(move |incarnation| StockGate::new(incarnation, deps.clone())),
        });
        GateAddress { permits, address }
    }

    /// A handle that sends purchases to the gates.
    pub fn gates(&self) -> GateHandle {
        let (catalog, directory) = (Arc::clone(&self.catalog), Arc::clone(&self.directory));
        let (stock, clock) = (Arc::clone(&self.backends.stock), Arc::clone(&self.clock));
        GateHandle::new(catalog, directory, stock, clock, &self.settings)
    }

    /// Starts the sale loader, which follows the changes of other processes.
    pub fn start_sale_loader(&self, sales: SalesService) {
        let every_ms = self.settings.maintenance.every_ms;
        self.start_periodic("sale_loader", &self.engine, every_ms, SaleLoader { sales });
    }

    /// Starts the actor that brings changes of orders to their buckets, in processes that maintain.
    /// The buckets in memory must be loaded before. Idempotent.
    pub fn start_stock_returner(&self) {
        if !self.settings.role.maintains() {
            return;
        }
        self.stock_returner.get_or_init(|| {
            let returner = StockReturner {
                ledger: Arc::clone(&self.backends.ledger),
                stock: Arc::clone(&self.backends.stock),
                catalog: Arc::clone(&self.catalog),
                clock: Arc::clone(&self.clock),
                metrics: Arc::clone(&self.metrics),
                unread_since_ms: Mutex::default(),
            };
            let every_ms = self.settings.maintenance.every_ms;
            self.start_periodic("stock_returner", &self.engine, every_ms, returner)
        });
    }

    /// Orders have changed in this process: their buckets learn it now. Elsewhere, and without this
    /// call, at the next interval of a process that maintains.
    pub fn return_stock(&self) {
        if let Some(returner) = self.stock_returner.get().and_then(Address::get) {
            // Crashed, or full of the same message: the next run reads the same events.
            drop(returner.try_send(RunNow));
        }
    }

    /// Starts the pipeline actors of the role, once; without effect in a tier without a broker.
    /// `refresh` reads the catalog again.
    pub fn start_pipeline(&self, refresh: &CatalogSync) {
        if let Some(pipeline) = &self.backends.pipeline {
            *self.pipeline.lock() = pipeline::start(self, pipeline, refresh);
        }
    }

    /// Quiets gates, then the pipeline actors, then the ledger writer; beside these two the actors
    /// with a lease, whose runs may be long. Each group accepts no new work and finishes its work
    /// in flight. Waits at most `deadline` in all; returns the groups that did not finish.
    pub async fn quiet(&self, deadline: Duration) -> Vec<&'static str> {
        let groups = [GATES, LEASED, PIPELINE, WRITER];
        let late = Mutex::new(groups.to_vec());
        let finished = |group: &str| late.lock().retain(|name| *name != group);
        let leased = std::mem::take(&mut *self.leased.lock());
        let leased = join_all(leased).map(|_| finished(LEASED));
        let pipeline = std::mem::take(&mut *self.pipeline.lock());
        let rest = async {
            for stage in pipeline {
                join_all(stage).await;
            }
            finished(PIPELINE);
            quiet_one(self.ledger_writer.address.clone()).await;
            finished(WRITER);
        };
        let all = async {
            for gate in self.directory.all() {
                // The requests of a gate that crashes now stay in the stock, for the next start.
                quiet_one(gate.address).await;
            }
            finished(GATES);
            tokio::join!(leased, rest);
        };
        drop(tokio::time::timeout(deadline, all).await);
        late.into_inner()
    }
}

impl Gates for ActorSystem {
    /// Starts nothing where the role does not sell.
    fn open(&self, sku: &Arc<Sku>) {
        if !self.settings.role.sells() {
            return;
        }
        self.directory.open(sku.no, || {
            (0..sku.buckets).map(|bucket| self.start_gate(sku, BucketNo(bucket))).collect()
        });
    }

    fn close(&self, sku: SkuNo) -> bool {
        self.directory.close(sku)
    }
}

pub(super) fn fault_injector(settings: &Settings, kind: &str) -> FaultInjector {
    let chosen = settings.faults.panic_in.iter().any(|name| name == kind);
    FaultInjector::new(if chosen { settings.faults.panic_percent } else { 0.0 })
}

fn requests(
    backends: &Backends,
    metrics: &Arc<Metrics>,
    clock: &SharedClock,
    time: &Arc<TrustedTime>,
) -> RequestService {
    let (ledger, stock) = (Arc::clone(&backends.ledger), Arc::clone(&backends.stock));
    RequestService::new(ledger, stock, Arc::clone(clock), Arc::clone(metrics), Arc::clone(time))
}
