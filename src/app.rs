//! The composition root: settings -> ledger -> actors -> HTTP, and the same way back down.
//!
//! Start: open the ledger, migrate it, rebuild the gates, then listen. Stop: readiness off, HTTP
//! drains, gates, relays and intakes become quiet, the consumer settles, the ledger closes; each
//! within the deadline.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::actors::stock_gate::handle::AttemptLimits;
use crate::actors::supervisor::ComponentDown;
use crate::actors::{ActorSystem, GateHandle};
use crate::config::Settings;
use crate::http;
use crate::observe::metrics::Metrics;
use crate::runtime::clock::{SharedClock, SystemClock};
use crate::runtime::shutdown::Shutdown;
use crate::services::catalog::Catalog;
use crate::services::sales::{SalesError, SalesService};
use crate::tier::{self, Backends};

/// Why the server did not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the tier stands on cannot be used.
    #[error(transparent)]
    Backends(#[from] tier::Error),
    /// The gates could not be rebuilt.
    #[error("the gates could not be rebuilt from the ledger")]
    Rebuild(#[from] SalesError),
    /// An address cannot be listened on, or a secret cannot be read.
    #[error(transparent)]
    Http(#[from] http::server::Error),
    /// A component used up its restart budget.
    #[error(transparent)]
    ComponentDown(#[from] ComponentDown),
    /// The operating system refused a thread or a signal handler.
    #[error("the operating system refused {what}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        #[source]
        source: std::io::Error,
    },
    /// The server's own thread died.
    #[error("the server's main thread panicked; the log names the place")]
    MainThreadDied,
}

/// Where a running server listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listening {
    /// The public listener, in a role that sells.
    pub public: Option<SocketAddr>,
    /// The internal listener.
    pub internal: SocketAddr,
}

/// A server, started and listening. Lives on the actix system of the thread that started it.
struct Running {
    settings: Settings,
    listening: Listening,
    shutdown: Shutdown,
    servers: http::server::Listeners,
    actors: Arc<ActorSystem>,
    backends: Backends,
}

/// Runs the server until SIGTERM or SIGINT; blocks. Calls `ready` once both listeners are open.
///
/// # Errors
/// When it cannot start, or when a component used up its restart budget.
pub fn run(settings: Settings, ready: impl FnOnce(Listening)) -> Result<(), Error> {
    actix_rt::System::new().block_on(async move {
        let running = start(settings).await?;
        ready(running.listening);
        let down = running.until_told().await?;
        running.stop().await;
        down.map_or(Ok(()), |down| Err(down.into()))
    })
}

async fn start(settings: Settings) -> Result<Running, Error> {
    let clock: SharedClock = SystemClock::shared();
    let shutdown = Shutdown::default();
    let metrics = Arc::new(Metrics::new());
    let catalog = Arc::new(Catalog::default());
    let backends = tier::open(&settings, &clock).await?;
    let actors =
        Arc::new(ActorSystem::start(&settings, &backends, &catalog, &metrics, &clock, &shutdown));
    let desk = SalesService::new(
        Arc::clone(&catalog),
        &backends,
        Arc::clone(&actors),
        Arc::clone(&clock),
        &settings,
    );
    let num_orders = desk.restore().await?;
    tracing::info!(num_orders, tier = ?settings.tier, "gates rebuilt from the ledger");
    if backends.is_shared {
        actors.start_keeper(desk.clone());
    }
    let refreshed = desk.clone();
    let refresh = move || {
        let desk = refreshed.clone();
        async move { desk.learn().await.map(drop).map_err(|error| error.to_string()) }.boxed()
    };
    actors.start_pipeline(&catalog, Arc::new(refresh));
    let gates = GateHandle::new(
        Arc::clone(&catalog),
        Arc::clone(actors.directory()),
        Arc::clone(&backends.stock),
        AttemptLimits {
            deadline: Duration::from_millis(settings.http.answer_deadline_ms),
            attempts_max: settings.gate.reserve_attempts_max,
        },
    );
    let state = http::state::HttpDeps {
        catalog,
        gates,
        desk,
        ledger: Arc::clone(&backends.ledger),
        stock: Arc::clone(&backends.stock),
        pipeline: backends.pipeline.clone(),
        actors: Arc::clone(&actors),
        metrics,
        clock,
    };
    let servers = http::server::start(&settings, state).await?;
    let listening = Listening { public: servers.public, internal: servers.internal };
    Ok(Running { settings, listening, shutdown, servers, actors, backends })
}

impl Running {
    /// Waits for a signal to stop, or for a component that is down.
    async fn until_told(&self) -> Result<Option<ComponentDown>, Error> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| {
            signal(kind).map_err(|source| Error::System { what: "a signal handler", source })
        };
        let mut terminate = listen(SignalKind::terminate())?;
        let mut interrupt = listen(SignalKind::interrupt())?;
        let down = tokio::select! {
            _ = terminate.recv() => None,
            _ = interrupt.recv() => None,
            down = self.actors.supervisor().component_down() => Some(down),
        };
        Ok(down)
    }

    /// The way down; what is not finished by the deadline is found again by the next start.
    async fn stop(self) {
        let deadline = Duration::from_millis(self.settings.shutdown.deadline_ms);
        tracing::info!("stopping: no new requests");
        self.servers.set_not_ready();
        tokio::time::sleep(Duration::from_millis(self.settings.shutdown.drain_ms)).await;
        if tokio::time::timeout(deadline, self.servers.stop()).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
        let late = self.actors.quiet(deadline).await;
        if !late.is_empty() {
            tracing::warn!(?late, "not idle in time; the next start finishes their work");
        }
        self.shutdown.begin();
        if tokio::time::timeout(deadline, self.backends.ledger.close()).await.is_err() {
            tracing::warn!(
                "the ledger did not close in time; the next start finds what it committed"
            );
        }
        tracing::info!("stopped");
    }
}

/// A server on a thread of its own: for the demo and for tests.
#[derive(Debug)]
pub struct AppThread {
    listening: Listening,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl AppThread {
    /// Starts a server and waits until it listens.
    ///
    /// # Errors
    /// When it cannot start.
    pub fn start(settings: Settings) -> Result<Self, Error> {
        let (stop, told) = oneshot::channel();
        let (ready, listening) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("floodgate".to_owned())
            .spawn(move || {
                actix_rt::System::new().block_on(async move {
                    let running = start(settings).await?;
                    // The starter may have given up waiting; then `told` is closed, too.
                    let _gone = ready.send(running.listening);
                    let down = tokio::select! {
                        _ = told => None,
                        down = running.actors.supervisor().component_down() => Some(down),
                    };
                    running.stop().await;
                    down.map_or(Ok(()), |down| Err(down.into()))
                })
            })
            .map_err(|source| Error::System { what: "a thread", source })?;
        match listening.recv() {
            Ok(listening) => Ok(Self { listening, stop: Some(stop), thread: Some(thread) }),
            Err(_never_listened) => Err(match thread.join() {
                Ok(Err(error)) => error,
                Ok(Ok(())) | Err(_) => Error::MainThreadDied,
            }),
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn listening(&self) -> Listening {
        self.listening
    }

    /// Whether it has ended by itself.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops it and waits; returns what it ended with.
    ///
    /// # Errors
    /// A component that used up its restart budget.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// A component that used up its restart budget.
    pub fn join(mut self) -> Result<(), Error> {
        let thread = self.thread.take();
        thread.map_or(Ok(()), |thread| thread.join().unwrap_or(Err(Error::MainThreadDied)))
    }

    fn end(&mut self) -> Result<(), Error> {
        if let Some(stop) = self.stop.take() {
            let _ended_already = stop.send(());
        }
        let thread = self.thread.take();
        thread.map_or(Ok(()), |thread| thread.join().unwrap_or(Err(Error::MainThreadDied)))
    }
}

impl Drop for AppThread {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(error = &error as &dyn std::error::Error, "the server ended badly");
        }
    }
}
