//! How a cluster deals out its slots.

use super::{ProbeConnection, RedisHealthError};
use crate::redis::transport::ConnectionOptions;
use crate::redis::transport::url::ServerAddress;

/// Slots of every cluster.
const SLOTS: u16 = 16_384;

/// A cluster as one of its members sees it.
#[derive(Debug, PartialEq, Eq)]
pub struct Slots {
    /// Which member said so.
    pub asked: ServerAddress,
    /// Members named in the address that did not answer before it did.
    pub silent: Vec<(ServerAddress, RedisHealthError)>,
    /// All members.
    pub members: Vec<ClusterMember>,
    /// Slots that nobody has, as first and last of each run.
    pub missing: Vec<(u16, u16)>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterMember {
    /// Where it is.
    pub node: ServerAddress,
    /// Whether it is a master, with slots or without.
    pub is_master: bool,
    /// Whether the others have given it up, or are about to.
    pub is_failing: bool,
}

impl Slots {
    pub(super) fn masters(&self) -> Vec<ServerAddress> {
        let masters = self.members.iter().filter(|member| member.is_master);
        masters.map(|member| member.node.clone()).collect()
    }
}

/// Asks the members in order until one answers.
pub(super) async fn look(
    options: &ConnectionOptions,
    seeds: &[ServerAddress],
) -> Result<Slots, RedisHealthError> {
    let mut silent = Vec::new();
    for seed in seeds {
        match ask(options, seed).await {
            Ok(text) => return Ok(read(&text, seed, silent)),
            // Whoever answers so is not part of a cluster, or does not know us.
            Err(trouble @ RedisHealthError::Refused { .. }) => return Err(trouble),
            Err(trouble) => silent.push((seed.clone(), trouble)),
        }
    }
    let last = silent.pop().map(|(_, trouble)| trouble);
    Err(last.unwrap_or_else(|| RedisHealthError::Unreachable("no member is named".to_owned())))
}

async fn ask(
    options: &ConnectionOptions,
    node: &ServerAddress,
) -> Result<String, RedisHealthError> {
    let mut line =
        ProbeConnection::open(options, node, options.url.credentials.as_ref(), 0).await?;
    line.ask(redis::cmd("CLUSTER").arg("NODES")).await
}

/// Reads lines of `id host:port@bus,name flags master ping pong epoch state slot-slot ..`.
fn read(
    text: &str,
    asked: &ServerAddress,
    silent: Vec<(ServerAddress, RedisHealthError)>,
) -> Slots {
    let mut members = Vec::new();
    let mut taken = vec![false; usize::from(SLOTS)];
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, address, flags, _, _, _, _, _, slots @ ..] = words.as_slice() else { continue };
        let Some(node) = node(address, asked) else { continue };
        // Slots on their way from one member to another stand in brackets, behind.
        for (first, last) in slots.iter().filter_map(|run| run_of(run)) {
            for slot in first..=last {
                if let Some(place) = taken.get_mut(usize::from(slot)) {
                    *place = true;
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
    Slots { asked: asked.clone(), silent, members, missing: missing(&taken) }
}

/// A member that never heard its own address gives none: then it is the one that was asked.
fn node(address: &str, asked: &ServerAddress) -> Option<ServerAddress> {
    let (place, _bus) = address.split_once('@').unwrap_or((address, ""));
    let (host, port) = place.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let host = if host.is_empty() { asked.host.clone() } else { host.to_owned() };
    Some(ServerAddress { host, port })
}

fn run_of(run: &str) -> Option<(u16, u16)> {
    let (first, last) = run.split_once('-').unwrap_or((run, run));
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn missing(taken: &[bool]) -> Vec<(u16, u16)> {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for (slot, _) in (0..SLOTS).zip(taken).filter(|(_, taken)| !**taken) {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == slot => *last = slot,
            _ => runs.push((slot, slot)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> ServerAddress {
        ServerAddress { host: "10.0.0.1".to_owned(), port }
    }

    #[test]
    fn members_and_missing_slots_are_read() {
        let text = "a1 10.0.0.1:7000@17000,name myself,master - 0 0 1 connected 0-5460 5462\n\
                    b2 10.0.0.1:7001@17001 master,fail? - 0 5 2 connected 5463-10922 [9->-a1]\n\
                    c3 10.0.0.1:7002@17002 master - 0 5 3 connected 10923-16382\n\
                    d4 10.0.0.1:7003@17003 slave a1 0 5 1 connected\n\
                    e5 :0@0 master,noaddr - 0 5 1 disconnected\n\n";
        let slots = read(text, &at(7000), Vec::new());
        assert_eq!(slots.missing, [(5461, 5461), (16383, 16383)]);
        assert_eq!(slots.masters(), [at(7000), at(7001), at(7002)]);
        let failing: Vec<bool> = slots.members.iter().map(|member| member.is_failing).collect();
        assert_eq!(failing, [false, true, false, false]);
    }

    #[test]
    fn a_member_without_a_name_is_the_one_that_was_asked() {
        let slots = read("a1 :7000@17000 myself,master - 0 0 0 connected\n", &at(7000), Vec::new());
        assert_eq!(slots.members.first().map(|member| member.node.clone()), Some(at(7000)));
        assert_eq!(slots.missing, [(0, 16383)]);
        assert_eq!(slots.masters(), [at(7000)], "it has no slots");
    }
}
