use std::time::Duration;

use super::super::Status::{Fail, Warn};
use super::super::tests::{assert_problem, problems};
use super::*;
use crate::db::migrate::SchemaStatus;

fn healthy() -> MysqlFacts {
    let variables = [
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
    MysqlFacts {
        connect_time: Duration::from_millis(1),
        round_trip: Duration::from_micros(100),
        clock_ahead_ms: 0,
        variables: variables.map(|(name, value)| (name.into(), value.into())).into(),
        num_connections: 1,
        status: SchemaStatus { applied: vec!["0001".to_owned()], ..SchemaStatus::default() },
        tables: vec![("sales".to_owned(), "InnoDB".to_owned())],
        refuses_writes: None,
    }
}

fn checked(change: impl FnOnce(&mut MysqlFacts)) -> Vec<Check> {
    let mut facts = healthy();
    change(&mut facts);
    checks(&facts, &Settings::with_ledger("mysql://db/floodgate"))
}

#[test]
fn each_wrong_variable_is_one_finding() {
    let with = |changes: &[(&str, &str)]| {
        let changes = changes.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        checked(|facts| facts.variables.extend(changes))
    };
    let mysql = [("version", "8.4.2"), ("tx_isolation", ""), ("transaction_isolation", ISOLATION)];
    assert_eq!(problems(with(&mysql)), []);
    for (name, value, check, status) in [
        ("version", "8.0.11", "ledger version", Fail),
        ("version", "10.3.39-MariaDB", "ledger version", Fail),
        ("sql_mode", "", "ledger sql_mode", Fail),
        ("innodb_flush_log_at_trx_commit", "0", "ledger durability", Warn),
        ("innodb_doublewrite", "OFF", "ledger durability", Warn),
        ("max_user_connections", "3", "ledger connections", Fail),
        ("innodb_lock_wait_timeout", "50", "ledger waits", Warn),
        ("super_read_only", "ON", "ledger writes", Fail),
        ("max_allowed_packet", "1024", "ledger packets", Fail),
    ] {
        let words = if name == "super_read_only" { name } else { value };
        assert_problem(with(&[(name, value)]), check, status, words);
    }
}

#[test]
fn facts_besides_variables_are_checked_too() {
    assert_eq!(problems(checked(|_| {})), []);
    let late = checked(|facts| facts.clock_ahead_ms = -1_500);
    assert_problem(late, "ledger clock", Warn, "1.5 s behind");
    let far = checked(|facts| facts.round_trip *= 300);
    assert_problem(far, "ledger server", Warn, "answers in 30.00 ms");
    let crowded = checked(|facts| facts.num_connections = 150);
    assert_problem(crowded, "ledger connections", Warn, "150 open");
}
