//! Connects to RabbitMQ within a time limit.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use lapin::tcp::AsyncTcpStream;
use lapin::types::LongString;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties, ErrorKind};
use parking_lot::Mutex;
use tokio_util::compat::TokioAsyncReadCompatExt;

use super::health::BrokerHealthError;
use super::runtime::current;
use super::{RabbitOptions, error_message};
use crate::net::{MaybeTls, Trust, explain};
use crate::runtime::clock::now_monotonic;

/// Shuts the socket down when dropped.
///
/// The library runs each connection on a thread of its own, which ends with the socket. A
/// connection that hangs in its handshake, or that the broker blocks, would otherwise hold thread
/// and socket without limit.
#[derive(Debug, Default)]
pub(super) struct ShutdownGuard(Arc<Mutex<Option<TcpStream>>>);

impl ShutdownGuard {
    /// Shuts the socket down, which ends the connection and the library's thread.
    pub(super) fn shutdown(&self) {
        if let Some(socket) = self.0.lock().take() {
            // Fails if the peer has already closed the socket.
            drop(socket.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Opens and, for `amqps`, encrypts a connection to the broker. `socket_cell` gets its socket.
pub(super) async fn dial(
    uri: &AMQPUri,
    trust: Option<&Trust>,
    socket_cell: &Mutex<Option<TcpStream>>,
) -> io::Result<MaybeTls<tokio::net::TcpStream>> {
    let (host, port) = (uri.authority.host.as_str(), uri.authority.port);
    let connection = tokio::net::TcpStream::connect((host, port)).await?;
    let socket: OwnedFd = connection.as_fd().try_clone_to_owned()?;
    *socket_cell.lock() = Some(socket.into());
    match (&uri.scheme, trust) {
        (AMQPScheme::AMQP, _) => Ok(MaybeTls::Left(connection)),
        (AMQPScheme::AMQPS, Some(trust)) => trust.secure(host, connection).await,
        (AMQPScheme::AMQPS, None) => Err(io::Error::other("no authority is trusted")),
    }
}

/// Connects to one of the nodes within `limit`: to a random one, or to the next if that fails, with
/// an equal part of the remaining time for each. `name` is the connection name that the broker
/// lists. Must run on the runtime that drives the connection.
///
/// # Errors
/// No node could be used: the reasons of all, and the first reply code.
pub(super) async fn open(
    options: &RabbitOptions,
    name: &str,
    limit: Duration,
) -> Result<(Connection, ShutdownGuard), BrokerHealthError> {
    let deadline = now_monotonic() + limit;
    let num_nodes = options.uris.len();
    let nodes = options.uris.iter().cycle().skip(fastrand::usize(..num_nodes));
    let (mut first_code, mut reasons) = (None, Vec::new());
    for (uri, untried) in nodes.zip((1..=num_nodes).rev()) {
        let left = deadline.saturating_duration_since(now_monotonic());
        let untried = u32::try_from(untried).unwrap_or(u32::MAX);
        match open_node(uri, options, name, left / untried).await {
            Ok(opened) => return Ok(opened),
            Err(BrokerHealthError { code, reason }) => {
                first_code = first_code.or(code);
                let node = (num_nodes > 1).then(|| format!("{}: ", node_name(uri)));
                reasons.push(node.unwrap_or_default() + &reason);
            }
        }
    }
    Err(BrokerHealthError { code: first_code, reason: reasons.join("; ") })
}

/// Host and port.
pub(super) fn node_name(uri: &AMQPUri) -> String {
    format!("{}:{}", uri.authority.host, uri.authority.port)
}

async fn open_node(
    uri: &AMQPUri,
    options: &RabbitOptions,
    name: &str,
    limit: Duration,
) -> Result<(Connection, ShutdownGuard), BrokerHealthError> {
    let health_error = |error: &lapin::Error| {
        let code = match error.kind() {
            ErrorKind::ProtocolError(answer) => Some(answer.get_id()),
            _ => None,
        };
        let reason = explain(error_message(error), "amqp.ca_file", "amqp.url");
        BrokerHealthError { code, reason }
    };
    let guard = ShutdownGuard::default();
    let socket_cell = guard.0.clone();
    let mut uri = uri.clone();
    uri.query.heartbeat.get_or_insert(options.heartbeat_s);
    let trust = options.trust.clone();
    let properties = ConnectionProperties::default()
        .with_connection_name(LongString::from(name))
        .with_client_property("product".into(), "floodgate".into())
        .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
    let connecting = Connection::connector(
        uri,
        current(),
        async move |uri, _runtime| {
            let dialing = dial(&uri, trust.as_ref(), &socket_cell);
            let dialed = tokio::time::timeout(limit, dialing).await;
            let dialed = dialed.map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))??;
            Ok(AsyncTcpStream::Plain(dialed.compat()))
        },
        properties,
    );
    match tokio::time::timeout(limit, connecting).await {
        Ok(Ok(connection)) => Ok((connection, guard)),
        Ok(Err(error)) => Err(health_error(&error)),
        Err(_) => {
            Err(BrokerHealthError { code: None, reason: format!("no connection within {limit:?}") })
        }
    }
}
