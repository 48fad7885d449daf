//! A stream in plain text or TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsAcceptor, TlsStream};

/// A stream in plain text or TLS.
#[derive(Debug)]
pub enum MaybeTls<T> {
    Plain(T),
    Tls(Box<TlsStream<T>>),
}

impl<T: AsyncRead + AsyncWrite + Unpin> MaybeTls<T> {
    /// Accepts TLS of a client within a limit.
    ///
    /// # Errors
    /// What came in is no TLS, or not in time.
    pub async fn accept(tls: Arc<ServerConfig>, io: T, within: Duration) -> io::Result<Self> {
        let accepting = TlsAcceptor::from(tls).accept(io);
        let accepted = tokio::time::timeout(within, accepting).await;
        let accepted = accepted.map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))?;
        Ok(Self::Tls(Box::new(accepted?.into())))
    }
}

impl<T> MaybeTls<T> {
    /// The stream below.
    pub fn get_ref(&self) -> &T {
        match self {
            Self::Plain(io) => io,
            Self::Tls(tls) => tls.get_ref().0,
        }
    }
}

/// Calls a method of the stream that it is.
macro_rules! delegate {
    ($self:ident.$method:ident($($arg:expr),*)) => {
        match $self.get_mut() {
            Self::Plain(io) => Pin::new(io).$method($($arg),*),
            Self::Tls(tls) => Pin::new(tls.as_mut()).$method($($arg),*),
        }
    };
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for MaybeTls<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        delegate!(self.poll_read(cx, buffer))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for MaybeTls<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        delegate!(self.poll_write(cx, buffer))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self.poll_write_vectored(cx, buffers))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(io) => io.is_write_vectored(),
            Self::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self.poll_shutdown(cx))
    }
}
