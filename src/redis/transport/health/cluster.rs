//! The slot assignment of a cluster, for health checks.

use super::{ProbeConnection, RedisHealthError};
use crate::redis::transport::ConnectionOptions;
use crate::redis::transport::slot::SLOTS;
use crate::redis::transport::url::ServerAddress;

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

/// Queries the seed nodes in order until one answers.
pub(super) async fn read(
    options: &ConnectionOptions,
    seeds: &[ServerAddress],
) -> Result<Slots, RedisHealthError> {
    let mut silent = Vec::new();
    for seed in seeds {
        match query(options, seed).await {
            Ok(text) => return Ok(parse_nodes(&text, seed, silent)),
            // The node is not part of a cluster, or rejects our credentials.
            Err(error @ RedisHealthError::Refused { .. }) => return Err(error),
            Err(error) => silent.push((seed.clone(), error)),
        }
    }
    let last_error = silent.pop().map(|(_, error)| error);
    let no_seeds = || RedisHealthError::Unreachable("no member is named".to_owned());
    Err(last_error.unwrap_or_else(no_seeds))
}

async fn query(
    options: &ConnectionOptions,
    node: &ServerAddress,
) -> Result<String, RedisHealthError> {
    let mut probe =
        ProbeConnection::open(options, node, options.url.credentials.as_ref(), 0).await?;
    probe.query(redis::cmd("CLUSTER").arg("NODES")).await
}

/// Parses lines of `id host:port@bus,name flags master ping pong epoch state slot-slot ..`.
fn parse_nodes(
    text: &str,
    asked: &ServerAddress,
    silent: Vec<(ServerAddress, RedisHealthError)>,
) -> Slots {
    let mut members = Vec::new();
    let mut assigned = vec![false; usize::from(SLOTS)];
    for line in text.lines() {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, address, flags, _, _, _, _, _, slots @ ..] = columns.as_slice() else { continue };
        let Some(node) = node(address, asked) else { continue };
        // Migrating slots follow in brackets and are not counted.
        for (first, last) in slots.iter().filter_map(|range| parse_range(range)) {
            for slot in first..=last {
                if let Some(is_assigned) = assigned.get_mut(usize::from(slot)) {
                    *is_assigned = true;
                }
            }
        }
        let mut flags = flags.split(',');
        let is_failing = flags.clone().any(|flag| flag == "fail" || flag == "fail?");
        members.push(ClusterMember {
            node,
            is_master: flags.any(|flag| flag == "master"),
            is_failing,
        });
    }
    Slots { asked: asked.clone(), silent, members, missing: missing(&assigned) }
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

fn missing(assigned: &[bool]) -> Vec<(u16, u16)> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for (slot, _) in (0..SLOTS).zip(assigned).filter(|(_, assigned)| !**assigned) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == slot => *last = slot,
            _ => ranges.push((slot, slot)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> ServerAddress {
        ServerAddress { host: "10.0.0.1".to_owned(), port }
    }

    #[test]
    fn members_and_missing_slots_are_parsed() {
        let text = "a1 10.0.0.1:7000@17000,name myself,master - 0 0 1 connected 0-5460 5462\n\
                    b2 10.0.0.1:7001@17001 master,fail? - 0 5 2 connected 5463-10922 [9->-a1]\n\
                    c3 10.0.0.1:7002@17002 master - 0 5 3 connected 10923-16382\n\
                    d4 10.0.0.1:7003@17003 slave a1 0 5 1 connected\n\
                    e5 :0@0 master,noaddr - 0 5 1 disconnected\n\n";
        let slots = parse_nodes(text, &at(7000), Vec::new());
        assert_eq!(slots.missing, [(5461, 5461), (16383, 16383)]);
        assert_eq!(slots.masters(), [at(7000), at(7001), at(7002)]);
        let failing: Vec<bool> = slots.members.iter().map(|member| member.is_failing).collect();
        assert_eq!(failing, [false, true, false, false]);
    }

    #[test]
    fn a_member_without_address_is_the_queried_one() {
        let slots =
            parse_nodes("a1 :7000@17000 myself,master - 0 0 0 connected\n", &at(7000), Vec::new());
        assert_eq!(slots.members.first().map(|member| member.node.clone()), Some(at(7000)));
        assert_eq!(slots.missing, [(0, 16383)]);
        assert_eq!(slots.masters(), [at(7000)], "it has no slots");
    }
}
