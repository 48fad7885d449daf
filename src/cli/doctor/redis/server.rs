//! Checks of one server: role, version, round trip, clock, buckets, persistence and memory.

use super::super::{Check, ROUND_TRIP_COMFORTABLE, check, is_at_least, machine, ms};
use super::{Expected, reason};
use crate::config::Durability;
use crate::redis::transport::health::{ServerFacts, ServerRole};

/// The first version with script flags, by which a full server refuses a script before it runs.
const VERSION_MIN: [u32; 2] = [7, 0];
/// A server with a shorter idle timeout closes our connections between two sales.
const IDLE_MIN_S: u64 = 60;
/// Used memory in percent from which to warn.
const USED_COMFORTABLE: u64 = 80;
/// Listpack limits below which Redis converts a bucket's hash pages to a larger encoding.
const LISTPACK_MIN: [(&str, u64); 2] =
    [("hash-max-listpack-entries", 512), ("hash-max-listpack-value", 64)];
const MIB: u64 = 1024 * 1024;

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
        checks.push(buckets(facts, expected));
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

fn buckets(facts: &ServerFacts, expected: &Expected<'_>) -> Check {
    let check = check("redis buckets");
    let found = match &facts.buckets {
        Ok(found) => found,
        Err(error) => {
            let remedy = "allow this user `+scan +hmget` on keys that begin with the namespace";
            return check.warn(format!("cannot be looked for: {}", reason(error))).remedy(remedy);
        }
    };
    let by_installation = &found.by_installation;
    let total: u64 = by_installation.values().sum();
    let (ours, owner, unknown_owner) = match &expected.installation {
        Ok(Some(ours)) => {
            let others = by_installation.keys().filter(|name| *name != ours);
            let names: Vec<_> = others.map(|name| format!("{name:?}")).collect();
            let owner = format!("another ledger ({}, ours is {ours:?})", names.join(", "));
            (by_installation.get(ours).copied().unwrap_or(0), owner, "")
        }
        Ok(None) => (0, "another ledger: ours does not exist yet".to_owned(), ""),
        Err(_) => (total, String::new(), ", owner unknown without the ledger"),
    };
    let partial = if found.is_complete { "" } else { " (not all keys were scanned)" };
    let stale = match found.opened_elsewhere {
        0 => String::new(),
        count => format!("; {count} from before its last start are reloaded from the ledger"),
    };
    check
        .when(total > ours)
        .fail(format!("{} of {total} under our namespace belong to {owner}{partial}", total - ours))
        .remedy(
            "give this installation a `namespace` of its own; delete the keys only if that other \
             ledger is gone for good",
        )
        .ok(format!("{total} under our namespace{unknown_owner}{stale}{partial}"))
}

fn durability(facts: &ServerFacts, durability: Durability, cli: &str) -> Check {
    let no_file = facts.text("aof_enabled") != "1";
    let (is_required, consequence) = match durability {
        Durability::Aof => (true, ", and redis.durability = \"aof\" needs it"),
        Durability::Plain => (false, ""),
        Durability::Replicated => (false, ", and empties its replicas, too"),
    };
    let lost = format!(
        "keeps no append-only file: a restart loses every request that the ledger does not have \
         yet{consequence}"
    );
    let keep = format!("`{cli} CONFIG SET appendonly yes`, and `appendonly yes` in redis.conf");
    let synced = facts.setting("appendfsync").unwrap_or("not reported");
    let detail = format!("append-only file, appendfsync {synced}");
    let late = facts.number("aof_delayed_fsync");
    let may_lose = if synced == "everysec" { ": a power cut may lose a second" } else { "" };
    check("redis durability")
        .when(no_file && is_required)
        .fail(&lost)
        .remedy(&keep)
        .when(no_file)
        .warn(lost)
        .remedy(keep)
        .when(synced == "no" && durability == Durability::Aof)
        .warn(format!("{detail}: a power cut loses up to half a minute"))
        .remedy(format!("`{cli} CONFIG SET appendfsync everysec` (or always), and in redis.conf"))
        .when(synced == "everysec" && late > 0)
        .warn(format!("{detail}; its disk was too slow {late} times"))
        .remedy("give it a faster disk: while an fsync is late, a kill may lose two seconds")
        .ok(format!("{detail}{may_lose}"))
}

/// Failed writes of the server's files: after one, Redis refuses all write commands.
fn files(facts: &ServerFacts, cli: &str) -> [Check; 3] {
    let failed = |status| check("redis files").when(!matches!(facts.text(status), "" | "ok"));
    let room = "make room on its disk and see its log";
    [
        failed("aof_last_write_status")
            .fail("cannot write its append-only file, and refuses all writes (MISCONF)")
            .remedy(format!("{room}; it goes on by itself")),
        failed("rdb_last_bgsave_status")
            .fail("could not write its snapshot, and may refuse all writes (MISCONF)")
            .remedy(format!("{room}; then `{cli} BGSAVE`")),
        failed("aof_last_bgrewrite_status")
            .warn("could not rewrite its append-only file, which keeps growing")
            .remedy(format!("{room}; then `{cli} BGREWRITEAOF`")),
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

fn memory(facts: &ServerFacts, cli: &str) -> [Check; 2] {
    // A server that does not report its policy passes here; each connection checks it again.
    let policy = facts.text("maxmemory_policy");
    let used = facts.number("used_memory");
    let (limit, of) = match facts.number("maxmemory") {
        0 => (facts.number("total_system_memory"), "the machine's"),
        limit => (limit, "maxmemory"),
    };
    // Without a reported limit there is no percentage to check.
    let is_full = limit > 0 && used.saturating_mul(100) >= limit.saturating_mul(USED_COMFORTABLE);
    let detail = format!("{} of {} MiB used ({of})", used / MIB, limit / MIB);
    let too_small = LISTPACK_MIN.into_iter().filter_map(|(name, least)| {
        let number: u64 = facts.setting(name)?.parse().ok()?;
        (number < least).then(|| (format!("{name} {number}"), format!("{name} {least}")))
    });
    let (small, wanted): (Vec<_>, Vec<_>) = too_small.unzip();
    [
        check("redis memory")
            .when(!matches!(policy, "" | "noeviction"))
            .fail(format!(
                "maxmemory-policy {policy}: when it is full it silently evicts units and requests; \
                 no process connects to it"
            ))
            .remedy(format!(
                "`{cli} CONFIG SET maxmemory-policy noeviction`, and `maxmemory-policy \
                 noeviction` in redis.conf"
            ))
            .when(is_full)
            .warn(format!(
                "{detail}: a full server refuses purchases, one beyond its machine is killed"
            ))
            .remedy(format!(
                "`{cli} CONFIG SET maxmemory ..` to more, or move what else is in it elsewhere"
            ))
            .ok(detail),
        check("redis layout")
            .when(!small.is_empty())
            .warn(format!("{}: each buyer takes twice the memory", small.join(", ")))
            .remedy(format!("`{cli} CONFIG SET {}`, and the same in redis.conf", wanted.join(" "))),
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::super::super::Status::{self, Fail, Warn};
    use super::super::super::tests::{assert_problem, problems};
    use super::*;
    use crate::config::Settings;
    use crate::redis::transport::health::FoundBuckets;

    /// A healthy server with these lines of `INFO` and of `CONFIG GET` changed.
    pub fn facts(info: &[(&str, &str)], config: &[(&str, &str)]) -> ServerFacts {
        let healthy = [
            ("role", "master"),
            ("redis_version", "7.0.15"),
            ("aof_enabled", "1"),
            ("maxmemory", "100"),
        ];
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        ServerFacts {
            round_trip: Duration::from_micros(100),
            clock_ahead_ms: 0,
            info: healthy.iter().chain(info).map(owned).collect(),
            config: Ok(config.iter().map(owned).collect()),
            cluster: None,
            not_ready: None,
            buckets: Ok(FoundBuckets::default()),
        }
    }

    /// The checks of one master; the ledger has the installation id `0000000a`.
    fn checked(facts: &ServerFacts, durability: Durability) -> Vec<Check> {
        let installation = Ok(Some("0000000a".to_owned()));
        let mut settings = Settings::for_test("sqlite://x.db").redis;
        settings.durability = durability;
        let expected = Expected { settings: &settings, is_cluster: false, installation };
        checks(facts, ServerRole::Master, &expected, "redis-cli")
    }

    #[test]
    fn each_wrong_line_is_one_finding() {
        type Lines = &'static [(&'static str, &'static str)];
        let aof = |info, config| checked(&facts(info, config), Durability::Aof);
        let fine: [(Lines, Lines); 5] = [
            (&[("redis_version", "8.2.0")], &[("appendfsync", "always")]),
            (&[("used_memory", "79")], &[("appendfsync", "everysec")]),
            (&[("used_memory", "90"), ("maxmemory", "0")], &[("timeout", "300")]),
            (&[("aof_last_write_status", "ok")], &[("hash-max-listpack-value", "64")]),
            (&[("aof_last_bgrewrite_status", "ok")], &[]),
        ];
        for (info, config) in fine {
            assert_eq!(problems(aof(info, config)), []);
        }
        let full = &[("used_memory", "90"), ("maxmemory", "0"), ("total_system_memory", "100")];
        let evicts = &[("maxmemory", "0"), ("maxmemory_policy", "volatile-lru")];
        let table: [(Lines, Lines, &str, Status, &str); 13] = [
            (&[("redis_version", "6.2.14")], &[], "redis version", Fail, "upgrade it to 7.0"),
            (&[("role", "sentinel")], &[], "redis role", Fail, "the role \"sentinel\""),
            (&[("loading", "1")], &[], "redis", Fail, "still reading its file"),
            (&[("used_memory", "80")], &[], "redis memory", Warn, "(maxmemory)"),
            (full, &[], "redis memory", Warn, "(the machine's)"),
            (evicts, &[], "redis memory", Fail, "maxmemory-policy volatile-lru"),
            (&[("aof_last_write_status", "err")], &[], "redis files", Fail, "goes on by itself"),
            (&[("rdb_last_bgsave_status", "err")], &[], "redis files", Fail, "BGSAVE"),
            (&[("aof_last_bgrewrite_status", "err")], &[], "redis files", Warn, "BGREWRITEAOF"),
            (&[], &[("timeout", "30")], "redis idle", Warn, "idle for 30 s"),
            (
                &[],
                &[("hash-max-listpack-value", "9")],
                "redis layout",
                Warn,
                "SET hash-max-listpack-value 64`",
            ),
            (&[], &[("appendfsync", "no")], "redis durability", Warn, "half a minute"),
            (
                &[("aof_delayed_fsync", "3")],
                &[("appendfsync", "everysec")],
                "redis durability",
                Warn,
                "3 times",
            ),
        ];
        for (info, config, check, status, words) in table {
            assert_problem(aof(info, config), check, status, words);
        }
    }

    #[test]
    fn replicas_are_needed_where_they_confirm() {
        let one = ("slave0", "ip=h,port=1,state=online");
        let other = ("slave1", "ip=h,port=2,state=wait_bgsave");
        let found =
            |info: &[_], config: &[_]| checked(&facts(info, config), Durability::Replicated);
        assert_eq!(problems(found(&[one, other], &[("min-replicas-to-write", "1")])), []);
        let too_few = found(&[other], &[]);
        assert_problem(too_few, "redis replicas", Fail, "0 online, 1 needed");
        let confirmed = [("min-replicas-to-write", "1")];
        let no_file = found(&[("aof_enabled", "0"), one], &confirmed);
        assert_problem(no_file, "redis durability", Warn, "empties its replicas");
    }

    #[test]
    fn buckets_belong_to_the_ledger() {
        let mut seen = facts(&[], &[]);
        seen.buckets = Ok(FoundBuckets {
            by_installation: [("0000000a".to_owned(), 3)].into(),
            ..FoundBuckets::default()
        });
        let settings = Settings::for_test("sqlite://x.db").redis;
        let found = |installation| {
            vec![buckets(&seen, &Expected { settings: &settings, is_cluster: false, installation })]
        };
        assert_eq!(problems(found(Ok(Some("0000000a".to_owned())))), []);
        assert_problem(found(Ok(None)), "redis buckets", Fail, "3 of 3 under our namespace");
        let unreadable = crate::db::Error::CannotOpen { reason: "no".to_owned() };
        assert_eq!(problems(found(Err(unreadable))), []);
    }
}
