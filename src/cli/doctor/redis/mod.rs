//! Checks of Redis, which counts units: access to every server, topology, durability, memory, and
//! whether its buckets belong to this installation.

use super::{CheckOutcome, Finding, Status, fail, warn};
use crate::config::{Durability, Settings, Tier};
use crate::redis::transport::health;
use crate::redis::transport::health::{RedisHealthError, Server, ServerRole};
use crate::{db, tier};

mod durability;
mod memory;
mod server;
mod topology;

/// The settings' requirements on a server.
#[derive(Debug, Clone)]
struct Requirements {
    durability: Durability,
    replicas_min: u64,
    is_cluster: bool,
    command_timeout_ms: u64,
    /// The ledger that the buckets must belong to.
    installation: Installation,
}

/// The identity of our ledger.
#[derive(Debug, Clone)]
enum Installation {
    Known(String),
    /// The ledger does not exist yet: every bucket found belongs to another ledger.
    None,
    /// The ledger could not be read.
    Unknown,
}

/// Checks every server behind `redis.url`; no findings for a tier without Redis.
pub(super) async fn examine(settings: &Settings) -> Vec<Finding> {
    // A missing address is a fault of the configuration.
    if !matches!(settings.tier, Tier::Gate | Tier::Pipeline) || settings.redis.url.is_empty() {
        return Vec::new();
    }
    let mut findings: Vec<Finding> =
        timeouts(settings).map(|wrong| wrong.on("redis waits")).into_iter().collect();
    let options = match tier::connection_options(settings) {
        Ok(options) => options,
        Err(error) => {
            let remedy = "correct redis.url; see config/default.toml for its format";
            findings.push(fail(error.to_string(), remedy).on("redis"));
            return findings;
        }
    };
    let health = health::read(&options, &settings.namespace).await;
    let wanted = Requirements {
        durability: settings.redis.durability,
        replicas_min: u64::from(settings.redis.replicas_min),
        is_cluster: health.cluster.is_some(),
        command_timeout_ms: settings.redis.command_timeout_ms,
        installation: known_installation(settings).await.unwrap_or(Installation::Unknown),
    };
    let sentinels = topology::sentinels(&health.sentinels).into_iter();
    findings.extend(sentinels.map(|outcome| outcome.on("redis sentinels")));
    let cluster = health.cluster.as_ref();
    findings
        .extend(cluster.map(|slots| topology::cluster(slots, &health.servers).on("redis cluster")));
    let by_server = health.servers.iter().flat_map(|server| server_findings(server, &wanted));
    findings.extend(merge_equal(by_server.collect()));
    findings
}

/// The installation id that the ledger writes into its buckets.
async fn known_installation(settings: &Settings) -> Result<Installation, db::Error> {
    if tier::pending_migrations(settings)?.is_none() {
        return Ok(Installation::None);
    }
    let ledger = tier::open_ledger_for_reading(settings)?;
    let installation = tier::installation(ledger.as_ref()).await;
    ledger.close().await;
    match installation {
        Ok(installation) => Ok(Installation::Known(installation.to_string())),
        Err(db::Error::ReadOnly { .. }) => Ok(Installation::None),
        Err(error) => Err(error),
    }
}

fn reason(error: &RedisHealthError) -> &str {
    match error {
        RedisHealthError::Unreachable(reason) => reason,
        RedisHealthError::Refused { message, .. } => message,
    }
}

/// Warns when a Redis command may take longer than a buyer's request.
fn timeouts(settings: &Settings) -> Option<CheckOutcome> {
    let redis = &settings.redis;
    let confirmed = match redis.durability {
        Durability::Replicated => redis.replicas_wait_ms,
        Durability::Plain | Durability::Aof => 0,
    };
    let longest = redis.command_timeout_ms.saturating_add(confirmed);
    (longest >= settings.http.answer_deadline_ms).then(|| {
        warn(
            format!(
                "a command may take {longest} ms, and buyers get `unknown` after \
                 http.answer_deadline_ms = {}",
                settings.http.answer_deadline_ms
            ),
            "lower redis.command_timeout_ms, or raise http.answer_deadline_ms",
        )
    })
}

/// The findings about one server, each with the server's name.
fn server_findings(server: &Server, wanted: &Requirements) -> Vec<(String, Finding)> {
    let node = server.node.to_string();
    let (host, port) = (&server.node.host, server.node.port);
    let cli = format!("redis-cli -h {host} -p {port}");
    let mut findings = match &server.seen {
        Ok(facts) => {
            let mut findings = server::check(facts, server.part, wanted, &cli);
            findings.extend(durability::check(facts, wanted, &cli));
            findings.extend(memory::check(facts, &cli));
            let failed = findings.iter().any(|finding| finding.is(Status::Fail));
            let not_ready = facts.not_ready.as_ref().filter(|_| !failed);
            findings.extend(not_ready.map(|message| {
                let remedy = "do what the message says; until then the server cannot be used";
                fail(message, remedy).on("redis connection")
            }));
            findings
        }
        Err(error) => vec![inaccessible(error, &cli).on("redis")],
    };
    if server.part == ServerRole::Replica {
        for finding in &mut findings {
            // A replica serves no purchases until it is promoted.
            if finding.is(Status::Fail) {
                finding.verdict.status = Status::Warn;
            }
        }
    }
    let name = match server.part {
        ServerRole::Master => node,
        ServerRole::Replica => format!("replica {node}"),
    };
    findings.into_iter().map(|finding| (name.clone(), finding)).collect()
}

fn inaccessible(error: &RedisHealthError, cli: &str) -> CheckOutcome {
    match error {
        RedisHealthError::Unreachable(reason) => fail(
            format!("does not answer: {reason}"),
            format!("start it, or correct redis.url; `{cli} PING` from this machine must answer"),
        ),
        RedisHealthError::Refused { code, message } if code == "WRONGPASS" || code == "NOAUTH" => {
            fail(
                format!("does not let us in: {message}"),
                "put the right user and password into redis.url, as in \
                 redis://user:password@host:port",
            )
        }
        RedisHealthError::Refused { code, message } if code == "NOPERM" => fail(
            format!("denies this user a command of the check: {message}"),
            format!(
                "`{cli} ACL SETUSER name ~namespace:* +@all -@dangerous +info +role +config|get`"
            ),
        ),
        RedisHealthError::Refused { message, .. } => {
            fail(format!("refuses: {message}"), format!("see its log, and `{cli} INFO`"))
        }
    }
}

/// Merges equal findings of several servers into one that names all of them.
fn merge_equal(findings: Vec<(String, Finding)>) -> Vec<Finding> {
    let mut lines: Vec<(Vec<String>, Finding)> = Vec::new();
    for (name, finding) in findings {
        match lines.iter_mut().find(|(_, line)| *line == finding) {
            Some((names, _)) => names.push(name),
            None => lines.push((vec![name], finding)),
        }
    }
    // Findings of one check are adjacent, in the order of the first server.
    let order: Vec<&str> = lines.iter().map(|(_, finding)| finding.check).collect();
    let rank = |check: &str| order.iter().position(|first| *first == check);
    let mut lines: Vec<_> =
        lines.iter().map(|(names, finding)| (rank(finding.check), names, finding)).collect();
    lines.sort_by_key(|(rank, ..)| *rank);
    let line = |(_, names, finding): (_, &Vec<String>, &Finding)| {
        let Finding { check, verdict } = finding;
        let detail = format!("{}: {}", names.join(", "), verdict.detail);
        CheckOutcome { detail, ..verdict.clone() }.on(check)
    };
    lines.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests_support {
    use std::time::Duration;

    use super::*;
    use crate::redis::transport::health::{FoundBuckets, ServerFacts};

    /// A server with this `INFO` text and no settings.
    pub fn facts(info: &str) -> ServerFacts {
        let field =
            |line: &str| line.split_once(':').map(|(name, value)| (name.into(), value.into()));
        ServerFacts {
            round_trip: Duration::from_micros(100),
            clock_ahead_ms: 0,
            info: info.lines().filter_map(field).collect(),
            config: Ok([].into()),
            cluster: None,
            not_ready: None,
            buckets: Ok(FoundBuckets::default()),
        }
    }

    pub fn wanted() -> Requirements {
        Requirements {
            durability: Durability::Plain,
            replicas_min: 1,
            is_cluster: false,
            command_timeout_ms: 1_000,
            installation: Installation::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ok;
    use super::*;

    #[test]
    fn servers_with_the_same_finding_share_a_line() {
        let finding = |name: &str, check, detail: &str| (name.to_owned(), ok(detail).on(check));
        let lines = merge_equal(vec![
            finding("a", "redis memory", "fine"),
            finding("a", "redis clock", "fine"),
            finding("b", "redis memory", "fine"),
            finding("b", "redis clock", "late"),
            finding("c", "redis memory", "full"),
        ]);
        let shown: Vec<String> =
            lines.iter().map(|line| format!("{} {}", line.check, line.verdict.detail)).collect();
        let expected = [
            "redis memory a, b: fine",
            "redis memory c: full",
            "redis clock a: fine",
            "redis clock b: late",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_command_timeout_beyond_the_answer_deadline_is_reported() {
        let mut settings = Settings::for_test("sqlite://x.db");
        assert_eq!(timeouts(&settings), None);
        settings.redis.command_timeout_ms = 4_900;
        assert_eq!(timeouts(&settings), None);
        settings.redis.durability = Durability::Replicated;
        assert_eq!(timeouts(&settings).map(|finding| finding.status), Some(Status::Warn));
    }

    #[test]
    fn each_kind_of_refusal_has_its_own_remedy() {
        let refused = |code: &str| {
            let message = format!("{code}: no");
            inaccessible(&RedisHealthError::Refused { code: code.to_owned(), message }, "redis-cli")
                .remedy
        };
        assert!(refused("WRONGPASS").contains("password"));
        assert!(refused("NOPERM").contains("ACL SETUSER"));
        assert!(refused("ERR").contains("log"));
        let down = inaccessible(&RedisHealthError::Unreachable("refused".into()), "redis-cli -p 1");
        assert!(down.remedy.contains("redis-cli -p 1 PING"), "{down:?}");
    }
}
