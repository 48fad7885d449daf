use std::time::Duration;

use super::super::super::Status::{self, Fail, Warn};
use super::super::super::ledger::LedgerFacts;
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
        num_relays: Ok(0),
    }
}

/// The checks of one master; the ledger has the installation id `0000000a`.
fn checked(facts: &ServerFacts, durability: Durability) -> Vec<Check> {
    let installation = "0000000a".to_owned();
    let ledger = Ok(Some(LedgerFacts { installation, ..LedgerFacts::default() }));
    let mut settings = Settings::with_ledger("sqlite://x.db").redis;
    settings.durability = durability;
    let expected = Expected { settings: &settings, is_cluster: false, ledger };
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
    let table: [(Lines, Lines, &str, Status, &str); 14] = [
        (&[("redis_version", "6.2.14")], &[], "redis version", Fail, "upgrade it to 7.0"),
        (&[("role", "sentinel")], &[], "redis role", Fail, "the role \"sentinel\""),
        (&[("loading", "1")], &[], "redis", Fail, "still reading its file"),
        (&[("used_memory", "80")], &[], "redis memory", Warn, "(maxmemory)"),
        (&[("used_memory", "100")], &[], "redis memory", Fail, "refuses every purchase"),
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
    let found = |info: &[_], config: &[_]| checked(&facts(info, config), Durability::Replicated);
    assert_eq!(problems(found(&[one, other], &[("min-replicas-to-write", "1")])), []);
    let too_few = found(&[other], &[]);
    assert_problem(too_few, "redis replicas", Fail, "0 online, 1 needed");
    let confirmed = [("min-replicas-to-write", "1")];
    let no_file = found(&[("aof_enabled", "0"), one], &confirmed);
    assert_problem(no_file, "redis durability", Warn, "empties its replicas");
}
