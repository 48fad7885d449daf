//! Honest buyers alone, then beside hostile clients of their server: their success, their p99, and
//! the probes.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use floodgate::runtime::clock::now_monotonic;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use loadgen::{BuyRequest, Load, Pace};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

use crate::admin::SKU;
use crate::harness::{ENDLESS, Harness, Measured, Product};
use crate::http::warm_up;
use crate::process::{Background, poll};

const HOSTILE: u64 = 5_000;
/// With fewer writes in a round the hostile clients had no core, and the round measures nothing:
/// most clients write once a second.
const WRITES_MIN: u64 = HOSTILE / 5;
/// What the settings advise where buyers may be hostile; honest purchases are of one buyer each.
const LIMITS: [&str; 2] = ["limits.buyer_per_second=1", "limits.buyer_per_minute=20"];
/// Honest buyers, each with a connection and a purchase a second.
const HONEST: usize = 500;
const LATE_LIMIT: Duration = Duration::from_secs(2);

/// Loopback addresses of the hostile clients, which share them: one has too few ports.
const ADDRESSES: u64 = 16;
/// The hostile clients begin within this time.
const START_MAX: Duration = Duration::from_secs(3);
const STARTED_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause of a slow client between two bytes.
const BYTE_PAUSE: Duration = Duration::from_secs(1);
/// Mean pause of a flood between two bursts: together they send about 13,000 requests a second.
const BURST_PAUSE: Duration = Duration::from_secs(10);
/// Requests of a burst, sent without waiting for answers.
const BURST: usize = 64;
/// Pause of a client between two attacks.
const ATTACK_PAUSE: Duration = Duration::from_secs(1);

const PROBE_PERIOD: Duration = Duration::from_millis(250);
/// A probe that takes longer counts as missed.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// A request that is answered at once.
const ANSWERED: &str = "GET /v1/sales HTTP/1.1\r\nHost: a\r\n\r\n";
/// A request whose answer is large.
const LARGE: &str = "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: a\r\n\r\n";

/// The goals of honest buyers beside hostile clients.
pub async fn hostile(harness: &mut Harness) -> Result<()> {
    let mut num_attacks = 0;
    for number in 1..=harness.args.rounds {
        let product = harness.product(&LIMITS.map(str::to_owned)).await?;
        let another = harness.sale(&product, ENDLESS).await?;
        warm_up(harness.load(&product.server, &another)).await?;
        let sale = harness.sale(&product, ENDLESS).await?;
        let alone = honest(harness, &product, &sale).await?;
        let crowd = HostileCrowd::start(product.server.public, &sale).await?;
        let before = crowd.num_writes();
        let (beside, probes) = probed(harness, &product, &sale).await?;
        let writes = crowd.num_writes() - before;
        harness.void_unless(writes >= WRITES_MIN, || format!("{sale}: {writes} hostile writes"));
        let attacks = crowd.stop()?;
        harness.check(&product.admin, &sale, alone.accepted() + beside.accepted()).await?;
        let p99 = [&beside, &alone].map(|side| side.report.p99_us());
        let shares = [&beside, &alone].map(share);
        harness.note(&format!(
            "round {number}: {attacks} attacks, {writes} writes; {} probes, {} missed, most {} ms",
            probes.num,
            probes.missed,
            probes.longest.as_millis()
        ));
        num_attacks += attacks;
        harness.pair("hostile", beside.sample(shares[0]), alone.sample(shares[1]));
        harness.pair("hostile p99", beside.sample(p99[0]), alone.sample(p99[1]));
        harness.number("hostile probes", probes.missed as f64);
    }
    let remark = format!(
        "{HONEST} honest buyers, one purchase a second each; {HOSTILE} hostile clients made \
         {num_attacks} attacks in all rounds"
    );
    harness.remark("hostile", remark);
    Ok(())
}

/// The share of purchases that succeeded, in percent.
fn share(measured: &Measured) -> f64 {
    measured.report.succeeded() as f64 / measured.report.attempted.max(1) as f64 * 100.0
}

/// One round of the honest buyers.
async fn honest(harness: &mut Harness, product: &Product, sale: &str) -> Result<Measured> {
    let load = Load {
        pace: Pace::Open { per_second: HONEST as f64, late_limit: LATE_LIMIT },
        connections: HONEST,
        ..harness.load(&product.server, sale)
    };
    harness.measure(Some(product), load).await
}

#[derive(Default)]
struct Probes {
    num: u64,
    missed: u64,
    longest: Duration,
}

/// One round of the honest buyers, with probes all the time.
async fn probed(
    harness: &mut Harness,
    product: &Product,
    sale: &str,
) -> Result<(Measured, Probes)> {
    let mut probes = Probes::default();
    let probing = async {
        loop {
            for path in ["/livez", "/readyz"] {
                let begun = now_monotonic();
                let is_answered = product.admin.probe(path, PROBE_TIMEOUT).await;
                probes.num += 1;
                probes.missed += u64::from(!is_answered);
                probes.longest = probes.longest.max(begun.elapsed());
            }
            sleep(PROBE_PERIOD).await;
        }
    };
    let measured = tokio::select! {
        measured = honest(harness, product, sale) => measured?,
        () = probing => unreachable!("probes have no end"),
    };
    ensure!(probes.num > 0, "no probe was sent");
    Ok((measured, probes))
}

/// What the hostile clients have done.
#[derive(Default)]
struct AttackCounts {
    /// Clients that have made a connection.
    started: AtomicU64,
    /// Pieces of requests, and bursts, that the kernel took.
    writes: AtomicU64,
    /// Connections that ended.
    attacks: AtomicU64,
}

/// The hostile clients, on a thread of their own.
struct HostileCrowd {
    counts: Arc<AttackCounts>,
    thread: Background,
}

impl HostileCrowd {
    /// Starts the clients and waits until each has made a connection.
    async fn start(server: SocketAddr, sale: &str) -> Result<Self> {
        let counts: Arc<AttackCounts> = Arc::default();
        let client = |number| HostileClient {
            number,
            server,
            sale: sale.to_owned(),
            counts: Arc::clone(&counts),
            has_started: AtomicBool::new(false),
        };
        let clients: Vec<_> = (0..HOSTILE).map(client).collect();
        let attack = move || async move {
            take_the_rest_of_the_cores()?;
            let attacks = clients.iter().map(HostileClient::attack_for_ever);
            attacks.collect::<FuturesUnordered<_>>().next().await;
            Ok(())
        };
        let crowd =
            Self { counts: Arc::clone(&counts), thread: Background::start("hostile", attack)? };
        let started = || counts.started.load(Ordering::Relaxed);
        let connected = async || Ok((started(), started() == HOSTILE));
        let (started, all) = poll(STARTED_TIMEOUT, connected).await?;
        ensure!(all, "{started} of {HOSTILE} hostile clients could connect");
        Ok(crowd)
    }

    fn num_writes(&self) -> u64 {
        self.counts.writes.load(Ordering::Relaxed)
    }

    /// Ends all connections. Returns the number of attacks.
    fn stop(self) -> Result<u64> {
        self.thread.stop()?;
        Ok(self.counts.attacks.load(Ordering::Relaxed))
    }
}

/// Lets this thread run only while nothing else would: hostile clients on other machines would not
/// take the cores of the server and of the honest buyers.
fn take_the_rest_of_the_cores() -> std::io::Result<()> {
    // `<process>/task/<thread>`.
    let thread = std::fs::read_link("/proc/thread-self")?;
    let thread = thread.file_name().unwrap_or_default();
    let output = Command::new("chrt").args(["--idle", "--pid", "0"]).arg(thread).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}

struct HostileClient {
    number: u64,
    server: SocketAddr,
    sale: String,
    counts: Arc<AttackCounts>,
    has_started: AtomicBool,
}

/// The end of a connection. An error, such as a cut connection, is one, too.
type Attack = std::io::Result<()>;

impl HostileClient {
    async fn attack_for_ever(&self) {
        sleep(START_MAX.mul_f64(fastrand::f64())).await;
        loop {
            let ended: Attack = match self.number % 5 {
                0 => self.send_slowly(ANSWERED, &self.slow_head()).await,
                1 => self.send_slowly(&self.slow_body(), &" ".repeat(4_000)).await,
                // Reads none of the large answers.
                2 => self.send_slowly(&LARGE.repeat(20), &"\r\n".repeat(2_000)).await,
                3 => self.flood(&self.purchase()).await,
                _ => self.flood(ANSWERED.as_bytes()).await,
            };
            drop(ended);
            self.counts.attacks.fetch_add(1, Ordering::Relaxed);
            sleep(ATTACK_PAUSE).await;
        }
    }

    async fn connect(&self) -> std::io::Result<TcpStream> {
        let last = u8::try_from(2 + self.number % ADDRESSES).unwrap_or(2);
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into())?;
        let connection = socket.connect(self.server).await?;
        if !self.has_started.swap(true, Ordering::Relaxed) {
            self.counts.started.fetch_add(1, Ordering::Relaxed);
        }
        Ok(connection)
    }

    async fn write(&self, to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Attack {
        to.write_all(bytes).await?;
        self.counts.writes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Sends what comes first, then a byte at a time.
    async fn send_slowly(&self, first: &str, slowly: &str) -> Attack {
        let mut connection = self.connect().await?;
        self.write(&mut connection, first.as_bytes()).await?;
        for byte in slowly.bytes() {
            self.write(&mut connection, &[byte]).await?;
            sleep(BYTE_PAUSE).await;
        }
        Ok(())
    }

    fn slow_head(&self) -> String {
        format!("GET /v1/sales/{} HTTP/1.1\r\nX-Long: {}", self.sale, "x".repeat(1_000))
    }

    fn slow_body(&self) -> String {
        format!(
            "POST /v1/buy/{} HTTP/1.1\r\nHost: a\r\nX-Buyer-Id: {}\r\n\
             Content-Type: application/json\r\nContent-Length: 4000\r\n\r\n",
            self.sale,
            self.buyer()
        )
    }

    /// Sends bursts of requests; reads the answers only between these.
    async fn flood(&self, request: &[u8]) -> Attack {
        let mut connection = self.connect().await?;
        let (mut reader, mut writer) = connection.split();
        let burst = request.repeat(BURST);
        let reading = async {
            let mut answers = vec![0; 16 * 1024];
            while reader.read(&mut answers).await? > 0 {}
            Ok(())
        };
        let writing = async {
            loop {
                self.write(&mut writer, &burst).await?;
                sleep(BURST_PAUSE.mul_f64(0.5 + fastrand::f64())).await;
            }
        };
        tokio::select! { ended = reading => ended, ended = writing => ended }
    }

    /// Not an honest buyer's id.
    fn buyer(&self) -> u64 {
        (1 << 60) + self.number
    }

    fn purchase(&self) -> Vec<u8> {
        let mut request = Vec::new();
        let buy = BuyRequest::new(self.server, &self.sale, SKU, 1);
        buy.write(self.buyer(), None, &mut request);
        request
    }
}
