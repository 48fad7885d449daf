//! Errors of opening a ledger: each names the cause and the remedy, and none contains the password.

use std::net::SocketAddr;

use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::{Error, ErrorClass, Ledger, OrderWriter, SaleStore};

use crate::support::migrations;
use crate::support::offers::{ANY, intent, offer, run};
use crate::support::servers::Port;
use crate::support::servers::mariadb::MariaDb;
use crate::support::wait::until_true;

/// Requires that opening fails with an error that contains all of `words` and no password.
#[track_caller]
fn assert_cannot_open(options: &MysqlOptions, words: &[&str]) {
    for result in [MysqlLedger::open(options), MysqlLedger::open_for_reading(options)] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::CannotOpen { .. }), "{error:?}");
        assert_eq!(error.class(), ErrorClass::Down);
        let message = error.to_string();
        for word in words {
            assert!(message.contains(word), "{word:?} is not in: {message}");
        }
        assert!(!message.contains("secret"), "{message}");
    }
}

fn options_for(server: &MariaDb, user: &str, database: &str) -> MysqlOptions {
    MysqlOptions::new(format!("mysql://{user}@{}/{database}", server.addr()))
}

#[test]
fn a_wrong_password_a_missing_database_and_a_missing_right_differ() {
    let server = MariaDb::start();
    let address = server.addr().to_string();
    let credentials = "floodgate:quite-secret";
    assert_cannot_open(
        &options_for(&server, "floodgate:secret", "floodgate"),
        &[&address, "Access denied", "password in ledger.url"],
    );
    assert_cannot_open(
        &options_for(&server, "nobody:secret", "floodgate"),
        &["Access denied", "the user"],
    );
    assert_cannot_open(&options_for(&server, credentials, "mysql"), &["to database", "GRANT ALL"]);
    server.sql("GRANT ALL ON other.* TO floodgate@127.0.0.1");
    assert_cannot_open(
        &options_for(&server, credentials, "other"),
        &["Unknown database", "CREATE DATABASE"],
    );
    assert_cannot_open(&MysqlOptions::new("sqlite://x"), &["not mysql://"]);
    assert_cannot_open(&MysqlOptions::new("mysql://"), &["ledger"]);
}

#[test]
fn a_server_that_does_not_answer_is_a_time_out() {
    let (closed, silent) = (Port::claim().unwrap(), Port::claim().unwrap());
    let url = |address: SocketAddr| format!("mysql://me:secret@{address}/floodgate");
    assert_cannot_open(
        &MysqlOptions::new(url(closed.addr())),
        &["refused", "that the server runs"],
    );
    // The kernel accepts the connection; no process reads or writes it.
    let _listener = std::net::TcpListener::bind(silent.addr()).unwrap();
    let options = MysqlOptions { connect_timeout_ms: 100, ..MysqlOptions::new(url(silent.addr())) };
    assert_cannot_open(&options, &["no answer within 100 ms", "firewall"]);
}

#[test]
fn a_server_without_a_free_connection_is_named() {
    let server = MariaDb::start_with(&["--max-connections=10"]);
    // All ten: the one that started the server may still be closing, and be free later.
    let mut sessions = Vec::new();
    until_true("ten sessions", || {
        let session = MariaDb::session_as(&server.url());
        if session.try_sql("DO 1").is_ok() {
            sessions.push(session);
        }
        sessions.len() == 10
    });
    assert_cannot_open(&server.options(), &["Too many connections", "max_connections"]);
}

#[test]
fn tables_of_another_program_are_left_alone() {
    let server = MariaDb::start();
    server.sql("CREATE TABLE orders (id INT)");
    let error = MysqlLedger::open(&server.options()).unwrap_err().to_string();
    assert!(error.contains("`orders` of another program"), "{error}");
    let tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'floodgate'";
    assert_eq!(server.number(tables), 1, "no table was created");
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
    MysqlLedger::open(&server.options()).unwrap();
    assert_eq!(
        MysqlLedger::schema_status(&server.options()).unwrap().applied.len(),
        migrations::all("mysql").len()
    );
}

#[test]
fn a_newer_schema_is_refused_and_an_older_one_is_brought_up_to_date() {
    let server = MariaDb::start();
    let options = server.options();
    let outdated = MysqlLedger::open_for_reading(&options).unwrap_err().to_string();
    assert!(outdated.contains("floodgate migrate"), "{outdated}");
    let ledger = MysqlLedger::open(&options).unwrap();
    assert_eq!(
        MysqlLedger::schema_status(&options).unwrap().applied.len(),
        migrations::all("mysql").len()
    );
    run(ledger.close());
    server.sql(
        "DROP TABLE tokens; DROP TABLE secrets; \
         DELETE FROM __diesel_schema_migrations WHERE version = '0001'",
    );
    let status = MysqlLedger::schema_status(&options).unwrap();
    assert_eq!(status.pending, ["0001_create_schema"]);
    let ledger = MysqlLedger::open(&options).unwrap();
    assert_eq!(MysqlLedger::schema_status(&options).unwrap().pending, Vec::<String>::new());
    run(ledger.close());
    server.sql("INSERT INTO __diesel_schema_migrations (version) VALUES ('9999')");
    assert_cannot_open(&options, &["9999", "versions up to 0001", "newer program"]);
    assert_eq!(MysqlLedger::schema_status(&options).unwrap().unknown, ["9999"]);
}

#[test]
fn the_rights_in_the_manual_are_enough() {
    run(async {
        let server = MariaDb::start();
        let rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, REFERENCES";
        let manual = include_str!("../../../docs/operate/security.md");
        assert!(manual.contains(&format!("GRANT {rights} ON floodgate.* TO")));
        for (user, rights) in [("migrates", rights), ("sells", "SELECT, INSERT, UPDATE, DELETE")] {
            server.sql(&format!(
                "CREATE USER {user}@127.0.0.1 IDENTIFIED BY 'secret'; \
                 GRANT {rights} ON floodgate.* TO {user}@127.0.0.1"
            ));
        }
        assert_eq!(
            MysqlLedger::migrate(&options_for(&server, "migrates:secret", "floodgate")).unwrap(),
            migrations::all("mysql"),
        );
        let ledger = MysqlLedger::open(&options_for(&server, "sells:secret", "floodgate")).unwrap();
        let sku = offer(&ledger, "sale", ANY, 5).await;
        assert!(ledger.place(vec![intent(&sku, 1, 1, 1)]).await.unwrap().is_some());
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
