//! S16: what connections cost that do nothing, and those that wait for the state of a request; and
//! once 100,000 connections at the same time to one installation.
//!
//! A process may open fewer files than that, so that several processes of the installation take
//! them, each from a child process of the bench with an address of its own.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use floodgate::cli::exit::Exit;
use floodgate::cli::output::Output;
use futures_util::{StreamExt, TryStreamExt, stream};
use loadgen::{BuyRequest, call, json_string_member};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::admin::SKU;
use crate::harness::{ENDLESS, Harness, Measured, Product};
use crate::http::{sold_out_sale, warm_up};
use crate::meter::{resident, socket_bytes};
use crate::process::own_command;
use crate::servers::Servers;

/// Connections of S16: as many files of this process, and of the server.
const CONNECTIONS: u64 = 10_000;
/// Connections that are opened at the same time.
const OPENING: usize = 64;
/// Event streams are at most a fifth of the connections that a server takes.
const SETTINGS: [&str; 2] = ["http.connections_max=60000", "http.keep_alive_ms=600000"];
/// Until the server has freed what it needs for the start of a connection.
const SETTLING: Duration = Duration::from_secs(2);

/// Processes of the installation with 100,000 connections.
const PROCESSES: u8 = 8;
const CONNECTIONS_EACH: u64 = 12_500;
/// What a child process prints when all its connections are open.
const OPEN: &[u8] = b"open\n";

/// A child process that holds connections.
#[derive(Debug, Clone, Args)]
pub struct HoldArgs {
    /// Its own address.
    #[arg(long)]
    from: IpAddr,
    #[arg(long)]
    to: SocketAddr,
    /// What each connection reads, once opened and at the end.
    #[arg(long)]
    path: String,
}

/// Memory of idle connections and of event streams, and the rate of sold-out answers beside them.
pub async fn connections(harness: &mut Harness) -> Result<()> {
    for _ in 0..harness.args.rounds {
        idle(harness).await?;
    }
    let servers = Servers::pipeline(harness)?;
    for round in 1..=harness.args.rounds {
        streams(harness, &servers, &format!("streams{round}")).await?;
    }
    let remark = format!(
        "{CONNECTIONS} connections; resident memory of the server, and both ends of the sockets"
    );
    harness.remark("S16 idle", remark);
    Ok(())
}

/// Connections with one answered request each.
async fn idle(harness: &mut Harness) -> Result<()> {
    let product = harness.product(&SETTINGS.map(str::to_owned)).await?;
    let (sale, _) = sold_out_sale(harness, &product).await?;
    let request = get(&format!("/v1/sales/{sale}"), "");
    let one =
        |_| async { answered(TcpStream::connect(product.server.public).await?, &request).await };
    compare(harness, ["S16 idle", "S16 idle rate"], &product, &sale, one).await?;
    harness.check(&product.admin, &sale, 1).await
}

/// Streams of requests that stay queued, because the broker is down.
async fn streams(harness: &mut Harness, servers: &Servers, namespace: &str) -> Result<()> {
    // Without the costs of the servers: the broker does not run while it is measured.
    let product = harness.product(&servers.settings(namespace, &SETTINGS).await?).await?;
    let (sold_out_sale, _) = sold_out_sale(harness, &product).await?;
    let sale = harness.sale(&product, ENDLESS).await?;
    servers.rabbit()?.kill();
    let buy = BuyRequest::new(product.server.public, &sale, SKU, 1);
    let one = |buyer| wait_for_state(product.server.public, &buy, buyer);
    let rows = ["S16 streams", "S16 streams rate"];
    compare(harness, rows, &product, &sold_out_sale, one).await?;
    servers.rabbit()?.restart()?;
    harness.check(&product.admin, &sale, CONNECTIONS).await
}

/// Adds a round to a row about the memory of connections, each opened by `one` with a number from
/// 1, and to one about the rate of sold-out answers beside them.
async fn compare<F: Future<Output = Result<TcpStream>>>(
    harness: &mut Harness,
    [memory, rate]: [&'static str; 2],
    product: &Product,
    sold_out_sale: &str,
    one: impl Fn(u64) -> F,
) -> Result<()> {
    let alone = sold_out(harness, product, sold_out_sale).await?;
    let before = memory_of([product])?;
    let held = open(CONNECTIONS, one).await?;
    tokio::time::sleep(SETTLING).await;
    let each = memory_of([product])?.saturating_sub(before) as f64 / CONNECTIONS as f64;
    let beside = sold_out(harness, product, sold_out_sale).await?;
    drop(held);
    harness.number(memory, each / 1_024.0);
    harness.pair(rate, beside.sample(beside.rate()), alone.sample(alone.rate()));
    Ok(())
}

/// Opens connections, each by `one` with a number from 1.
async fn open<F: Future<Output = Result<TcpStream>>>(
    count: u64,
    one: impl Fn(u64) -> F,
) -> Result<Vec<TcpStream>> {
    stream::iter(1..=count).map(one).buffer_unordered(OPENING).try_collect().await
}

/// Resident memory of these servers, and of all sockets.
fn memory_of<'a>(products: impl IntoIterator<Item = &'a Product>) -> Result<u64> {
    let resident = products.into_iter().map(|product| resident(product.server.id()));
    Ok(resident.sum::<Result<u64>>()? + socket_bytes()?)
}

/// A round of sold-out answers, each time of a server that is warm.
async fn sold_out(harness: &mut Harness, product: &Product, sale: &str) -> Result<Measured> {
    warm_up(harness.load(&product.server, sale)).await?;
    let load = harness.load(&product.server, sale);
    harness.measure(Some(product), load).await
}

/// A request with further headers, each with its line break.
fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: bench\r\n{headers}\r\n")
}

/// A connection after a request and its answer.
async fn answered(mut connection: TcpStream, request: &str) -> Result<TcpStream> {
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
    let headers = format!("X-Buyer-Id: {buyer}\r\nAccept: text/event-stream\r\n");
    let events = get(&format!("/v1/requests/{id}/events"), &headers);
    connection.write_all(events.as_bytes()).await?;
    let (mut bytes, mut text) = (Vec::new(), String::new());
    while !text.contains("event: state") {
        let read = connection.read_buf(&mut bytes).await?;
        text = String::from_utf8_lossy(&bytes).into_owned();
        ensure!(read > 0 && text.starts_with("HTTP/1.1 2"), "a stream ended or is refused: {text}");
    }
    Ok(connection)
}

/// Memory of each of 100,000 connections. The table is void unless each is answered when it is
/// opened and once more at the end, and each process sells and answers probes meanwhile.
pub async fn many_connections(harness: &mut Harness) -> Result<()> {
    let servers = Servers::pipeline(harness)?;
    let settings = servers.settings("many", &SETTINGS).await?;
    let mut products = Vec::new();
    for _ in 0..PROCESSES {
        products.push(harness.product(&settings).await?);
    }
    let first = products.first().context("no process")?;
    let sale = harness.sale(first, ENDLESS).await?;
    let before = memory_of(&products)?;
    let mut holders = Vec::new();
    for (last, product) in (2..).zip(&products) {
        holders.push(holder(Ipv4Addr::new(127, 0, 0, last), product, &sale)?);
    }
    for holder in &mut holders {
        let mut printed = [0; OPEN.len()];
        let read = holder.stdout.as_mut().map(|output| output.read_exact(&mut printed));
        ensure!(matches!(read, Some(Ok(()))) && printed == OPEN, "connections are missing");
    }
    let bytes = memory_of(&products)?.saturating_sub(before);
    for product in &products {
        let bought = harness.try_one(&product.server, &sale).await;
        ensure!(matches!(bought, Some((200..300, _))), "a purchase beside them: {bought:?}");
        product.admin.await_ready().await?;
    }
    let mut answered = 0;
    for holder in holders {
        // Closes its input, whereupon the connections have to answer once more.
        let ended = holder.wait_with_output()?;
        ensure!(ended.status.success(), "a child process has failed");
        answered += String::from_utf8(ended.stdout)?.trim().parse::<u64>()?;
    }
    let num = u64::from(PROCESSES) * CONNECTIONS_EACH;
    harness.void_unless(answered == num, || format!("{answered} of {num} connections answered"));
    harness.check(&first.admin, &sale, PROCESSES.into()).await?;
    let kib = bytes as f64 / num as f64 / 1_024.0;
    let remark = format!("{PROCESSES} processes with {CONNECTIONS_EACH} connections each");
    harness.number("many", kib);
    harness.remark("many", remark);
    Ok(())
}

/// Starts a child process that opens its connections and prints [`OPEN`]. When its input ends, it
/// prints how many connections were answered once more.
fn holder(from: Ipv4Addr, product: &Product, sale: &str) -> Result<Child> {
    let mut command = own_command()?;
    command.args(["hold", "--path", &format!("/v1/sales/{sale}")]);
    command.args(["--from", &from.to_string(), "--to", &product.server.public.to_string()]);
    Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
}

/// Opens the connections, says so, waits for the end of its input, and reads once more from each.
pub async fn hold(args: HoldArgs) -> Result<Exit> {
    let request = get(&args.path, "");
    let one = |_| async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((args.from, 0).into())?;
        answered(socket.connect(args.to).await?, &request).await
    };
    let held = open(CONNECTIONS_EACH, one).await?;
    std::io::stdout().write_all(OPEN)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let again = held.into_iter().map(|connection| answered(connection, &request));
    let again = stream::iter(again).buffer_unordered(OPENING);
    let num_answered = again.filter(|one| std::future::ready(one.is_ok())).count().await;
    Output::new(false).data(&(), || num_answered.to_string())?;
    Ok(Exit::Done)
}
