//! Checks of a MySQL or MariaDB ledger's server: access, schema, durability, limits, and whether
//! our sessions keep the variables that the ledger sets.

use super::{Check, ROUND_TRIP_COMFORTABLE, check, is_at_least, machine, ms};
use crate::config::{Settings, Tier};
use crate::db::migrate::{MIGRATIONS, TABLES};
use crate::db::mysql::health::MysqlFacts;
use crate::tier;

/// The isolation level that the ledger sets in every session.
const ISOLATION: &str = "READ-COMMITTED";
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

pub(super) fn examine(settings: &Settings) -> Vec<Check> {
    match tier::ledger_health(settings) {
        Ok(Some(facts)) => checks(&facts, settings),
        Ok(None) => Vec::new(),
        Err(_) if !settings.ledger.url.starts_with("mysql://") => Vec::new(),
        Err(error) => {
            let remedy = "correct ledger.url, and see the server's error log";
            vec![check("ledger server").fail_as(&error.to_string(), remedy)]
        }
    }
}

fn checks(facts: &MysqlFacts, settings: &Settings) -> Vec<Check> {
    let mut checks = server(facts);
    checks.extend(session(facts, settings));
    checks.push(durability(facts));
    checks.push(connections(facts, (settings.ledger.writers + settings.ledger.readers) as u64));
    checks.extend(writes(facts));
    checks
}

fn is_on(value: &str) -> bool {
    value == "ON" || value == "1"
}

fn server(facts: &MysqlFacts) -> Vec<Check> {
    let answers = format!(
        "answers in {:.2} ms, connects in {:.1} ms",
        ms(facts.round_trip),
        ms(facts.connect_time)
    );
    let version = facts.text("version");
    let least = if version.contains("MariaDB") { MARIADB_MIN } else { MYSQL_MIN };
    let least_shown = least.map(|number| number.to_string()).join(".");
    let has_engine = |engine: &str| engine == "InnoDB" || engine.is_empty();
    let others: Vec<_> = facts.tables.iter().filter(|(_, engine)| !has_engine(engine)).collect();
    let named: Vec<_> = others.iter().map(|(name, engine)| format!("{name} ({engine})")).collect();
    vec![
        check("ledger server")
            .when(facts.round_trip > ROUND_TRIP_COMFORTABLE)
            .warn(&answers)
            .remedy("run it in the same data centre as this program: each order waits for it")
            .ok(answers),
        check("ledger version")
            .when(!is_at_least(version, &least))
            .fail(format!(
                "{version} is older than {least_shown}, and may not hold the tables to their \
                 rules"
            ))
            .remedy(format!("upgrade it to {least_shown} or later"))
            .ok(version),
        schema(facts),
        check("ledger engine")
            .when(!others.is_empty())
            .fail(format!("tables without transactions: {}", named.join(", ")))
            .remedy(format!(
                "ALTER TABLE {} ENGINE = InnoDB, and the same for the others",
                others.first().map_or("", |(name, _)| name)
            )),
        machine::skew("ledger clock", facts.clock_ahead_ms),
    ]
}

fn schema(facts: &MysqlFacts) -> Check {
    let (check, schema) = (check("ledger schema"), &facts.status);
    if let Err(error) = schema.check_not_newer() {
        return check.fail_as(&error.to_string(), "run the newer program");
    }
    if schema.pending.is_empty() {
        return check.ok("current");
    }
    let foreign = facts.tables.iter().find(|(name, _)| TABLES.contains(&name.as_str()));
    // A crash in the middle of the first migration leaves it.
    let has_record = facts.tables.iter().any(|(name, _)| name == MIGRATIONS);
    check
        .when(has_record)
        .fail(format!("lacks migrations: {}", schema.pending.join(", ")))
        .remedy("back the database up, then run `floodgate migrate`")
        .when(foreign.is_some())
        .fail(format!(
            "the database has a table `{}` of another program",
            foreign.map_or("", |(name, _)| name)
        ))
        .remedy("give floodgate a database of its own: CREATE DATABASE name CHARACTER SET utf8mb4")
        .ok("the database has no tables yet; serve creates them")
}

/// The variables of a session that the ledger has set up.
fn session(facts: &MysqlFacts, settings: &Settings) -> [Check; 4] {
    let isolation = ["transaction_isolation", "tx_isolation"].map(|name| facts.text(name));
    let isolation = isolation.into_iter().find(|value| !value.is_empty()).unwrap_or("not reported");
    let mode = facts.text("sql_mode");
    let lock_s = facts.number("innodb_lock_wait_timeout");
    let deadline_ms = settings.ledger.job_deadline_ms;
    let waits = format!("a statement waits up to {lock_s} s for a lock, a job {deadline_ms} ms");
    let batch_bytes = settings.consumer.batch_max as u64 * ORDER_BYTES;
    let dead_letter_bytes = if settings.tier == Tier::Pipeline { DEAD_LETTER_BYTES } else { 0 };
    let packet = facts.number("max_allowed_packet");
    let needed = batch_bytes.max(dead_letter_bytes);
    [
        check("ledger isolation")
            .when(isolation != ISOLATION)
            .fail(format!("our sessions are {isolation} although they were set to {ISOLATION}"))
            .remedy(PROXY_REMEDY)
            .ok(format!("our sessions are {isolation}, whatever the server's default is")),
        check("ledger sql_mode")
            .when(mode.split(',').all(|part| part != "STRICT_ALL_TABLES"))
            .fail(format!(
                "our sessions are {mode:?}: values that do not fit are truncated silently"
            ))
            .remedy(PROXY_REMEDY)
            .ok("strict"),
        check("ledger waits")
            .when(lock_s.saturating_mul(1000) >= deadline_ms)
            .warn(format!(
                "{waits}: a batch that waits for a lock ends as `unknown` instead of `busy`"
            ))
            .remedy("lower ledger.busy_timeout_ms well below ledger.job_deadline_ms")
            .ok(waits),
        check("ledger packets")
            .when(packet < needed)
            .fail(format!("max_allowed_packet = {packet}, a statement may have {needed} bytes"))
            .remedy(format!(
                "SET GLOBAL max_allowed_packet = {needed}, and the same in its configuration"
            )),
    ]
}

fn durability(facts: &MysqlFacts) -> Check {
    let flush = facts.text("innodb_flush_log_at_trx_commit");
    let cause = if flush == "0" { "a crash of the server" } else { "a power cut" };
    let sync_binlog = facts.text("sync_binlog");
    let in_conf = "and the same in its configuration file";
    check("ledger durability")
        .when(flush != "1")
        .warn(format!(
            "innodb_flush_log_at_trx_commit = {flush}: {cause} loses the last second of orders \
             that were already confirmed to buyers"
        ))
        .remedy(format!("SET GLOBAL innodb_flush_log_at_trx_commit = 1, {in_conf}"))
        .when(matches!(facts.text("innodb_doublewrite"), "OFF" | "0"))
        .warn("innodb_doublewrite = OFF: a power cut may leave half-written pages")
        .remedy(format!("start it with innodb_doublewrite = ON, {in_conf}"))
        .when(is_on(facts.text("log_bin")) && sync_binlog != "1")
        .warn(format!(
            "sync_binlog = {sync_binlog}: after a power cut replicas may have orders that the \
             primary lost, or lack some"
        ))
        .remedy(format!("SET GLOBAL sync_binlog = 1, {in_conf}"))
        .ok("each commit waits for the disk (innodb_flush_log_at_trx_commit = 1)")
}

fn connections(facts: &MysqlFacts, ours: u64) -> Check {
    let most = match (facts.number("max_connections"), facts.number("max_user_connections")) {
        (most, 0) => most,
        (most, of_user) => most.min(of_user),
    };
    let detail = format!("{most} allowed, {ours} for each server, {} open", facts.num_connections);
    let raised = ours * 2;
    check("ledger connections")
        .when(most < ours)
        .fail(&detail)
        .remedy(format!(
            "SET GLOBAL max_connections = {raised}, or lower ledger.writers and ledger.readers"
        ))
        .when(
            // This check's own connection is one of the open ones.
            most.saturating_sub(facts.num_connections.saturating_sub(1)) < ours,
        )
        .warn(&detail)
        .remedy(
            "raise max_connections (SET GLOBAL), or find the clients that hold so many: \
             SHOW PROCESSLIST",
        )
        .ok(detail)
}

/// One finding at most: a binary log of statements is one more reason to refuse a write.
fn writes(facts: &MysqlFacts) -> [Check; 2] {
    let read_only = ["read_only", "super_read_only", "innodb_read_only"];
    let read_only = read_only.into_iter().find(|name| is_on(facts.text(name)));
    let name = read_only.unwrap_or_default();
    let refusal = facts.refuses_writes.as_deref();
    let logs_statements =
        is_on(facts.text("log_bin")) && facts.text("binlog_format") == "STATEMENT";
    [
        check("ledger binlog")
            .when(logs_statements)
            .fail(format!("binlog_format = STATEMENT refuses writes at isolation {ISOLATION}"))
            .remedy("SET GLOBAL binlog_format = 'ROW', and the same in its configuration file"),
        check("ledger writes")
            .when(!logs_statements && read_only.is_some())
            .fail(format!("the server accepts none: {name} is ON, as on a replica"))
            .remedy(format!("point ledger.url to the primary, or there: SET GLOBAL {name} = OFF"))
            .when(!logs_statements && refusal.is_some())
            .fail(format!("the server refuses them: {}", refusal.unwrap_or_default()))
            .remedy("grant this user all rights on the database: GRANT ALL ON database.* TO user"),
    ]
}

#[cfg(test)]
#[path = "mysql_tests.rs"]
mod tests;
