//! Starts every actor of the tier, gives access to their handles, and quiets them during shutdown.

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
use crate::runtime::backoff::Backoff;
use crate::runtime::breaker::Breaker;
use crate::runtime::clock::SharedClock;
use crate::runtime::fault_injection::FaultInjector;
use crate::runtime::permits::Permits;
use crate::runtime::shutdown::Shutdown;
use crate::services::catalog::Catalog;
use crate::services::sales::{Gates, SalesService};
use crate::tier::Backends;

/// Mailbox slots beyond the permits, for messages without a permit, which are few.
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
    /// The gates notify the relays through this handle.
    relay_handle: RelayHandle,
    pipeline: OnceLock<PipelineActors>,
    /// One thread for gates and ledger writer: a submission is then a push to a local queue.
    engine: ArbiterHandle,
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
        let consumer = &settings.consumer;
        let deps = Arc::new(WriterDeps {
            ledger: Arc::clone(&backends.ledger),
            stock: Arc::clone(&backends.stock),
            counting: backends.counting,
            batch_max: consumer.batch_max,
            attempts_max: consumer.attempts_max,
            backoff: Backoff::new(consumer.retry_backoff_min_ms, consumer.retry_backoff_max_ms),
            breaker: breaker.clone(),
            clock: Arc::clone(clock),
            metrics: Arc::clone(metrics),
        });
        let orders = start_ledger_writer(settings, deps, &supervisor, engine.clone());
        if backends.counting == Counting::InLedger || backends.is_shared {
            start_stock_refresher(settings, backends, catalog, clock, &supervisor, engine.clone());
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
            relay_handle: RelayHandle::default(),
            pipeline: OnceLock::new(),
            engine,
        }
    }

    fn dispatch(&self) -> Dispatch {
        match self.backends.pipeline {
            Some(_) => {
                let relays = self.settings.role.relays();
                Dispatch::Outbox(relays.then(|| self.relay_handle.clone()))
            }
            None => Dispatch::LedgerWriter(self.orders.clone()),
        }
    }

    fn start_gate(&self, sku: &Arc<Sku>, bucket: BucketNo) -> GateAddress {
        let deps = GateDeps {
            sku: Arc::clone(sku),
            bucket,
            stock: Arc::clone(&self.backends.stock),
            counting: self.backends.counting,
            dispatch: self.dispatch(),
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
            fault_injector: fault_injector(&self.settings, "stock_gate"),
            factory: Arc::new(move |incarnation| StockGate::new(incarnation, deps.clone())),
        });
        GateAddress { permits, address }
    }

    #[must_use]
    pub fn directory(&self) -> &Arc<GateDirectory> {
        &self.directory
    }

    #[must_use]
    pub fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    #[must_use]
    pub fn orders(&self) -> &LedgerWriterHandle {
        &self.orders
    }

    /// Starts the sale loader, which follows the changes of other processes.
    pub fn start_sale_loader(&self, sales: SalesService) {
        let deps = SaleLoaderDeps { sales, every_ms: self.settings.maintenance.every_ms };
        let _address = self.supervisor.start(ChildSpec {
            name: "sale_loader".to_owned(),
            kind: "sale_loader",
            arbiter: self.engine.clone(),
            mailbox: MAILBOX_SPARE,
            fault_injector: fault_injector(&self.settings, "sale_loader"),
            factory: Arc::new(move |incarnation| SaleLoader::new(incarnation, deps.clone())),
        });
    }

    /// Starts the pipeline actors of the role; idempotent, and without effect in a tier without a
    /// broker. `refresh` reads the catalog again.
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
                relay_handle: &self.relay_handle,
                refresh,
                fault_injector,
            })
        });
    }

    /// The circuit breaker of the ledger.
    #[must_use]
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Intents in flight in the ledger writer.
    #[must_use]
    pub fn num_intents_in_flight(&self) -> usize {
        self.orders.permits.num_taken()
    }

    /// Quiets gates, then the pipeline actors, then the ledger writer: each group accepts no new
    /// work and finishes its work in flight. Waits at most `deadline` in all; returns the groups
    /// that did not finish.
    pub async fn quiet(&self, deadline: Duration) -> Vec<&'static str> {
        let mut late = vec!["stock gates", "relays and order consumers", "ledger writer"];
        let in_order = async {
            for gate in self.directory.all() {
                // The requests of a gate that crashes now stay in the stock, for the next start.
                quiet_one(&gate.address).await;
            }
            late.remove(0);
            if let Some(pipeline) = self.pipeline.get() {
                pipeline.quiet().await;
            }
            late.remove(0);
            quiet_one(&self.orders.address).await;
            late.remove(0);
        };
        drop(tokio::time::timeout(deadline, in_order).await);
        late
    }
}

impl Gates for ActorSystem {
    /// Starts nothing where the role does not sell.
    fn open(&self, sku: &Arc<Sku>) {
        if !self.settings.role.sells() || self.directory.has(sku.no) {
            return;
        }
        let gates = (0..sku.buckets).map(|bucket| self.start_gate(sku, BucketNo(bucket))).collect();
        self.directory.put(sku.no, gates);
    }
}

fn fault_injector(settings: &Settings, kind: &str) -> FaultInjector {
    let chosen = settings.faults.panic_in.iter().any(|name| name == kind);
    FaultInjector::new(if chosen { settings.faults.panic_percent } else { 0.0 })
}

fn start_ledger_writer(
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
        fault_injector: fault_injector(settings, "ledger_writer"),
        factory: Arc::new(move |incarnation| LedgerWriter::new(incarnation, Arc::clone(&deps))),
    });
    LedgerWriterHandle { permits, address }
}

fn start_stock_refresher(
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
        fault_injector: fault_injector(settings, "stock_refresher"),
        factory: Arc::new(move |incarnation| StockRefresher::new(incarnation, deps.clone())),
    });
}
