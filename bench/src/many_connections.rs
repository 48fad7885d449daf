//! S16, once with ten times as many: 100,000 connections at the same time to one installation.
//!
//! A process may open fewer files than that, so that several processes of the installation take
//! them, each from a child process of the bench with an address of its own.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use floodgate::cli::exit::Exit;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::net::{TcpSocket, TcpStream};

use crate::connections::{OPENING, SETTINGS, answered};
use crate::harness::{ENDLESS, Harness, Product};
use crate::meter::{resident, socket_bytes};
use crate::pipeline::Servers;
use crate::process::own_command;

const PROCESSES: u8 = 8;
const CONNECTIONS_EACH: usize = 12_500;
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

/// Memory of each of 100,000 connections. The table is void unless each is answered when it is
/// opened and once more at the end, and each process sells and answers probes meanwhile.
pub async fn many_connections(harness: &mut Harness) -> Result<()> {
    let servers = Servers::start(harness)?;
    let mut settings = servers.settings("many").await?;
    settings.extend(SETTINGS.map(str::to_owned));
    let mut products = Vec::new();
    for _ in 0..PROCESSES {
        products.push(harness.product(&settings).await?);
    }
    let first = products.first().context("no process")?;
    let sale = harness.sale(first, ENDLESS).await?;
    let memory = || -> Result<u64> {
        let resident: Result<Vec<u64>> =
            products.iter().map(|product| resident(product.server.id())).collect();
        Ok(resident?.iter().sum::<u64>() + socket_bytes()?)
    };
    let before = memory()?;
    let mut holders = Vec::new();
    for (last, product) in (2..).zip(&products) {
        holders.push(holder(Ipv4Addr::new(127, 0, 0, last), product, &sale)?);
    }
    for holder in &mut holders {
        let mut printed = [0; OPEN.len()];
        let read = holder.stdout.as_mut().map(|output| output.read_exact(&mut printed));
        ensure!(matches!(read, Some(Ok(()))) && printed == OPEN, "connections are missing");
    }
    let bytes = memory()?.saturating_sub(before);
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
        answered += String::from_utf8(ended.stdout)?.trim().parse::<usize>()?;
    }
    let num = usize::from(PROCESSES) * CONNECTIONS_EACH;
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
    let request = format!("GET {} HTTP/1.1\r\nHost: bench\r\n\r\n", args.path);
    let open = |_| async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((args.from, 0).into())?;
        answered(socket.connect(args.to).await?, &request).await
    };
    let opening = stream::iter(0..CONNECTIONS_EACH).map(open).buffer_unordered(OPENING);
    let held: Vec<TcpStream> = opening.try_collect().await?;
    std::io::stdout().write_all(OPEN)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let again = held.into_iter().map(|connection| answered(connection, &request));
    let again = stream::iter(again).buffer_unordered(OPENING);
    let num_answered = again.filter(|one| std::future::ready(one.is_ok())).count().await;
    println!("{num_answered}");
    Ok(Exit::Done)
}
