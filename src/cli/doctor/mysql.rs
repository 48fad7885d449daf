//! Checks of a MySQL or MariaDB ledger's server: access, schema, durability, limits, and whether
//! our sessions keep the variables that the ledger sets.

use super::{Check, ROUND_TRIP_COMFORTABLE, fail_as, is_at_least, machine, ms};
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
            vec![fail_as("ledger server", &error.to_string(), remedy)]
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
    let (took, connect) = (ms(facts.round_trip), ms(facts.connect_time));
    let answers = format!("answers in {took:.2} ms, connects in {connect:.1} ms");
    let version = facts.text("version");
    let least = if version.contains("MariaDB") { MARIADB_MIN } else { MYSQL_MIN };
    let least_shown = least.map(|number| number.to_string()).join(".");
    let has_engine = |engine: &str| engine == "InnoDB" || engine.is_empty();
    let others: Vec<_> = facts.tables.iter().filter(|(_, engine)| !has_engine(engine)).collect();
    let named: Vec<_> = others.iter().map(|(name, engine)| format!("{name} ({engine})")).collect();
    let named = named.join(", ");
    vec![
        check! { "ledger server";
            facts.round_trip > ROUND_TRIP_COMFORTABLE => Warn "{answers}"
                -> "run it in the same data centre as this program: each order waits for it";
            else => Ok "{answers}"
        },
        check! { "ledger version";
            !is_at_least(version, &least) =>
                Fail "{version} is older than {least_shown}, and may not hold the tables to their \
                      rules"
                -> "upgrade it to {least_shown} or later";
            else => Ok "{version}"
        },
        schema(facts),
        check! { "ledger engine";
            let Some((name, _)) = others.first() => Fail "tables without transactions: {named}"
                -> "ALTER TABLE {name} ENGINE = InnoDB, and the same for the others";
        },
        machine::skew("ledger clock", facts.clock_ahead_ms),
    ]
}

fn schema(facts: &MysqlFacts) -> Check {
    let (name, schema) = ("ledger schema", &facts.status);
    if let Err(error) = schema.check_not_newer() {
        return fail_as(name, &error.to_string(), "run the newer program");
    }
    let pending = schema.pending.join(", ");
    let foreign = facts.tables.iter().find(|(name, _)| TABLES.contains(&name.as_str()));
    // A crash in the middle of the first migration leaves it.
    let has_record = facts.tables.iter().any(|(name, _)| name == MIGRATIONS);
    check! { name;
        pending.is_empty() => Ok "current";
        has_record => Fail "lacks migrations: {pending}"
            -> "back the database up, then run `floodgate migrate`";
        let Some((table, _)) = foreign =>
            Fail "the database has a table `{table}` of another program"
            -> "give floodgate a database of its own: CREATE DATABASE name CHARACTER SET utf8mb4";
        else => Ok "the database has no tables yet; serve creates them"
    }
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
        check! { "ledger isolation";
            isolation != ISOLATION =>
                Fail "our sessions are {isolation} although they were set to {ISOLATION}"
                -> "{PROXY_REMEDY}";
            else => Ok "our sessions are {isolation}, whatever the server's default is"
        },
        check! { "ledger sql_mode";
            mode.split(',').all(|part| part != "STRICT_ALL_TABLES") =>
                Fail "our sessions are {mode:?}: values that do not fit are truncated silently"
                -> "{PROXY_REMEDY}";
            else => Ok "strict"
        },
        check! { "ledger waits";
            lock_s.saturating_mul(1000) >= deadline_ms =>
                Warn "{waits}: a batch that waits for a lock ends as `unknown` instead of `busy`"
                -> "lower ledger.busy_timeout_ms well below ledger.job_deadline_ms";
            else => Ok "{waits}"
        },
        check! { "ledger packets";
            packet < needed =>
                Fail "max_allowed_packet = {packet}, a statement may have {needed} bytes"
                -> "SET GLOBAL max_allowed_packet = {needed}, and the same in its configuration";
        },
    ]
}

fn durability(facts: &MysqlFacts) -> Check {
    let flush = facts.text("innodb_flush_log_at_trx_commit");
    let cause = if flush == "0" { "a crash of the server" } else { "a power cut" };
    let sync_binlog = facts.text("sync_binlog");
    let in_conf = "and the same in its configuration file";
    check! { "ledger durability";
        flush != "1" =>
            Warn "innodb_flush_log_at_trx_commit = {flush}: {cause} loses the last second of \
                  orders that were already confirmed to buyers"
            -> "SET GLOBAL innodb_flush_log_at_trx_commit = 1, {in_conf}";
        matches!(facts.text("innodb_doublewrite"), "OFF" | "0") =>
            Warn "innodb_doublewrite = OFF: a power cut may leave half-written pages"
            -> "start it with innodb_doublewrite = ON, {in_conf}";
        is_on(facts.text("log_bin")) && sync_binlog != "1" =>
            Warn "sync_binlog = {sync_binlog}: after a power cut replicas may have orders that \
                  the primary lost, or lack some"
            -> "SET GLOBAL sync_binlog = 1, {in_conf}";
        else => Ok "each commit waits for the disk (innodb_flush_log_at_trx_commit = 1)"
    }
}

fn connections(facts: &MysqlFacts, ours: u64) -> Check {
    let most = match (facts.number("max_connections"), facts.number("max_user_connections")) {
        (most, 0) => most,
        (most, of_user) => most.min(of_user),
    };
    let detail = format!("{most} allowed, {ours} for each server, {} open", facts.num_connections);
    let raised = ours * 2;
    // This check's own connection is one of the open ones.
    let others = facts.num_connections.saturating_sub(1);
    check! { "ledger connections";
        most < ours => Fail "{detail}"
            -> "SET GLOBAL max_connections = {raised}, or lower ledger.writers and ledger.readers";
        most.saturating_sub(others) < ours => Warn "{detail}"
            -> "raise max_connections (SET GLOBAL), or find the clients that hold so many: \
                SHOW PROCESSLIST";
        else => Ok "{detail}"
    }
}

/// One finding at most: a binary log of statements is one more reason to refuse a write.
fn writes(facts: &MysqlFacts) -> [Check; 2] {
    let logs_statements =
        is_on(facts.text("log_bin")) && facts.text("binlog_format") == "STATEMENT";
    let read_only = ["read_only", "super_read_only", "innodb_read_only"];
    let read_only = read_only.into_iter().find(|name| is_on(facts.text(name)));
    let read_only = read_only.filter(|_| !logs_statements);
    let refusal = facts.refuses_writes.as_deref().filter(|_| !logs_statements);
    [
        check! { "ledger binlog";
            logs_statements =>
                Fail "binlog_format = STATEMENT refuses writes at isolation {ISOLATION}"
                -> "SET GLOBAL binlog_format = 'ROW', and the same in its configuration file";
        },
        check! { "ledger writes";
            let Some(name) = read_only =>
                Fail "the server accepts none: {name} is ON, as on a replica"
                -> "point ledger.url to the primary, or there: SET GLOBAL {name} = OFF";
            let Some(reason) = refusal => Fail "the server refuses them: {reason}"
                -> "grant this user all rights on the database: GRANT ALL ON database.* TO user";
        },
    ]
}

#[cfg(test)]
#[path = "mysql_tests.rs"]
mod tests;
