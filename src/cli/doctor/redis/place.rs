//! Where the masters are, as sentinels and clusters tell it.

use std::collections::BTreeSet;

use super::super::{CheckOutcome, fail, ok, warn};
use super::said;
use crate::redis::transport::health::{RedisHealthError, Sentinel, Server, Slots};

/// Runs of missing slots that are named.
const RUNS_NAMED: usize = 4;

pub(super) fn sentinels(sentinels: &[Sentinel]) -> Vec<CheckOutcome> {
    if sentinels.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut masters = BTreeSet::new();
    for Sentinel { node, seen } in sentinels {
        match seen {
            Err(trouble) => findings.push(warn(
                format!("{node} does not answer: {}", said(trouble)),
                format!("start it, or take {node} out of redis.url"),
            )),
            Ok(watch) => {
                if let Some(master) = &watch.master {
                    masters.insert(master.to_string());
                } else {
                    findings.push(fail(
                        format!("{node} watches no master of the name in redis.url"),
                        format!("take a name from `redis-cli -p {} SENTINEL MASTERS`", node.port),
                    ));
                }
                // Of a name it does not know it cannot tell this either.
                if let (Err(trouble), Some(_)) = (&watch.quorum, &watch.master) {
                    findings.push(warn(
                        format!("{node}: {}", said(trouble)),
                        "start the missing sentinels: without a majority no master is replaced",
                    ));
                }
            }
        }
    }
    let names: Vec<_> = masters.into_iter().collect();
    match names.as_slice() {
        [] => findings.push(fail(
            "none says where the master is",
            "start the sentinels, or correct redis.url",
        )),
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
        Err(RedisHealthError::Unreachable(why)) => {
            return fail(
                format!("no member answers: {why}"),
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
                format!("does not tell about itself: {message}"),
                "if it is a single server, write redis.url as redis://host:port",
            );
        }
    };
    let fix = format!("`redis-cli --cluster fix {}`", slots.asked);
    if !slots.missing.is_empty() {
        return fail(
            format!("nobody has the slots {}", runs(&slots.missing)),
            format!("start the master that had them, or deal them out: {fix}"),
        );
    }
    if let Some(server) = servers.iter().find(|server| !answers(server)) {
        return fail(
            format!("{} says cluster_state:fail, and answers nothing", server.node),
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
    if let Some((node, trouble)) = slots.silent.first() {
        return warn(
            format!("{node} does not answer: {}", said(trouble)),
            format!("start it, or take {node} out of redis.url"),
        );
    }
    let masters = slots.members.iter().filter(|member| member.is_master).count();
    ok(format!("all slots on {masters} masters"))
}

/// Whether a member of the cluster finds it whole; true where it does not say.
fn answers(server: &Server) -> bool {
    let Ok(facts) = &server.seen else { return true };
    let Some(Ok(said)) = &facts.cluster else { return true };
    said.get("cluster_state").is_none_or(|state| state.trim() == "ok")
}

fn runs(missing: &[(u16, u16)]) -> String {
    let mut named: Vec<String> = missing
        .iter()
        .take(RUNS_NAMED)
        .map(
            |(first, last)| {
                if first == last { first.to_string() } else { format!("{first} to {last}") }
            },
        )
        .collect();
    if missing.len() > RUNS_NAMED {
        named.push(format!("and {} more runs", missing.len() - RUNS_NAMED));
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
    fn a_cluster_that_answers_nothing_is_told() {
        let mut facts = super::super::tests_support::facts("");
        facts.cluster = Some(Ok([("cluster_state".to_owned(), "fail".to_owned())].into()));
        let server = Server { node: node(1), part: ServerRole::Master, seen: Ok(Box::new(facts)) };
        let finding = cluster(&Ok(slots(Vec::new(), true)), &[server]);
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.detail.contains("h:1 says cluster_state:fail"), "{finding:?}");
    }

    #[test]
    fn sentinels_must_agree_on_one_master() {
        let says = |port: Option<u16>| Sentinel {
            node: node(26_379),
            seen: Ok(SentinelView { master: port.map(node), quorum: Ok(()) }),
        };
        let silent = || Sentinel {
            node: node(26_380),
            seen: Err(RedisHealthError::Unreachable("refused".to_owned())),
        };
        let judged = |all: &[Sentinel]| {
            sentinels(all).iter().map(|finding| finding.status).collect::<Vec<_>>()
        };
        assert_eq!(judged(&[]), []);
        assert_eq!(judged(&[says(Some(1)), says(Some(1))]), [Status::Ok]);
        assert_eq!(judged(&[says(Some(1)), says(Some(2))]), [Status::Fail]);
        assert_eq!(judged(&[says(Some(1)), silent()]), [Status::Warn, Status::Ok]);
        assert_eq!(judged(&[says(None)]), [Status::Fail, Status::Fail]);
    }
}
