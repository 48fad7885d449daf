//! What a server still has after it was restarted, or after it is gone.

use super::super::{CheckOutcome, Finding, fail, ok, warn};
use super::Wanted;
use crate::config::Durability;
use crate::redis::transport::health::ServerFacts;

/// Why a server without a file of its own loses what it had accepted.
const LOST: &str = "a restart loses every request that the ledger does not have yet";

pub(super) fn judge(facts: &ServerFacts, wanted: &Wanted, cli: &str) -> Vec<Finding> {
    let mut findings = vec![file(facts, wanted.durability, cli).on("redis durability")];
    findings.extend(errors(facts, cli).into_iter().map(|wrong| wrong.on("redis files")));
    if wanted.durability == Durability::Replicated && facts.text("role") == "master" {
        findings.push(replicas(facts, wanted.replicas_min, cli).on("redis replicas"));
    }
    findings
}

fn file(facts: &ServerFacts, durability: Durability, cli: &str) -> CheckOutcome {
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
    let synced = facts.setting("appendfsync").unwrap_or("not told");
    let detail = format!("append-only file, appendfsync {synced}");
    let remedy = format!("`{cli} CONFIG SET appendfsync everysec` (or always), and in redis.conf");
    match synced {
        "no" if durability == Durability::Aof => {
            let detail = format!("{detail}: a power cut loses up to half a minute");
            warn(detail, remedy)
        }
        "everysec" if facts.number("aof_delayed_fsync") > 0 => warn(
            format!("{detail}; its disk was too slow {} times", facts.number("aof_delayed_fsync")),
            "give it a faster disk: while it waits for one, a kill may lose two seconds",
        ),
        "everysec" => ok(format!("{detail}: a power cut may lose a second")),
        _ => ok(detail),
    }
}

/// A server that cannot write its files refuses whatever would change something.
fn errors(facts: &ServerFacts, cli: &str) -> Vec<CheckOutcome> {
    let is_bad = |name| !matches!(facts.text(name), "" | "ok");
    let room = "make room on its disk and see its log";
    let mut findings = Vec::new();
    if is_bad("aof_last_write_status") {
        let detail = "cannot write its append-only file, and refuses to change anything (MISCONF)";
        findings.push(fail(detail, format!("{room}; it goes on by itself")));
    }
    if is_bad("rdb_last_bgsave_status") {
        let detail = "could not write its snapshot, and may refuse to change anything (MISCONF)";
        let remedy = format!("{room}; then `{cli} BGSAVE`");
        findings.push(fail(detail, remedy));
    }
    if is_bad("aof_last_bgrewrite_status") {
        let detail = "could not rewrite its append-only file, which grows on";
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
        // This line of INFO is there where the setting is not 0.
        None if facts.info.contains_key("min_slaves_good_slaves") => wanted,
        None => 0,
    };
    if refuses_below >= wanted {
        return ok(detail);
    }
    warn(
        format!("{detail}; cut off from them it goes on accepting what will be lost"),
        format!("`{cli} CONFIG SET min-replicas-to-write {wanted}`, and in redis.conf"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::Status;
    use super::super::tests_support::facts;
    use super::*;

    #[test]
    fn a_server_without_a_file_fails_where_one_was_promised() {
        let bare = facts("aof_enabled:0");
        for (durability, status) in [
            (Durability::Plain, Status::Warn),
            (Durability::Aof, Status::Fail),
            (Durability::Replicated, Status::Warn),
        ] {
            let finding = file(&bare, durability, "redis-cli");
            assert_eq!(finding.status, status, "{finding:?}");
            assert!(finding.remedy.contains("CONFIG SET appendonly yes"), "{finding:?}");
        }
    }

    #[test]
    fn how_often_the_file_is_synced_is_named() {
        let with = |fsync: &str, lines: &str| {
            let mut seen = facts(&format!("aof_enabled:1\n{lines}"));
            seen.config = Ok([("appendfsync".to_owned(), fsync.to_owned())].into());
            file(&seen, Durability::Aof, "redis-cli")
        };
        assert!(with("always", "").detail.ends_with("appendfsync always"));
        assert_eq!(with("everysec", "").status, Status::Ok);
        assert_eq!(with("everysec", "aof_delayed_fsync:3").status, Status::Warn);
        assert_eq!(with("no", "").status, Status::Warn);
    }

    #[test]
    fn files_that_cannot_be_written_are_told() {
        assert_eq!(errors(&facts("aof_last_write_status:ok"), "c"), []);
        let full = "aof_last_write_status:err\nrdb_last_bgsave_status:err";
        let found = errors(&facts(full), "c");
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|finding| finding.status == Status::Fail));
        let stale = errors(&facts("aof_last_bgrewrite_status:err"), "c");
        assert_eq!(stale[0].status, Status::Warn);
    }

    #[test]
    fn replicas_are_counted_and_a_lonely_master_is_told() {
        let one = "slave0:ip=h,port=1,state=online\nslave1:ip=h,port=2,state=wait_bgsave";
        let judged = |wanted, told: &[(&str, &str)]| {
            let mut seen = facts(one);
            let told = told.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            seen.config = Ok(told.collect());
            replicas(&seen, wanted, "c").status
        };
        assert_eq!(judged(2, &[]), Status::Fail);
        assert_eq!(judged(1, &[]), Status::Warn);
        assert_eq!(judged(1, &[("min-replicas-to-write", "1")]), Status::Ok);
    }
}
