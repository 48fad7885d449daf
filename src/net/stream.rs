//! A stream in plain text or TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsStream};
use tokio_util::either::Either;

/// A stream in plain text (left) or TLS (right).
pub type MaybeTls<T> = Either<T, Box<TlsStream<T>>>;

/// Accepts TLS of a client within a limit.
pub async fn accept<T>(tls: Arc<ServerConfig>, io: T, within: Duration) -> io::Result<MaybeTls<T>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let accepting = TlsAcceptor::from(tls).accept(io);
    let accepted = tokio::time::timeout(within, accepting).await;
    let accepted = accepted.map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))?;
    Ok(MaybeTls::Right(Box::new(accepted?.into())))
}
