//! Checks of what the sentinels and the members of a cluster say about the masters.

use std::collections::BTreeSet;

use super::super::Check;
use super::{code_and_reason, is_login_refused, reason};
use crate::redis::transport::health::{RedisHealthError, Sentinel, Server, Slots};

/// Ranges of missing slots that a finding lists.
const RANGES_LISTED: usize = 4;

/// One finding about each sentinel that is wrong, and one about the master that they name.
pub(super) fn sentinels(sentinels: &[Sentinel]) -> Vec<Check> {
    let name = "redis sentinels";
    let about = |Sentinel { node, seen }: &Sentinel| match seen {
        Err(error) => {
            let reason = reason(error);
            check! { name;
                Warn "{node} does not answer: {reason}"
                -> "start it, or take {node} out of redis.url"
            }
        }
        Ok(view) => {
            // A sentinel that does not watch the name cannot check its quorum either.
            let (port, lacking) = (node.port, view.quorum.as_ref().err().map(reason));
            check! { name;
                view.master.is_none() =>
                    Fail "{node} watches no master of the name in redis.url"
                    -> "take a name from `redis-cli -p {port} SENTINEL MASTERS`";
                let Some(lacking) = lacking => Warn "{node}: {lacking}"
                    -> "start the missing sentinels: without a majority no master is replaced";
            }
        }
    };
    let named =
        |sentinel: &Sentinel| Some(sentinel.seen.as_ref().ok()?.master.as_ref()?.to_string());
    let masters: BTreeSet<String> = sentinels.iter().filter_map(named).collect();
    let names = masters.iter().cloned().collect::<Vec<_>>().join(", ");
    let common = check! { name;
        masters.is_empty() => Fail "no sentinel names a master"
            -> "start the sentinels, or correct redis.url";
        masters.len() > 1 => Fail "they name different masters: {names}"
            -> "wait a minute for a fail-over to end; if it stays, `SENTINEL RESET name` on each";
        else => Ok "the master is {names}"
    };
    let common = (!sentinels.is_empty()).then_some(common);
    sentinels.iter().map(about).chain(common).collect()
}

/// The slots and members of a cluster.
pub(super) fn cluster(seen: &Result<Slots, RedisHealthError>, servers: &[Server]) -> Check {
    let name = "redis cluster";
    let slots = match seen {
        Ok(slots) => slots,
        Err(error) => {
            let (code, reason) = code_and_reason(error);
            return check! { name;
                code.is_none() => Fail "no member answers: {reason}"
                    -> "start it, or correct the members in redis.url";
                is_login_refused(code) => Fail "refuses the user: {reason}"
                    -> "put the right user and password into redis.url";
                else => Fail "does not report its slots: {reason}"
                    -> "if it is a single server, write redis.url as redis://host:port"
            };
        }
    };
    let fix = format!("`redis-cli --cluster fix {}`", slots.asked);
    let in_state_fail = servers.iter().find(|server| !has_cluster_state_ok(server));
    let in_state_fail = in_state_fail.map(|server| &server.node);
    let failing = slots.members.iter().filter(|member| member.is_failing);
    let failing: Vec<_> = failing.map(|member| member.node.to_string()).collect();
    let (missing, failing) = (ranges(&slots.missing), failing.join(", "));
    let masters = slots.members.iter().filter(|member| member.is_master).count();
    let silent = slots.silent.first().map(|(node, error)| (node, reason(error)));
    check! { name;
        !missing.is_empty() => Fail "no node has the slots {missing}"
            -> "start the master that had them, or reassign them: {fix}";
        let Some(node) = in_state_fail =>
            Fail "{node} says cluster_state:fail, and refuses all commands"
            -> "start the missing masters, or remove them: {fix}";
        !failing.is_empty() => Warn "members that the others cannot reach: {failing}"
            -> "start them, or remove them: {fix}";
        let Some((node, reason)) = silent => Warn "{node} does not answer: {reason}"
            -> "start it, or take {node} out of redis.url";
        else => Ok "all slots on {masters} masters"
    }
}

/// Whether the member reports `cluster_state:ok`; true if it does not report a state.
fn has_cluster_state_ok(server: &Server) -> bool {
    let Ok(facts) = &server.seen else { return true };
    let Some(Ok(cluster_info)) = &facts.cluster else { return true };
    cluster_info.get("cluster_state").is_none_or(|state| state.trim() == "ok")
}

fn ranges(missing: &[(u16, u16)]) -> String {
    let range = |&(first, last): &(u16, u16)| {
        if first == last { first.to_string() } else { format!("{first} to {last}") }
    };
    let mut named: Vec<String> = missing.iter().take(RANGES_LISTED).map(range).collect();
    if missing.len() > RANGES_LISTED {
        named.push(format!("and {} more ranges", missing.len() - RANGES_LISTED));
    }
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::super::Status::{Fail, Warn};
    use super::super::super::tests::{assert_problem, problems};
    use super::super::server::tests::facts;
    use super::super::tests::{node, server};
    use super::*;
    use crate::redis::transport::health::{ClusterMember, SentinelView, ServerFacts, ServerRole};

    #[test]
    fn a_cluster_must_have_all_slots_and_members() {
        let found = |missing, is_failing, info: &[(&str, &str)]| {
            let member = ClusterMember { node: node(1), is_master: true, is_failing };
            let slots =
                Slots { asked: node(1), silent: Vec::new(), members: vec![member], missing };
            let info = info.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            let facts = ServerFacts { cluster: Some(Ok(info.collect())), ..facts(&[], &[]) };
            vec![cluster(&Ok(slots), &[server(1, ServerRole::Master, facts)])]
        };
        assert_eq!(problems(found(Vec::new(), false, &[])), []);
        let failing = found(Vec::new(), true, &[]);
        assert_problem(failing, "redis cluster", Warn, "the others cannot reach: h:1");
        let missing = found(vec![(0, 0), (5, 9)], false, &[]);
        assert_problem(missing, "redis cluster", Fail, "0, 5 to 9");
        let state = found(Vec::new(), true, &[("cluster_state", "fail")]);
        assert_problem(state, "redis cluster", Fail, "h:1 says cluster_state:fail");
    }

    #[test]
    fn sentinels_must_agree_on_one_master() {
        let sentinel = |port| Sentinel {
            node: node(26_379),
            seen: Ok(SentinelView { master: Some(node(port)), quorum: Ok(()) }),
        };
        assert!(sentinels(&[]).is_empty());
        assert_eq!(problems(sentinels(&[sentinel(1), sentinel(1)])), []);
        let two = sentinels(&[sentinel(1), sentinel(2)]);
        assert_problem(two, "redis sentinels", Fail, "different masters: h:1, h:2");
    }
}
