//! Checks of Redis, which counts units: access to every server, topology, durability, memory, and
//! whether its buckets belong to this installation.

use super::ledger::LedgerFacts;
use super::{Check, Finding, Status};
use crate::config::{Durability, RedisSettings, Settings, Tier};
use crate::redis::transport::health::{self, RedisHealthError, Server, ServerRole};
use crate::runtime::clock;
use crate::{db, tier};

mod buckets;
mod server;
mod storage;
mod topology;

/// The requirements on the servers.
struct Expected<'a> {
    settings: &'a RedisSettings,
    is_cluster: bool,
    /// Read after the buckets; `None` if the ledger does not exist yet.
    ledger: Result<Option<LedgerFacts>, db::Error>,
}

/// Checks every server behind `redis.url`; no findings for a tier without Redis.
pub(super) async fn examine(settings: &Settings, running: bool) -> Vec<Check> {
    // A missing address is a fault of the configuration.
    if !matches!(settings.tier, Tier::Gate | Tier::Pipeline) || settings.redis.url.is_empty() {
        return Vec::new();
    }
    let mut checks = vec![waits(settings)];
    match tier::connection_options(settings) {
        Ok(options) => {
            let health = health::read(&options, &settings.namespace).await;
            let expected = Expected {
                settings: &settings.redis,
                is_cluster: health.cluster.is_some(),
                ledger: LedgerFacts::read(settings).await,
            };
            checks.extend(topology::sentinels(&health.sentinels));
            checks.extend(
                health.cluster.iter().map(|slots| topology::cluster(slots, &health.servers)),
            );
            checks.extend(servers(&health.servers, &expected));
            checks.push(buckets::missing(&health.servers, &expected, clock::wall_ms()));
            if settings.tier == Tier::Pipeline {
                checks.push(relays(&health.servers, &expected, running));
            }
        }
        Err(error) => checks.push(check! { "redis";
            Fail "{error}" -> "correct redis.url; see config/default.toml for its format"
        }),
    }
    checks
}

/// Whether a sale is open and no relay worker publishes what its buckets accept. No finding if a
/// server could not be read.
fn relays(servers: &[Server], expected: &Expected<'_>, running: bool) -> Check {
    let counted = servers.iter().map(|server| {
        let facts = server.seen.as_ref().ok()?;
        facts.num_relays.as_ref().ok().copied()
    });
    let counted = counted.sum::<Option<u64>>().filter(|_| !servers.is_empty());
    let (Some(num_workers), Ok(ledger)) = (counted, &expected.ledger) else { return None };
    let open = ledger.as_ref().and_then(LedgerFacts::open_sale).map(|sale| &sale.id);
    check! { "relays";
        let Some(sale) = open.filter(|_| num_workers == 0) => fail_if(running)
            "none runs, and sale {sale} is open: its orders wait in the outbox"
            -> "start a process with role = \"relay\" or \"all\"";
        else => Ok "{num_workers} workers"
    }
}

/// Warns when a Redis command may take longer than a buyer's request.
fn waits(settings: &Settings) -> Check {
    let (redis, deadline_ms) = (&settings.redis, settings.http.answer_deadline_ms);
    let is_replicated = redis.durability == Durability::Replicated;
    let confirmed_ms = if is_replicated { redis.replicas_wait_ms } else { 0 };
    let longest_ms = redis.command_timeout_ms.saturating_add(confirmed_ms);
    check! { "redis waits";
        longest_ms >= deadline_ms =>
            Warn "a command may take {longest_ms} ms, and buyers get `unknown` after \
                  http.answer_deadline_ms = {deadline_ms}"
            -> "lower redis.command_timeout_ms, or raise http.answer_deadline_ms";
    }
}

/// The error code of a refusal, and why the server could not be read.
fn code_and_reason(error: &RedisHealthError) -> (Option<&str>, &str) {
    match error {
        RedisHealthError::Unreachable(reason) => (None, reason),
        RedisHealthError::Refused { code, message } => (Some(code), message),
    }
}

fn reason(error: &RedisHealthError) -> &str {
    code_and_reason(error).1
}

fn is_login_refused(code: Option<&str>) -> bool {
    matches!(code, Some("WRONGPASS" | "NOAUTH"))
}

fn inaccessible(error: &RedisHealthError, cli: &str) -> Check {
    let (code, reason) = code_and_reason(error);
    check! { "redis";
        code.is_none() => Fail "does not answer: {reason}"
            -> "start it, or correct redis.url; `{cli} PING` from this machine must answer";
        is_login_refused(code) => Fail "refuses the user: {reason}"
            -> "put the right user and password into redis.url, as in \
                redis://user:password@host:port";
        code == Some("NOPERM") => Fail "denies this user a command of the check: {reason}"
            -> "`{cli} ACL SETUSER name ~namespace:* +@all -@dangerous +info +config|get`";
        else => Fail "refuses: {reason}" -> "see its log, and `{cli} INFO`"
    }
}

/// The findings about all servers. Equal findings are one that names its servers, and those of one
/// check are adjacent.
fn servers(servers: &[Server], expected: &Expected<'_>) -> Vec<Check> {
    let mut lines: Vec<(Vec<String>, Finding)> = Vec::new();
    for server in servers {
        for (name, finding) in server_findings(server, expected) {
            let same_check = |(_, line): &(_, Finding)| line.check == finding.check;
            if let Some((names, _)) = lines.iter_mut().find(|(_, line)| *line == finding) {
                names.push(name);
            } else {
                let last = lines.iter().rposition(same_check);
                lines.insert(last.map_or(lines.len(), |at| at + 1), (vec![name], finding));
            }
        }
    }
    let line = |(names, finding): (Vec<String>, Finding)| {
        let detail = format!("{}: {}", names.join(", "), finding.detail);
        Some(Finding { detail, ..finding })
    };
    lines.into_iter().map(line).collect()
}

/// The findings about one server, each with the server's name.
fn server_findings(server: &Server, expected: &Expected<'_>) -> Vec<(String, Finding)> {
    let node = &server.node;
    let cli = format!("redis-cli -h {} -p {}", node.host, node.port);
    let is_replica = server.part == ServerRole::Replica;
    let name = if is_replica { format!("replica {node}") } else { node.to_string() };
    let checks = match &server.seen {
        Ok(facts) => server::checks(facts, server.part, expected, &cli),
        Err(error) => vec![inaccessible(error, &cli)],
    };
    let named = checks.into_iter().flatten().map(|mut finding| {
        // A replica serves no purchases until it is promoted.
        if is_replica && finding.status == Status::Fail {
            finding.status = Status::Warn;
        }
        (name.clone(), finding)
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::super::Status::{Fail, Warn};
    use super::super::tests::{assert_problem, problems};
    use super::server::tests::facts;
    use super::*;
    use crate::redis::transport::ServerAddress;
    use crate::redis::transport::health::ServerFacts;

    pub(super) fn node(port: u16) -> ServerAddress {
        ServerAddress { host: "h".to_owned(), port }
    }

    pub(super) fn server(port: u16, part: ServerRole, facts: ServerFacts) -> Server {
        Server { node: node(port), part, seen: Ok(Box::new(facts)) }
    }

    #[test]
    fn servers_with_the_same_finding_share_a_line_and_a_replica_only_warns() {
        let ahead = ServerFacts { clock_ahead_ms: 2_500, ..facts(&[], &[]) };
        let old = [("role", "slave"), ("master_link_status", "down"), ("redis_version", "")];
        let all = [
            server(1, ServerRole::Master, facts(&[], &[])),
            server(2, ServerRole::Master, ahead),
            server(3, ServerRole::Replica, facts(&old, &[])),
        ];
        let settings = Settings::with_ledger("sqlite://x.db").redis;
        let expected = Expected { settings: &settings, is_cluster: false, ledger: Ok(None) };
        let findings: Vec<_> = servers(&all, &expected).into_iter().flatten().collect();
        let line = |index: usize| {
            let Finding { check, status, detail, .. } = &findings[index];
            format!("{check} {status:?} {detail}")
        };
        let expected = [
            "redis Ok h:1, h:2, replica h:3: answers in 0.10 ms",
            "redis role Ok h:1, h:2: master",
            "redis role Warn replica h:3: has no connection to its master :",
            "redis version Ok h:1, h:2: 7.0.15",
            "redis version Warn replica h:3: \"\" is older than 7.0, which scripts with flags need",
            "redis clock Ok h:1, replica h:3: as ours",
            "redis clock Warn h:2: is 2.5 s ahead of ours",
        ];
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(line), expected);
    }

    #[test]
    fn an_unknown_refusal_leads_to_the_log() {
        let error = RedisHealthError::Refused { code: "ERR".into(), message: "ERR: no".into() };
        assert_problem(vec![inaccessible(&error, "cli")], "redis", Fail, "see its log");
    }

    #[test]
    fn a_command_timeout_beyond_the_answer_deadline_is_reported() {
        let mut settings = Settings::with_ledger("sqlite://x.db");
        settings.redis.command_timeout_ms = 4_900;
        assert_eq!(problems(vec![waits(&settings)]), []);
        settings.redis.durability = Durability::Replicated;
        assert_problem(vec![waits(&settings)], "redis waits", Warn, "http.answer_deadline_ms");
    }
}
