//! The composition root: settings -> ledger -> actors -> HTTP, and the reverse at shutdown.
//!
//! Start: bind the addresses, open and migrate the ledger, restore the gates, then serve. A start
//! that fails at an address leaves no new ledger. Stop: readiness off, HTTP drains, gates, relays
//! and order consumers become quiet, the ledger writer settles, the ledger closes; each step within
//! the deadline.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use actix_rt::Arbiter;
use futures_util::FutureExt;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::actors::ActorSystem;
use crate::actors::order_consumer::CatalogSync;
use crate::actors::payment_timer::repurchase::NextRequest;
use crate::actors::supervisor::ComponentDown;
use crate::config::Settings;
use crate::http;
use crate::http::buyers::request_ids::RequestIds;
use crate::observe::metrics::Metrics;
use crate::runtime::clock::{SharedClock, SystemClock};
use crate::runtime::shutdown::Shutdown;
use crate::services::catalog::Catalog;
use crate::services::order_feed::OrderFeed;
use crate::services::order_life::{OrderService, OrdersChanged};
use crate::services::sales::{SalesError, SalesService};
use crate::tier::{self, Backends};

/// Why the server did not start, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A backend of the tier is not usable.
    #[error(transparent)]
    Backends(#[from] tier::Error),
    /// The gates could not be restored.
    #[error("the gates could not be rebuilt from the ledger")]
    Rebuild(#[from] SalesError),
    /// An address could not be bound, or a secret could not be read.
    #[error(transparent)]
    Http(#[from] http::server::Error),
    /// A component exhausted its restart budget.
    #[error(transparent)]
    ComponentDown(#[from] ComponentDown),
    /// The operating system refused a thread or a signal handler.
    #[error("the operating system refused {what}")]
    System {
        /// The refused resource.
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// The thread of the server panicked.
    #[error("the server's main thread panicked; the log names the place")]
    ServerThreadPanicked,
}

/// Bound addresses of a running server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundAddresses {
    /// The public listener, in a role that sells.
    pub public: Option<SocketAddr>,
    pub internal: SocketAddr,
}

/// A server that is listening. Bound to the actix system of the thread that started it.
struct Running {
    settings: Settings,
    shutdown: Shutdown,
    servers: http::server::Listeners,
    actors: Arc<ActorSystem>,
    backends: Backends,
}

/// Runs the server until SIGTERM or SIGINT; blocks. Calls `ready` once both listeners serve.
pub fn run(settings: Settings, ready: impl FnOnce(BoundAddresses)) -> Result<(), Error> {
    run_until(settings, ready, terminated)
}

/// Runs the server until the future of `listen` completes or a component is down, which is the
/// error; blocks. Another future of `listen` ends the shutdown.
fn run_until<S: Future<Output = ()>>(
    settings: Settings,
    ready: impl FnOnce(BoundAddresses),
    mut listen: impl FnMut() -> Result<S, Error>,
) -> Result<(), Error> {
    let system = actix_rt::System::new();
    let ended = system.block_on(async move {
        let mut stop = std::pin::pin!(listen()?);
        let mut running = tokio::select! {
            running = start(settings) => running?,
            // Nothing is served yet, and each step of the start may end half-way.
            () = &mut stop => return Ok(()),
        };
        let http::server::Listeners { public, internal, .. } = running.servers;
        ready(BoundAddresses { public, internal });
        let ended = tokio::select! {
            () = &mut stop => Ok(()),
            down = running.actors.supervisor.component_down() => Err(down.into()),
            source = running.servers.ended() => Err(Error::System { what: "a listener", source }),
        };
        let mut again = std::pin::pin!(listen()?);
        tokio::select! {
            () = running.stop() => {}
            () = &mut again => tracing::warn!("server: stopped at once, the next start continues"),
        }
        ended
    });
    // Ends the threads of the actors, which drop their subscriptions and connections.
    actix_rt::System::current().stop();
    let ended_threads = system.run().map_err(|source| Error::System { what: "a thread", source });
    ended.and(ended_threads)
}

/// Listens for SIGTERM and SIGINT, from now on: one that arrives during the start ends it.
pub(crate) fn terminated() -> Result<impl Future<Output = ()>, Error> {
    let mut terminate = listen_for(SignalKind::terminate())?;
    let mut interrupt = listen_for(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

fn listen_for(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|source| Error::System { what: "a signal handler", source })
}

async fn start(settings: Settings) -> Result<Running, Error> {
    // One that arrives during the start is served after it.
    let hangup = listen_for(SignalKind::hangup())?;
    let bound = http::server::BoundListeners::bind(&settings)?;
    let clock: SharedClock = SystemClock::shared();
    let shutdown = Shutdown::default();
    let (metrics, catalog) = (Arc::new(Metrics::default()), Arc::new(Catalog::default()));
    let backends = tier::open(&settings, &clock).await?;
    let actors =
        Arc::new(ActorSystem::start(&settings, &backends, &catalog, &metrics, &clock, &shutdown));
    let sales = SalesService::new(
        Arc::clone(&catalog),
        &backends,
        actors.clone(),
        Arc::clone(&clock),
        &settings,
    );
    let num_orders = sales.restore().await?;
    tracing::info!(num_orders, tier = ?settings.tier, "sales restored");
    if backends.is_shared {
        actors.start_sale_loader(sales.clone());
    }
    actors.start_stock_returner();
    actors.start_pipeline(&catalog_sync(&sales));
    let payments = tier::payments(&settings, backends.ledger.as_ref(), &clock).await?;
    let changed = orders_changed(&actors);
    let ledger = Arc::clone(&backends.ledger);
    let orders =
        OrderService::new(ledger, payments.clone(), &settings.payment, Arc::clone(&changed));
    let installation = tier::installation(backends.ledger.as_ref()).await;
    let installation = installation.map_err(tier::Error::from)?.to_string().into();
    let (ledger, of_sales) = (Arc::clone(&backends.ledger), Arc::clone(&catalog));
    let order_feed = OrderFeed::new(ledger, of_sales, Arc::clone(&clock), installation);
    actors.start_payment_timer(&orders);
    actors.start_payment_consumer(&orders, payments.as_ref());
    let signers = http::state::signers(&settings, backends.ledger.as_ref()).await;
    let (signer, request_ids) = signers.map_err(tier::Error::from)?;
    let request_ids = Arc::new(request_ids);
    actors.start_retaker(next_request(&request_ids), changed);
    let demo = payments.as_ref().and_then(|payments| payments.demo.clone());
    let state = http::state::HttpDeps {
        catalog,
        gates: actors.gates(),
        sales,
        requests: actors.requests.clone(),
        orders,
        order_feed,
        payments,
        ledger: Arc::clone(&backends.ledger),
        stock: Arc::clone(&backends.stock),
        ticket_uses: Arc::clone(&backends.ticket_uses),
        shared_limits: backends.shared_limits.clone(),
        pipeline: backends.pipeline.clone(),
        actors: Arc::clone(&actors),
        signer,
        request_ids,
        shutdown: shutdown.clone(),
        metrics,
        clock,
    };
    let servers = http::server::start(bound, &settings, state)?;
    if let (Some(demo), Some(public)) = (demo, servers.public) {
        shutdown.spawn_on(&Arbiter::current(), demo.send_webhooks(public));
    }
    shutdown.spawn_here(servers.reload_secrets(hangup));
    Ok(Running { settings, shutdown, servers, actors, backends })
}

/// Reads the catalog again.
fn catalog_sync(sales: &SalesService) -> CatalogSync {
    let sales = sales.clone();
    Arc::new(move || {
        let sales = sales.clone();
        async move { sales.refresh_catalog().await.map(drop).map_err(|error| error.to_string()) }
            .boxed()
    })
}

/// Brings changes of orders to their buckets at once.
fn orders_changed(actors: &Arc<ActorSystem>) -> OrdersChanged {
    // Weak: the actors hold the services that hold this.
    let returning = Arc::downgrade(actors);
    Arc::new(move || {
        if let Some(actors) = returning.upgrade() {
            actors.return_stock();
        }
    })
}

/// The request with which a buyer buys again.
fn next_request(request_ids: &Arc<RequestIds>) -> NextRequest {
    let request_ids = Arc::clone(request_ids);
    Arc::new(move |ended, sale: &_, sku, buyer| request_ids.next(ended, sale, sku, buyer))
}

impl Running {
    /// Graceful shutdown. The next start continues what did not finish by the deadline.
    async fn stop(self) {
        let deadline = Duration::from_millis(self.settings.shutdown.deadline_ms);
        tracing::info!("server: stopping, no new requests");
        self.servers.set_not_ready();
        tokio::time::sleep(Duration::from_millis(self.settings.shutdown.drain_ms)).await;
        if tokio::time::timeout(deadline, self.servers.stop()).await.is_err() {
            tracing::warn!("http: connections still open at the deadline");
        }
        let unfinished = self.actors.quiet(deadline).await;
        if !unfinished.is_empty() {
            tracing::warn!(?unfinished, "actors: not drained in time, the next start continues");
        }
        self.shutdown.begin();
        if tokio::time::timeout(deadline, self.actors.supervisor.ended()).await.is_err() {
            tracing::warn!("actors: not ended in time");
        }
        if tokio::time::timeout(deadline, self.backends.ledger.close()).await.is_err() {
            tracing::warn!("ledger: not closed in time, committed orders are safe");
        }
        if let Some(pipeline) = &self.backends.pipeline {
            pipeline.subscriber.close().await;
        }
        tracing::info!("server: stopped");
    }
}

/// A server on its own thread, for the demo and for tests.
#[derive(Debug)]
pub struct AppThread {
    listening: BoundAddresses,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl AppThread {
    /// Starts a server and waits until it listens.
    pub fn start(settings: Settings) -> Result<Self, Error> {
        let stop = Arc::new(Notify::new());
        let stop_requested = Arc::clone(&stop);
        let (ready, listening) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("floodgate".to_owned())
            .spawn(move || {
                let ready = |addresses| {
                    let _caller_gone = ready.send(addresses);
                };
                run_until(settings, ready, || Ok(Arc::clone(&stop_requested).notified_owned()))
            })
            .map_err(|source| Error::System { what: "a thread", source })?;
        match listening.recv() {
            Ok(listening) => Ok(Self { listening, stop, thread: Some(thread) }),
            Err(_never_listened) => Err(match thread.join() {
                Ok(Err(error)) => error,
                Ok(Ok(())) | Err(_) => Error::ServerThreadPanicked,
            }),
        }
    }

    pub fn listening(&self) -> BoundAddresses {
        self.listening
    }

    /// Stops the server and waits for its thread.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.stop.notify_one();
        thread.join().unwrap_or(Err(Error::ServerThreadPanicked))
    }
}

impl Drop for AppThread {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "server: stopped with an error"
            );
        }
    }
}
