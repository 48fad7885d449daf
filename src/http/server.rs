//! The two listeners: bound together before the ledger is opened, served after the actors have
//! started, stopped in order. Only a role that sells has the public one.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use actix_http::{ConnectionType, Request};
use actix_web::dev::{Server, ServerHandle};
use actix_web::http::header::{HeaderValue, UPGRADE};
use actix_web::web::{Data, PathConfig, QueryConfig};
use actix_web::{App, HttpResponse, web};
use futures_util::future::select_all;
use rustls::ServerConfig;
use tokio::signal::unix::Signal;
use tokio::task::JoinHandle;

use super::connection::{self, ListenOptions};
use super::routes::{INTERNAL, PUBLIC, RouteEntry, mount};
use super::secret_reload;
use super::state::{HttpDeps, HttpState};
use crate::config::Settings;
use crate::http::middleware::problem::Problem;
use crate::http::middleware::trace_context::TraceContext;
use crate::http::middleware::watch::no_such_path;
use crate::runtime::shutdown::spawn_server;

/// Enough for probes, metrics collectors and operators.
const INTERNAL_CONNECTIONS_MAX: usize = 256;

/// Why the listeners did not start: an address could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({key}): {source}; {}", remedy(source, key))]
pub struct Error {
    address: SocketAddr,
    /// The configuration key of the address.
    key: &'static str,
    source: io::Error,
}

fn remedy(error: &io::Error, key: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another program uses it: stop that one, or set {key} to another port")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("this machine does not have that address: set {key} to one it has")
        }
        io::ErrorKind::PermissionDenied => {
            format!("ports below 1024 need a privilege: set {key} to a higher one")
        }
        _ => format!("check {key}"),
    }
}

/// The open listeners.
pub struct Listeners {
    /// Bound address for buyers, in a role that sells.
    pub public: Option<SocketAddr>,
    /// Bound address for operators, probes and metrics collectors.
    pub internal: SocketAddr,
    state: Data<HttpState>,
    /// In stop order: public first.
    handles: Vec<ServerHandle>,
    /// The running servers.
    tasks: Vec<JoinHandle<io::Result<()>>>,
}

impl Listeners {
    /// `/readyz` fails from now on, so that load balancers stop routing here; event streams end.
    pub fn set_not_ready(&self) {
        self.state.set_not_ready();
    }

    /// Reads the secrets from their files again at each SIGHUP.
    pub fn reload_secrets(&self, hangup: Signal) -> impl Future<Output = ()> + use<> {
        secret_reload::at_each(hangup, self.state.clone())
    }

    /// Completes if a listener ends before [`Self::stop`]: its threads could not be started, or it
    /// panicked.
    pub async fn ended(&mut self) -> io::Error {
        let (ended, _, _) = select_all(&mut self.tasks).await;
        let ended = ended.map_err(io::Error::other).and_then(|ended| ended);
        ended.err().unwrap_or_else(|| io::Error::other("it ended without an error"))
    }

    /// Graceful stop: accepts no new connections and finishes running requests. The public listener
    /// stops first, so that operators can observe.
    pub async fn stop(&self) {
        for handle in &self.handles {
            handle.stop(true).await;
        }
    }
}

/// The bound addresses of the role. Connections wait in their listen queues until [`start`].
#[derive(Debug)]
pub struct BoundListeners {
    /// In a role that sells.
    public: Option<BoundListener>,
    internal: BoundListener,
}

impl BoundListeners {
    /// Binds both addresses, or none.
    pub fn bind(settings: &Settings) -> Result<Self, Error> {
        let bind = |key, address| {
            let socket = connection::listen(address, settings.http.backlog);
            let socket = socket.map_err(|source| Error { address, key, source })?;
            let address = socket.local_addr().unwrap_or(address);
            Ok::<_, Error>(BoundListener { key, address, socket })
        };
        let public = settings.role.sells().then(|| bind("http.bind", settings.http.bind));
        let public = public.transpose()?;
        Ok(Self { public, internal: bind("internal.bind", settings.internal.bind)? })
    }
}

/// A bound address with its configuration key.
#[derive(Debug)]
struct BoundListener {
    key: &'static str,
    address: SocketAddr,
    socket: TcpListener,
}

/// Starts the listeners; they serve until [`Listeners::stop`], which waits for running requests up
/// to `shutdown.deadline_ms`. Installs no signal handlers.
///
/// # Errors
/// No listener is running then.
pub fn start(
    bound: BoundListeners,
    settings: &Settings,
    deps: HttpDeps,
) -> Result<Listeners, Error> {
    let state = Data::new(HttpState::new(settings, deps));
    let (public, internal) = (bound.public.as_ref().map(|it| it.address), bound.internal.address);
    let (workers, max) = (settings.http.workers_effective(), settings.http.connections_max);
    let buyers = |bound| serve(&state, PUBLIC, bound, settings.http.tls.as_ref(), workers, max);
    let buyers = bound.public.map(buyers).transpose()?;
    let (bound, tls) = (bound.internal, settings.internal.tls.as_ref());
    let operators = serve(&state, INTERNAL, bound, tls, 1, INTERNAL_CONNECTIONS_MAX)?;
    let servers: Vec<Server> = buyers.into_iter().chain([operators]).collect();
    let handles = servers.iter().map(Server::handle).collect();
    let tasks = servers.into_iter().map(spawn_server).collect();
    Ok(Listeners { public, internal, state, handles, tasks })
}

/// Refuses a switch to WebSocket: actix-http would take all that follows for a body without end.
/// Other offers, such as `h2c`, are ignored (RFC 9110, section 7.8).
fn refuse_websocket(request: &Request) -> Option<HttpResponse> {
    let is_websocket = |value: &HeaderValue| {
        let mut protocols = value.to_str().unwrap_or_default().split(',');
        protocols.any(|protocol| protocol.trim().eq_ignore_ascii_case("websocket"))
    };
    let headers = &request.head().headers;
    headers.get_all(UPGRADE).any(is_websocket).then(|| {
        let problem = Problem::invalid("WebSocket is not spoken here: leave out Upgrade");
        let mut answer = problem.respond(&TraceContext::of(headers));
        answer.head_mut().set_connection_type(ConnectionType::Close);
        answer
    })
}

/// The server of a bound address; it serves once it is spawned.
fn serve(
    state: &Data<HttpState>,
    table: &'static [RouteEntry],
    BoundListener { key, address, socket }: BoundListener,
    tls: Option<&Arc<ServerConfig>>,
    workers: usize,
    connections_max: usize,
) -> Result<Server, Error> {
    let (settings, shared) = (&state.settings, state.clone());
    let app = move || {
        App::new()
            .app_data(shared.clone())
            .app_data(
                PathConfig::default()
                    .error_handler(|error, _| Problem::invalid(format!("path: {error}")).into()),
            )
            .app_data(
                QueryConfig::default()
                    .error_handler(|error, _| Problem::invalid(format!("query: {error}")).into()),
            )
            .configure(|config| mount(table, config))
            .default_service(web::route().to(no_such_path))
    };
    let options = ListenOptions {
        name: key,
        tls: tls.cloned(),
        malformed: state.deps.metrics.http_malformed.clone(),
        refuse: refuse_websocket,
        workers,
        connections_max,
        keep_alive: Duration::from_millis(settings.http.keep_alive_ms),
        shutdown_timeout_s: settings.shutdown.deadline_ms.div_ceil(1000),
    };
    connection::serve(socket, options, app).map_err(|source| Error { address, key, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_is_reported_with_the_remedy() {
        let error = Error {
            address: "127.0.0.1:8080".parse().unwrap(),
            key: "http.bind",
            source: io::Error::from(io::ErrorKind::AddrInUse),
        };
        let text = error.to_string();
        for part in ["127.0.0.1:8080", "http.bind", "another program", "another port"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
