//! Checks of a server's memory: eviction policy, usage, and the memory per buyer.

use super::super::{CheckOutcome, Finding, fail, ok, warn};
use crate::redis::transport::health::ServerFacts;

/// Used memory in percent from which to warn.
const USED_COMFORTABLE: u64 = 80;
/// Listpack limits below which Redis converts a bucket's hash pages to a larger encoding.
const ENTRIES_MIN: u64 = 512;
const VALUE_MIN: u64 = 64;
const MIB: u64 = 1024 * 1024;

pub(super) fn check(facts: &ServerFacts, cli: &str) -> Vec<Finding> {
    let memory = policy(facts, cli).unwrap_or_else(|| fullness(facts, cli));
    let mut findings = vec![memory.on("redis memory")];
    findings.extend(layout(facts, cli).map(|wrong| wrong.on("redis layout")));
    findings
}

fn policy(facts: &ServerFacts, cli: &str) -> Option<CheckOutcome> {
    let policy = facts.text("maxmemory_policy");
    // A server that does not report its policy passes here; each connection checks it again.
    (!matches!(policy, "" | "noeviction")).then(|| {
        fail(
            format!(
                "maxmemory-policy {policy}: when it is full it silently evicts units and requests; \
                 no process connects to it"
            ),
            format!(
                "`{cli} CONFIG SET maxmemory-policy noeviction`, and `maxmemory-policy \
                 noeviction` in redis.conf"
            ),
        )
    })
}

fn fullness(facts: &ServerFacts, cli: &str) -> CheckOutcome {
    let used = facts.number("used_memory");
    let (limit, of) = match facts.number("maxmemory") {
        0 => (facts.number("total_system_memory"), "the machine's"),
        limit => (limit, "maxmemory"),
    };
    let detail = format!("{} of {} MiB used ({of})", used / MIB, limit / MIB);
    // Without a reported limit there is no percentage to check.
    if limit == 0 || used.saturating_mul(100) < limit.saturating_mul(USED_COMFORTABLE) {
        return ok(detail);
    }
    warn(
        format!("{detail}: a full server refuses purchases, one beyond its machine is killed"),
        format!("`{cli} CONFIG SET maxmemory ..` to more, or move what else is in it elsewhere"),
    )
}

fn layout(facts: &ServerFacts, cli: &str) -> Option<CheckOutcome> {
    let small = |name: &str, least: u64| {
        let number: u64 = facts.setting(name)?.parse().ok()?;
        (number < least).then(|| (format!("{name} {number}"), format!("{name} {least}")))
    };
    let too_small =
        [("hash-max-listpack-entries", ENTRIES_MIN), ("hash-max-listpack-value", VALUE_MIN)];
    let (seen, wanted): (Vec<_>, Vec<_>) =
        too_small.into_iter().filter_map(|(name, least)| small(name, least)).unzip();
    (!seen.is_empty()).then(|| {
        warn(
            format!("{}: each buyer takes twice the memory", seen.join(", ")),
            format!("`{cli} CONFIG SET {}`, and the same in redis.conf", wanted.join(" ")),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::Status;
    use super::super::tests_support::facts;
    use super::*;

    #[test]
    fn a_server_that_evicts_when_full_fails() {
        let evicting = "maxmemory:100\nmaxmemory_policy:allkeys-lru\nused_memory:1";
        let finding = check(&facts(evicting), "redis-cli").remove(0).verdict;
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.detail.contains("allkeys-lru"), "{finding:?}");
        let unlimited = facts("maxmemory:0\nmaxmemory_policy:volatile-lru\nused_memory:1");
        assert!(policy(&unlimited, "c").is_some(), "a limit may be set at any time");
    }

    #[test]
    fn a_server_that_is_nearly_full_is_reported() {
        let used =
            |used: u64, lines: &str| fullness(&facts(&format!("used_memory:{used}\n{lines}")), "c");
        assert_eq!(used(79, "maxmemory:100").status, Status::Ok);
        assert_eq!(used(80, "maxmemory:100").status, Status::Warn);
        assert_eq!(used(90, "maxmemory:0\ntotal_system_memory:100").status, Status::Warn);
        assert_eq!(used(90, "").status, Status::Ok);
    }

    #[test]
    fn pages_beyond_the_listpack_limits_are_reported() {
        let with = |entries: &str, value: &str| {
            let mut seen = facts("");
            let set = [("hash-max-listpack-entries", entries), ("hash-max-listpack-value", value)];
            seen.config = Ok(set.map(|(name, value)| (name.into(), value.into())).into());
            layout(&seen, "redis-cli")
        };
        assert_eq!(with("512", "64"), None);
        let small = with("128", "64").unwrap();
        assert!(small.remedy.contains("hash-max-listpack-entries 512"), "{small:?}");
        assert!(!small.remedy.contains("value"), "{small:?}");
    }
}
