//! Connects to RabbitMQ within a time limit.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use lapin::tcp::{AsyncTcpStream, OwnedTLSConfig};
use lapin::types::LongString;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties, ErrorKind};
use parking_lot::Mutex;

use super::error_message;
use super::health::BrokerHealthError;

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

/// Connects within `limit`. `name` is the connection name that the broker lists. Must run on the
/// runtime that drives the connection.
pub(super) async fn open(
    uri: &AMQPUri,
    name: &str,
    limit: Duration,
) -> Result<(Connection, ShutdownGuard), BrokerHealthError> {
    let health_error = |error: &lapin::Error| {
        let code = match error.kind() {
            ErrorKind::ProtocolError(answer) => Some(answer.get_id()),
            _ => None,
        };
        BrokerHealthError { code, reason: error_message(error) }
    };
    let guard = ShutdownGuard::default();
    let socket_cell = guard.0.clone();
    let runtime = lapin::runtime::default_runtime().map_err(|error| health_error(&error))?;
    let properties = ConnectionProperties::default()
        .with_connection_name(LongString::from(name))
        .with_client_property("product".into(), "floodgate".into())
        .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
    let connecting = Connection::connector(
        uri.clone(),
        runtime,
        async move |uri, runtime| {
            let (host, port) = (uri.authority.host, uri.authority.port);
            let dial = async {
                let addresses: Vec<_> =
                    tokio::net::lookup_host((host.as_str(), port)).await?.collect();
                AsyncTcpStream::connect(&runtime, addresses).await
            };
            let stream = tokio::time::timeout(limit, dial)
                .await
                .map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))??;
            if let AsyncTcpStream::Plain(plain) = &stream {
                let socket: OwnedFd = plain.get_ref().as_fd().try_clone_to_owned()?;
                *socket_cell.lock() = Some(socket.into());
            }
            Ok(match uri.scheme {
                AMQPScheme::AMQP => stream,
                AMQPScheme::AMQPS => {
                    stream.into_tls(&host, OwnedTLSConfig::default().as_ref()).await?
                }
            })
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
