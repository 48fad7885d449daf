//! Starts every actor of the tier, hands out the ways to reach them, and quiets them on the way
//! down.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix_rt::{Arbiter, ArbiterHandle};

use super::outbox_relay::RelayHandle;
use super::pipeline::{PipelineActors, PipelineDeps};
use super::stock_gate::{Dispatch, GateDeps, StockGate};
use super::supervisor::{ChildSpec, Supervisor};
use crate::actors::ledger_writer::LedgerWriter;
use crate::actors::ledger_writer::handle::LedgerWriterHandle;
use crate::actors::ledger_writer::placing::WriterDeps;
use crate::actors::order_consumer::CatalogSync;
use crate::actors::sale_loader::{SaleLoader, SaleLoaderDeps};
use crate::actors::stock_gate::directory::{GateAddress, GateDirectory};
use crate::actors::stock_refresher::{RefresherDeps, StockRefresher};
use crate::actors::supervisor::supervised::quiet_one;
use crate::config::Settings;
use crate::domain::{BucketNo, Counting, Sku};
use crate::observe::metrics::Metrics;
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::runtime::fault_injection::FaultInjector;
use crate::runtime::permits::Permits;
use crate::runtime::shutdown::Shutdown;
use crate::services::catalog::Catalog;
use crate::services::sales::SalesService;
use crate::tier::Backends;

/// Mailbox room beyond the permits, for messages that are few by their nature.
const MAILBOX_SPARE: usize = 1024;

/// The running actors.
pub struct ActorSystem {
    settings: Settings,
    backends: Backends,
    clock: SharedClock,
    breaker: Breaker,
    metrics: Arc<Metrics>,
    supervisor: Supervisor,
    directory: Arc<GateDirectory>,
    orders: LedgerWriterHandle,
    /// Told by gates that the outbox has something.
    relay_door: RelayHandle,
    pipeline: OnceLock<PipelineActors>,
    /// One thread for gates and consumer: a submission is then no more than a push to a queue.
    engine: ArbiterHandle,
}

impl ActorSystem {
    /// Starts what does not depend on a sale. Must be called inside an actix system, whose thread
    /// then runs the supervisor.
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
            batch_max: settings.consumer.batch_max,
            attempts_max: settings.consumer.attempts_max,
            backoff_min_ms: settings.consumer.retry_backoff_min_ms,
            backoff_max_ms: settings.consumer.retry_backoff_max_ms,
            breaker: breaker.clone(),
            clock: Arc::clone(clock),
            metrics: Arc::clone(metrics),
        });
        let orders = start_consumer(settings, deps, &supervisor, engine.clone());
        if backends.counting == Counting::InLedger || backends.is_shared {
            start_teller(settings, backends, catalog, clock, &supervisor, engine.clone());
        }
        Self {
            settings: settings.clone(),
            backends: backends.clone(),
            clock: Arc::clone(clock),
            breaker,
            metrics: Arc::clone(metrics),
            supervisor,
            directory: Arc::default(),
            orders,
            relay_door: RelayHandle::default(),
            pipeline: OnceLock::new(),
            engine,
        }
    }

    /// Starts the gates of a SKU, once, in a role that sells.
    pub fn open_gates(&self, sku: &Arc<Sku>) {
        if !self.settings.role.sells() || self.directory.has(sku.no) {
            return;
        }
        let doors = (0..sku.buckets).map(|bucket| self.start_gate(sku, BucketNo(bucket))).collect();
        self.directory.put(sku.no, doors);
    }

    fn handing(&self) -> Dispatch {
        match self.backends.pipeline {
            Some(_) => {
                let relays = self.settings.role.relays();
                Dispatch::Outbox(relays.then(|| self.relay_door.clone()))
            }
            None => Dispatch::Consumer(self.orders.clone()),
        }
    }

    fn start_gate(&self, sku: &Arc<Sku>, bucket: BucketNo) -> GateAddress {
        let deps = GateDeps {
            sku: Arc::clone(sku),
            bucket,
            stock: Arc::clone(&self.backends.stock),
            counting: self.backends.counting,
            handing: self.handing(),
            directory: Arc::clone(&self.directory),
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
            drill: drill_of(&self.settings, "stock_gate"),
            factory: Arc::new(move |life| StockGate::new(life, deps.clone())),
        });
        GateAddress { permits, address }
    }

    /// The gates.
    #[must_use]
    pub fn directory(&self) -> &Arc<GateDirectory> {
        &self.directory
    }

    /// Who keeps the actors alive.
    #[must_use]
    pub fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// The way to the order consumer.
    #[must_use]
    pub fn orders(&self) -> &LedgerWriterHandle {
        &self.orders
    }

    /// Starts the keeper, which looks after what other processes change.
    pub fn start_keeper(&self, desk: SalesService) {
        let deps = SaleLoaderDeps { desk, every_ms: self.settings.maintenance.every_ms };
        let _address = self.supervisor.start(ChildSpec {
            name: "sale_loader".to_owned(),
            kind: "sale_loader",
            arbiter: self.engine.clone(),
            mailbox: MAILBOX_SPARE,
            drill: drill_of(&self.settings, "sale_loader"),
            factory: Arc::new(move |life| SaleLoader::new(life, deps.clone())),
        });
    }

    /// Starts what is between gates and ledger in this role, once; nothing in a tier that hands
    /// intents over directly. `refresh` brings the catalog up to date.
    pub fn start_pipeline(&self, catalog: &Arc<Catalog>, refresh: CatalogSync) {
        let Some(pipeline) = &self.backends.pipeline else { return };
        self.pipeline.get_or_init(|| {
            PipelineActors::start(&PipelineDeps {
                settings: &self.settings,
                backends: &self.backends,
                pipeline,
                catalog,
                metrics: &self.metrics,
                clock: &self.clock,
                supervisor: &self.supervisor,
                engine: &self.engine,
                breaker: &self.breaker,
                orders: &self.orders,
                door: &self.relay_door,
                refresh,
                drill: drill_of,
            })
        });
    }

    /// Whether the ledger is worth asking.
    #[must_use]
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Intents inside the consumer.
    #[must_use]
    pub fn num_intents_inside(&self) -> usize {
        self.orders.permits.num_taken()
    }

    /// Asks gates, then relays and intakes, then the consumer, to finish what is in hand and take
    /// nothing new; waits until they have, at most `deadline` in all. Returns the names of those
    /// that had not.
    pub async fn quiet(&self, deadline: Duration) -> Vec<&'static str> {
        let mut late = vec!["stock gates", "relays and intakes", "order consumer"];
        let in_order = async {
            for door in self.directory.all() {
                // A gate that dies now leaves its work in the stock, for the next start.
                quiet_one(&door.address).await;
            }
            late.remove(0);
            if let Some(pipeline) = self.pipeline.get() {
                pipeline.quiet().await;
            }
            late.remove(0);
            quiet_one(&self.orders.address).await;
            late.remove(0);
        };
        // Names are taken off as their actors become quiet; what is left was late.
        drop(tokio::time::timeout(deadline, in_order).await);
        late
    }
}

fn drill_of(settings: &Settings, kind: &str) -> FaultInjector {
    let chosen = settings.faults.panic_in.iter().any(|name| name == kind);
    FaultInjector::new(if chosen { settings.faults.panic_percent } else { 0.0 })
}

fn start_consumer(
    settings: &Settings,
    deps: Arc<WriterDeps>,
    supervisor: &Supervisor,
    arbiter: ArbiterHandle,
) -> LedgerWriterHandle {
    let permits = Permits::new(settings.consumer.permits);
    let address = supervisor.start(ChildSpec {
        name: "ledger_writer".to_owned(),
        kind: "ledger_writer",
        arbiter,
        mailbox: permits.total() + MAILBOX_SPARE,
        drill: drill_of(settings, "ledger_writer"),
        factory: Arc::new(move |life| LedgerWriter::new(life, Arc::clone(&deps))),
    });
    LedgerWriterHandle { permits, address }
}

fn start_teller(
    settings: &Settings,
    backends: &Backends,
    catalog: &Arc<Catalog>,
    clock: &SharedClock,
    supervisor: &Supervisor,
    arbiter: ArbiterHandle,
) {
    let deps = RefresherDeps {
        catalog: Arc::clone(catalog),
        ledger: Arc::clone(&backends.ledger),
        stock: Arc::clone(&backends.stock),
        counting: backends.counting,
        clock: Arc::clone(clock),
        every_ms: settings.http.sales_refresh_ms,
    };
    let _address = supervisor.start(ChildSpec {
        name: "stock_refresher".to_owned(),
        kind: "stock_refresher",
        arbiter,
        mailbox: MAILBOX_SPARE,
        drill: drill_of(settings, "stock_refresher"),
        factory: Arc::new(move |life| StockRefresher::new(life, deps.clone())),
    });
}
