//! Shared state of the handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use actix_web::web::Data;
use secrecy::ExposeSecret;

use super::server::Error;
use crate::actors::{ActorSystem, GateHandle};
use crate::config::Settings;
use crate::db::{self, Ledger};
use crate::http::buyers::auth::BuyerAuth;
use crate::http::buyers::meter::BuyMeter;
use crate::http::buyers::request_tokens::RequestTokens;
use crate::http::buyers::sales::SalePages;
use crate::http::operators::auth::AdminAuth;
use crate::observe::metrics::Metrics;
use crate::payment::Payments;
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;
use crate::services::dead_letters::DeadLetterService;
use crate::services::order_feed::OrderFeed;
use crate::services::orders::OrderService;
use crate::services::sales::SalesService;
use crate::stock::Stock;
use crate::tier::Pipeline;

/// The components that the handlers call.
pub struct HttpDeps {
    pub catalog: Arc<Catalog>,
    pub gates: GateHandle,
    pub sales: SalesService,
    pub orders: OrderService,
    pub order_feed: OrderFeed,
    /// The payment provider, if there is one.
    pub payments: Option<Payments>,
    /// Not read on the path of a purchase.
    pub ledger: Arc<dyn Ledger>,
    pub stock: Arc<dyn Stock>,
    /// Outbox and broker, in tier `pipeline`.
    pub pipeline: Option<Pipeline>,
    pub actors: Arc<ActorSystem>,
    pub metrics: Arc<Metrics>,
    pub clock: SharedClock,
}

/// State of the HTTP interface, as handlers receive it.
pub type State = Data<HttpState>;

/// State of the HTTP interface, one per process.
pub struct HttpState {
    pub deps: HttpDeps,
    pub settings: Settings,
    pub dead_letters: DeadLetterService,
    pub tokens: RequestTokens,
    pub buyer_auth: BuyerAuth,
    pub admin_auth: AdminAuth,
    pub buy_meter: BuyMeter,
    pub sale_pages: SalePages,
    pub started_at: Instant,
    ready: AtomicBool,
}

impl HttpState {
    /// Reads the signing key and takes a process number from the ledger.
    ///
    /// # Errors
    /// The ledger's error, or a missing secret for authentication of buyers.
    pub async fn new(settings: &Settings, deps: HttpDeps) -> Result<Self, Error> {
        let dead_letters = DeadLetterService::new(
            Arc::clone(&deps.ledger),
            Arc::clone(&deps.stock),
            Arc::clone(&deps.clock),
            deps.pipeline.as_ref(),
            settings.amqp.queues,
        );
        Ok(Self {
            dead_letters,
            tokens: tokens(settings, deps.ledger.as_ref()).await?,
            buyer_auth: BuyerAuth::new(&settings.auth)?,
            admin_auth: AdminAuth::new(&settings.admin, &settings.internal),
            buy_meter: BuyMeter::new(&deps.metrics),
            sale_pages: SalePages::new(settings.http.sales_refresh_ms),
            started_at: deps.clock.now(),
            settings: settings.clone(),
            ready: AtomicBool::new(true),
            deps,
        })
    }

    /// Whether this process accepts purchases: false during shutdown.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// `/readyz` fails from now on.
    pub fn set_not_ready(&self) {
        self.ready.store(false, Ordering::Release);
    }
}

async fn tokens(settings: &Settings, ledger: &dyn Ledger) -> Result<RequestTokens, db::Error> {
    let auth = &settings.auth;
    let key = match &auth.signing_key {
        Some(key) => key.expose_secret().as_bytes().to_vec(),
        None => ledger.secret("request-ids").await?,
    };
    // A counter in the ledger: concurrent processes get different numbers.
    let process = ledger.next_token("process").await?.rem_euclid(1 << 16);
    let process = u16::try_from(process).unwrap_or_default();
    Ok(RequestTokens::new(&key, process, auth.request_id_ttl_s.saturating_mul(1000)))
}
