//! `ssl-mode=verify-full` of `mysql://`.

use floodgate::db::Ledger;
use floodgate::db::mysql::{MysqlLedger, MysqlOptions, health};
use floodgate::net::Trust;

use super::{OTHER_NAME, UNKNOWN_AUTHORITY, assert_says};
use crate::support::certificates::Certificates;
use crate::support::offers::run;
use crate::support::servers::mariadb::MariaDb;

fn start(certificates: &Certificates, name: &str) -> MariaDb {
    let settings = [
        format!("--ssl-cert={}", certificates.file(&format!("{name}.crt"))),
        format!("--ssl-key={}", certificates.file(&format!("{name}.key"))),
        format!("--ssl-ca={}", certificates.file("ca.crt")),
    ];
    MariaDb::start_with(&settings.each_ref().map(String::as_str))
}

fn trusting(server: &MariaDb, trust: Trust) -> MysqlOptions {
    MysqlOptions { trust: Some(trust), ..server.options() }
}

#[track_caller]
fn refused(options: &MysqlOptions) -> String {
    let message = MysqlLedger::open(options).err().unwrap().to_string();
    assert!(!message.contains("quite-secret"), "{message}");
    message
}

#[test]
fn a_server_is_trusted_by_its_authority_and_name() {
    let certificates = Certificates::new();
    let server = start(&certificates, "server");
    let ledger = MysqlLedger::open(&trusting(&server, certificates.trust())).unwrap();
    run(async {
        ledger.ping().await.unwrap();
        ledger.close().await;
    });
    let facts = health::read(&trusting(&server, certificates.trust())).unwrap();
    assert_eq!(facts.text("have_ssl"), "YES");
    assert!(facts.text("version").contains("MariaDB"));
    let message = refused(&trusting(&server, certificates.other_trust()));
    assert_says(&message, &[UNKNOWN_AUTHORITY, "ledger.ca_file"]);
    let odd = start(&certificates, "elsewhere");
    let message = refused(&trusting(&odd, certificates.trust()));
    assert_says(&message, &[OTHER_NAME, "ledger.url"]);
}

#[test]
fn a_user_that_must_encrypt_needs_tls_and_a_server_without_is_refused() {
    let certificates = Certificates::new();
    let server = start(&certificates, "server");
    server.sql("ALTER USER floodgate@127.0.0.1 REQUIRE SSL");
    assert_says(&refused(&server.options()), &["Access denied"]);
    let ledger = MysqlLedger::open(&trusting(&server, certificates.trust())).unwrap();
    run(ledger.close());

    let plain = MariaDb::start_with(&["--skip-ssl"]);
    let message = refused(&trusting(&plain, certificates.trust()));
    assert_says(&message, &["the server speaks no TLS", "certificate"]);
}
