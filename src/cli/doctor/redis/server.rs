//! Checks of one server: role, version, round trip, clock, settings, buckets and replicas.

use super::super::{Check, Finding, ROUND_TRIP_COMFORTABLE, is_at_least, machine, ms};
use super::storage::{durability, files, memory};
use super::{Expected, buckets, reason};
use crate::config::Durability;
use crate::redis::transport::health::{ServerFacts, ServerRole};

/// The first version with script flags, by which a full server refuses a script before it runs.
const VERSION_MIN: [u32; 2] = [7, 0];
/// A server with a shorter idle timeout closes our connections between two sales.
const IDLE_MIN_S: u64 = 60;

pub(super) fn checks(
    facts: &ServerFacts,
    part: ServerRole,
    expected: &Expected<'_>,
    cli: &str,
) -> Vec<Check> {
    let mut checks = vec![
        answer(facts, expected),
        role(facts, part, expected, cli),
        version(facts.text("redis_version")),
        machine::skew("redis clock", facts.clock_ahead_ms),
    ];
    checks.extend(settings(facts, cli));
    if part == ServerRole::Master {
        checks.push(buckets::buckets(facts, expected, cli));
        checks.push(buckets::epochs(facts, expected));
    }
    checks.push(durability(facts, expected.settings.durability, cli));
    checks.extend(files(facts, cli));
    checks.push(replicas(facts, expected, cli));
    checks.extend(memory(facts, cli));
    let is_failed = checks.iter().flatten().any(Finding::is_failed);
    let not_ready = facts.not_ready.as_deref().filter(|_| !is_failed);
    checks.push(check! { "redis connection";
        let Some(problem) = not_ready =>
            Fail "{problem}"
            -> "do what the message says; until then the server cannot be used";
    });
    checks
}

fn answer(facts: &ServerFacts, expected: &Expected<'_>) -> Check {
    let took = facts.round_trip;
    let detail = format!("answers in {:.2} ms", ms(took));
    check! { "redis";
        facts.text("loading") == "1" => Fail "{detail}, and is still reading its file"
            -> "wait until it has read it: `loading` in `redis-cli INFO persistence` becomes 0";
        took.as_millis() * 10 > u128::from(expected.settings.command_timeout_ms) =>
            Warn "{detail}: too close to redis.command_timeout_ms"
            -> "raise redis.command_timeout_ms, or move the server nearer";
        took > ROUND_TRIP_COMFORTABLE => Warn "{detail}: each batch of buyers waits for it"
            -> "run it in the same data centre as this program, on a machine with a free core";
        else => Ok "{detail}"
    }
}

fn role(facts: &ServerFacts, part: ServerRole, expected: &Expected<'_>, cli: &str) -> Check {
    let role = facts.text("role");
    let is_cut = facts.text("master_link_status") != "up";
    let is_member = facts.text("cluster_enabled") == "1";
    let master = format!("{}:{}", facts.text("master_host"), facts.text("master_port"));
    let is_master = part == ServerRole::Master;
    check! { "redis role";
        is_master && is_member && !expected.is_cluster => Fail "is a member of a cluster"
            -> "write redis.url as redis+cluster://host:port,host:port";
        is_master && role == "slave" => Fail "is a replica of {master}: it accepts no writes"
            -> "point redis.url to {master}, or promote this one: `{cli} REPLICAOF NO ONE`";
        role != if is_master { "master" } else { "slave" } => Fail "reports the role {role:?}"
            -> "point redis.url to a redis-server; sentinels belong in redis+sentinel://";
        is_master => Ok "master";
        is_cut => Warn "has no connection to its master {master}"
            -> "see its log; `{cli} INFO replication` must say master_link_status:up";
        else => Ok "copies {master}"
    }
}

fn version(version: &str) -> Check {
    let [major, minor] = VERSION_MIN;
    check! { "redis version";
        !is_at_least(version, &VERSION_MIN) =>
            Fail "{version:?} is older than {major}.{minor}, which scripts with flags need"
            -> "upgrade it to {major}.{minor} or later";
        else => Ok "{version}"
    }
}

/// The settings that a managed server may hide, and the time-out of idle connections.
fn settings(facts: &ServerFacts, cli: &str) -> [Check; 2] {
    let idle_s: u64 = facts.setting("timeout").and_then(|text| text.parse().ok()).unwrap_or(0);
    let hidden = facts.config.as_ref().err().map(reason);
    [
        check! { "redis idle";
            (1..IDLE_MIN_S).contains(&idle_s) =>
                Warn "closes connections that are idle for {idle_s} s (timeout)"
                -> "`{cli} CONFIG SET timeout 0`, and the same in redis.conf";
        },
        check! { "redis settings";
            let Some(reason) = hidden =>
                Warn "does not show appendfsync, min-replicas-to-write, timeout and \
                      hash-max-listpack-entries: {reason}"
                -> "allow this user `+config|get`, or check them yourself where the server is \
                    managed";
        },
    ]
}

fn replicas(facts: &ServerFacts, expected: &Expected<'_>, cli: &str) -> Check {
    let is_replicated = expected.settings.durability == Durability::Replicated;
    if !is_replicated || facts.text("role") != "master" {
        return None;
    }
    let wanted = u64::from(expected.settings.replicas_min);
    let is_online = |(name, line): &(&String, &String)| {
        name.starts_with("slave") && line.split(',').any(|part| part == "state=online")
    };
    let online = facts.info.iter().filter(is_online).count() as u64;
    let refuses_below = match facts.setting("min-replicas-to-write") {
        Some(number) => number.parse().unwrap_or(0),
        // INFO has this line only if the setting is not 0.
        None if facts.info.contains_key("min_slaves_good_slaves") => wanted,
        None => 0,
    };
    let detail = format!("{online} online, {wanted} needed to confirm (redis.replicas_min)");
    check! { "redis replicas";
        online < wanted => Fail "{detail}"
            -> "start more replicas (`REPLICAOF host port` on each), or lower redis.replicas_min: \
                until then every purchase ends as `unknown`";
        refuses_below < wanted =>
            Warn "{detail}; cut off from them it still accepts writes, which will be lost"
            -> "`{cli} CONFIG SET min-replicas-to-write {wanted}`, and in redis.conf";
        else => Ok "{detail}"
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
pub(super) mod tests;
