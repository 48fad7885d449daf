//! Accepting connections, in plain text or TLS, so that no client can hold one. The clocks are
//! below the encryption.
//!
//! The listening sockets have `TCP_USER_TIMEOUT`, which accepted connections inherit: a peer that
//! acknowledges nothing is cut by the kernel. They inherit the limit of the send buffer, too. A
//! connection whose read half the client has closed is closed: its answer has no reader.

mod crowd;
mod heads;
mod stream;
mod turns;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use actix_http::error::DispatchError;
use actix_http::{HttpService, Request, Response};
use actix_service::{
    IntoServiceFactory, ServiceFactory, ServiceFactoryExt, apply_fn_factory, fn_service, map_config,
};
use actix_web::body::MessageBody;
use actix_web::dev::{AppConfig, Server};
use actix_web::rt::net::TcpStream;
use actix_web::{Error, HttpResponse};
use prometheus_client::metrics::counter::Counter;
use rustls::ServerConfig;

use crate::net::{self, MaybeTls};
use crowd::OpenConnections;
use heads::LimitedHeads;
use stream::{GuardedStream, WRITE_MAX};
use turns::call_in_turn;

/// Longest time for a client to send the first head of a connection; the stream's clocks limit the
/// later ones.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);

/// Longest time for a client to send the rest of a body that no handler reads.
const UNREAD_BODY_DEADLINE: Duration = Duration::from_secs(1);

/// Bytes of answers that the kernel keeps for a connection; Linux takes twice as many. Without it
/// each slow reader may hold mebibytes.
const SEND_BUFFER: usize = 128 * 1024;

/// Options of a listener.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    pub name: &'static str,
    /// `None`: plain text.
    pub tls: Option<Arc<ServerConfig>>,
    /// Counts the connections that end because what came in is no HTTP, or no TLS.
    pub malformed: Counter,
    /// Answers a request that the application must not see.
    pub refuse: fn(&Request) -> Option<HttpResponse>,
    pub workers: usize,
    pub connections_max: usize,
    pub keep_alive: Duration,
    pub shutdown_timeout_s: u64,
}

/// Whether a connection ended because what came in is no HTTP, or no TLS.
fn is_malformed(error: &DispatchError) -> bool {
    match error {
        DispatchError::Parse(_) => true,
        DispatchError::Io(error) => {
            let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            // A client that does not trust our certificate says so in TLS.
            tls.is_some_and(|error| !matches!(error, rustls::Error::AlertReceived(_)))
        }
        _ => false,
    }
}

/// A listening socket.
pub fn listen(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(
        &listener,
        u32::try_from(WRITE_MAX.as_millis()).unwrap_or(u32::MAX),
    )?;
    // Accepted connections inherit it.
    rustix::net::sockopt::set_socket_send_buffer_size(&listener, SEND_BUFFER)?;
    // Listening again changes the backlog.
    rustix::net::listen(&listener, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(listener)
}

/// Serves an application on a listening socket.
pub fn serve<F, I, S, B>(
    listener: TcpListener,
    options: ListenOptions,
    application: F,
) -> io::Result<Server>
where
    F: Fn() -> I + Send + Clone + 'static,
    I: IntoServiceFactory<S, Request>,
    S: ServiceFactory<Request, Config = AppConfig> + 'static,
    S::Error: Into<Error> + 'static,
    S::InitError: std::fmt::Debug,
    S::Response: Into<Response<B>> + 'static,
    S::Service: 'static,
    B: MessageBody + Unpin + 'static,
{
    let address = listener.local_addr()?;
    let ListenOptions { name, workers, connections_max, keep_alive, refuse, .. } = options;
    let builder = Server::build()
        .workers(workers)
        .max_concurrent_connections(connections_max.div_ceil(workers.max(1)))
        .shutdown_timeout(options.shutdown_timeout_s)
        .disable_signals();
    let (stopping, crowd) =
        (builder.graceful_shutdown_signal(), OpenConnections::new(connections_max));
    let (tls, malformed) = (options.tls, options.malformed);
    let builder = builder.listen(name, listener, move || {
        let (stopping, crowd) = (stopping.clone(), crowd.clone());
        let (tls, malformed) = (tls.clone(), malformed.clone());
        let http = HttpService::build()
            .graceful_shutdown_signal(move || {
                let stopping = stopping.clone();
                async move { stopping.notified().await }
            })
            .keep_alive(keep_alive)
            .client_request_timeout(HEAD_DEADLINE)
            .client_disconnect_timeout(UNREAD_BODY_DEADLINE)
            .h1_allow_half_closed(false)
            .local_addr(address)
            .on_connect_ext(|stream: &LimitedHeads<MaybeTls<GuardedStream<TcpStream>>>, data| {
                data.insert(stream.requests());
            });
        let application = application().into_factory();
        let application = application.map_err(|error| error.into().error_response());
        let application = apply_fn_factory(application, move |request: Request, service| {
            call_in_turn::<_, B>(request, refuse, service)
        });
        fn_service(move |io: TcpStream| {
            let peer = io.peer_addr().ok();
            let (stream, tls) = (GuardedStream::new(io, crowd.enter()), tls.clone());
            let requests = stream.requests();
            async move {
                let stream = match tls {
                    None => MaybeTls::Left(stream),
                    Some(tls) => {
                        net::accept(tls, stream, HEAD_DEADLINE).await.map_err(DispatchError::Io)?
                    }
                };
                Ok::<_, DispatchError>((LimitedHeads::new(stream, requests), peer))
            }
        })
        .and_then(http.h1(map_config(application, |()| AppConfig::default())))
        .map_err(move |error| {
            if is_malformed(&error) {
                malformed.inc();
            }
            error
        })
    })?;
    Ok(builder.run())
}
