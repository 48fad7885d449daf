//! The runtime of the client library, with connections of our own kind: the library is built
//! without TLS, and reads and writes our streams.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_io::{AsyncRead, AsyncWrite};
use futures_util::Stream;
use tokio::net::TcpStream;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

use crate::net::MaybeTls;

/// The runtime that this task runs on, as the library's.
pub(super) fn current() -> Runtime<RuntimeParts<Tokio, OwnStreams>> {
    Runtime::new(RuntimeParts::new(Tokio::current(), OwnStreams(Tokio::current())))
}

/// Tokio's timers, and our streams.
#[derive(Debug, Clone)]
pub(super) struct OwnStreams(Tokio);

impl Reactor for OwnStreams {
    type TcpStream = Compat<MaybeTls<TcpStream>>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, every: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(every)
    }

    #[expect(clippy::manual_async_fn, reason = "an async fn would borrow from `self`")]
    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        async move { Ok(MaybeTls::Left(TcpStream::connect(address).await?).compat()) }
    }
}
