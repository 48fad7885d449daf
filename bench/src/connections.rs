//! S16: what connections cost that do nothing, and those that wait for the state of a request.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{ENDLESS, Harness, Measured, Product};
use crate::http::sold_out_sale;
use crate::meter::{resident, socket_bytes};
use crate::pipeline::Servers;
use crate::process::relaunch;
use crate::stats::{Round, Sample, row};
use crate::table::Row;

/// Connections that are opened: as many files of this process, and of the server.
const CONNECTIONS: u64 = 10_000;
/// Connections that are opened at the same time.
pub(crate) const OPENING: usize = 64;
/// Event streams are at most a fifth of the connections that a server takes.
pub(crate) const SETTINGS: [&str; 2] = ["http.connections_max=60000", "http.keep_alive_ms=600000"];
/// Until the server has freed what it needs for the start of a connection.
const SETTLING: Duration = Duration::from_secs(2);
const BUY_BODY: &str = r#"{"sku_id": "bench", "quantity": 1}"#;

/// Memory of idle connections and of event streams, and the rate of sold-out answers beside them.
pub(crate) async fn connections(harness: &mut Harness<'_>) -> anyhow::Result<Vec<Row>> {
    let idle = idle(harness).await?;
    let streams = streams(harness).await?;
    let remark = format!(
        "{CONNECTIONS} connections; resident memory of the server, and both ends of the sockets"
    );
    Ok(vec![
        row("S16 idle", &idle.memory, Some(remark))?,
        row("S16 idle rate", &idle.rates, None)?,
        row("S16 streams", &streams.memory, None)?,
        row("S16 streams rate", &streams.rates, None)?,
    ])
}

#[derive(Default)]
struct Rounds {
    memory: Vec<Round>,
    rates: Vec<Round>,
}

impl Rounds {
    fn add(&mut self, harness: &Harness<'_>, kib: f64, [alone, beside]: &[Measured; 2]) {
        let (rate, rate_alone) = (beside.rate(), alone.rate());
        harness
            .note(&format!("{kib:.1} KiB each; {rate:.0}/s beside them, {rate_alone:.0}/s alone"));
        self.memory.push(Round::number(Sample::of(kib)));
        self.rates.push(Round::pair(beside.sample(rate), alone.sample(rate_alone)));
    }
}

/// Connections with one answered request each.
async fn idle(harness: &mut Harness<'_>) -> anyhow::Result<Rounds> {
    let mut rounds = Rounds::default();
    for _ in 0..harness.args.rounds {
        let product = harness.product(&SETTINGS.map(str::to_owned)).await?;
        let (sale, _) = sold_out_sale(harness, &product).await?;
        let alone = sold_out(harness, &product, &sale).await?;
        let request = format!("GET /v1/sales/{sale} HTTP/1.1\r\nHost: bench\r\n\r\n");
        let one = |_| async {
            answered(TcpStream::connect(product.server.public).await?, &request).await
        };
        let (held, kib) = hold(&product, one).await?;
        let beside = sold_out(harness, &product, &sale).await?;
        drop(held);
        harness.check(&product.admin, &sale, 1).await?;
        rounds.add(harness, kib, &[alone, beside]);
    }
    Ok(rounds)
}

/// Streams of requests that stay queued, because the broker is down.
async fn streams(harness: &mut Harness<'_>) -> anyhow::Result<Rounds> {
    let servers = Servers::start(harness)?;
    let mut rounds = Rounds::default();
    for round in 1..=harness.args.rounds {
        let mut settings = servers.settings(&format!("streams{round}")).await?;
        settings.extend(SETTINGS.map(str::to_owned));
        let product = harness.product(&settings).await?;
        let (sold_out_sale, _) = sold_out_sale(harness, &product).await?;
        let sale = harness.sale(&product, ENDLESS).await?;
        servers.rabbit.kill();
        let alone = sold_out(harness, &product, &sold_out_sale).await?;
        let one = |buyer| wait_for_state(product.server.public, &sale, buyer);
        let (held, kib) = hold(&product, one).await?;
        let beside = sold_out(harness, &product, &sold_out_sale).await?;
        drop(held);
        relaunch(&servers.rabbit).await?;
        harness.check(&product.admin, &sale, CONNECTIONS).await?;
        rounds.add(harness, kib, &[alone, beside]);
    }
    Ok(rounds)
}

async fn sold_out(
    harness: &mut Harness<'_>,
    product: &Product,
    sale: &str,
) -> anyhow::Result<Measured> {
    let load = harness.load(&product.server, sale);
    harness.measure(Some(product), load).await
}

/// Opens connections, each by `one` with a number from 1; returns them, and the memory of each in
/// KiB.
async fn hold<F>(product: &Product, one: impl Fn(u64) -> F) -> anyhow::Result<(Vec<TcpStream>, f64)>
where
    F: Future<Output = anyhow::Result<TcpStream>>,
{
    let memory = || anyhow::Ok(resident(product.server.id())? + socket_bytes()?);
    let before = memory()?;
    let opening = stream::iter(1..=CONNECTIONS).map(one).buffer_unordered(OPENING);
    let held: Vec<TcpStream> = opening.try_collect().await?;
    tokio::time::sleep(SETTLING).await;
    let bytes = memory()?.saturating_sub(before);
    Ok((held, bytes as f64 / CONNECTIONS as f64 / 1_024.0))
}

/// A connection after a request and its answer.
pub(crate) async fn answered(
    mut connection: TcpStream,
    request: &str,
) -> anyhow::Result<TcpStream> {
    send(&mut connection, request).await?;
    answer(&mut connection).await?;
    Ok(connection)
}

/// Buys, and waits for events of the request up to the first one.
async fn wait_for_state(server: SocketAddr, sale: &str, buyer: u64) -> anyhow::Result<TcpStream> {
    let mut connection = TcpStream::connect(server).await?;
    let buy = format!(
        "POST /v1/buy/{sale} HTTP/1.1\r\nHost: bench\r\nX-Buyer-Id: {buyer}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{BUY_BODY}",
        BUY_BODY.len()
    );
    send(&mut connection, &buy).await?;
    let bought = answer(&mut connection).await?;
    let location = header(&bought, "location");
    let location = location.with_context(|| format!("no request: {bought}"))?;
    let events = format!(
        "GET {location}/events HTTP/1.1\r\nHost: bench\r\nX-Buyer-Id: {buyer}\r\n\
         Accept: text/event-stream\r\n\r\n"
    );
    send(&mut connection, &events).await?;
    read_until(&mut connection, |text| text.contains("event: state")).await?;
    Ok(connection)
}

async fn send(connection: &mut TcpStream, request: &str) -> anyhow::Result<()> {
    Ok(connection.write_all(request.as_bytes()).await?)
}

/// Head and body.
async fn answer(connection: &mut TcpStream) -> anyhow::Result<String> {
    read_until(connection, |text| {
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
        let length = header(head, "content-length");
        length.and_then(|length| length.parse().ok()) == Some(body.len())
    })
    .await
}

/// The value of a header. The case of its letters counts: it may be a request id.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut headers = head.lines().filter_map(|line| line.split_once(": "));
    headers.find_map(|(known, value)| known.eq_ignore_ascii_case(name).then_some(value))
}

async fn read_until(
    connection: &mut TcpStream,
    is_whole: impl Fn(&str) -> bool,
) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    loop {
        let read = connection.read_buf(&mut bytes).await?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        ensure!(read > 0, "the server closed a connection: {text}");
        ensure!(text.starts_with("HTTP/1.1 2"), "the server refuses a request: {text}");
        if is_whole(&text) {
            return Ok(text);
        }
    }
}
