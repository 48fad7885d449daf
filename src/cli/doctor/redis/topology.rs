//! Checks of the topology that sentinels and clusters report.

use std::collections::BTreeSet;

use super::super::{CheckOutcome, fail, ok, warn};
use super::reason;
use crate::redis::transport::health::{RedisHealthError, Sentinel, Server, Slots};

/// Ranges of missing slots that a finding lists.
const RANGES_LISTED: usize = 4;

pub(super) fn sentinels(sentinels: &[Sentinel]) -> Vec<CheckOutcome> {
    if sentinels.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut masters = BTreeSet::new();
    for Sentinel { node, seen } in sentinels {
        match seen {
            Err(error) => findings.push(warn(
                format!("{node} does not answer: {}", reason(error)),
                format!("start it, or take {node} out of redis.url"),
            )),
            Ok(view) => {
                if let Some(master) = &view.master {
                    masters.insert(master.to_string());
                } else {
                    findings.push(fail(
                        format!("{node} watches no master of the name in redis.url"),
                        format!("take a name from `redis-cli -p {} SENTINEL MASTERS`", node.port),
                    ));
                }
                // A sentinel that does not watch the name cannot check its quorum either.
                if let (Err(error), Some(_)) = (&view.quorum, &view.master) {
                    findings.push(warn(
                        format!("{node}: {}", reason(error)),
                        "start the missing sentinels: without a majority no master is replaced",
                    ));
                }
            }
        }
    }
    let names: Vec<_> = masters.into_iter().collect();
    match names.as_slice() {
        [] => findings
            .push(fail("no sentinel names a master", "start the sentinels, or correct redis.url")),
        [master] => {
            findings.push(ok(format!("the master is {master}")));
        }
        several => findings.push(fail(
            format!("they name different masters: {}", several.join(", ")),
            "wait a minute for a fail-over to end; if it stays, `SENTINEL RESET name` on each",
        )),
    }
    findings
}

pub(super) fn cluster(seen: &Result<Slots, RedisHealthError>, servers: &[Server]) -> CheckOutcome {
    let slots = match seen {
        Ok(slots) => slots,
        Err(RedisHealthError::Unreachable(reason)) => {
            return fail(
                format!("no member answers: {reason}"),
                "start it, or correct the members in redis.url",
            );
        }
        Err(RedisHealthError::Refused { code, message })
            if code == "WRONGPASS" || code == "NOAUTH" =>
        {
            return fail(
                format!("does not let us in: {message}"),
                "put the right user and password into redis.url",
            );
        }
        Err(RedisHealthError::Refused { message, .. }) => {
            return fail(
                format!("does not report its slots: {message}"),
                "if it is a single server, write redis.url as redis://host:port",
            );
        }
    };
    let fix = format!("`redis-cli --cluster fix {}`", slots.asked);
    if !slots.missing.is_empty() {
        return fail(
            format!("no node has the slots {}", ranges(&slots.missing)),
            format!("start the master that had them, or reassign them: {fix}"),
        );
    }
    if let Some(server) = servers.iter().find(|server| !has_cluster_state_ok(server)) {
        return fail(
            format!("{} says cluster_state:fail, and refuses all commands", server.node),
            format!("start the missing masters, or remove them: {fix}"),
        );
    }
    let failing = slots.members.iter().filter(|member| member.is_failing);
    let failing: Vec<_> = failing.map(|member| member.node.to_string()).collect();
    if !failing.is_empty() {
        return warn(
            format!("members that the others cannot reach: {}", failing.join(", ")),
            format!("start them, or remove them: {fix}"),
        );
    }
    if let Some((node, error)) = slots.silent.first() {
        return warn(
            format!("{node} does not answer: {}", reason(error)),
            format!("start it, or take {node} out of redis.url"),
        );
    }
    let masters = slots.members.iter().filter(|member| member.is_master).count();
    ok(format!("all slots on {masters} masters"))
}

/// Whether the member reports `cluster_state:ok`; true if it does not report a state.
fn has_cluster_state_ok(server: &Server) -> bool {
    let Ok(facts) = &server.seen else { return true };
    let Some(Ok(cluster_info)) = &facts.cluster else { return true };
    cluster_info.get("cluster_state").is_none_or(|state| state.trim() == "ok")
}

fn ranges(missing: &[(u16, u16)]) -> String {
    let mut named: Vec<String> = missing
        .iter()
        .take(RANGES_LISTED)
        .map(
            |(first, last)| {
                if first == last { first.to_string() } else { format!("{first} to {last}") }
            },
        )
        .collect();
    if missing.len() > RANGES_LISTED {
        named.push(format!("and {} more ranges", missing.len() - RANGES_LISTED));
    }
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::super::Status;
    use super::*;
    use crate::redis::transport::ServerAddress;
    use crate::redis::transport::health::{ClusterMember, SentinelView, ServerRole};

    fn node(port: u16) -> ServerAddress {
        ServerAddress { host: "h".to_owned(), port }
    }

    fn slots(missing: Vec<(u16, u16)>, is_failing: bool) -> Slots {
        let member = ClusterMember { node: node(1), is_master: true, is_failing };
        Slots { asked: node(1), silent: Vec::new(), members: vec![member], missing }
    }

    #[test]
    fn missing_slots_are_named() {
        let cluster = |seen: &Result<Slots, RedisHealthError>| cluster(seen, &[]);
        assert_eq!(cluster(&Ok(slots(Vec::new(), false))).status, Status::Ok);
        assert_eq!(cluster(&Ok(slots(Vec::new(), true))).status, Status::Warn);
        let finding = cluster(&Ok(slots(vec![(0, 0), (5, 9)], false)));
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.detail.contains("0, 5 to 9"), "{finding:?}");
        let refused = RedisHealthError::Refused { code: "ERR".into(), message: "disabled".into() };
        assert!(cluster(&Err(refused)).remedy.contains("redis://host:port"));
    }

    #[test]
    fn a_cluster_in_state_fail_fails() {
        let mut facts = super::super::tests_support::facts("");
        facts.cluster = Some(Ok([("cluster_state".to_owned(), "fail".to_owned())].into()));
        let server = Server { node: node(1), part: ServerRole::Master, seen: Ok(Box::new(facts)) };
        let finding = cluster(&Ok(slots(Vec::new(), true)), &[server]);
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.detail.contains("h:1 says cluster_state:fail"), "{finding:?}");
    }

    #[test]
    fn sentinels_must_agree_on_one_master() {
        let sentinel = |port: Option<u16>| Sentinel {
            node: node(26_379),
            seen: Ok(SentinelView { master: port.map(node), quorum: Ok(()) }),
        };
        let down = || Sentinel {
            node: node(26_380),
            seen: Err(RedisHealthError::Unreachable("refused".to_owned())),
        };
        let statuses = |all: &[Sentinel]| {
            sentinels(all).iter().map(|finding| finding.status).collect::<Vec<_>>()
        };
        assert_eq!(statuses(&[]), []);
        assert_eq!(statuses(&[sentinel(Some(1)), sentinel(Some(1))]), [Status::Ok]);
        assert_eq!(statuses(&[sentinel(Some(1)), sentinel(Some(2))]), [Status::Fail]);
        assert_eq!(statuses(&[sentinel(Some(1)), down()]), [Status::Warn, Status::Ok]);
        assert_eq!(statuses(&[sentinel(None)]), [Status::Fail, Status::Fail]);
    }
}
