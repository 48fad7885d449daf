//! The engine without HTTP: actors, stock and ledger of a tier, driven through the gate handle.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use floodgate::actors::{ActorSystem, GateHandle};
use floodgate::config::{Settings, Tier};
use floodgate::db::Ledger;
use floodgate::domain::{
    BucketKey, BucketNo, BuyerId, Currency, Epoch, InvariantId, OrderIntent, Phase, Policy,
    RecordState, RequestId, SaleDraft, SkuDraft, SkuHistory, SlotReturns,
};
use floodgate::messages::BuyAnswer;
use floodgate::observe::metrics::Metrics;
use floodgate::runtime::clock::{Clock, ManualClock, SharedClock, now_monotonic};
use floodgate::runtime::shutdown::Shutdown;
use floodgate::services::audit::{AuditReport, EVIDENCE, audit};
use floodgate::services::catalog::Catalog;
use floodgate::services::sales::{SalesError, SalesService};
use floodgate::tier::Backends;

use super::wait::until;

/// The wall-clock time at which every harness starts.
pub const START_MS: i64 = 1_800_000_000_000;

/// The state of a queued request, in the first opening of its sale.
pub const QUEUED: RecordState = RecordState::Queued { epoch: Epoch(1) };

/// Runs a test inside its own actix system.
pub fn in_system<T>(test: impl Future<Output = T>) -> T {
    actix_rt::System::new().block_on(test)
}

/// A running engine with one open sale of one SKU.
pub struct Harness {
    pub catalog: Arc<Catalog>,
    pub backends: Backends,
    pub actors: Arc<ActorSystem>,
    pub sales: SalesService,
    pub gates: GateHandle,
    pub clock: Arc<ManualClock>,
    requests: AtomicU64,
    /// Before any gate was started.
    begun: Instant,
    resubmit_every: Duration,
}

/// The SKU that a harness sells.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    pub policy: Policy,
    pub stock: u32,
    pub buckets: u16,
}

impl Offer {
    /// A sale of one SKU, `sku`.
    pub fn draft(self, sale: &str, starts_at_ms: i64) -> SaleDraft {
        let sku = SkuDraft {
            no: (),
            id: "sku".parse().unwrap(),
            title: "SKU".to_owned(),
            price: 100,
            initial: self.stock,
            policy: self.policy,
            buckets: self.buckets,
            payment_window_s: 900,
            bar_lapsed: false,
            slot_returns: SlotReturns::default(),
            ends_max: 3,
            queue_timeout_s: 0,
            history: SkuHistory::default(),
        };
        SaleDraft {
            id: sale.parse().unwrap(),
            title: "Sale".to_owned(),
            starts_at_ms,
            ends_at_ms: starts_at_ms + 86_400_000,
            currency: Currency::default(),
            ticket_required: false,
            skus: vec![sku],
        }
    }
}

pub const ONE_PER_BUYER: Policy = Policy::OnePerBuyer { max_quantity: 1 };
pub const UNLIMITED: Policy = Policy::Unlimited { max_quantity: 10 };

impl Harness {
    /// Starts the tier on `ledger`, creates the sale and opens it.
    pub async fn open(settings: &Settings, ledger: Arc<dyn Ledger>, offer: Offer) -> Self {
        let harness = Self::start(settings, ledger);
        harness.create(offer, START_MS - 1000).await;
        harness.set_phase(Phase::Open).await;
        harness
    }

    /// Starts the tier on `ledger` with the ledger's sales.
    pub fn start(settings: &Settings, ledger: Arc<dyn Ledger>) -> Self {
        let clock = Arc::new(ManualClock::new(START_MS));
        let shared: SharedClock = clock.clone();
        Self::on(settings, Backends::embedded(settings.tier, ledger, &shared), clock)
    }

    /// Starts tier `gate` on `ledger` with the ledger's sales.
    pub async fn start_on_redis(settings: &Settings, ledger: Arc<dyn Ledger>) -> Self {
        let clock = Arc::new(ManualClock::new(START_MS));
        let shared: SharedClock = clock.clone();
        let backends = Backends::on_redis(settings, ledger, &shared).await.unwrap();
        Self::on(settings, backends, clock)
    }

    /// Starts the actors on these backends with the ledger's sales.
    pub fn on(settings: &Settings, backends: Backends, clock: Arc<ManualClock>) -> Self {
        let begun = now_monotonic();
        let shared: SharedClock = clock.clone();
        let catalog = Arc::new(Catalog::default());
        let metrics = Arc::new(Metrics::default());
        let shutdown = Shutdown::default();
        let actors = Arc::new(ActorSystem::start(
            settings, &backends, &catalog, &metrics, &shared, &shutdown,
        ));
        let sales = SalesService::new(catalog.clone(), &backends, actors.clone(), shared, settings);
        let gates = actors.gates();
        let requests = AtomicU64::new(1);
        let resubmit_every = Duration::from_millis(settings.gate.resubmit_every_ms);
        Self { catalog, backends, actors, sales, gates, clock, requests, begun, resubmit_every }
    }

    /// Creates the sale `sale` of one SKU, `sku`.
    pub async fn create(&self, offer: Offer, starts_at_ms: i64) {
        self.sales.create(offer.draft("sale", starts_at_ms)).await.unwrap();
    }

    pub async fn set_phase(&self, phase: Phase) {
        self.sales.set_phase(&"sale".parse().unwrap(), phase, None).await.unwrap();
    }

    /// Syncs with the changes of other processes, as the sale loader does.
    pub async fn sync(&self) -> Result<(), SalesError> {
        self.sales.sync_sales(&self.sales.refresh_catalog().await?).await
    }

    /// Waits until each gate has made its first pass: from then on purchases reach the gate at
    /// once, and the gate has resubmitted the unsettled requests that it found. To be called before
    /// the first purchase.
    ///
    /// The steps of a gate are its start, the ticks of its timer, and the ends of its passes: those
    /// beyond the start and the ticks that there can have been are ends of passes.
    pub async fn gates_begun(&self) {
        until("the gates' first pass", || async {
            let reports = self.actors.supervisor.report();
            let ticks = self.begun.elapsed().as_millis() / self.resubmit_every.as_millis();
            let mut gates = reports.iter().filter(|r| r.kind == "stock_gate");
            gates.all(|r| u128::from(r.steps) > 1 + ticks).then_some(())
        })
        .await;
    }

    /// Buys until the gate has decided: returns its answer, or `None` as soon as a unit is reserved
    /// for an answer that takes long.
    pub async fn buy_until_decided(&self, buyer: u64) -> Option<BuyAnswer> {
        let reservation = self.ask(buyer, buyer, 1);
        let home = BucketKey { sku: reservation.sku, bucket: reservation.bucket };
        let stock = &self.backends.stock;
        tokio::select! {
            answer = self.gates.buy(reservation) => Some(answer),
            () = until("a unit", async || {
                stock.record(home, reservation.request, None).await.unwrap().map(drop)
            }) => None,
        }
    }

    /// An intent as the HTTP layer builds it.
    pub fn ask(&self, request: u64, buyer: u64, quantity: u32) -> OrderIntent {
        let sale = self.catalog.sale("sale").unwrap();
        let sku = sale.sku("sku").unwrap();
        let (request, buyer) = (RequestId::new(request).unwrap(), BuyerId::new(buyer).unwrap());
        sku.intent(request, buyer, sale.epoch, quantity, self.clock.wall_ms())
    }

    /// Buys with a given request id.
    pub async fn buy_as(&self, request: u64, buyer: u64, quantity: u32) -> BuyAnswer {
        self.gates.buy(self.ask(request, buyer, quantity)).await
    }

    /// Buys one unit with a fresh request id.
    pub async fn buy(&self, buyer: u64) -> BuyAnswer {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        self.buy_as(request, buyer, 1).await
    }

    /// Free units of each bucket.
    pub async fn free(&self) -> Vec<u32> {
        let sku = self.ask(1, 1, 1).sku;
        let sale = self.catalog.sale("sale").unwrap();
        let buckets = sale.sku("sku").unwrap().buckets;
        let mut free = Vec::new();
        for bucket in (0..buckets).map(BucketNo) {
            let key = BucketKey { sku, bucket };
            free.push(self.backends.stock.snapshot(key).await.unwrap().available);
        }
        free
    }

    /// Number of orders in the ledger.
    pub async fn num_orders(&self) -> usize {
        let sku = self.ask(1, 1, 1).sku;
        self.backends.ledger.ledger_size(sku).await.unwrap().num_orders.try_into().unwrap()
    }

    /// Audits stock and ledger, `later_ms` after the start.
    pub async fn audit(&self, later_ms: i64) -> AuditReport {
        self.try_audit(later_ms).await.unwrap()
    }

    /// [`Self::audit`], where ledger or stock may fail.
    pub async fn try_audit(
        &self,
        later_ms: i64,
    ) -> Result<AuditReport, floodgate::services::audit::Error> {
        let stock = self.backends.stock.as_ref();
        let ledger = self.backends.ledger.as_ref();
        audit(Some(stock), ledger, None, START_MS + later_ms).await
    }

    /// Asserts that the audit evaluated every invariant and found no violation.
    pub async fn assert_holds(&self) {
        let report = self.audit(0).await;
        assert!(report.holds && report.could_tell, "{report:#?}");
        let judged: Vec<_> = report.judged.iter().map(|basis| basis.invariant).collect();
        assert_eq!(judged, EVIDENCE.map(|(invariant, _)| invariant));
    }
}

/// The violated invariants of a report.
pub fn broken(report: &AuditReport) -> Vec<InvariantId> {
    let mut broken: Vec<_> = report.violations.iter().map(|v| v.invariant).collect();
    broken.sort();
    broken.dedup();
    broken
}

/// Settings of a tier with short restart delays.
pub fn settings(tier: Tier) -> Settings {
    let mut settings = Settings::with_ledger("sqlite://unused.db");
    settings.tier = tier;
    settings.supervisor.backoff_min_ms = 1;
    settings.supervisor.backoff_max_ms = 5;
    settings.gate.resubmit_backoff_min_ms = 1;
    settings.gate.resubmit_backoff_max_ms = 10;
    settings
}

pub fn is_repeated_order(answer: &BuyAnswer) -> bool {
    matches!(answer, BuyAnswer::Ordered { replayed: true, .. })
}

pub fn is_placed(answer: &BuyAnswer) -> bool {
    matches!(answer, BuyAnswer::Ordered { .. })
}
