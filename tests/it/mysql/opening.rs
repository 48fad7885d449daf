//! A ledger that cannot be opened says why and what to do, and never shows the password.

use std::net::SocketAddr;

use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::{BlindInsert, Error, ErrorClass, Ledger};

use crate::support::offers::{ANY, intent, offer, run};
use crate::support::servers::mariadb::MariaDb;
use crate::support::servers::ports::Port;

/// Opening is refused with all of these words, and the word "quite-secret" in none of them.
#[track_caller]
fn refused(options: &MysqlOptions, words: &[&str]) {
    for answer in [MysqlLedger::open(options), MysqlLedger::open_for_reading(options)] {
        let error = answer.unwrap_err();
        assert!(matches!(error, Error::CannotOpen { .. }), "{error:?}");
        assert_eq!(error.class(), ErrorClass::Down);
        let told = error.to_string();
        for word in words {
            assert!(told.contains(word), "{word:?} is not in: {told}");
        }
        assert!(!told.contains("secret"), "{told}");
    }
}

fn at(server: &MariaDb, user: &str, database: &str) -> MysqlOptions {
    MysqlOptions::new(format!("mysql://{user}@{}/{database}", server.addr()))
}

#[test]
fn a_wrong_password_a_missing_database_and_a_missing_right_are_told_apart() {
    let server = MariaDb::start();
    let address = server.addr().to_string();
    let right = "floodgate:quite-secret";
    refused(
        &at(&server, "floodgate:secret", "floodgate"),
        &[&address, "Access denied", "password in ledger.url"],
    );
    refused(&at(&server, "nobody:secret", "floodgate"), &["Access denied", "the user"]);
    refused(&at(&server, right, "mysql"), &["to database", "GRANT ALL"]);
    server.sql("GRANT ALL ON other.* TO floodgate@127.0.0.1");
    refused(&at(&server, right, "other"), &["Unknown database", "CREATE DATABASE"]);
    refused(&MysqlOptions::new("sqlite://x"), &["not mysql://"]);
    refused(&MysqlOptions::new("mysql://"), &["ledger"]);
}

#[test]
fn a_server_that_does_not_answer_is_waited_for_only_so_long() {
    let (nobody, silent) = (Port::claim(), Port::claim());
    let url = |address: SocketAddr| format!("mysql://me:secret@{address}/floodgate");
    refused(&MysqlOptions::new(url(nobody.addr())), &["refused", "whether the server runs"]);
    // The kernel takes the connection and nobody ever says a word.
    let _listener = std::net::TcpListener::bind(silent.addr()).unwrap();
    let options = MysqlOptions { connect_timeout_ms: 100, ..MysqlOptions::new(url(silent.addr())) };
    refused(&options, &["no answer within 100 ms", "firewall"]);
}

#[test]
fn a_server_without_a_free_connection_says_so() {
    let server = MariaDb::start_with(&["--max-connections=10"]);
    let mut sessions = vec![MariaDb::session_as(&server.url())];
    while sessions.last().is_some_and(|session| session.try_sql("DO 1").is_ok()) {
        sessions.push(MariaDb::session_as(&server.url()));
    }
    refused(&server.options(), &["Too many connections", "max_connections"]);
}

#[test]
fn tables_of_another_program_are_left_alone() {
    let server = MariaDb::start();
    server.sql("CREATE TABLE orders (id INT)");
    let error = MysqlLedger::open(&server.options()).unwrap_err().to_string();
    assert!(error.contains("`orders` of another program"), "{error}");
    let tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'floodgate'";
    assert_eq!(server.number(tables), 1, "nothing was made beside it");
}

#[test]
fn a_process_that_does_not_finish_its_migration_is_named() {
    let server = MariaDb::start();
    let other = server.session();
    other.sql("DO GET_LOCK('floodgate migrates floodgate', 0)");
    let options = MysqlOptions { audit_timeout_ms: 1_000, ..server.options() };
    let error = MysqlLedger::open(&options).unwrap_err().to_string();
    assert!(error.contains("another process has been migrating"), "{error}");
    drop(other);
    assert_eq!(MysqlLedger::open(&server.options()).unwrap().migrated().len(), 8);
}

#[test]
fn a_newer_schema_is_refused_and_an_older_one_is_brought_up_to_date() {
    let server = MariaDb::start();
    let options = server.options();
    let behind = MysqlLedger::open_for_reading(&options).unwrap_err().to_string();
    assert!(behind.contains("floodgate migrate"), "{behind}");
    let ledger = MysqlLedger::open(&options).unwrap();
    assert_eq!(ledger.migrated().len(), 8);
    run(ledger.close());
    server.sql(
        "DROP TABLE tokens; DROP TABLE secrets; \
         DELETE FROM __diesel_schema_migrations WHERE version = '0004'",
    );
    let ledger = MysqlLedger::open(&options).unwrap();
    assert_eq!(ledger.migrated(), ["0004_create_tokens"]);
    run(ledger.close());
    server.sql("INSERT INTO __diesel_schema_migrations (version) VALUES ('9999')");
    refused(&options, &["9999", "0008", "newer program"]);
    assert_eq!(MysqlLedger::schema_standing(&options).unwrap().unknown, ["9999"]);
}

#[test]
fn the_rights_in_the_manual_are_enough() {
    run(async {
        let server = MariaDb::start();
        let rights = "SELECT, INSERT, UPDATE, CREATE, ALTER, REFERENCES";
        let manual = include_str!("../../../docs/operations.md");
        assert!(manual.contains(&format!("GRANT {rights} ON floodgate.* TO")));
        for (user, rights) in [("migrates", rights), ("sells", "SELECT, INSERT, UPDATE")] {
            server.sql(&format!(
                "CREATE USER {user}@127.0.0.1 IDENTIFIED BY 'secret'; \
                 GRANT {rights} ON floodgate.* TO {user}@127.0.0.1"
            ));
        }
        assert_eq!(
            MysqlLedger::migrate(&at(&server, "migrates:secret", "floodgate")).unwrap().len(),
            8
        );
        let ledger = MysqlLedger::open(&at(&server, "sells:secret", "floodgate")).unwrap();
        let sku = offer(&ledger, "sale", ANY, 5).await;
        assert_eq!(ledger.place(vec![intent(&sku, 1, 1, 1)]).await.unwrap(), BlindInsert::All);
    });
}

#[test]
fn a_ledger_that_is_open_for_reading_cannot_write() {
    run(async {
        let server = MariaDb::start();
        let writer = MysqlLedger::open(&server.options()).unwrap();
        let sku = offer(&writer, "sale", ANY, 5).await;
        let secret = writer.secret("request-ids").await.unwrap();
        let reader = MysqlLedger::open_for_reading(&server.options()).unwrap();
        assert_eq!(reader.available(sku.no).await.unwrap(), 5);
        assert_eq!(reader.secret("request-ids").await.unwrap(), secret);
        for error in [
            reader.place(Vec::new()).await.unwrap_err(),
            reader.secret("tickets").await.unwrap_err(),
            reader.next_token("process").await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::ReadOnly { .. }), "{error:?}");
        }
    });
}
