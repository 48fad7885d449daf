//! Shared state of the handlers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use actix_web::HttpRequest;
use actix_web::web::Data;
use arc_swap::ArcSwap;
use secrecy::ExposeSecret;

use crate::actors::{ActorSystem, GateHandle};
use crate::config::Settings;
use crate::db::{self, Ledger};
use crate::domain::{BuyerId, Sale, Sku, SkuNo};
use crate::http::admission::challenge::Challenges;
use crate::http::admission::{Admission, LimitedCall};
use crate::http::buyers::auth::BuyerAuth;
use crate::http::buyers::buy::BuyMeter;
use crate::http::buyers::request_ids::RequestIds;
use crate::http::buyers::sales::SalePages;
use crate::http::middleware::embedded::Text;
use crate::http::middleware::problem::{Problem, ProblemCode};
use crate::http::operators::auth::AdminAuth;
use crate::http::operators::health::StorePings;
use crate::http::signing::Signer;
use crate::limits::SharedLimits;
use crate::observe::metrics::Metrics;
use crate::payment::Payments;
use crate::runtime::clock::SharedClock;
use crate::runtime::shutdown::Shutdown;
use crate::services::audit::AuditService;
use crate::services::catalog::Catalog;
use crate::services::dead_letters::DeadLetterService;
use crate::services::order_feed::OrderFeed;
use crate::services::order_life::OrderService;
use crate::services::request_ending::RequestService;
use crate::services::sales::SalesService;
use crate::stock::Stock;
use crate::tickets::TicketUses;
use crate::tier::Pipeline;

/// The components that the handlers call.
pub struct HttpDeps {
    pub catalog: Arc<Catalog>,
    pub gates: GateHandle,
    pub sales: SalesService,
    pub requests: RequestService,
    pub orders: OrderService,
    pub order_feed: OrderFeed,
    /// The payment provider, if there is one.
    pub payments: Option<Payments>,
    /// Not read on the path of a purchase.
    pub ledger: Arc<dyn Ledger>,
    pub stock: Arc<dyn Stock>,
    pub ticket_uses: Arc<dyn TicketUses>,
    /// Only where the limits are shared.
    pub shared_limits: Option<Arc<SharedLimits>>,
    /// Outbox and broker, in tier `pipeline`.
    pub pipeline: Option<Pipeline>,
    pub actors: Arc<ActorSystem>,
    pub signer: Signer,
    pub request_ids: Arc<RequestIds>,
    pub shutdown: Shutdown,
    pub metrics: Arc<Metrics>,
    pub clock: SharedClock,
}

impl HttpDeps {
    /// The ids of a SKU's sale and of the SKU, if this process knows it.
    pub fn names_of(&self, sku: SkuNo) -> Option<(String, String)> {
        let (sale, sku) = self.catalog.of_sku(sku)?;
        Some((sale.id.to_string(), sku.id.to_string()))
    }
}

/// State of the HTTP interface, as handlers receive it.
pub type State = Data<HttpState>;

/// State of the HTTP interface, one per process.
pub struct HttpState {
    pub deps: HttpDeps,
    pub settings: Settings,
    pub dead_letters: DeadLetterService,
    pub audits: AuditService,
    pub challenges: Challenges,
    pub admission: Admission,
    pub buyer_auth: ArcSwap<BuyerAuth>,
    pub admin_auth: ArcSwap<AdminAuth>,
    pub buy_meter: BuyMeter,
    pub store_pings: StorePings,
    pub sale_pages: SalePages,
    /// The page of the storefront, once it was asked for.
    pub storefront: OnceLock<Text>,
    pub started_at: Instant,
    ready: AtomicBool,
}

impl HttpState {
    /// The sale that `look` finds, also if another process has just opened it.
    ///
    /// # Errors
    /// `unknown-sku`, or `busy` if the ledger cannot be asked.
    pub async fn sale(
        &self,
        look: impl Fn(&Catalog) -> Option<Arc<Sale>>,
    ) -> Result<Arc<Sale>, Problem> {
        self.deps.sales.find(look).await?.ok_or_else(|| ProblemCode::UnknownSku.into())
    }

    pub fn new(settings: &Settings, deps: HttpDeps) -> Self {
        let dead_letters = DeadLetterService::new(
            Arc::clone(&deps.ledger),
            deps.requests.clone(),
            Arc::clone(&deps.clock),
            deps.pipeline.as_ref(),
            settings.amqp.queues,
        );
        let audits = AuditService {
            ledger: Arc::clone(&deps.ledger),
            stock: Arc::clone(&deps.stock),
            pipeline: deps.pipeline.clone(),
            sales: deps.sales.clone(),
            clock: Arc::clone(&deps.clock),
            metrics: Arc::clone(&deps.metrics),
            recheck: Duration::from_millis(settings.reconciler.recheck_ms),
            jobs: Arc::default(),
        };
        Self {
            dead_letters,
            audits,
            challenges: Challenges::new(deps.signer.clone(), settings.tickets.clone()),
            admission: Admission::new(
                settings,
                deps.shared_limits.clone(),
                &deps.metrics,
                deps.clock.now(),
            ),
            buyer_auth: ArcSwap::from_pointee(BuyerAuth::new(&settings.auth)),
            admin_auth: ArcSwap::from_pointee(AdminAuth::new(&settings.admin, &settings.internal)),
            buy_meter: BuyMeter::new(&deps.metrics),
            store_pings: StorePings::default(),
            sale_pages: SalePages::new(settings.http.sales_refresh_ms),
            storefront: OnceLock::new(),
            started_at: deps.clock.now(),
            settings: settings.clone(),
            ready: AtomicBool::new(true),
            deps,
        }
    }

    /// The buyer that the credentials of a request name.
    pub fn buyer(&self, request: &HttpRequest) -> Result<BuyerId, Problem> {
        self.buyer_auth.load().buyer(request.headers(), self.deps.clock.wall_ms())
    }

    /// Counts a limited call and authenticates its buyer.
    pub fn admit(&self, request: &HttpRequest, call: LimitedCall) -> Result<BuyerId, Problem> {
        let now = self.deps.clock.now();
        self.admission.check_address(request, call, now)?;
        let buyer = self.buyer(request)?;
        self.admission.check_buyer(buyer, call, now)?;
        Ok(buyer)
    }

    /// [`Self::admit`] of a call that asks ledger or Redis, counted by all processes if the limits
    /// are shared.
    pub async fn admit_to_store(
        &self,
        request: &HttpRequest,
        call: LimitedCall,
    ) -> Result<BuyerId, Problem> {
        let buyer = self.admit(request, call)?;
        self.admission.check_shared(request, buyer, call).await?;
        Ok(buyer)
    }

    /// Counts an admitted call together with other processes, if the limits are shared and one of
    /// these SKUs has units left as far as this process knows: a crowd that comes too late costs
    /// Redis nothing.
    pub async fn admit_shared(
        &self,
        request: &HttpRequest,
        call: LimitedCall,
        buyer: BuyerId,
        skus: &[Arc<Sku>],
    ) -> Result<(), Problem> {
        if skus.iter().all(|sku| self.deps.stock.is_sold_out(sku.no)) {
            return Ok(());
        }
        self.admission.check_shared(request, buyer, call).await
    }

    /// Whether this process accepts purchases: false during shutdown.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// `/readyz` fails from now on, and event streams end.
    pub fn set_not_ready(&self) {
        self.ready.store(false, Ordering::Release);
        self.deps.actors.streams.close();
    }
}

/// The signer and the request ids of this process: reads the signing key, and takes a process
/// number from the ledger.
pub async fn signers(
    settings: &Settings,
    ledger: &dyn Ledger,
) -> Result<(Signer, RequestIds), db::Error> {
    let key = match &settings.auth.signing_key {
        Some(key) => key.expose_secret().as_bytes().to_vec(),
        None => ledger.secret("request-ids").await?,
    };
    // A counter in the ledger: concurrent processes get different numbers.
    let process = ledger.next_token("process").await?.rem_euclid(1 << 16);
    let process = u16::try_from(process).unwrap_or_default();
    let ttl_ms = settings.auth.request_id_ttl_s.saturating_mul(1000);
    Ok((Signer::new(&key), RequestIds::new(&key, process, ttl_ms)))
}
