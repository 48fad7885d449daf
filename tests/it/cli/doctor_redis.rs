//! `floodgate doctor` on real Redis servers, each with exactly one fault.

use super::doctor::{Diagnosis, Stack};
use crate::support::process::Server;
use crate::support::servers::Port;
use crate::support::servers::cluster::Cluster;
use crate::support::servers::redis::{AOF_ALWAYS, AOF_EVERYSEC, Redis, Replicated};
use crate::support::servers::sentinel::SentinelSet;
use crate::support::wait::until_true;

const GATE: (&str, &str) = ("FLOODGATE__TIER", "gate");
const URL: &str = "FLOODGATE__REDIS__URL";
const DURABILITY: &str = "FLOODGATE__REDIS__DURABILITY";
/// A time-out long enough for a slow server.
const LONG_TIMEOUT: (&str, &str) = ("FLOODGATE__REDIS__COMMAND_TIMEOUT_MS", "4000");

fn examine(url: &str, durability: &str) -> Diagnosis {
    Stack::new(&[GATE, LONG_TIMEOUT, (URL, url), (DURABILITY, durability)]).examine()
}

/// A server that syncs its append-only file on every write, with further configuration lines.
fn persistent(lines: &[&str]) -> Redis {
    Redis::start_with(&[AOF_ALWAYS, lines].concat())
}

#[test]
fn a_right_redis_passes() {
    for lines in [AOF_EVERYSEC, AOF_ALWAYS] {
        let redis = Redis::start_with(lines);
        let diagnosis = examine(&redis.url(), "aof");
        diagnosis.assert_ok("redis");
        let checks: Vec<_> =
            diagnosis.about("redis").iter().map(|one| one.check.as_str()).collect();
        let expected = [
            "redis",
            "redis role",
            "redis version",
            "redis clock",
            "redis buckets",
            "redis durability",
            "redis memory",
        ];
        assert_eq!(checks, expected);
        assert_eq!(redis.text(&["DBSIZE"]), "0", "the doctor leaves nothing behind");
    }
}

#[test]
fn other_tiers_are_not_asked_about_redis() {
    let diagnosis = Stack::new(&[(URL, "redis://127.0.0.1:1")]).examine();
    assert!(diagnosis.about("redis").is_empty(), "{diagnosis:#?}");
}

#[test]
fn a_redis_without_append_only_file_is_reported() {
    let redis = Redis::start();
    for (durability, status) in [("aof", "fail"), ("plain", "warn")] {
        let diagnosis = examine(&redis.url(), durability);
        let finding = diagnosis.only_problem("redis", status);
        assert_eq!(finding.check, "redis durability");
        assert!(finding.detail.contains("no append-only file"), "{finding:#?}");
        assert!(finding.remedy.contains("CONFIG SET appendonly yes"), "{finding:#?}");
        assert!(finding.remedy.contains(&format!("-p {}", redis.port())), "{finding:#?}");
    }
    redis.cmd(&["CONFIG", "SET", "appendonly", "yes"]);
    examine(&redis.url(), "aof").assert_ok("redis");
}

#[test]
fn a_redis_that_evicts_when_full_is_reported() {
    let redis = persistent(&["maxmemory 100mb", "maxmemory-policy allkeys-lru"]);
    let diagnosis = examine(&redis.url(), "aof");
    let finding = diagnosis.only_problem("redis", "fail");
    assert!(finding.detail.contains("allkeys-lru"), "{finding:#?}");
    assert!(finding.remedy.contains("maxmemory-policy noeviction"), "{finding:#?}");
    redis.cmd(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    examine(&redis.url(), "aof").assert_ok("redis");
}

#[test]
fn a_redis_that_is_nearly_full_is_reported() {
    let redis = persistent(&[]);
    redis.cmd(&["SETRANGE", "other", "8000000", "x"]);
    redis.cmd(&["CONFIG", "SET", "maxmemory", "10mb"]);
    let diagnosis = examine(&redis.url(), "aof");
    let finding = diagnosis.only_problem("redis", "warn");
    assert_eq!(finding.check, "redis memory");
}

#[test]
fn too_few_replicas_are_reported() {
    let set = Replicated::of(persistent(&["min-replicas-to-write 1"]), 0);
    let url = set.master.url();
    let diagnosis = examine(&url, "replicated");
    let finding = diagnosis.only_problem("redis", "fail");
    assert_eq!(finding.check, "redis replicas");
    assert!(finding.detail.contains("0 online, 1 needed"), "{finding:#?}");

    let replica = persistent(&[]);
    replica.replica_of(&set.master);
    examine(&url, "replicated").assert_ok("redis");
    set.master.cmd(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    let diagnosis = examine(&url, "replicated");
    let finding = diagnosis.only_problem("redis", "warn");
    assert!(finding.remedy.contains("CONFIG SET min-replicas-to-write 1"), "{finding:#?}");
}

#[test]
fn a_replica_without_a_file_is_a_warning_because_it_may_become_the_master() {
    let set = Replicated::of(persistent(&["min-replicas-to-write 1"]), 1);
    let diagnosis = examine(&set.master.url(), "aof");
    let finding = diagnosis.only_problem("redis", "warn");
    let name = format!("replica {}", set.replicas[0].addr());
    assert!(finding.detail.starts_with(&name), "{finding:#?}");
    assert_eq!(finding.check, "redis durability");
}

#[test]
fn an_address_that_leads_to_a_replica_names_its_master() {
    let master = persistent(&[]);
    let replica = persistent(&[]);
    replica.replica_of(&master);
    let diagnosis = examine(&replica.url(), "aof");
    let finding = diagnosis.only_problem("redis", "fail");
    assert!(finding.remedy.contains(&format!("127.0.0.1:{}", master.port())), "{finding:#?}");
}

#[test]
fn a_cluster_with_a_missing_slot_is_reported() {
    let cluster = Cluster::start(AOF_EVERYSEC);
    // One seed is enough to find all three.
    let diagnosis = examine(&cluster.url(&[1]), "aof");
    diagnosis.assert_ok("redis");
    let roles = diagnosis.about("redis role");
    assert_eq!(roles.len(), 1, "the same finding about three nodes is one line: {roles:#?}");
    for node in &cluster.nodes {
        assert!(roles[0].detail.contains(&node.addr().to_string()), "{roles:#?}");
    }

    let diagnosis = without_last_slot(&cluster);
    let finding = diagnosis.only_problem("redis", "fail");
    assert_eq!(finding.check, "redis cluster");
    assert!(finding.detail.contains("no node has the slots 16383"), "{finding:#?}");
    assert!(finding.remedy.contains("redis-cli --cluster fix"), "{finding:#?}");
}

/// The diagnosis while no node has the last slot. The slot is deleted on its owner first and then
/// on every node until all have the change, because gossip in flight can restore it.
fn without_last_slot(cluster: &Cluster) -> Diagnosis {
    let has_all_slots =
        |node: &&Redis| !node.text(&["CLUSTER", "INFO"]).contains("cluster_slots_assigned:16383\r");
    let mut diagnosis = None;
    until_true("no node to have the last slot", || {
        for node in cluster.nodes.iter().rev().filter(has_all_slots) {
            node.cmd(&["CLUSTER", "DELSLOTS", "16383"]);
        }
        diagnosis = Some(examine(&cluster.url(&[0, 1, 2]), "aof"));
        !cluster.nodes.iter().any(|node| has_all_slots(&node))
    });
    diagnosis.unwrap()
}

#[test]
fn a_cluster_and_a_single_server_are_not_taken_for_each_other() {
    let cluster = Cluster::start(AOF_EVERYSEC);
    let member = cluster.nodes[0].url();
    let diagnosis = examine(&member, "aof");
    let finding = diagnosis.only_problem("redis", "fail");
    assert!(finding.remedy.contains("redis+cluster://"), "{finding:#?}");

    let single = persistent(&[]);
    let diagnosis = examine(&single.url().replace("redis://", "redis+cluster://"), "aof");
    let finding = diagnosis.only_problem("redis", "fail");
    assert!(finding.remedy.contains("redis://host:port"), "{finding:#?}");
}

#[test]
fn sentinels_that_do_not_know_the_name_are_reported() {
    let set = SentinelSet::start(AOF_EVERYSEC);
    let diagnosis = examine(&set.url(), "plain");
    let about = diagnosis.about("redis sentinels");
    assert_eq!(about.len(), 1, "{about:#?}");
    assert!(about[0].detail.contains(&set.servers[0].addr().to_string()), "{about:#?}");

    let unknown = set.url().replace("/shop", "/stop");
    let diagnosis = examine(&unknown, "plain");
    assert_eq!(diagnosis.exit, Some(1));
    let problems = diagnosis.about("redis");
    assert!(problems.iter().all(|finding| finding.status == "fail"), "{problems:#?}");
    assert!(problems[0].remedy.contains("SENTINEL MASTERS"), "{problems:#?}");
}

#[test]
fn an_unreachable_sentinel_is_reported() {
    let set = SentinelSet::start(AOF_EVERYSEC);
    let gone = set.sentinels[2].addr();
    set.sentinels[2].kill();
    let diagnosis = examine(&set.url(), "plain");
    let silent = diagnosis.about("redis sentinels");
    assert_eq!((silent[0].status.as_str(), diagnosis.exit), ("warn", Some(0)), "{silent:#?}");
    assert!(silent[0].detail.contains(&gone.to_string()), "{silent:#?}");
}

#[test]
fn a_wrong_password_and_a_missing_one_are_reported() {
    let redis = persistent(&["requirepass right"]);
    examine(&redis.url(), "aof").assert_ok("redis");
    for url in [redis.url().replace("right", "wr0ng"), format!("redis://{}", redis.addr())] {
        let diagnosis = examine(&url, "aof");
        let finding = diagnosis.only_problem("redis", "fail");
        assert!(finding.detail.contains("refuses the user"), "{finding:#?}");
        assert!(finding.remedy.contains("password"), "{finding:#?}");
        assert!(!format!("{diagnosis:?}").contains("wr0ng"), "the output contains the password");
    }
}

#[test]
fn a_closed_port_and_a_silent_server_are_reported() {
    let port = Port::claim().unwrap();
    let diagnosis = examine(&format!("redis://{}", port.addr()), "plain");
    let finding = diagnosis.only_problem("redis", "fail");
    assert!(finding.detail.contains("does not answer"), "{finding:#?}");
    assert!(finding.remedy.contains(&format!("-p {} PING", port.number())), "{finding:#?}");

    let frozen = persistent(&[]);
    frozen.stop();
    let diagnosis = examine(&frozen.url(), "aof");
    let finding = diagnosis.only_problem("redis", "fail");
    assert!(finding.detail.contains("does not answer"), "{finding:#?}");
}

#[test]
fn an_invalid_address_is_reported() {
    let diagnosis = examine("redis://127.0.0.1:1/no-number", "plain");
    let finding = diagnosis.only_problem("redis", "fail");
    assert!(finding.detail.contains("not the number of a database"), "{finding:#?}");
}

#[test]
fn pages_that_are_too_small_are_reported() {
    let redis = persistent(&["hash-max-listpack-entries 128"]);
    let diagnosis = examine(&redis.url(), "aof");
    let finding = diagnosis.only_problem("redis", "warn");
    assert!(finding.detail.contains("hash-max-listpack-entries 128"), "{finding:#?}");
    assert!(finding.remedy.contains("hash-max-listpack-entries 512"), "{finding:#?}");
}

#[test]
fn a_restricted_server_is_checked_by_what_it_reports() {
    let redis = persistent(&[]);
    let user = ["ACL", "SETUSER", "fg", "on", ">secret", "~fg:*", "+@all", "-config"];
    redis.cmd(&user);
    let url = redis.url().replace("redis://", "redis://fg:secret@");
    let diagnosis = examine(&url, "aof");
    let finding = diagnosis.only_problem("redis", "warn");
    assert_eq!(finding.check, "redis settings");
    assert!(finding.remedy.contains("+config|get"), "{finding:#?}");

    // INFO is indispensable.
    redis.cmd(&["ACL", "SETUSER", "fg", "-info"]);
    let diagnosis = examine(&url, "aof");
    let finding = diagnosis.only_problem("redis", "fail");
    assert!(finding.remedy.contains("ACL SETUSER"), "{finding:#?}");
}

#[test]
fn buckets_of_another_ledger_are_reported() {
    let redis = persistent(&[]);
    redis.cmd(&["HSET", "fg:{7:0}:bucket", "epoch", "0badcafe.3", "server", "elsewhere"]);
    redis.cmd(&["HSET", "other:{7:0}:bucket", "epoch", "0badcafe.3"]);
    let diagnosis = examine(&redis.url(), "aof");
    let finding = diagnosis.only_problem("redis", "fail");
    assert_eq!(finding.check, "redis buckets");
    assert!(finding.detail.contains("1 of 1"), "{finding:#?}");
    assert!(finding.remedy.contains("namespace"), "{finding:#?}");
}

/// A stack of tier `gate` whose server has opened the sale `spring`.
fn with_open_sale(redis: &Redis) -> (Stack, Server) {
    let stack = Stack::new(&[GATE, (URL, &redis.url()), (DURABILITY, "aof")]);
    std::fs::write(stack.path().join("sale.json"), super::SALE).unwrap();
    let server = Server::start(stack.path(), &stack.keys());
    let internal_url = format!("http://{}", server.internal);
    for words in [["sale", "create", "sale.json"], ["sale", "open", "spring"]] {
        let output = stack.run(&[&words[..], &["--internal-url", &internal_url]].concat());
        assert!(output.status.success(), "{output:?}");
    }
    (stack, server)
}

#[test]
fn buckets_ahead_of_the_ledger_are_reported() {
    let redis = persistent(&[]);
    let (stack, server) = with_open_sale(&redis);
    server.kill();
    let epoch = redis.text(&["HGET", "fg:{1:0}:bucket", "epoch"]);
    let (installation, _) = epoch.split_once('.').unwrap();
    redis.cmd(&["HSET", "fg:{1:0}:bucket", "epoch", &format!("{installation}.9")]);
    let diagnosis = stack.examine();
    let finding = diagnosis.only_problem("redis", "fail");
    assert_eq!(finding.check, "redis epochs");
    assert!(finding.detail.contains("sale spring are in epoch 9"), "{finding:#?}");
    assert!(finding.remedy.contains("floodgate sale open spring"), "{finding:#?}");
}

#[test]
fn buckets_that_no_process_loads_are_reported() {
    let set = Replicated::of(persistent(&[]), 1);
    let redis = &set.master;
    let (stack, server) = with_open_sale(redis);
    server.kill();
    assert!(stack.examine().about("redis loads").is_empty());
    redis.cmd(&["FLUSHALL"]);
    let diagnosis = stack.examine();
    let finding = diagnosis.only_problem("redis loads", "fail");
    assert!(finding.detail.contains("0 of 1 buckets"), "{finding:#?}");
    assert!(finding.detail.contains("open sale spring"), "{finding:#?}");
    assert!(finding.remedy.contains("role = \"maintenance\""), "{finding:#?}");
}

#[test]
fn a_bucket_without_a_readable_epoch_is_reported() {
    let redis = persistent(&[]);
    let (stack, server) = with_open_sale(&redis);
    server.kill();
    redis.cmd(&["HSET", "fg:{1:0}:bucket", "epoch", "99"]);
    let diagnosis = stack.examine();
    let finding = diagnosis.only_problem("redis", "fail");
    assert_eq!(finding.check, "redis buckets");
    assert!(finding.remedy.contains("UNLINK 'fg:{1:0}:bucket'"), "{finding:#?}");
    assert!(finding.remedy.contains("run the doctor again"), "{finding:#?}");
}

#[test]
fn without_the_ledger_the_owner_of_a_bucket_is_not_known() {
    let redis = persistent(&[]);
    redis.cmd(&["HSET", "fg:{7:0}:bucket", "epoch", "0badcafe.3", "server", "elsewhere"]);
    let away = ("FLOODGATE__LEDGER__URL", "mysql://u:p@127.0.0.1:1/x");
    let url = redis.url();
    let stack = Stack::unmigrated(&[GATE, LONG_TIMEOUT, (URL, &url), (DURABILITY, "aof"), away]);
    let diagnosis = stack.examine();
    let found = diagnosis.about("redis buckets");
    assert_eq!(found[0].status, "ok", "{found:#?}");
    assert!(found[0].detail.contains("owner unknown without the ledger"), "{found:#?}");
}

#[test]
fn an_open_sale_without_relays_is_reported() {
    let redis = persistent(&[]);
    let (stack, server) = with_open_sale(&redis);
    assert!(stack.examine().about("relays").is_empty(), "tier `gate` has no relays");
    // The same stores, examined for the tier that publishes what the buckets accept.
    let stack = stack.with("FLOODGATE__TIER", "pipeline");
    let finding = &stack.examine().about("relays")[0].clone();
    assert_eq!(finding.status, "warn");
    assert!(finding.detail.contains("sale spring"), "{finding:#?}");
    assert!(finding.remedy.contains("role = \"relay\""), "{finding:#?}");
    // A server runs: the operator is not preparing a start.
    let stack = stack.with("FLOODGATE__INTERNAL__BIND", &server.internal.to_string());
    assert_eq!(stack.examine().about("relays")[0].status, "fail");
    redis.cmd(&["SET", "fg:relay:1-ab/0.1", "1"]);
    assert_eq!(stack.examine().about("relays")[0].status, "ok");
}

#[test]
fn our_own_buckets_are_known() {
    let redis = persistent(&[]);
    let (stack, server) = with_open_sale(&redis);
    server.kill();
    let diagnosis = stack.examine();
    diagnosis.assert_ok("redis");
    let found = diagnosis.about("redis buckets");
    assert!(found[0].detail.contains("1 under our namespace"), "{found:#?}");

    let other = Stack::new(&[GATE, (URL, &redis.url()), (DURABILITY, "aof")]);
    let diagnosis = other.examine();
    assert_eq!(diagnosis.only_problem("redis", "fail").check, "redis buckets");
}
