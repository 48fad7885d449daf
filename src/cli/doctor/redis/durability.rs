//! Checks of a server's persistence and replication.

use super::super::{CheckOutcome, Finding, fail, ok, warn};
use super::Requirements;
use crate::config::Durability;
use crate::redis::transport::health::ServerFacts;

/// The consequence of running without an append-only file.
const LOST: &str = "a restart loses every request that the ledger does not have yet";

pub(super) fn check(facts: &ServerFacts, wanted: &Requirements, cli: &str) -> Vec<Finding> {
    let mut findings = vec![append_only_file(facts, wanted.durability, cli).on("redis durability")];
    findings.extend(file_errors(facts, cli).into_iter().map(|wrong| wrong.on("redis files")));
    if wanted.durability == Durability::Replicated && facts.text("role") == "master" {
        findings.push(replicas(facts, wanted.replicas_min, cli).on("redis replicas"));
    }
    findings
}

fn append_only_file(facts: &ServerFacts, durability: Durability, cli: &str) -> CheckOutcome {
    if facts.text("aof_enabled") != "1" {
        let detail = format!("keeps no append-only file: {LOST}");
        let remedy =
            format!("`{cli} CONFIG SET appendonly yes`, and `appendonly yes` in redis.conf");
        return match durability {
            Durability::Aof => {
                let detail = format!("{detail}, and redis.durability = \"aof\" needs it");
                fail(detail, remedy)
            }
            Durability::Plain => warn(detail, remedy),
            Durability::Replicated => {
                let detail = format!("{detail}, and empties its replicas, too");
                warn(detail, remedy)
            }
        };
    }
    let synced = facts.setting("appendfsync").unwrap_or("not reported");
    let detail = format!("append-only file, appendfsync {synced}");
    let remedy = format!("`{cli} CONFIG SET appendfsync everysec` (or always), and in redis.conf");
    match synced {
        "no" if durability == Durability::Aof => {
            let detail = format!("{detail}: a power cut loses up to half a minute");
            warn(detail, remedy)
        }
        "everysec" if facts.number("aof_delayed_fsync") > 0 => warn(
            format!("{detail}; its disk was too slow {} times", facts.number("aof_delayed_fsync")),
            "give it a faster disk: while an fsync is late, a kill may lose two seconds",
        ),
        "everysec" => ok(format!("{detail}: a power cut may lose a second")),
        _ => ok(detail),
    }
}

/// Failed writes of the server's files: after one, Redis refuses all write commands.
fn file_errors(facts: &ServerFacts, cli: &str) -> Vec<CheckOutcome> {
    let is_bad = |name| !matches!(facts.text(name), "" | "ok");
    let room = "make room on its disk and see its log";
    let mut findings = Vec::new();
    if is_bad("aof_last_write_status") {
        let detail = "cannot write its append-only file, and refuses all writes (MISCONF)";
        findings.push(fail(detail, format!("{room}; it goes on by itself")));
    }
    if is_bad("rdb_last_bgsave_status") {
        let detail = "could not write its snapshot, and may refuse all writes (MISCONF)";
        let remedy = format!("{room}; then `{cli} BGSAVE`");
        findings.push(fail(detail, remedy));
    }
    if is_bad("aof_last_bgrewrite_status") {
        let detail = "could not rewrite its append-only file, which keeps growing";
        let remedy = format!("{room}; then `{cli} BGREWRITEAOF`");
        findings.push(warn(detail, remedy));
    }
    findings
}

fn replicas(facts: &ServerFacts, wanted: u64, cli: &str) -> CheckOutcome {
    let online = facts.info.iter().filter(|(name, line)| {
        name.starts_with("slave") && line.split(',').any(|part| part == "state=online")
    });
    let online = online.count() as u64;
    let detail = format!("{online} online, {wanted} needed to confirm (redis.replicas_min)");
    if online < wanted {
        let remedy = "start more replicas (`REPLICAOF host port` on each), or lower \
                      redis.replicas_min: until then every purchase ends as `unknown`";
        return fail(detail, remedy);
    }
    let refuses_below = match facts.setting("min-replicas-to-write") {
        Some(number) => number.parse().unwrap_or(0),
        // INFO has this line only if the setting is not 0.
        None if facts.info.contains_key("min_slaves_good_slaves") => wanted,
        None => 0,
    };
    if refuses_below >= wanted {
        return ok(detail);
    }
    warn(
        format!("{detail}; cut off from them it still accepts writes, which will be lost"),
        format!("`{cli} CONFIG SET min-replicas-to-write {wanted}`, and in redis.conf"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::Status;
    use super::super::tests_support::facts;
    use super::*;

    #[test]
    fn a_server_without_a_file_fails_where_durability_requires_one() {
        let bare = facts("aof_enabled:0");
        for (durability, status) in [
            (Durability::Plain, Status::Warn),
            (Durability::Aof, Status::Fail),
            (Durability::Replicated, Status::Warn),
        ] {
            let finding = append_only_file(&bare, durability, "redis-cli");
            assert_eq!(finding.status, status, "{finding:?}");
            assert!(finding.remedy.contains("CONFIG SET appendonly yes"), "{finding:?}");
        }
    }

    #[test]
    fn the_fsync_policy_is_named() {
        let with = |fsync: &str, lines: &str| {
            let mut seen = facts(&format!("aof_enabled:1\n{lines}"));
            seen.config = Ok([("appendfsync".to_owned(), fsync.to_owned())].into());
            append_only_file(&seen, Durability::Aof, "redis-cli")
        };
        assert!(with("always", "").detail.ends_with("appendfsync always"));
        assert_eq!(with("everysec", "").status, Status::Ok);
        assert_eq!(with("everysec", "aof_delayed_fsync:3").status, Status::Warn);
        assert_eq!(with("no", "").status, Status::Warn);
    }

    #[test]
    fn failed_file_writes_are_reported() {
        assert_eq!(file_errors(&facts("aof_last_write_status:ok"), "c"), []);
        let full = "aof_last_write_status:err\nrdb_last_bgsave_status:err";
        let found = file_errors(&facts(full), "c");
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|finding| finding.status == Status::Fail));
        let stale = file_errors(&facts("aof_last_bgrewrite_status:err"), "c");
        assert_eq!(stale[0].status, Status::Warn);
    }

    #[test]
    fn replicas_are_counted_and_a_master_without_them_is_reported() {
        let one = "slave0:ip=h,port=1,state=online\nslave1:ip=h,port=2,state=wait_bgsave";
        let status = |wanted, settings: &[(&str, &str)]| {
            let mut seen = facts(one);
            let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            seen.config = Ok(settings.collect());
            replicas(&seen, wanted, "c").status
        };
        assert_eq!(status(2, &[]), Status::Fail);
        assert_eq!(status(1, &[]), Status::Warn);
        assert_eq!(status(1, &[("min-replicas-to-write", "1")]), Status::Ok);
    }
}
