//! Reads the slot assignment of a cluster: to route calls, and for health checks.

use redis::Value;

use super::ConnectionOptions;
use super::probe::{ProbeConnection, RedisHealthError, read_newest};
use super::router::SLOTS;
use super::url::ServerAddress;

/// A cluster as one of its members reports it.
#[derive(Debug, PartialEq, Eq)]
pub struct Slots {
    /// The reporting member.
    pub asked: ServerAddress,
    /// Seed nodes tried before it that did not answer.
    pub silent: Vec<(ServerAddress, RedisHealthError)>,
    pub members: Vec<ClusterMember>,
    /// Unassigned slots, as first and last of each range.
    pub missing: Vec<(u16, u16)>,
}

/// One member of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterMember {
    pub node: ServerAddress,
    /// A master, with or without slots.
    pub is_master: bool,
    /// Flagged `fail` or `fail?`.
    pub is_failing: bool,
}

impl Slots {
    pub(super) fn masters(&self) -> Vec<ServerAddress> {
        let masters = self.members.iter().filter(|member| member.is_master);
        masters.map(|member| member.node.clone()).collect()
    }
}

/// First slot, last slot and master of every range. Queries the known masters and the seed nodes,
/// and takes the answer with the highest cluster epoch, preferring nodes whose cluster state is
/// `ok`.
pub(super) async fn find_masters(
    options: &ConnectionOptions,
    seeds: &[ServerAddress],
    known: &[ServerAddress],
) -> Result<Vec<(u16, u16, ServerAddress)>, String> {
    let mut nodes = [known, seeds].concat();
    nodes.sort();
    nodes.dedup();
    let query = async |node: ServerAddress| {
        let (version, slots) =
            query_slots(options, &node).await.map_err(|error| error.to_string())?;
        match parse_slots(&slots, &node) {
            None => Err("its list of slots is not readable".to_owned()),
            Some(ranges) if ranges.is_empty() => Err("its list of slots is empty".to_owned()),
            Some(ranges) => Ok((version, ranges)),
        }
    };
    let found = read_newest(options.connect_timeout, &nodes, query).await;
    found.map_err(|reasons| format!("no node tells which server has which slots: {reasons}"))
}

/// The cluster state and epoch as this node reports them, and the slots.
async fn query_slots(
    options: &ConnectionOptions,
    node: &ServerAddress,
) -> Result<((bool, u64), Value), RedisHealthError> {
    let (credentials, limit) = (options.url.credentials.as_ref(), options.connect_timeout);
    let mut probe = ProbeConnection::open(options, node, credentials, limit).await?;
    let info = probe.fields(redis::cmd("CLUSTER").arg("INFO")).await?;
    let is_ok = info.get("cluster_state").is_some_and(|state| state == "ok");
    let epoch = info.get("cluster_current_epoch").and_then(|epoch| epoch.parse().ok());
    let slots = probe.query(redis::cmd("CLUSTER").arg("SLOTS")).await?;
    Ok(((is_ok, epoch.unwrap_or(0)), slots))
}

/// Parses `CLUSTER SLOTS`: first slot, last slot, master, replicas. A master without address is the
/// queried node.
fn parse_slots(answer: &Value, queried: &ServerAddress) -> Option<Vec<(u16, u16, ServerAddress)>> {
    let range = |range: &Value| {
        let [first, last, master, ..] = range.as_sequence()? else { return None };
        let [host, port, ..] = master.as_sequence()? else { return None };
        let number = |value: &Value| match value {
            Value::Int(number) => u16::try_from(*number).ok(),
            _ => None,
        };
        let host = match host {
            Value::Nil => queried.host.clone(),
            host => Some(redis::from_redis_value_ref::<String>(host).ok()?)
                .filter(|host| !host.is_empty() && host != "?")
                .unwrap_or_else(|| queried.host.clone()),
        };
        Some((number(first)?, number(last)?, ServerAddress { host, port: number(port)? }))
    };
    let mut ranges = answer.as_sequence()?.iter().map(range).collect::<Option<Vec<_>>>()?;
    ranges.sort();
    Some(ranges)
}

/// Queries the seed nodes in order until one answers, for health checks.
pub(super) async fn read(
    options: &ConnectionOptions,
    seeds: &[ServerAddress],
) -> Result<Slots, RedisHealthError> {
    let mut silent = Vec::new();
    for seed in seeds {
        match query_nodes(options, seed).await {
            Ok(text) => return Ok(parse_nodes(&text, seed, silent)),
            // The node is not part of a cluster, or rejects our credentials.
            Err(error @ RedisHealthError::Refused { .. }) => return Err(error),
            Err(error) => silent.push((seed.clone(), error)),
        }
    }
    let no_seeds = || RedisHealthError::Unreachable("no member is named".to_owned());
    Err(silent.pop().map_or_else(no_seeds, |(_, error)| error))
}

async fn query_nodes(
    options: &ConnectionOptions,
    node: &ServerAddress,
) -> Result<String, RedisHealthError> {
    let (credentials, limit) = (options.url.credentials.as_ref(), options.command_timeout);
    let mut probe = ProbeConnection::open(options, node, credentials, limit).await?;
    probe.query(redis::cmd("CLUSTER").arg("NODES")).await
}

/// Parses lines of `id host:port@bus,name flags master ping pong epoch state slot-slot ..`.
fn parse_nodes(
    text: &str,
    asked: &ServerAddress,
    silent: Vec<(ServerAddress, RedisHealthError)>,
) -> Slots {
    let mut members = Vec::new();
    let mut assigned = Vec::new();
    for line in text.lines() {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, address, flags, _, _, _, _, _, slots @ ..] = columns.as_slice() else { continue };
        let Some(node) = node(address, asked) else { continue };
        // Migrating slots follow in brackets and are not counted.
        assigned.extend(slots.iter().filter_map(|range| parse_range(range)));
        let mut flags = flags.split(',');
        let is_failing = flags.clone().any(|flag| flag == "fail" || flag == "fail?");
        members.push(ClusterMember {
            node,
            is_master: flags.any(|flag| flag == "master"),
            is_failing,
        });
    }
    Slots { asked: asked.clone(), silent, members, missing: missing(assigned) }
}

/// Parses `host:port@bus`. A member that has not learned its own address reports none; it is the
/// queried one then.
fn node(address: &str, asked: &ServerAddress) -> Option<ServerAddress> {
    let (client_address, _bus) = address.split_once('@').unwrap_or((address, ""));
    let (host, port) = client_address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let host = if host.is_empty() { asked.host.clone() } else { host.to_owned() };
    Some(ServerAddress { host, port })
}

fn parse_range(range: &str) -> Option<(u16, u16)> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// The ranges of slots between the assigned ones.
fn missing(mut assigned: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    assigned.sort_unstable();
    let (mut missing, mut next) = (Vec::new(), 0);
    for (first, last) in assigned {
        if next < first {
            missing.push((next, first - 1));
        }
        next = next.max(last.saturating_add(1));
    }
    if next < SLOTS {
        missing.push((next, SLOTS - 1));
    }
    missing
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
