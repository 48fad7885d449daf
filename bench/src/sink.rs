//! A server that does nothing: the yardstick of what clients cost the machine that they share with
//! the server under test.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Shorter pieces of requests are not answered.
const REQUEST_MIN: usize = 128;

/// Reads all that it is sent, and answers each read with as many bytes, until drop.
#[derive(Debug)]
pub struct Sink {
    pub address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl Sink {
    /// Serves on a thread of its own.
    pub fn start() -> Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        std::thread::Builder::new().name("sink".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! { _ = stopped => Ok(()), failed = serve(listener) => failed }
            })
        })?;
        Ok(Self { address, _stop: stop })
    }
}

async fn serve(listener: std::net::TcpListener) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        if let Ok((connection, _)) = listener.accept().await {
            connections.spawn(swallow(connection));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn swallow(mut connection: TcpStream) {
    let mut bytes = vec![0; 8 * 1024];
    while let Ok(read) = connection.read(&mut bytes).await
        && read > 0
    {
        let answer = bytes.get(..read).unwrap_or_default();
        if read >= REQUEST_MIN && connection.write_all(answer).await.is_err() {
            return;
        }
    }
}
