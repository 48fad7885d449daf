//! Asks the sentinels for the master: to route calls, and for health checks.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue};

use super::ConnectionOptions;
use super::probe::{ProbeConnection, RedisHealthError, read_newest};
use super::url::ServerAddress;

/// Facts about one sentinel.
#[derive(Debug)]
pub struct Sentinel {
    pub node: ServerAddress,
    pub seen: Result<SentinelView, RedisHealthError>,
}

/// A sentinel's view of one master.
#[derive(Debug)]
pub struct SentinelView {
    /// Address of the master; `None`: the sentinel monitors none of that name.
    pub master: Option<ServerAddress>,
    /// Whether enough sentinels are reachable for a fail-over, or the error of `CKQUORUM`.
    pub quorum: Result<(), RedisHealthError>,
}

/// The master of this name. Partitioned sentinels may be outdated, so the answer with the highest
/// `config-epoch` counts. Whether that server is a master is checked on connect.
pub(super) async fn find_master(
    options: &ConnectionOptions,
    sentinels: &[ServerAddress],
    master: &str,
) -> Result<ServerAddress, String> {
    let command = command("MASTER", master);
    let query = async |sentinel: ServerAddress| {
        let asked = ask::<BTreeMap<String, String>>(options, &sentinel, &command).await;
        let (_, fields) = asked.map_err(|error| error.to_string())?;
        parse_master(&fields).ok_or_else(|| "its answer lacks ip, port or config-epoch".to_owned())
    };
    let found = read_newest(options.connect_timeout, sentinels, query).await;
    found.map_err(|reasons| format!("no sentinel tells where master {master} is: {reasons}"))
}

/// The `config-epoch` and the address in an answer to `SENTINEL MASTER`.
fn parse_master(fields: &BTreeMap<String, String>) -> Option<(u64, ServerAddress)> {
    let epoch = fields.get("config-epoch")?.parse().ok()?;
    let (host, port) = (fields.get("ip")?.clone(), fields.get("port")?.parse().ok()?);
    Some((epoch, ServerAddress { host, port }))
}

/// Reads every sentinel's view, for health checks.
pub(super) async fn read(
    options: &ConnectionOptions,
    nodes: &[ServerAddress],
    master: &str,
) -> Vec<Sentinel> {
    let reads = nodes
        .iter()
        .map(async |node| Sentinel { node: node.clone(), seen: view(options, node, master).await });
    join_all(reads).await
}

async fn view(
    options: &ConnectionOptions,
    node: &ServerAddress,
    master: &str,
) -> Result<SentinelView, RedisHealthError> {
    let command_of_address = command("GET-MASTER-ADDR-BY-NAME", master);
    let (mut probe, address) =
        ask::<Option<(String, u16)>>(options, node, &command_of_address).await?;
    let quorum = probe.query::<String>(&command("CKQUORUM", master)).await.map(drop);
    Ok(SentinelView { master: address.map(|(host, port)| ServerAddress { host, port }), quorum })
}

/// Every server that at least one sentinel reports as the master.
pub(super) fn masters(sentinels: &[Sentinel]) -> Vec<ServerAddress> {
    let named = |sentinel: &Sentinel| sentinel.seen.as_ref().ok()?.master.clone();
    sentinels.iter().filter_map(named).collect::<BTreeSet<_>>().into_iter().collect()
}

fn command(name: &str, master: &str) -> Cmd {
    redis::cmd("SENTINEL").arg(name).arg(master).to_owned()
}

/// Sends a command. Most sentinels have no password and reject one, so credentials are sent only to
/// a sentinel that requires them.
async fn ask<T: FromRedisValue>(
    options: &ConnectionOptions,
    node: &ServerAddress,
    command: &Cmd,
) -> Result<(ProbeConnection, T), RedisHealthError> {
    let attempt = async |credentials| {
        let limit = options.connect_timeout;
        let mut probe = ProbeConnection::open(options, node, credentials, limit).await?;
        let answer = probe.query(command).await?;
        Ok::<_, RedisHealthError>((probe, answer))
    };
    match (attempt(None).await, &options.url.credentials) {
        (Err(error), Some(credentials)) if error.to_string().contains("NOAUTH") => {
            attempt(Some(credentials)).await
        }
        (answer, _) => answer,
    }
}
