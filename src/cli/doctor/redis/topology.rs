//! Checks of what the sentinels and the members of a cluster say about the masters.

use std::collections::BTreeSet;

use super::super::{Check, check};
use super::{code_and_reason, is_login_refused, reason};
use crate::redis::transport::health::{RedisHealthError, Sentinel, Server, Slots};

/// Ranges of missing slots that a finding lists.
const RANGES_LISTED: usize = 4;

/// One finding about each sentinel that is wrong, and one about the master that they name.
pub(super) fn sentinels(sentinels: &[Sentinel]) -> Vec<Check> {
    let about = |Sentinel { node, seen }: &Sentinel| {
        let check = check("redis sentinels");
        match seen {
            Err(error) => check
                .warn(format!("{node} does not answer: {}", reason(error)))
                .remedy(format!("start it, or take {node} out of redis.url")),
            Ok(view) => {
                // A sentinel that does not watch the name cannot check its quorum either.
                let quorum = view.quorum.as_ref().map_or_else(reason, |()| "");
                check
                    .when(view.master.is_none())
                    .fail(format!("{node} watches no master of the name in redis.url"))
                    .remedy(format!(
                        "take a name from `redis-cli -p {} SENTINEL MASTERS`",
                        node.port
                    ))
                    .when(view.quorum.is_err())
                    .warn(format!("{node}: {quorum}"))
                    .remedy("start the missing sentinels: without a majority no master is replaced")
            }
        }
    };
    let named =
        |sentinel: &Sentinel| Some(sentinel.seen.as_ref().ok()?.master.as_ref()?.to_string());
    let masters: BTreeSet<String> = sentinels.iter().filter_map(named).collect();
    let names = masters.iter().cloned().collect::<Vec<_>>().join(", ");
    let common = check("redis sentinels")
        .when(masters.is_empty())
        .fail("no sentinel names a master")
        .remedy("start the sentinels, or correct redis.url")
        .when(masters.len() > 1)
        .fail(format!("they name different masters: {names}"))
        .remedy("wait a minute for a fail-over to end; if it stays, `SENTINEL RESET name` on each")
        .ok(format!("the master is {names}"));
    let common = (!sentinels.is_empty()).then_some(common);
    sentinels.iter().map(about).chain(common).collect()
}

/// The slots and members of a cluster.
pub(super) fn cluster(seen: &Result<Slots, RedisHealthError>, servers: &[Server]) -> Check {
    let check = check("redis cluster");
    let slots = match seen {
        Ok(slots) => slots,
        Err(error) => {
            let (code, reason) = code_and_reason(error);
            return check
                .when(code.is_none())
                .fail(format!("no member answers: {reason}"))
                .remedy("start it, or correct the members in redis.url")
                .when(is_login_refused(code))
                .fail(format!("refuses the user: {reason}"))
                .remedy("put the right user and password into redis.url")
                .fail(format!("does not report its slots: {reason}"))
                .remedy("if it is a single server, write redis.url as redis://host:port");
        }
    };
    let fix = format!("`redis-cli --cluster fix {}`", slots.asked);
    let in_state_fail = servers.iter().find(|server| !has_cluster_state_ok(server));
    let in_state_fail = in_state_fail.map(|server| server.node.to_string());
    let failing = slots.members.iter().filter(|member| member.is_failing);
    let failing: Vec<_> = failing.map(|member| member.node.to_string()).collect();
    let masters = slots.members.iter().filter(|member| member.is_master).count();
    let check = check
        .when(!slots.missing.is_empty())
        .fail(format!("no node has the slots {}", ranges(&slots.missing)))
        .remedy(format!("start the master that had them, or reassign them: {fix}"))
        .when(in_state_fail.is_some())
        .fail(format!(
            "{} says cluster_state:fail, and refuses all commands",
            in_state_fail.unwrap_or_default()
        ))
        .remedy(format!("start the missing masters, or remove them: {fix}"))
        .when(!failing.is_empty())
        .warn(format!("members that the others cannot reach: {}", failing.join(", ")))
        .remedy(format!("start them, or remove them: {fix}"));
    match slots.silent.first() {
        Some((node, error)) => check
            .warn(format!("{node} does not answer: {}", reason(error)))
            .remedy(format!("start it, or take {node} out of redis.url")),
        None => check.ok(format!("all slots on {masters} masters")),
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
