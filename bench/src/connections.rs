//! S16: what connections cost that do nothing, and those that wait for the state of a request.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use loadgen::{BuyRequest, call, json_string_member};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::admin::SKU;
use crate::harness::{ENDLESS, Harness, Measured, Product};
use crate::http::{sold_out_sale, warm_up};
use crate::meter::{resident, socket_bytes};
use crate::pipeline::Servers;

/// Connections that are opened: as many files of this process, and of the server.
const CONNECTIONS: u64 = 10_000;
/// Connections that are opened at the same time.
pub const OPENING: usize = 64;
/// Event streams are at most a fifth of the connections that a server takes.
pub const SETTINGS: [&str; 2] = ["http.connections_max=60000", "http.keep_alive_ms=600000"];
/// Until the server has freed what it needs for the start of a connection.
const SETTLING: Duration = Duration::from_secs(2);

/// Memory of idle connections and of event streams, and the rate of sold-out answers beside them.
pub async fn connections(harness: &mut Harness) -> Result<()> {
    idle(harness).await?;
    streams(harness).await?;
    let remark = format!(
        "{CONNECTIONS} connections; resident memory of the server, and both ends of the sockets"
    );
    harness.remark("S16 idle", remark);
    Ok(())
}

/// Connections with one answered request each.
async fn idle(harness: &mut Harness) -> Result<()> {
    for _ in 0..harness.args.rounds {
        let product = harness.product(&SETTINGS.map(str::to_owned)).await?;
        let (sale, _) = sold_out_sale(harness, &product).await?;
        let request = format!("GET /v1/sales/{sale} HTTP/1.1\r\nHost: bench\r\n\r\n");
        let one = |_| async {
            answered(TcpStream::connect(product.server.public).await?, &request).await
        };
        compare(harness, ["S16 idle", "S16 idle rate"], &product, &sale, one).await?;
        harness.check(&product.admin, &sale, 1).await?;
    }
    Ok(())
}

/// Streams of requests that stay queued, because the broker is down.
async fn streams(harness: &mut Harness) -> Result<()> {
    let servers = Servers::start(harness)?;
    for round in 1..=harness.args.rounds {
        let mut settings = servers.settings(&format!("streams{round}")).await?;
        settings.extend(SETTINGS.map(str::to_owned));
        let product = harness.product(&settings).await?;
        let (sold_out_sale, _) = sold_out_sale(harness, &product).await?;
        let sale = harness.sale(&product, ENDLESS).await?;
        servers.rabbit.kill();
        let buy = BuyRequest::new(product.server.public, &sale, SKU, 1);
        let one = |buyer| wait_for_state(product.server.public, &buy, buyer);
        let rows = ["S16 streams", "S16 streams rate"];
        compare(harness, rows, &product, &sold_out_sale, one).await?;
        servers.rabbit.restart()?;
        harness.check(&product.admin, &sale, CONNECTIONS).await?;
    }
    Ok(())
}

/// Adds a round to a row about the memory of connections, each opened by `one` with a number from
/// 1, and to one about the rate of sold-out answers beside them.
async fn compare<F>(
    harness: &mut Harness,
    [memory, rate]: [&'static str; 2],
    product: &Product,
    sold_out_sale: &str,
    one: impl Fn(u64) -> F,
) -> Result<()>
where
    F: Future<Output = Result<TcpStream>>,
{
    let alone = sold_out(harness, product, sold_out_sale).await?;
    let bytes = || anyhow::Ok(resident(product.server.id())? + socket_bytes()?);
    let before = bytes()?;
    let opening = stream::iter(1..=CONNECTIONS).map(one).buffer_unordered(OPENING);
    let held: Vec<TcpStream> = opening.try_collect().await?;
    tokio::time::sleep(SETTLING).await;
    let each = bytes()?.saturating_sub(before) as f64 / CONNECTIONS as f64;
    let beside = sold_out(harness, product, sold_out_sale).await?;
    drop(held);
    harness.number(memory, each / 1_024.0);
    harness.pair(rate, beside.sample(beside.rate()), alone.sample(alone.rate()));
    Ok(())
}

/// A round of sold-out answers, each time of a server that is warm.
async fn sold_out(harness: &mut Harness, product: &Product, sale: &str) -> Result<Measured> {
    warm_up(harness.load(&product.server, sale)).await?;
    let load = harness.load(&product.server, sale);
    harness.measure(Some(product), load).await
}

/// A connection after a request and its answer.
pub async fn answered(mut connection: TcpStream, request: &str) -> Result<TcpStream> {
    let (status, _) = call(&mut connection, request.as_bytes()).await?;
    ensure!((200..300).contains(&status), "the server refuses a request: {status}");
    Ok(connection)
}

/// Buys, and waits for events of the request up to the first one.
async fn wait_for_state(server: SocketAddr, buy: &BuyRequest, buyer: u64) -> Result<TcpStream> {
    let mut connection = TcpStream::connect(server).await?;
    let mut request = Vec::new();
    buy.write(buyer, None, &mut request);
    let (status, body) = call(&mut connection, &request).await?;
    let id = json_string_member(&body, b"request_id");
    let id = id.with_context(|| format!("a purchase has no request: {status}"))?;
    let events = format!(
        "GET /v1/requests/{id}/events HTTP/1.1\r\nHost: bench\r\nX-Buyer-Id: {buyer}\r\n\
         Accept: text/event-stream\r\n\r\n"
    );
    connection.write_all(events.as_bytes()).await?;
    let (mut bytes, mut text) = (Vec::new(), String::new());
    while !text.contains("event: state") {
        let read = connection.read_buf(&mut bytes).await?;
        text = String::from_utf8_lossy(&bytes).into_owned();
        ensure!(read > 0 && text.starts_with("HTTP/1.1 2"), "a stream ended or is refused: {text}");
    }
    Ok(connection)
}
