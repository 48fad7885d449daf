//! Checks of one server: role, version, round trip, clock, settings, buckets and replicas.

use super::super::{Check, ROUND_TRIP_COMFORTABLE, check, is_at_least, machine, ms};
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
    let connects = facts.not_ready.is_none() || checks.iter().any(Check::is_failed);
    checks.push(
        check("redis connection")
            .when(!connects)
            .fail(facts.not_ready.as_deref().unwrap_or_default())
            .remedy("do what the message says; until then the server cannot be used"),
    );
    checks
}

fn answer(facts: &ServerFacts, expected: &Expected<'_>) -> Check {
    let took = facts.round_trip;
    let detail = format!("answers in {:.2} ms", ms(took));
    check("redis")
        .when(facts.text("loading") == "1")
        .fail(format!("{detail}, and is still reading its file"))
        .remedy("wait until it has read it: `loading` in `redis-cli INFO persistence` becomes 0")
        .when(took.as_millis() * 10 > u128::from(expected.settings.command_timeout_ms))
        .warn(format!("{detail}: too close to redis.command_timeout_ms"))
        .remedy("raise redis.command_timeout_ms, or move the server nearer")
        .when(took > ROUND_TRIP_COMFORTABLE)
        .warn(format!("{detail}: each batch of buyers waits for it"))
        .remedy("run it in the same data centre as this program, on a machine with a free core")
        .ok(detail)
}

fn role(facts: &ServerFacts, part: ServerRole, expected: &Expected<'_>, cli: &str) -> Check {
    let role = facts.text("role");
    let is_cut = facts.text("master_link_status") != "up";
    let is_member = facts.text("cluster_enabled") == "1";
    let master = format!("{}:{}", facts.text("master_host"), facts.text("master_port"));
    let is_master = part == ServerRole::Master;
    let detail = if is_master { "master".to_owned() } else { format!("copies {master}") };
    check("redis role")
        .when(is_master && is_member && !expected.is_cluster)
        .fail("is a member of a cluster")
        .remedy("write redis.url as redis+cluster://host:port,host:port")
        .when(is_master && role == "slave")
        .fail(format!("is a replica of {master}: it accepts no writes"))
        .remedy(format!(
            "point redis.url to {master}, or promote this one: `{cli} REPLICAOF NO ONE`"
        ))
        .when(role != if is_master { "master" } else { "slave" })
        .fail(format!("reports the role {role:?}"))
        .remedy("point redis.url to a redis-server; sentinels belong in redis+sentinel://")
        .when(!is_master && is_cut)
        .warn(format!("has no connection to its master {master}"))
        .remedy(format!("see its log; `{cli} INFO replication` must say master_link_status:up"))
        .ok(detail)
}

fn version(version: &str) -> Check {
    let [major, minor] = VERSION_MIN;
    check("redis version")
        .when(!is_at_least(version, &VERSION_MIN))
        .fail(format!("{version:?} is older than {major}.{minor}, which scripts with flags need"))
        .remedy(format!("upgrade it to {major}.{minor} or later"))
        .ok(version)
}

/// The settings that a managed server may hide, and the time-out of idle connections.
fn settings(facts: &ServerFacts, cli: &str) -> [Check; 2] {
    let idle_s: u64 = facts.setting("timeout").and_then(|text| text.parse().ok()).unwrap_or(0);
    let hidden = facts.config.as_ref().map_or_else(reason, |_| "");
    [
        check("redis idle")
            .when((1..IDLE_MIN_S).contains(&idle_s))
            .warn(format!("closes connections that are idle for {idle_s} s (timeout)"))
            .remedy(format!("`{cli} CONFIG SET timeout 0`, and the same in redis.conf")),
        check("redis settings")
            .when(facts.config.is_err())
            .warn(format!(
                "does not show appendfsync, min-replicas-to-write, timeout and \
                 hash-max-listpack-entries: {hidden}"
            ))
            .remedy(
                "allow this user `+config|get`, or check them yourself where the server is managed",
            ),
    ]
}

fn replicas(facts: &ServerFacts, expected: &Expected<'_>, cli: &str) -> Check {
    let check = check("redis replicas");
    let is_replicated = expected.settings.durability == Durability::Replicated;
    if !is_replicated || facts.text("role") != "master" {
        return check;
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
    check
        .when(online < wanted)
        .fail(&detail)
        .remedy(
            "start more replicas (`REPLICAOF host port` on each), or lower redis.replicas_min: \
             until then every purchase ends as `unknown`",
        )
        .when(refuses_below < wanted)
        .warn(format!("{detail}; cut off from them it still accepts writes, which will be lost"))
        .remedy(format!("`{cli} CONFIG SET min-replicas-to-write {wanted}`, and in redis.conf"))
        .ok(detail)
}

#[cfg(test)]
#[path = "server_tests.rs"]
pub(super) mod tests;
