//! Migrations work up and down, and keep the rows.

use diesel::connection::SimpleConnection;
use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::Text;
use diesel_migrations::MigrationHarness;
use floodgate::db::migrate::SQLITE;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use tempfile::TempDir;

use crate::support::migrations;

fn migrated() -> (TempDir, OpenOptions, SqliteConnection) {
    let directory = tempfile::tempdir().unwrap();
    let options = OpenOptions::new(directory.path().join("ledger.db"));
    let applied = SqliteLedger::migrate(&options).unwrap();
    assert_eq!(applied, migrations::all("sqlite"));
    let has_verb = |name: &String| ["_create_", "_add_"].iter().any(|verb| name.contains(verb));
    assert!(applied.iter().all(has_verb), "{applied:?}");
    let conn = SqliteConnection::establish(options.path.to_str().unwrap()).unwrap();
    (directory, options, conn)
}

/// The definition of every table and index in the database.
fn schema(conn: &mut SqliteConnection) -> Vec<String> {
    sql::<Text>(
        "SELECT type || ' ' || name || ' ' || COALESCE(sql, '') FROM sqlite_master \
         WHERE name NOT LIKE '%diesel%' AND name <> 'sqlite_sequence' ORDER BY 1",
    )
    .load(conn)
    .unwrap()
}

#[test]
fn up_down_up_is_the_same_schema() {
    let (_directory, options, mut conn) = migrated();
    let first = schema(&mut conn);
    assert!(first.len() > 10, "{first:?}");
    assert_eq!(SqliteLedger::migrate(&options).unwrap(), Vec::<String>::new());

    conn.revert_all_migrations(SQLITE).unwrap();
    assert_eq!(schema(&mut conn), Vec::<String>::new());
    assert_eq!(SqliteLedger::schema_status(&options).unwrap().pending, migrations::all("sqlite"));
    assert_eq!(schema(&mut conn), Vec::<String>::new(), "reading the status changes nothing");

    assert_eq!(SqliteLedger::migrate(&options).unwrap(), migrations::all("sqlite"));
    assert_eq!(schema(&mut conn), first);
}

#[test]
fn orders_of_older_ledgers_are_migrated() {
    let (_directory, options, mut conn) = migrated();
    let newer = migrations::from("sqlite", "0007");
    for _ in &newer {
        conn.revert_last_migration(SQLITE).unwrap();
    }
    conn.batch_execute(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1000) \
         INSERT INTO orders SELECT 1 + n % 3, 1000 - n, CASE WHEN n % 2 THEN n ELSE 0 END, n, 1, \
         2, 3, 1, 4, 5, x'06', NULL, 7 FROM n",
    )
    .unwrap();
    let sums = "SELECT COUNT(*) || ' ' || SUM(sku_no * buyer_id * (slot + 1) * request_id) \
                || ' ' || SUM(epoch + quantity * amount * state + placed_at_ms * pay_by_ms) \
                || ' ' || SUM(recorded_at_ms) || hex(MAX(trace_id)) FROM orders";
    let before: String = sql::<Text>(sums).get_result(&mut conn).unwrap();
    assert_eq!(SqliteLedger::migrate(&options).unwrap(), newer);
    let after: String = sql::<Text>(sums).get_result(&mut conn).unwrap();
    assert_eq!(after, before);
    assert!(before.starts_with("1000 "), "{before}");
    let life = "SELECT COUNT(*) || '' FROM orders \
                WHERE version = 0 AND due_ms IS NULL AND counts_for_limit = 1";
    assert_eq!(sql::<Text>(life).get_result::<String>(&mut conn).unwrap(), "1000");
}
