//! What handlers reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

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
use crate::runtime::clock::SharedClock;
use crate::services::catalog::Catalog;
use crate::services::dead_letters::DeadLetterService;
use crate::services::sales::SalesService;
use crate::stock::Stock;
use crate::tier::Pipeline;

/// The running system that the interface stands in front of.
pub struct HttpDeps {
    /// The sales as buyers see them.
    pub catalog: Arc<Catalog>,
    /// The way to the gates.
    pub gates: GateHandle,
    /// The operators' verbs.
    pub desk: SalesService,
    /// Where orders are true; never read on the way of a purchase.
    pub ledger: Arc<dyn Ledger>,
    /// Where units are counted.
    pub stock: Arc<dyn Stock>,
    /// What is between the gates and the ledger, in tier `pipeline`.
    pub pipeline: Option<Pipeline>,
    /// What lives in this process.
    pub actors: Arc<ActorSystem>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Time.
    pub clock: SharedClock,
}

/// What handlers reach: the system, and what the interface makes of the settings once.
pub struct HttpState {
    /// The running system.
    pub deps: HttpDeps,
    /// The settings in effect.
    pub settings: Settings,
    /// The operators' verbs on dead letters.
    pub letters: DeadLetterService,
    /// Request ids.
    pub tokens: RequestTokens,
    /// Who is the buyer.
    pub buyer_auth: BuyerAuth,
    /// Who is an operator.
    pub admin_auth: AdminAuth,
    /// Counters of the buy route.
    pub buy_meter: BuyMeter,
    /// Sales as JSON.
    pub pages: SalePages,
    /// When the interface was opened.
    pub opened: Instant,
    ready: AtomicBool,
}

impl HttpState {
    /// Reads secrets and takes a process number from the ledger.
    pub async fn new(settings: &Settings, deps: HttpDeps) -> Result<Self, Error> {
        let letters = DeadLetterService::new(
            Arc::clone(&deps.ledger),
            Arc::clone(&deps.stock),
            Arc::clone(&deps.clock),
            deps.pipeline.as_ref(),
            settings.amqp.queues,
        );
        Ok(Self {
            letters,
            tokens: tokens(settings, deps.ledger.as_ref()).await?,
            buyer_auth: BuyerAuth::new(&settings.auth)?,
            admin_auth: AdminAuth::new(&settings.admin, &settings.internal),
            buy_meter: BuyMeter::new(&deps.metrics),
            pages: SalePages::new(settings.http.sales_refresh_ms),
            opened: deps.clock.now(),
            settings: settings.clone(),
            ready: AtomicBool::new(true),
            deps,
        })
    }

    /// Whether buyers are welcome.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// From here on buyers are asked to go elsewhere.
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
    // Processes that run at the same time get different numbers.
    let process = ledger.next_token("process").await?.rem_euclid(1 << 16);
    let process = u16::try_from(process).unwrap_or_default();
    Ok(RequestTokens::new(&key, process, auth.request_id_ttl_s.saturating_mul(1000)))
}
