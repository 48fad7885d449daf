//! What `serve` and `doctor` say of servers in plain text and of secrets that others may read.

use std::path::Path;
use std::time::Duration;

use floodgate::net::wrong_dates;
use floodgate::runtime::clock::wall_ms;
use serde_json::Value as Json;

use super::assert_says;
use crate::support::certificates::Certificates;
use crate::support::process::command;

/// This machine by an address that is not loopback, where nothing listens.
const AWAY: (&str, &str) = ("FLOODGATE__LEDGER__URL", "mysql://u:s3cret@0.0.0.0:1/x");

#[test]
fn serve_warns_once_of_each_and_shows_no_secret() {
    let flag = ["serve", "--set", "admin.token=s3cret-0123456789"];
    let served = command(Path::new("/"), &flag, &[AWAY]).output().unwrap();
    assert_eq!(served.status.code(), Some(4), "{served:?}");
    let log = String::from_utf8(served.stderr).unwrap();
    assert_says(&log, &["plain text", "ledger.url", "0.0.0.0", "ssl-mode=verify-full"]);
    assert_says(
        &log,
        &["settings: not safe check=\"secrets\"", "admin.token", "list of processes"],
    );
    assert_eq!(log.matches("plain text").count(), 1, "{log}");
    assert!(!log.contains("s3cret"), "{log}");
}

#[test]
fn the_doctor_warns_of_each() {
    let flag = ["doctor", "--json", "--set", "admin.token=s3cret-0123456789"];
    let output = command(Path::new("/"), &flag, &[AWAY]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("s3cret"), "{text}");
    let report: Json = serde_json::from_str(&text).unwrap();
    let finding = |check: &str| {
        let mut findings = report["findings"].as_array().unwrap().iter();
        findings.find(|finding| finding["check"] == check).unwrap().clone()
    };
    let (encryption, secrets) = (finding("encryption"), finding("secrets"));
    assert_eq!((&encryption["status"], &secrets["status"]), (&"warn".into(), &"warn".into()));
    assert_says(encryption["remedy"].as_str().unwrap(), &["ssl-mode=verify-full"]);
    assert_says(secrets["detail"].as_str().unwrap(), &["admin.token"]);
}

#[test]
fn certificates_that_are_out_of_date_or_soon_will_be_are_reported() {
    let certificates = Certificates::new();
    let (now, day) = (Duration::from_millis(wall_ms().cast_unsigned()), 86_400);
    let three_days = Duration::from_secs(3 * day);
    for file in ["server.crt", "ca.crt"] {
        let wrong = [now, now + three_days, now.saturating_sub(three_days)]
            .map(|time| wrong_dates(&certificates.path(file), time));
        assert_eq!(wrong, [None, Some("has expired"), Some("is not valid yet")], "{file}");
    }
    let (chain, key) = (certificates.file("server.crt"), certificates.file("server.key"));
    let keys = [
        ("FLOODGATE__HTTP__TLS_CERT_FILE", chain.as_str()),
        ("FLOODGATE__HTTP__TLS_KEY_FILE", key.as_str()),
    ];
    let output = command(Path::new("/"), &["doctor", "--json"], &keys).output().unwrap();
    let report: Json = serde_json::from_slice(&output.stdout).unwrap();
    let mut findings = report["findings"].as_array().unwrap().iter();
    let found = findings.find(|finding| finding["check"] == "certificates").unwrap();
    assert_eq!(found["status"], "warn", "{found}");
    assert_says(found["detail"].as_str().unwrap(), &["in two weeks", &chain, "has expired"]);
}

#[test]
fn certificates_that_cannot_be_used_are_faults_of_the_configuration() {
    let certificates = Certificates::new();
    let checked = |keys: &[(&str, &str)]| {
        let output = command(Path::new("/"), &["check-config"], keys).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let (chain, other_key) = (certificates.file("server.crt"), certificates.file("other.key"));
    let text = checked(&[("FLOODGATE__HTTP__TLS_CERT_FILE", chain.as_str())]);
    assert_says(&text, &["http.tls_key_file", "is not set"]);
    let text = checked(&[
        ("FLOODGATE__INTERNAL__TLS_CERT_FILE", chain.as_str()),
        ("FLOODGATE__INTERNAL__TLS_KEY_FILE", other_key.as_str()),
    ]);
    assert_says(&text, &["internal.tls_cert_file", "does not fit"]);
    let text = checked(&[("FLOODGATE__REDIS__CA_FILE", chain.as_str())]);
    assert_says(&text, &["redis.ca_file", "asks for no TLS"]);
    let text = checked(&[
        ("FLOODGATE__AMQP__URL", "amqps://u:p@localhost/v"),
        ("FLOODGATE__AMQP__CA_FILE", other_key.as_str()),
    ]);
    assert_says(&text, &["amqp.ca_file", "holds no certificate"]);
}
