//! A TCP proxy that injects network faults into open connections.
//!
//! One proxy is one network path. The proxy parses no protocol: tests put it between Floodgate and
//! Redis, the database or the broker.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// The direction of a byte stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    ToServer,
    ToClient,
}

/// What the proxy does with bytes, in open and in new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Bytes are held back until the mode changes: a partition that heals before TCP gives up.
    /// `None`: both ways.
    Hold(Option<Way>),
    /// Bytes are dropped, which corrupts the stream. `None`: both ways.
    Lose(Option<Way>),
    /// Open and new connections are reset.
    Reset,
    /// Every chunk is forwarded this much later.
    Delay(Duration),
    /// Bytes per second.
    Throttle(u32),
}

/// Resets one connection once, at an exact point of its byte stream.
#[derive(Debug)]
enum Trap {
    After {
        way: Way,
        left: usize,
    },
    /// Before the server reads this pattern.
    Request(Vec<u8>),
    /// After the server read this pattern and before the client reads the reply; with the number of
    /// the connection that sent the pattern.
    Reply(Vec<u8>, Option<usize>),
}

/// How to handle one chunk.
enum ChunkAction {
    Forward,
    /// Forward this many bytes, then reset the connection.
    Cut(usize),
}

struct Shared {
    target: Mutex<SocketAddr>,
    mode: watch::Sender<Mode>,
    trap: Mutex<Option<Trap>>,
    cuts: AtomicUsize,
    lost: AtomicUsize,
    accepted: AtomicUsize,
    open: AtomicUsize,
}

/// A running proxy. Dropping it closes its connections.
pub struct FaultProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

impl FaultProxy {
    /// A proxy that forwards everything to `target`.
    pub fn start(target: SocketAddr) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime =
            builder.worker_threads(1).thread_name("fault-proxy").enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            mode: watch::Sender::new(Mode::Pass),
            trap: Mutex::default(),
            cuts: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
        });
        runtime.spawn(accept(listener, shared.clone()));
        Self { addr, shared, runtime: Some(runtime) }
    }

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sets the target of new connections.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.shared.target.lock() = target;
    }

    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Forwards everything again and removes a trap that has not fired.
    pub fn heal(&self) {
        self.shared.trap.lock().take();
        self.set(Mode::Pass);
    }

    /// Resets one connection after `bytes` more bytes in one direction, counted over all
    /// connections.
    pub fn cut_after(&self, way: Way, bytes: usize) {
        *self.shared.trap.lock() = Some(Trap::After { way, left: bytes });
    }

    /// Resets the connection whose client next sends `pattern`, before the server sees it.
    pub fn cut_request(&self, pattern: impl AsRef<[u8]>) {
        *self.shared.trap.lock() = Some(Trap::Request(pattern.as_ref().to_vec()));
    }

    /// Resets the connection whose client next sends `pattern`, after the server has read the
    /// pattern and begins to reply. Exact if no other request is pending on that connection.
    pub fn cut_reply(&self, pattern: impl AsRef<[u8]>) {
        *self.shared.trap.lock() = Some(Trap::Reply(pattern.as_ref().to_vec(), None));
    }

    /// Number of traps that fired.
    pub fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::SeqCst)
    }

    /// Number of dropped bytes.
    pub fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// Number of connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Number of open connections.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let listener = TcpListener::from_std(listener).unwrap();
    while let Ok((client, _)) = listener.accept().await {
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst);
        let shared = shared.clone();
        tokio::runtime::Handle::current().spawn(async move {
            shared.open.fetch_add(1, Ordering::SeqCst);
            serve(client, number, &shared).await;
            shared.open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

async fn serve(mut client: TcpStream, number: usize, shared: &Shared) {
    let target = *shared.target.lock();
    let Ok(mut server) = TcpStream::connect(target).await else { return reset(&client) };
    drop((client.set_nodelay(true), server.set_nodelay(true)));
    let cut = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let mut mode = shared.mode.subscribe();
        tokio::select! {
            cut = pump(from_client, to_server, Way::ToServer, number, shared) => cut,
            cut = pump(from_server, to_client, Way::ToClient, number, shared) => cut,
            _ = mode.wait_for(|mode| *mode == Mode::Reset) => true,
        }
    };
    if cut {
        reset(&client);
        reset(&server);
    }
}

/// Makes the connection end with RST instead of FIN.
fn reset(stream: &TcpStream) {
    drop(stream.set_zero_linger());
}

/// Copies until the stream ends (`false`) or a trap fires (`true`).
async fn pump(
    mut from: tokio::net::tcp::ReadHalf<'_>,
    mut to: tokio::net::tcp::WriteHalf<'_>,
    way: Way,
    number: usize,
    shared: &Shared,
) -> bool {
    let mut mode = shared.mode.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    let mut tail = Vec::new();
    loop {
        let length = from.read(&mut buffer).await.unwrap_or(0);
        let held = |mode: &Mode| matches!(mode, Mode::Hold(on) if on.is_none_or(|on| on == way));
        let lost = |mode: &Mode| matches!(mode, Mode::Lose(on) if on.is_none_or(|on| on == way));
        // The end of the stream is held back like bytes.
        if length == 0 {
            drop(mode.wait_for(|mode| !held(mode) && !lost(mode)).await);
            return false;
        }
        drop(mode.wait_for(|mode| !held(mode)).await);
        let now = *mode.borrow();
        if lost(&now) {
            shared.lost.fetch_add(length, Ordering::SeqCst);
            continue;
        }
        let (passed, cut) = match shared.check_trap(way, number, &mut tail, &buffer[..length]) {
            ChunkAction::Forward => (length, false),
            ChunkAction::Cut(passed) => (passed, true),
        };
        if forward(&mut to, &buffer[..passed], now).await.is_err() {
            return false;
        }
        if cut {
            shared.cuts.fetch_add(1, Ordering::SeqCst);
            return true;
        }
    }
}

async fn forward(
    to: &mut tokio::net::tcp::WriteHalf<'_>,
    bytes: &[u8],
    mode: Mode,
) -> std::io::Result<()> {
    match mode {
        Mode::Delay(by) => tokio::time::sleep(by).await,
        Mode::Throttle(per_second) => {
            let hundredth = usize::try_from(per_second / 100).unwrap().max(1);
            for chunk in bytes.chunks(hundredth) {
                to.write_all(chunk).await?;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            return Ok(());
        }
        Mode::Pass | Mode::Hold(_) | Mode::Lose(_) | Mode::Reset => {}
    }
    to.write_all(bytes).await
}

impl Shared {
    /// Fires the trap if these bytes reach its point. `tail` holds the preceding bytes that may
    /// begin a pattern.
    fn check_trap(&self, way: Way, number: usize, tail: &mut Vec<u8>, bytes: &[u8]) -> ChunkAction {
        let mut trap = self.trap.lock();
        let cut = match trap.as_mut() {
            Some(Trap::After { way: on, left }) if *on == way => {
                let cut = (bytes.len() >= *left).then_some(*left);
                *left = left.saturating_sub(bytes.len());
                cut
            }
            Some(Trap::Request(pattern)) if way == Way::ToServer => {
                find_pattern(tail, bytes, pattern).then_some(0)
            }
            Some(Trap::Reply(pattern, on)) if way == Way::ToServer => {
                if on.is_none() && find_pattern(tail, bytes, pattern) {
                    *on = Some(number);
                }
                None
            }
            Some(Trap::Reply(_, on)) if *on == Some(number) => Some(0),
            _ => None,
        };
        let Some(passed) = cut else { return ChunkAction::Forward };
        *trap = None;
        ChunkAction::Cut(passed)
    }
}

/// Whether `pattern` ends in `bytes`. Keeps in `tail` the last bytes, which may begin the pattern.
fn find_pattern(tail: &mut Vec<u8>, bytes: &[u8], pattern: &[u8]) -> bool {
    tail.extend_from_slice(bytes);
    let found = tail.windows(pattern.len()).any(|window| window == pattern);
    tail.drain(..tail.len().saturating_sub(pattern.len() - 1));
    found
}
