//! Checks of a server's role, version, round trip, clock, and the owner of its buckets.

use super::super::{CheckOutcome, Finding, fail, machine, ok, warn};
use super::{Installation, Requirements, reason};
use crate::redis::transport::health::{ServerFacts, ServerRole};

/// The first version with script flags, by which a full server refuses a script before it runs.
const VERSION_MIN: (u32, u32) = (7, 0);
/// Above this the network noticeably delays each batch.
const ROUND_TRIP_COMFORTABLE_US: u128 = 5_000;
/// A server with a shorter idle timeout closes our connections between two sales.
const IDLE_MIN_S: u64 = 60;

pub(super) fn check(
    facts: &ServerFacts,
    expected: ServerRole,
    wanted: &Requirements,
    cli: &str,
) -> Vec<Finding> {
    let mut findings = vec![
        answer(facts, wanted).on("redis"),
        role(facts, expected, wanted, cli).on("redis role"),
        version(facts.text("redis_version")).on("redis version"),
        machine::skew(facts.clock_ahead_ms).on("redis clock"),
    ];
    findings.extend(idle(facts, cli).map(|wrong| wrong.on("redis idle")));
    findings.extend(hidden_settings(facts).map(|wrong| wrong.on("redis settings")));
    if expected == ServerRole::Master {
        findings.push(buckets(facts, wanted).on("redis buckets"));
    }
    findings
}

fn answer(facts: &ServerFacts, wanted: &Requirements) -> CheckOutcome {
    let took = facts.round_trip;
    let detail = format!("answers in {:.2} ms", took.as_secs_f64() * 1000.0);
    if facts.text("loading") == "1" {
        return fail(
            format!("{detail}, and is still reading its file"),
            "wait until it has read it: `loading` in `redis-cli INFO persistence` becomes 0",
        );
    }
    if took.as_millis() * 10 > u128::from(wanted.command_timeout_ms) {
        return warn(
            format!("{detail}: too close to redis.command_timeout_ms"),
            "raise redis.command_timeout_ms, or move the server nearer",
        );
    }
    if took.as_micros() > ROUND_TRIP_COMFORTABLE_US {
        return warn(
            format!("{detail}: each batch of buyers waits for it"),
            "run it in the same data centre as this program, on a machine with a free core",
        );
    }
    ok(detail)
}

fn role(
    facts: &ServerFacts,
    expected: ServerRole,
    wanted: &Requirements,
    cli: &str,
) -> CheckOutcome {
    let in_cluster = facts.text("cluster_enabled") == "1";
    if expected == ServerRole::Master && in_cluster && !wanted.is_cluster {
        let remedy = "write redis.url as redis+cluster://host:port,host:port";
        return fail("is a member of a cluster", remedy);
    }
    let master = || format!("{}:{}", facts.text("master_host"), facts.text("master_port"));
    match (expected, facts.text("role")) {
        (ServerRole::Master, "master") => ok("master"),
        (ServerRole::Master, "slave") => fail(
            format!("is a replica of {}: it accepts no writes", master()),
            format!(
                "point redis.url to {}, or promote this one: `{cli} REPLICAOF NO ONE`",
                master()
            ),
        ),
        (ServerRole::Replica, "slave") if facts.text("master_link_status") == "up" => {
            ok(format!("copies {}", master()))
        }
        (ServerRole::Replica, "slave") => warn(
            format!("has no connection to its master {}", master()),
            format!("see its log; `{cli} INFO replication` must say master_link_status:up"),
        ),
        (_, other) => fail(
            format!("reports the role {other:?}"),
            "point redis.url to a redis-server; sentinels belong in redis+sentinel://",
        ),
    }
}

fn version(version: &str) -> CheckOutcome {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let seen = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if seen >= VERSION_MIN {
        return ok(version);
    }
    let (major, minor) = VERSION_MIN;
    fail(
        format!("{version:?} is older than {major}.{minor}, which scripts with flags need"),
        format!("upgrade it to {major}.{minor} or later"),
    )
}

fn idle(facts: &ServerFacts, cli: &str) -> Option<CheckOutcome> {
    let after: u64 = facts.setting("timeout")?.parse().ok()?;
    (1..IDLE_MIN_S).contains(&after).then(|| {
        warn(
            format!("closes connections that are idle for {after} s (timeout)"),
            format!("`{cli} CONFIG SET timeout 0`, and the same in redis.conf"),
        )
    })
}

/// Warns when a managed server refuses `CONFIG GET`.
fn hidden_settings(facts: &ServerFacts) -> Option<CheckOutcome> {
    let reason = reason(facts.config.as_ref().err()?);
    Some(warn(
        format!(
            "does not show appendfsync, min-replicas-to-write, timeout and \
             hash-max-listpack-entries: {reason}"
        ),
        "allow this user `+config|get`, or check them yourself where the server is managed",
    ))
}

fn buckets(facts: &ServerFacts, wanted: &Requirements) -> CheckOutcome {
    let found = match &facts.buckets {
        Ok(found) => found,
        Err(error) => {
            let reason = reason(error);
            let remedy = "allow this user `+scan +hmget` on keys that begin with the namespace";
            return warn(format!("cannot be looked for: {reason}"), remedy);
        }
    };
    let total: u64 = found.by_installation.values().sum();
    let ours = match &wanted.installation {
        Installation::Known(name) => found.by_installation.get(name).copied().unwrap_or(0),
        Installation::None => 0,
        Installation::Unknown => total,
    };
    let partial = if found.is_complete { "" } else { " (not all keys were scanned)" };
    let foreign = total - ours;
    if foreign > 0 {
        let owner = if let Installation::Known(ours) = &wanted.installation {
            let others = found.by_installation.keys().filter(|name| *name != ours);
            let names: Vec<_> = others.map(|name| format!("{name:?}")).collect();
            format!("another ledger ({}, ours is {ours:?})", names.join(", "))
        } else {
            "another ledger: ours does not exist yet".to_owned()
        };
        return fail(
            format!("{foreign} of {total} under our namespace belong to {owner}{partial}"),
            "give this installation a `namespace` of its own; delete the keys only if that other \
             ledger is gone for good",
        );
    }
    let unknown_owner = match &wanted.installation {
        Installation::Unknown => ", owner unknown without the ledger",
        _ => "",
    };
    let stale = match found.opened_elsewhere {
        0 => String::new(),
        count => format!("; {count} from before its last start are reloaded from the ledger"),
    };
    ok(format!("{total} under our namespace{unknown_owner}{stale}{partial}"))
}

#[cfg(test)]
mod tests {
    use super::super::super::Status;
    use super::super::tests_support::{facts, wanted};
    use super::*;
    use crate::redis::transport::health::RedisHealthError;

    #[test]
    fn a_version_without_flags_in_scripts_is_too_old() {
        assert_eq!(version("7.0.15").status, Status::Ok);
        assert_eq!(version("8.2.0").status, Status::Ok);
        assert_eq!(version("6.2.14").status, Status::Fail);
        assert_eq!(version("").status, Status::Fail);
    }

    #[test]
    fn each_wrong_role_has_its_own_remedy() {
        let wanted = wanted();
        let checked = |lines: &str, expected| role(&facts(lines), expected, &wanted, "redis-cli");
        assert_eq!(checked("role:master", ServerRole::Master).status, Status::Ok);
        let replica = checked("role:slave\nmaster_host:h\nmaster_port:1", ServerRole::Master);
        assert_eq!(replica.status, Status::Fail);
        assert!(replica.remedy.contains("h:1"), "{replica:?}");
        let member = checked("role:master\ncluster_enabled:1", ServerRole::Master);
        assert!(member.remedy.contains("redis+cluster://"), "{member:?}");
        let cut = checked("role:slave\nmaster_link_status:down", ServerRole::Replica);
        assert_eq!(cut.status, Status::Warn);
        assert_eq!(checked("role:sentinel", ServerRole::Master).status, Status::Fail);
    }

    #[test]
    fn buckets_of_another_ledger_fail() {
        let mut seen = facts("");
        let Ok(found) = &mut seen.buckets else { panic!("made above") };
        found.by_installation = [("0000000a".to_owned(), 3)].into();
        let mut wanted = wanted();
        wanted.installation = Installation::Known("0000000a".to_owned());
        assert_eq!(buckets(&seen, &wanted).status, Status::Ok);
        wanted.installation = Installation::Known("0000000b".to_owned());
        let finding = buckets(&seen, &wanted);
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.detail.contains("3 of 3"), "{finding:?}");
        wanted.installation = Installation::None;
        assert_eq!(buckets(&seen, &wanted).status, Status::Fail);
        wanted.installation = Installation::Unknown;
        assert_eq!(buckets(&seen, &wanted).status, Status::Ok);
    }

    #[test]
    fn hidden_settings_and_a_short_idle_timeout_are_reported() {
        let mut seen = facts("");
        assert_eq!(hidden_settings(&seen), None);
        seen.config =
            Err(RedisHealthError::Refused { code: "NOPERM".into(), message: "no".into() });
        assert_eq!(hidden_settings(&seen).map(|finding| finding.status), Some(Status::Warn));
        seen.config = Ok([("timeout".to_owned(), "30".to_owned())].into());
        assert_eq!(idle(&seen, "c").map(|finding| finding.status), Some(Status::Warn));
        seen.config = Ok([("timeout".to_owned(), "300".to_owned())].into());
        assert_eq!(idle(&seen, "c"), None);
    }
}
