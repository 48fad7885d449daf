//! The way to the broker: a connection of the client library over a socket that can be cut.
//!
//! The library runs each connection on a thread of its own, which ends when its socket does. A
//! connection that hangs in its handshake, or that the broker has blocked, would keep thread and
//! socket for as long as the broker likes: hence the cut.

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

use super::health::BrokerHealthError;
use super::said;

/// Cuts the connection when it is dropped.
#[derive(Debug, Default)]
pub(super) struct ShutdownGuard(Arc<Mutex<Option<TcpStream>>>);

impl ShutdownGuard {
    /// Ends the connection, and the library's thread with it.
    pub(super) fn pull(&self) {
        if let Some(socket) = self.0.lock().take() {
            // Fails where the other side was quicker.
            drop(socket.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        self.pull();
    }
}

/// Connects within the time, under a name that the broker shows. Runs on the runtime that shall
/// drive the connection.
pub(super) async fn connect(
    uri: &AMQPUri,
    name: &str,
    limit: Duration,
) -> Result<(Connection, ShutdownGuard), BrokerHealthError> {
    let trouble = |error: &lapin::Error| {
        let code = match error.kind() {
            ErrorKind::ProtocolError(answer) => Some(answer.get_id()),
            _ => None,
        };
        BrokerHealthError { code, reason: said(error) }
    };
    let plug = ShutdownGuard::default();
    let slot = plug.0.clone();
    let runtime = lapin::runtime::default_runtime().map_err(|error| trouble(&error))?;
    let properties = ConnectionProperties::default()
        .with_connection_name(LongString::from(name))
        .with_client_property("product".into(), "floodgate".into())
        .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
    let connecting = Connection::connector(
        uri.clone(),
        runtime,
        async move |uri, runtime| {
            let (host, port) = (uri.authority.host, uri.authority.port);
            let dialing = async {
                let places: Vec<_> =
                    tokio::net::lookup_host((host.as_str(), port)).await?.collect();
                AsyncTcpStream::connect(&runtime, places).await
            };
            let stream = tokio::time::timeout(limit, dialing)
                .await
                .map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))??;
            if let AsyncTcpStream::Plain(plain) = &stream {
                let socket: OwnedFd = plain.get_ref().as_fd().try_clone_to_owned()?;
                *slot.lock() = Some(socket.into());
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
        Ok(Ok(connection)) => Ok((connection, plug)),
        Ok(Err(error)) => Err(trouble(&error)),
        Err(_) => {
            Err(BrokerHealthError { code: None, reason: format!("no connection within {limit:?}") })
        }
    }
}
