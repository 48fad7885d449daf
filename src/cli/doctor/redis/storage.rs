//! Checks of one server's persistence and memory.

use super::super::Check;
use crate::config::Durability;
use crate::redis::transport::health::ServerFacts;

/// Used memory in percent from which to warn.
const USED_COMFORTABLE: u64 = 80;
/// Listpack limits below which Redis converts a bucket's hash pages to a larger encoding.
const LISTPACK_MIN: [(&str, u64); 2] =
    [("hash-max-listpack-entries", 512), ("hash-max-listpack-value", 64)];
const MIB: u64 = 1024 * 1024;

/// Whether accepted requests survive a restart.
pub(super) fn durability(facts: &ServerFacts, durability: Durability, cli: &str) -> Check {
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
    check! { "redis durability";
        no_file && is_required => Fail "{lost}" -> "{keep}";
        no_file => Warn "{lost}" -> "{keep}";
        synced == "no" && durability == Durability::Aof =>
            Warn "{detail}: a power cut loses up to half a minute"
            -> "`{cli} CONFIG SET appendfsync everysec` (or always), and in redis.conf";
        synced == "everysec" && late > 0 => Warn "{detail}; its disk was too slow {late} times"
            -> "give it a faster disk: while an fsync is late, a kill may lose two seconds";
        else => Ok "{detail}{may_lose}"
    }
}

/// Failed writes of the server's files: after one, Redis refuses all write commands.
pub(super) fn files(facts: &ServerFacts, cli: &str) -> [Check; 3] {
    let has_failed = |status: &str| !matches!(facts.text(status), "" | "ok");
    let (name, room) = ("redis files", "make room on its disk and see its log");
    [
        check! { name;
            has_failed("aof_last_write_status") =>
                Fail "cannot write its append-only file, and refuses all writes (MISCONF)"
                -> "{room}; it goes on by itself";
        },
        check! { name;
            has_failed("rdb_last_bgsave_status") =>
                Fail "could not write its snapshot, and may refuse all writes (MISCONF)"
                -> "{room}; then `{cli} BGSAVE`";
        },
        check! { name;
            has_failed("aof_last_bgrewrite_status") =>
                Warn "could not rewrite its append-only file, which keeps growing"
                -> "{room}; then `{cli} BGREWRITEAOF`";
        },
    ]
}

/// Memory used, and the encoding of the buckets' pages.
pub(super) fn memory(facts: &ServerFacts, cli: &str) -> [Check; 2] {
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
    let room =
        format!("`{cli} CONFIG SET maxmemory ..` to more, or move what else is in it elsewhere");
    let too_small = LISTPACK_MIN.into_iter().filter_map(|(name, least)| {
        let number: u64 = facts.setting(name)?.parse().ok()?;
        (number < least).then(|| (format!("{name} {number}"), format!("{name} {least}")))
    });
    let (small, wanted): (Vec<_>, Vec<_>) = too_small.unzip();
    let (small, wanted) = (small.join(", "), wanted.join(" "));
    [
        check! { "redis memory";
            !matches!(policy, "" | "noeviction") =>
                Fail "maxmemory-policy {policy}: when it is full it silently evicts units and \
                      requests; no process connects to it"
                -> "`{cli} CONFIG SET maxmemory-policy noeviction`, and `maxmemory-policy \
                    noeviction` in redis.conf";
            facts.number("maxmemory") > 0 && used >= limit =>
                Fail "{detail}: it refuses every purchase" -> "{room}";
            is_full =>
                Warn "{detail}: a full server refuses purchases, one beyond its machine is killed"
                -> "{room}";
            else => Ok "{detail}"
        },
        check! { "redis layout";
            !small.is_empty() => Warn "{small}: each buyer takes twice the memory"
                -> "`{cli} CONFIG SET {wanted}`, and the same in redis.conf";
        },
    ]
}
