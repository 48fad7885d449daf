//! A TCP link that can be broken in every way a network breaks, while it is in use.
//!
//! One proxy stands for one link. It knows no protocol: it is used between the program and Redis,
//! and between the program and its database.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    ToServer,
    ToClient,
}

/// What happens to bytes, in connections that are open and in new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Bytes stay on their way and arrive late, when the mode changes: a partition that heals
    /// within the patience of TCP. `None`: both ways.
    Hold(Option<Way>),
    /// Bytes vanish; what the connection says afterwards makes no sense. `None`: both ways.
    Lose(Option<Way>),
    /// Every connection is reset, new ones at once.
    Reset,
    /// Every piece arrives this much later.
    Delay(Duration),
    /// So many bytes in a second.
    Throttle(u32),
}

/// Resets one connection, once, at an exact point.
#[derive(Debug)]
enum Trap {
    After {
        way: Way,
        left: usize,
    },
    /// The server must not read it.
    Request(Vec<u8>),
    /// The server read it and answers; the answer must not be read. With the connection on which it
    /// was seen.
    Reply(Vec<u8>, Option<usize>),
}

/// What is to happen to a piece of bytes.
enum Fate {
    Forward,
    /// Forward so many bytes, then reset.
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

/// A running proxy; its connections end with it.
pub struct FaultProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

impl FaultProxy {
    /// A link to `target` that passes everything.
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

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where new connections lead to from now on.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.shared.target.lock() = target;
    }

    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Passes everything again; a trap that did not close is taken away.
    pub fn heal(&self) {
        self.shared.trap.lock().take();
        self.set(Mode::Pass);
    }

    /// Resets one connection after so many more bytes in one direction, counted over all
    /// connections.
    pub fn cut_after(&self, way: Way, bytes: usize) {
        *self.shared.trap.lock() = Some(Trap::After { way, left: bytes });
    }

    /// Resets the connection whose client next sends `pattern`, before the server sees it.
    pub fn cut_request(&self, pattern: impl AsRef<[u8]>) {
        *self.shared.trap.lock() = Some(Trap::Request(pattern.as_ref().to_vec()));
    }

    /// Resets the connection whose client next sends `pattern`, when the server has read it and
    /// begins to answer. Exact if nothing else waits for an answer on that connection.
    pub fn cut_reply(&self, pattern: impl AsRef<[u8]>) {
        *self.shared.trap.lock() = Some(Trap::Reply(pattern.as_ref().to_vec(), None));
    }

    /// How many traps have closed.
    pub fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::SeqCst)
    }

    /// How many bytes have vanished.
    pub fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// How many connections were ever accepted.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many connections are open.
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

/// The connection will end with RST instead of FIN.
fn reset(stream: &TcpStream) {
    drop(stream.set_zero_linger());
}

/// Copies until the stream ends (`false`) or a trap closes (`true`).
async fn pump(
    mut from: tokio::net::tcp::ReadHalf<'_>,
    mut to: tokio::net::tcp::WriteHalf<'_>,
    way: Way,
    number: usize,
    shared: &Shared,
) -> bool {
    let mut mode = shared.mode.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    let mut seen = Vec::new();
    loop {
        let length = from.read(&mut buffer).await.unwrap_or(0);
        // Whether these bytes, or the news that there are no more, go on.
        let held = |mode: &Mode| matches!(mode, Mode::Hold(on) if on.is_none_or(|on| on == way));
        let lost = |mode: &Mode| matches!(mode, Mode::Lose(on) if on.is_none_or(|on| on == way));
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
        let (fate, pieces) = (shared.fate(way, number, &mut seen, &buffer[..length]), now);
        let (passed, cut) = match fate {
            Fate::Forward => (length, false),
            Fate::Cut(passed) => (passed, true),
        };
        if forward(&mut to, &buffer[..passed], pieces).await.is_err() {
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
            for piece in bytes.chunks(hundredth) {
                to.write_all(piece).await?;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            return Ok(());
        }
        Mode::Pass | Mode::Hold(_) | Mode::Lose(_) | Mode::Reset => {}
    }
    to.write_all(bytes).await
}

impl Shared {
    /// Looks whether a trap closes on these bytes. `seen` is what this pump saw before and may be
    /// the beginning of a pattern.
    fn fate(&self, way: Way, number: usize, seen: &mut Vec<u8>, bytes: &[u8]) -> Fate {
        let mut trap = self.trap.lock();
        let cut = match trap.as_mut() {
            Some(Trap::After { way: on, left }) if *on == way => {
                let cut = (bytes.len() >= *left).then_some(*left);
                *left = left.saturating_sub(bytes.len());
                cut
            }
            Some(Trap::Request(pattern)) if way == Way::ToServer => {
                appears(seen, bytes, pattern).then_some(0)
            }
            Some(Trap::Reply(pattern, on)) if way == Way::ToServer => {
                if on.is_none() && appears(seen, bytes, pattern) {
                    *on = Some(number);
                }
                None
            }
            Some(Trap::Reply(_, on)) if *on == Some(number) => Some(0),
            _ => None,
        };
        let Some(passed) = cut else { return Fate::Forward };
        *trap = None;
        Fate::Cut(passed)
    }
}

/// Whether `pattern` ends in these bytes; remembers what may be its beginning.
fn appears(seen: &mut Vec<u8>, bytes: &[u8], pattern: &[u8]) -> bool {
    seen.extend_from_slice(bytes);
    let found = seen.windows(pattern.len()).any(|window| window == pattern);
    seen.drain(..seen.len().saturating_sub(pattern.len() - 1));
    found
}
