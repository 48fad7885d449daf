//! `floodgate doctor` on real MariaDB servers, each with exactly one fault.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use super::doctor::{Diagnosis, Stack};
use crate::support::servers::Port;
use crate::support::servers::mariadb::MariaDb;

const URL: &str = "FLOODGATE__LEDGER__URL";

fn examine(url: &str) -> Diagnosis {
    Stack::unmigrated(&[(URL, url)]).examine()
}

/// A server with the present schema.
fn migrated(settings: &[&str]) -> MariaDb {
    let server = MariaDb::start_with(settings);
    Stack::new(&[(URL, &server.url())]);
    server
}

#[test]
fn a_right_server_passes_before_and_after_the_first_migration() {
    let server = MariaDb::start();
    let diagnosis = examine(&server.url());
    diagnosis.assert_ok("ledger");
    assert!(diagnosis.about("ledger schema")[0].detail.contains("no tables yet"));
    assert!(diagnosis.about("ledger file").is_empty(), "{diagnosis:#?}");
    let tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'floodgate'";
    assert_eq!(server.number(tables), 0, "the doctor creates no table");

    Stack::new(&[(URL, &server.url())]);
    let diagnosis = examine(&server.url());
    diagnosis.assert_ok("ledger");
    assert_eq!(diagnosis.about("ledger schema")[0].detail, "current");
}

#[test]
fn a_missing_migration_is_reported() {
    let server = migrated(&[]);
    server.sql(
        "DROP TABLE tokens; DROP TABLE secrets; \
         DELETE FROM __diesel_schema_migrations WHERE version = '0001'",
    );
    let diagnosis = examine(&server.url());
    let finding = diagnosis.only_problem("ledger", "fail");
    assert!(finding.detail.contains("0001_create_schema"), "{finding:#?}");
    assert!(finding.remedy.contains("floodgate migrate"), "{finding:#?}");
    Stack::new(&[(URL, &server.url())]);
    examine(&server.url()).assert_ok("ledger");

    server.sql("INSERT INTO __diesel_schema_migrations (version) VALUES ('9999')");
    let diagnosis = examine(&server.url());
    let finding = diagnosis.only_problem("ledger", "fail");
    assert!(finding.detail.contains("9999"), "{finding:#?}");
    assert!(finding.remedy.contains("start that program"), "{finding:#?}");
}

#[test]
fn no_default_of_the_server_changes_what_our_sessions_are() {
    let server = migrated(&[
        "--transaction-isolation=SERIALIZABLE",
        "--sql-mode=",
        "--init-connect=SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
        "--autocommit=OFF",
    ]);
    examine(&server.url()).assert_ok("ledger");
}

#[test]
fn a_proxy_that_loses_session_settings_is_reported() {
    let server = migrated(&[]);
    // The replacement has the same length, so that the packet stays valid.
    let proxy = rewriting(server.addr(), b"LEVEL READ COMMITTED,", b"LEVEL SERIALIZABLE  ,");
    let diagnosis = examine(&MariaDb::url_by(proxy));
    let finding = diagnosis.only_problem("ledger", "fail");
    assert_eq!(finding.check, "ledger isolation");
    assert!(finding.detail.contains("SERIALIZABLE"), "{finding:#?}");
    assert!(finding.remedy.contains("proxy"), "{finding:#?}");

    let lax = rewriting(server.addr(), b"'STRICT_ALL_TABLES,", b"'NO_FIELD_OPTIONS ,");
    let lax = examine(&MariaDb::url_by(lax));
    assert!(lax.about("ledger").iter().any(|one| one.status == "fail"), "{lax:#?}");
}

#[test]
fn a_read_only_server_is_reported() {
    let server = migrated(&[]);
    server.sql("SET GLOBAL read_only = ON");
    let diagnosis = examine(&server.url());
    let finding = diagnosis.only_problem("ledger", "fail");
    assert!(finding.detail.contains("read_only is ON"), "{finding:#?}");
    assert!(finding.remedy.contains("primary"), "{finding:#?}");
    server.sql("SET GLOBAL read_only = OFF");

    server.sql("CREATE USER reader@127.0.0.1 IDENTIFIED BY 'secret'");
    let url = format!("mysql://reader:secret@{}/floodgate", server.addr());
    for (right, missing) in [("SELECT", "INSERT"), ("INSERT", "UPDATE"), ("UPDATE", "DELETE")] {
        server.sql(&format!("GRANT {right} ON floodgate.* TO reader@127.0.0.1"));
        let diagnosis = examine(&url);
        let finding = diagnosis.only_problem("ledger", "fail");
        assert!(finding.detail.contains(&format!("{missing} command denied")), "{finding:#?}");
        assert!(finding.remedy.contains("GRANT ALL"), "{finding:#?}");
    }
}

#[test]
fn commits_that_do_not_wait_for_the_disk_are_reported() {
    let server = migrated(&["--innodb-flush-log-at-trx-commit=2"]);
    let diagnosis = examine(&server.url());
    let finding = diagnosis.only_problem("ledger", "warn");
    assert!(finding.detail.contains("a power cut loses the last second"), "{finding:#?}");
    let remedy = "SET GLOBAL innodb_flush_log_at_trx_commit = 1";
    assert!(finding.remedy.contains(remedy), "{finding:#?}");
    server.sql(remedy);
    examine(&server.url()).assert_ok("ledger");
}

#[test]
fn a_table_without_transactions_is_reported() {
    let server = migrated(&[]);
    server.sql("ALTER TABLE secrets ENGINE = Aria");
    let diagnosis = examine(&server.url());
    let finding = diagnosis.only_problem("ledger", "fail");
    assert_eq!(finding.check, "ledger engine");
    assert!(finding.remedy.contains("ALTER TABLE secrets ENGINE = InnoDB"), "{finding:#?}");
}

#[test]
fn statement_based_logging_is_reported() {
    let server = migrated(&["--log-bin", "--binlog-format=ROW", "--sync-binlog=1"]);
    examine(&server.url()).assert_ok("ledger");
    server.sql("SET GLOBAL binlog_format = 'STATEMENT'");
    let diagnosis = examine(&server.url());
    let finding = diagnosis.only_problem("ledger", "fail");
    assert_eq!(finding.check, "ledger binlog");
    assert!(finding.remedy.contains("binlog_format = 'ROW'"), "{finding:#?}");
    server.sql("SET GLOBAL binlog_format = 'ROW'; SET GLOBAL sync_binlog = 0");
    let diagnosis = examine(&server.url());
    let finding = diagnosis.only_problem("ledger", "warn");
    assert!(finding.remedy.contains("SET GLOBAL sync_binlog = 1"), "{finding:#?}");
}

#[test]
fn too_few_connections_are_reported() {
    let server = migrated(&[]);
    server.sql("SET GLOBAL max_connections = 10");
    let keys = [(URL, server.url()), ("FLOODGATE__LEDGER__WRITERS", "20".to_owned())];
    let keys = keys.each_ref().map(|(key, value)| (*key, value.as_str()));
    let diagnosis = Stack::unmigrated(&keys).examine();
    let finding = diagnosis.only_problem("ledger", "fail");
    assert_eq!(finding.check, "ledger connections");
    assert!(finding.remedy.contains("ledger.writers"), "{finding:#?}");
}

#[test]
fn a_wrong_password_or_database_or_address_is_reported() {
    let server = MariaDb::start();
    let (url, closed) = (server.url(), Port::claim().unwrap());
    let unreachable = MariaDb::url_by(closed.addr());
    for (url, detail, remedy) in [
        (url.replace("quite-secret", "wr0ng"), "Access denied", "password in ledger.url"),
        (format!("{url}s"), "to database", "GRANT ALL"),
        (unreachable, "refused", "that the server runs"),
    ] {
        let diagnosis = examine(&url);
        let finding = diagnosis.only_problem("ledger", "fail");
        assert!(finding.detail.contains(detail), "{finding:#?}");
        assert!(finding.remedy.contains(remedy), "{finding:#?}");
        assert!(!format!("{diagnosis:?}").contains("wr0ng"), "the output contains the password");
    }
    let foreign = MariaDb::start();
    foreign.sql("CREATE TABLE orders (id INT)");
    let diagnosis = examine(&foreign.url());
    let finding = diagnosis.only_problem("ledger", "fail");
    assert!(finding.detail.contains("of another program"), "{finding:#?}");
}

/// A proxy that replaces `from` by `to` towards the server. Its threads end with the connections.
fn rewriting(target: SocketAddr, from: &'static [u8], to: &'static [u8]) -> SocketAddr {
    assert_eq!(from.len(), to.len());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(target).unwrap();
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || copy(back.0, back.1, |_| {}));
            thread::spawn(move || {
                copy(client, server, |bytes| {
                    let found = bytes.windows(from.len()).position(|window| window == from);
                    if let Some(at) = found {
                        bytes[at..at + to.len()].copy_from_slice(to);
                    }
                });
            });
        }
    });
    addr
}

fn copy(mut from: TcpStream, mut to: TcpStream, change: impl Fn(&mut [u8])) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(size) = from.read(&mut buffer) {
        change(&mut buffer[..size]);
        if size == 0 || to.write_all(&buffer[..size]).is_err() {
            break;
        }
    }
    drop((to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both)));
}
