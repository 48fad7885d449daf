//! Checks of a MySQL or MariaDB ledger's server: access, schema, durability, limits, and whether
//! our sessions keep the variables that the ledger sets.

use super::{CheckOutcome, Finding, fail, machine, ok, warn};
use crate::config::{Settings, Tier};
use crate::db::mysql::health::MysqlFacts;
use crate::tier;

/// The isolation level that the ledger sets in every session.
const ISOLATION: &str = "READ-COMMITTED";
/// Above this a batch of half a dozen round trips is slow, however fast the server is.
const ROUND_TRIP_COMFORTABLE_US: u128 = 5_000;
/// Remedy when a session has lost the variables that the ledger set.
const PROXY_REMEDY: &str = "connect to the server itself, or configure the proxy between to keep \
                            session variables (no multiplexing of connections)";
/// Upper estimate of one order's SQL text in a batch.
const ORDER_BYTES: u64 = 250;
/// Upper estimate of one dead letter's SQL text; its body has at most one mebibyte.
const DEAD_LETTER_BYTES: u64 = 2 * 1024 * 1024;
/// The oldest versions that enforce CHECK constraints.
const MYSQL_MIN: [u32; 3] = [8, 0, 16];
const MARIADB_MIN: [u32; 3] = [10, 5, 0];

pub(super) fn examine(settings: &Settings) -> Vec<Finding> {
    match tier::ledger_health(settings) {
        Ok(Some(facts)) => check(&facts, settings),
        Ok(None) => Vec::new(),
        Err(_) if !settings.ledger.url.starts_with("mysql://") => Vec::new(),
        Err(error) => {
            let message = error.to_string();
            // The ledger's message of a failed opening ends with the remedy.
            let (detail, remedy) = message
                .rsplit_once("; ")
                .unwrap_or((&message, "correct ledger.url, and see the server's error log"));
            vec![fail(detail, remedy).on("ledger server")]
        }
    }
}

fn check(facts: &MysqlFacts, settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![
        server(facts).on("ledger server"),
        version(facts.text("version")).on("ledger version"),
        schema(facts).on("ledger schema"),
        isolation(facts).on("ledger isolation"),
        strictness(facts.text("sql_mode")).on("ledger sql_mode"),
        durability(facts).on("ledger durability"),
        connections(facts, settings.ledger.writers + settings.ledger.readers)
            .on("ledger connections"),
        lock_wait(facts, settings).on("ledger waits"),
        machine::skew(facts.clock_ahead_ms).on("ledger clock"),
    ];
    findings.extend(engines(facts).map(|wrong| wrong.on("ledger engine")));
    let binlog = binlog(facts).map(|wrong| wrong.on("ledger binlog"));
    findings.extend(binlog.or_else(|| Some(writes(facts)?.on("ledger writes"))));
    let batch_bytes = settings.consumer.batch_max as u64 * ORDER_BYTES;
    let dead_letter_bytes = if settings.tier == Tier::Pipeline { DEAD_LETTER_BYTES } else { 0 };
    let packets = packets(facts, batch_bytes.max(dead_letter_bytes));
    findings.extend(packets.map(|wrong| wrong.on("ledger packets")));
    findings
}

fn is_on(value: &str) -> bool {
    value == "ON" || value == "1"
}

fn server(facts: &MysqlFacts) -> CheckOutcome {
    let ms = |took: std::time::Duration| took.as_secs_f64() * 1000.0;
    let detail = format!(
        "answers in {:.2} ms, connects in {:.1} ms",
        ms(facts.round_trip),
        ms(facts.connect_time)
    );
    if facts.round_trip.as_micros() > ROUND_TRIP_COMFORTABLE_US {
        let remedy = "run it in the same data centre as this program: each order waits for it";
        return warn(detail, remedy);
    }
    ok(detail)
}

fn version(version: &str) -> CheckOutcome {
    let least = if version.contains("MariaDB") { MARIADB_MIN } else { MYSQL_MIN };
    let digits = version.split(|c: char| !c.is_ascii_digit() && c != '.').next();
    let numbers = digits.unwrap_or_default().split('.').map(|part| part.parse().unwrap_or(0));
    let seen: Vec<u32> = numbers.take(3).collect();
    if seen.as_slice() >= &least[..] {
        return ok(version);
    }
    let least = least.map(|number| number.to_string()).join(".");
    fail(
        format!("{version} is older than {least}, and may not hold the tables to their rules"),
        format!("upgrade it to {least} or later"),
    )
}

fn schema(facts: &MysqlFacts) -> CheckOutcome {
    let schema = &facts.status;
    if let Err(error) = schema.check_not_newer() {
        let message = error.to_string();
        let (detail, remedy) =
            message.split_once("; ").unwrap_or((&message, "run the newer program"));
        return fail(detail, remedy);
    }
    if schema.pending.is_empty() {
        return ok("current");
    }
    if !schema.applied.is_empty() {
        return fail(
            format!("lacks migrations: {}", schema.pending.join(", ")),
            "back the database up, then run `floodgate migrate`",
        );
    }
    let ours = ["sales", "skus", "orders", "quotas", "failed_requests", "tokens", "secrets"];
    match facts.tables.iter().find(|(name, _)| ours.contains(&name.as_str())) {
        Some((name, _)) => fail(
            format!("the database has a table `{name}` of another program"),
            "give floodgate a database of its own: CREATE DATABASE name CHARACTER SET utf8mb4",
        ),
        None => ok("the database has no tables yet; serve creates them"),
    }
}

/// Reads the isolation level of a session that the ledger has set up.
fn isolation(facts: &MysqlFacts) -> CheckOutcome {
    let named = ["transaction_isolation", "tx_isolation"].map(|name| facts.text(name));
    let seen = named.into_iter().find(|value| !value.is_empty()).unwrap_or("not reported");
    if seen == ISOLATION {
        return ok(format!("our sessions are {seen}, whatever the server's default is"));
    }
    fail(format!("our sessions are {seen} although they were set to {ISOLATION}"), PROXY_REMEDY)
}

fn strictness(mode: &str) -> CheckOutcome {
    if mode.split(',').any(|part| part == "STRICT_ALL_TABLES") {
        return ok("strict");
    }
    fail(
        format!("our sessions are {mode:?}: values that do not fit are truncated silently"),
        PROXY_REMEDY,
    )
}

fn durability(facts: &MysqlFacts) -> CheckOutcome {
    let flush = facts.text("innodb_flush_log_at_trx_commit");
    let in_conf = "and the same in its configuration file";
    if flush != "1" {
        let cause = if flush == "0" { "a crash of the server" } else { "a power cut" };
        return warn(
            format!(
                "innodb_flush_log_at_trx_commit = {flush}: {cause} loses the last second of orders \
                 that were already confirmed to buyers"
            ),
            format!("SET GLOBAL innodb_flush_log_at_trx_commit = 1, {in_conf}"),
        );
    }
    if facts.text("innodb_doublewrite") == "OFF" || facts.text("innodb_doublewrite") == "0" {
        return warn(
            "innodb_doublewrite = OFF: a power cut may leave half-written pages",
            format!("start it with innodb_doublewrite = ON, {in_conf}"),
        );
    }
    if is_on(facts.text("log_bin")) && facts.text("sync_binlog") != "1" {
        return warn(
            format!(
                "sync_binlog = {}: after a power cut replicas may have orders that the primary \
                 lost, or lack some",
                facts.text("sync_binlog")
            ),
            format!("SET GLOBAL sync_binlog = 1, {in_conf}"),
        );
    }
    ok("each commit waits for the disk (innodb_flush_log_at_trx_commit = 1)")
}

fn connections(facts: &MysqlFacts, ours: usize) -> CheckOutcome {
    let ours = ours as u64;
    let most = match (facts.number("max_connections"), facts.number("max_user_connections")) {
        (most, 0) => most,
        (most, of_user) => most.min(of_user),
    };
    let detail = format!("{most} allowed, {ours} for each server, {} open", facts.num_connections);
    if most < ours {
        let remedy = format!(
            "SET GLOBAL max_connections = {}, or lower ledger.writers and ledger.readers",
            ours * 2
        );
        return fail(detail, remedy);
    }
    // This check's own connection is one of the open ones.
    if most.saturating_sub(facts.num_connections.saturating_sub(1)) < ours {
        let remedy = "raise max_connections (SET GLOBAL), or find the clients that hold so many: \
                      SHOW PROCESSLIST";
        return warn(detail, remedy);
    }
    ok(detail)
}

fn lock_wait(facts: &MysqlFacts, settings: &Settings) -> CheckOutcome {
    let seconds = facts.number("innodb_lock_wait_timeout");
    let deadline_ms = settings.ledger.job_deadline_ms;
    let detail = format!("a statement waits up to {seconds} s for a lock, a job {deadline_ms} ms");
    if seconds.saturating_mul(1000) < deadline_ms {
        return ok(detail);
    }
    warn(
        format!("{detail}: a batch that waits for a lock ends as `unknown` instead of `busy`"),
        "lower ledger.busy_timeout_ms well below ledger.job_deadline_ms",
    )
}

fn engines(facts: &MysqlFacts) -> Option<CheckOutcome> {
    let others: Vec<_> = facts
        .tables
        .iter()
        .filter(|(_, engine)| engine != "InnoDB" && !engine.is_empty())
        .collect();
    let (name, _) = others.first()?;
    let named: Vec<_> = others.iter().map(|(name, engine)| format!("{name} ({engine})")).collect();
    Some(fail(
        format!("tables without transactions: {}", named.join(", ")),
        format!("ALTER TABLE {name} ENGINE = InnoDB, and the same for the others"),
    ))
}

fn writes(facts: &MysqlFacts) -> Option<CheckOutcome> {
    let read_only = ["read_only", "super_read_only", "innodb_read_only"];
    if let Some(name) = read_only.iter().find(|name| is_on(facts.text(name))) {
        return Some(fail(
            format!("the server accepts none: {name} is ON, as on a replica"),
            format!("point ledger.url to the primary, or there: SET GLOBAL {name} = OFF"),
        ));
    }
    let message = facts.refuses_writes.as_ref()?;
    Some(fail(
        format!("the server refuses them: {message}"),
        "grant this user all rights on the database: GRANT ALL ON database.* TO user",
    ))
}

fn binlog(facts: &MysqlFacts) -> Option<CheckOutcome> {
    let refuses = is_on(facts.text("log_bin")) && facts.text("binlog_format") == "STATEMENT";
    refuses.then(|| {
        fail(
            format!("binlog_format = STATEMENT refuses writes at isolation {ISOLATION}"),
            "SET GLOBAL binlog_format = 'ROW', and the same in its configuration file",
        )
    })
}

fn packets(facts: &MysqlFacts, needed: u64) -> Option<CheckOutcome> {
    let most = facts.number("max_allowed_packet");
    (most < needed).then(|| {
        fail(
            format!("max_allowed_packet = {most}, a statement may have {needed} bytes"),
            format!("SET GLOBAL max_allowed_packet = {needed}, and the same in its configuration"),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Status;
    use super::*;
    use crate::db::migrate::SchemaStatus;

    type Changes<'a> = &'a [(&'a str, &'a str)];

    /// A healthy server with these variables changed.
    fn facts(changes: Changes<'_>) -> MysqlFacts {
        let healthy = [
            ("version", "10.11.6-MariaDB-0+deb12u1"),
            ("tx_isolation", "READ-COMMITTED"),
            ("sql_mode", "STRICT_ALL_TABLES,NO_ZERO_DATE"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("innodb_doublewrite", "ON"),
            ("log_bin", "OFF"),
            ("sync_binlog", "0"),
            ("max_connections", "151"),
            ("max_user_connections", "0"),
            ("innodb_lock_wait_timeout", "5"),
            ("max_allowed_packet", "16777216"),
            ("read_only", "OFF"),
        ];
        let variables = healthy.iter().chain(changes);
        MysqlFacts {
            connect_time: Duration::from_millis(1),
            round_trip: Duration::from_micros(100),
            clock_ahead_ms: 0,
            variables: variables.map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            num_connections: 1,
            status: SchemaStatus { applied: vec!["0001".to_owned()], ..SchemaStatus::default() },
            tables: vec![("sales".to_owned(), "InnoDB".to_owned())],
            refuses_writes: None,
        }
    }

    fn wrong(facts: &MysqlFacts) -> Vec<(&'static str, Status)> {
        let settings = Settings::for_test("mysql://db/floodgate");
        let findings = check(facts, &settings);
        for finding in &findings {
            assert_eq!(finding.verdict.remedy.is_empty(), finding.is(Status::Ok), "{finding:?}");
        }
        let wrong = findings.into_iter().filter(|finding| !finding.is(Status::Ok));
        wrong.map(|finding| (finding.check, finding.verdict.status)).collect()
    }

    #[test]
    fn each_wrong_variable_is_one_finding() {
        assert_eq!(wrong(&facts(&[])), []);
        let table: [(Changes<'_>, &str, Status); 14] = [
            (&[("version", "8.0.11")], "ledger version", Status::Fail),
            (&[("version", "10.3.39-MariaDB")], "ledger version", Status::Fail),
            (&[("tx_isolation", "REPEATABLE-READ")], "ledger isolation", Status::Fail),
            (&[("sql_mode", "")], "ledger sql_mode", Status::Fail),
            (&[("innodb_flush_log_at_trx_commit", "2")], "ledger durability", Status::Warn),
            (&[("innodb_doublewrite", "OFF")], "ledger durability", Status::Warn),
            (&[("log_bin", "ON")], "ledger durability", Status::Warn),
            (&[("max_connections", "3")], "ledger connections", Status::Fail),
            (&[("max_user_connections", "3")], "ledger connections", Status::Fail),
            (&[("innodb_lock_wait_timeout", "50")], "ledger waits", Status::Warn),
            (&[("read_only", "ON")], "ledger writes", Status::Fail),
            (&[("super_read_only", "ON")], "ledger writes", Status::Fail),
            (&[("max_allowed_packet", "1024")], "ledger packets", Status::Fail),
            (
                &[("log_bin", "ON"), ("sync_binlog", "1"), ("binlog_format", "STATEMENT")],
                "ledger binlog",
                Status::Fail,
            ),
        ];
        for (changes, check, status) in table {
            assert_eq!(wrong(&facts(changes)), [(check, status)], "{changes:?}");
        }
        let mysql =
            [("version", "8.4.2"), ("tx_isolation", ""), ("transaction_isolation", ISOLATION)];
        assert_eq!(wrong(&facts(&mysql)), []);
    }

    #[test]
    fn facts_besides_variables_are_checked_too() {
        let checked = |change: fn(&mut MysqlFacts)| {
            let mut facts = facts(&[]);
            change(&mut facts);
            wrong(&facts)
        };
        let late = |facts: &mut MysqlFacts| facts.clock_ahead_ms = -1_500;
        assert_eq!(checked(late), [("ledger clock", Status::Warn)]);
        let far = |facts: &mut MysqlFacts| facts.round_trip = Duration::from_millis(30);
        assert_eq!(checked(far), [("ledger server", Status::Warn)]);
        let crowded = |facts: &mut MysqlFacts| facts.num_connections = 150;
        assert_eq!(checked(crowded), [("ledger connections", Status::Warn)]);
        let old = |facts: &mut MysqlFacts| facts.tables[0].1 = "MyISAM".to_owned();
        assert_eq!(checked(old), [("ledger engine", Status::Fail)]);
        let denied = |facts: &mut MysqlFacts| facts.refuses_writes = Some("denied".to_owned());
        assert_eq!(checked(denied), [("ledger writes", Status::Fail)]);
        let behind = |facts: &mut MysqlFacts| facts.status.pending.push("0002_x".to_owned());
        assert_eq!(checked(behind), [("ledger schema", Status::Fail)]);
        let newer = |facts: &mut MysqlFacts| facts.status.unknown.push("9999".to_owned());
        assert_eq!(checked(newer), [("ledger schema", Status::Fail)]);
        let foreign = |facts: &mut MysqlFacts| {
            facts.status =
                SchemaStatus { pending: vec!["0001_x".to_owned()], ..SchemaStatus::default() };
        };
        assert_eq!(checked(foreign), [("ledger schema", Status::Fail)]);
    }
}
