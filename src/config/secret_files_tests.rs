use std::fs::{self, Permissions};

use crate::config::load::tests::{set, sources};
use crate::config::{LoadedSettings, Settings};

use super::*;

#[test]
fn every_secret_and_url_may_stand_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let given = [
        format!("ledger.url_file={}", file("l", "mysql://u:s3cret@127.0.0.1/x\n")),
        format!("redis.url_file={}", file("r", " redis://:s3cret@127.0.0.1\n")),
        format!("amqp.url_file={}", file("a", "amqp://u:s3cret@127.0.0.1/v")),
        format!("admin.token_file={}", file("t", "s3cret")),
    ];
    let loaded = LoadedSettings::read(&set(&given.each_ref().map(String::as_str))).unwrap();
    assert_eq!(loaded.faults, []);
    let Settings { ledger, redis, amqp, admin, .. } = &loaded.settings;
    assert_eq!(ledger.url, "mysql://u:s3cret@127.0.0.1/x");
    assert_eq!(redis.url, "redis://:s3cret@127.0.0.1");
    assert_eq!(amqp.url, "amqp://u:s3cret@127.0.0.1/v");
    assert_eq!(admin.bearer().unwrap().expose_secret(), "s3cret");
    let shown = loaded.effective.to_toml() + &loaded.effective.to_json().to_string();
    assert!(!shown.contains("s3cret") && !shown.contains("***"), "{shown}");
    let (_file, again) = sources(&loaded.effective.to_toml(), &[], &[]);
    assert_eq!(Settings::load(&again).unwrap().redis.url, redis.url);
}

#[test]
fn a_value_and_its_file_together_are_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, "redis://other").unwrap();
    let given = format!("redis.url_file={}", file.path().display());
    let loaded = LoadedSettings::read(&set(&["redis.url=redis://one", &given])).unwrap();
    assert_eq!(loaded.faults[0].key, "redis.url_file");
    assert!(loaded.faults[0].problem.contains("together with redis.url"));
}

#[test]
fn secrets_that_others_may_read_are_reported() {
    let key = "0123456789abcdef0123456789abcdef";
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, key).unwrap();
    let given = format!("auth.signing_key_file={}", file.path().display());
    let exposed = |mode: u32, flags: &[&str]| {
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let flags: Vec<&str> = flags.iter().copied().chain([given.as_str()]).collect();
        LoadedSettings::read(&set(&flags)).unwrap().exposed
    };
    for mode in [0o600, 0o400, 0o640] {
        assert_eq!(exposed(mode, &[]), [], "{mode:o}");
    }
    for mode in [0o604, 0o660, 0o777] {
        assert_eq!(exposed(mode, &["redis.url=redis://open"]).len(), 1, "{mode:o}");
    }
    // Public keys are no secret; the secrets of webhooks are.
    let readable = tempfile::NamedTempFile::new().unwrap();
    fs::set_permissions(&readable, Permissions::from_mode(0o604)).unwrap();
    let path = readable.path().display();
    assert_eq!(exposed(0o600, &[&format!("auth.jwks_file={path}")]), []);
    fs::set_permissions(&readable, Permissions::from_mode(0o646)).unwrap();
    let changed = exposed(0o600, &[&format!("auth.jwks_file={path}")]);
    assert!(changed[0].what.ends_with("other users may change it"), "{changed:?}");
    let webhook = format!("payment.webhook_secrets={path} until 2030-01-01T00:00:00Z");
    assert_eq!(exposed(0o600, &[&webhook]).len(), 1);
    let flags = exposed(0o600, &["admin.token=s3cret", "ledger.url=mysql://u:s3cret@db/x"]);
    assert_eq!(flags.len(), 2);
    assert!(flags.iter().all(|exposed| !exposed.what.contains("s3cret")), "{flags:?}");

    let (configuration, with_secret) = sources("[admin]\ntoken = \"s3cret\"\n", &[], &[]);
    for (mode, count) in [(0o600, 0), (0o644, 1)] {
        fs::set_permissions(&configuration, Permissions::from_mode(mode)).unwrap();
        assert_eq!(LoadedSettings::read(&with_secret).unwrap().exposed.len(), count);
    }
}
