//! Migrations work up and down.

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
