//! Both databases have the same schema, and migrations work up and down.

use std::collections::BTreeSet;

use diesel::prelude::*;
use diesel::sql_types::Text;
use diesel_async::AsyncMysqlConnection;
use diesel_async::async_connection_wrapper::AsyncConnectionWrapper;
use diesel_migrations::MigrationHarness;
use floodgate::db::migrate::MYSQL;
use floodgate::db::mysql::MysqlLedger;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};

use crate::support::migrations;
use crate::support::servers::mariadb::MariaDb;

const TABLES: [&str; 19] = [
    "sales",
    "skus",
    "orders",
    "quotas",
    "failed_requests",
    "tokens",
    "secrets",
    "dead_letters",
    "dead_requests",
    "operator_verbs",
    "order_events",
    "payments",
    "payment_events",
    "bars",
    "cursors",
    "sale_phases",
    "repairs",
    "terms",
    "stock_changes",
];

/// Lines of a schema in a notation common to both databases.
type Lines = Vec<String>;

/// A migrated SQLite ledger.
struct File {
    _directory: tempfile::TempDir,
    conn: SqliteConnection,
}

impl File {
    fn migrated() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = OpenOptions::new(directory.path().join("ledger.db"));
        SqliteLedger::migrate(&options).unwrap();
        let conn = SqliteConnection::establish(options.path.to_str().unwrap()).unwrap();
        Self { _directory: directory, conn }
    }

    fn texts(&mut self, query: &str) -> Lines {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = Text)]
            text: String,
        }
        let rows: Vec<Row> = diesel::sql_query(query).load(&mut self.conn).unwrap();
        rows.into_iter().map(|row| row.text).collect()
    }

    fn columns(&mut self, table: &str) -> Lines {
        let declared = self.texts(&format!(
            "SELECT name || ' ' || lower(type) || iif(\"notnull\" OR pk, '', ' null') AS text \
             FROM pragma_table_info('{table}') ORDER BY cid"
        ));
        declared
            .iter()
            .map(|line| line.replace("integer", "int").replace("blob", "bytes"))
            .collect()
    }

    /// The columns of each unique key, the primary one first.
    fn unique_keys(&mut self, table: &str) -> BTreeSet<String> {
        let mut keys: BTreeSet<String> = self
            .texts(&format!(
                "SELECT (SELECT group_concat(name) FROM pragma_index_info(list.name)) AS text \
                 FROM pragma_index_list('{table}') AS list WHERE list.\"unique\""
            ))
            .into_iter()
            .collect();
        let primary = self.texts(&format!(
            "SELECT group_concat(name) AS text FROM \
             (SELECT name FROM pragma_table_info('{table}') WHERE pk ORDER BY pk)"
        ));
        keys.extend(primary);
        keys
    }

    /// The CHECK conditions in the CREATE TABLE statement.
    fn checks(&mut self, table: &str) -> BTreeSet<String> {
        let text = &self.texts(&format!(
            "SELECT sql AS text FROM sqlite_master WHERE type = 'table' AND name = '{table}'"
        ))[0];
        text.match_indices("CHECK (")
            .map(|(at, head)| {
                let rest = &text[at + head.len()..];
                let mut depth = 1;
                let end = rest.find(|c| {
                    depth += i32::from(c == '(') - i32::from(c == ')');
                    depth == 0
                });
                normalized(&rest[..end.unwrap()])
            })
            .collect()
    }

    fn references(&mut self, table: &str) -> BTreeSet<String> {
        let query = format!(
            "SELECT \"from\" || ' -> ' || \"table\" || '.' || \"to\" AS text \
             FROM pragma_foreign_key_list('{table}')"
        );
        self.texts(&query).into_iter().collect()
    }
}

/// A condition without differences of case, quotes and white space.
fn normalized(condition: &str) -> String {
    let text = condition.to_lowercase().replace('`', "");
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace(", ", ",")
}

fn columns(server: &MariaDb, table: &str) -> Lines {
    let declared = server.texts(&format!(
        "SELECT CONCAT(column_name, ' ', column_type, IF(is_nullable = 'YES', ' null', '')) \
         AS text FROM information_schema.columns \
         WHERE table_schema = 'floodgate' AND table_name = '{table}' ORDER BY ordinal_position"
    ));
    let without_display = |line: &String| {
        let (name, kind) = line.split_once(' ').unwrap();
        let kind = match kind.split_once('(') {
            Some(("int" | "bigint" | "smallint", rest)) => {
                let (_, after) = rest.split_once(')').unwrap();
                format!("{}{after}", kind.split('(').next().unwrap())
            }
            Some(("binary" | "varbinary", _)) => "bytes".to_owned(),
            _ => kind.replace("mediumblob", "bytes"),
        };
        format!("{name} {kind}")
    };
    declared.iter().map(without_display).collect()
}

fn unique_keys(server: &MariaDb, table: &str) -> BTreeSet<String> {
    let query = format!(
        "SELECT GROUP_CONCAT(column_name ORDER BY seq_in_index) AS text \
         FROM information_schema.statistics WHERE table_schema = 'floodgate' \
         AND table_name = '{table}' AND non_unique = 0 GROUP BY index_name"
    );
    server.texts(&query).into_iter().collect()
}

fn checks(server: &MariaDb, table: &str) -> BTreeSet<String> {
    let query = format!(
        "SELECT check_clause AS text FROM information_schema.check_constraints \
         WHERE constraint_schema = 'floodgate' AND table_name = '{table}'"
    );
    server.texts(&query).iter().map(|clause| normalized(clause)).collect()
}

fn references(server: &MariaDb, table: &str) -> BTreeSet<String> {
    let query = format!(
        "SELECT CONCAT(column_name, ' -> ', referenced_table_name, '.', referenced_column_name) \
         AS text FROM information_schema.key_column_usage WHERE table_schema = 'floodgate' \
         AND table_name = '{table}' AND referenced_table_name IS NOT NULL"
    );
    server.texts(&query).into_iter().collect()
}

#[test]
fn both_databases_have_the_same_schema() {
    let mut file = File::migrated();
    let server = MariaDb::start();
    assert_eq!(MysqlLedger::migrate(&server.options()).unwrap(), migrations::all("mysql"));
    for table in TABLES {
        assert_eq!(columns(&server, table), file.columns(table), "{table}");
        assert_eq!(unique_keys(&server, table), file.unique_keys(table), "{table}");
        assert_eq!(checks(&server, table), file.checks(table), "{table}");
        assert_eq!(references(&server, table), file.references(table), "{table}");
    }
    assert_eq!(file.checks("skus").len(), 2, "the checks of the SQLite file were not found");
    assert_eq!(references(&server, "skus").len(), 1, "the references were not found");
}

/// The columns, checks, keys, engine and collation of every table.
fn description(server: &MariaDb) -> Lines {
    let tables = server.texts(
        "SELECT table_name AS text FROM information_schema.tables \
         WHERE table_schema = 'floodgate' AND table_name NOT LIKE '%diesel%' ORDER BY table_name",
    );
    let describe = |table: &String| {
        let all = [columns(server, table), Vec::from_iter(checks(server, table))].concat();
        let keys = server.texts(&format!(
            "SELECT CONCAT(index_name, ' ', column_name, ' ', seq_in_index) AS text \
             FROM information_schema.statistics WHERE table_schema = 'floodgate' \
             AND table_name = '{table}' ORDER BY index_name, seq_in_index"
        ));
        let engine = server.texts(&format!(
            "SELECT CONCAT(engine, ' ', table_collation) AS text FROM information_schema.tables \
             WHERE table_schema = 'floodgate' AND table_name = '{table}'"
        ));
        format!("{table}: {all:?} {keys:?} {engine:?}")
    };
    tables.iter().map(describe).collect()
}

#[test]
fn up_down_up_is_the_same_schema() {
    let server = MariaDb::start();
    let options = server.options();
    let applied = MysqlLedger::migrate(&options).unwrap();
    let first = description(&server);
    assert_eq!(first.len(), TABLES.len(), "{first:#?}");
    assert!(first.iter().all(|table| table.contains("InnoDB utf8mb4_bin")), "{first:#?}");
    assert_eq!(MysqlLedger::migrate(&options).unwrap(), Vec::<String>::new());

    let mut conn =
        AsyncConnectionWrapper::<AsyncMysqlConnection>::establish(&server.url()).unwrap();
    conn.revert_all_migrations(MYSQL).unwrap();
    assert_eq!(description(&server), Lines::new());
    assert_eq!(MysqlLedger::schema_status(&options).unwrap().pending, applied);

    assert_eq!(MysqlLedger::migrate(&options).unwrap(), applied);
    assert_eq!(description(&server), first);
}
