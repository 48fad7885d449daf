use std::io::Write;

use secrecy::ExposeSecret;

use super::super::Tier;
use super::*;

pub fn set(pairs: &[&str]) -> ConfigSources {
    sources("", &[], pairs).1
}

fn temp(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Sources with this configuration file, which is deleted when the first value is dropped.
pub fn sources(
    file: &str,
    env: &[(&str, &str)],
    set: &[&str],
) -> (tempfile::NamedTempFile, ConfigSources) {
    let temp = temp(file);
    let sources = ConfigSources {
        file: Some(temp.path().to_owned()).filter(|_| !file.is_empty()),
        env: env.iter().map(|&(name, value)| (name.into(), value.into())).collect(),
        set: set.iter().map(|&pair| pair.to_owned()).collect(),
    };
    (temp, sources)
}

fn faults_of(sources: &ConfigSources) -> Vec<ConfigFault> {
    Settings::load(sources).err().unwrap().0
}

#[test]
fn the_defaults_load_and_have_no_fault() {
    let settings = Settings::load(&ConfigSources::default()).unwrap();
    assert_eq!(settings.tier, Tier::Memory);
    assert_eq!(settings.ledger.url, "sqlite://./floodgate.db");
    assert_eq!(settings.http.bind.to_string(), "127.0.0.1:8080");
}

#[test]
fn settings_for_tests_have_free_loopback_ports() {
    let settings = Settings::with_ledger("sqlite:///tmp/x.db");
    assert_eq!(settings.http.bind.port(), 0);
    assert!(settings.internal.bind.ip().is_loopback());
    assert_eq!(settings.ledger.sqlite_path().unwrap().to_str(), Some("/tmp/x.db"));
    assert_eq!(validate(&settings), []);
}

#[test]
fn later_sources_and_later_flags_win() {
    let file = "[http]\nworkers = 1\nbacklog = 1\nconnections_max = 1\n";
    let env = [("FLOODGATE__HTTP__WORKERS", "2"), ("FLOODGATE__HTTP__BACKLOG", "2")];
    let (_file, sources) = sources(file, &env, &["http.workers=3", "http.workers=4"]);
    let http = Settings::load(&sources).unwrap().http;
    assert_eq!((http.workers, http.backlog, http.connections_max), (4, 2, 1));
    assert_eq!(http.body_max_bytes, 4096);
}

#[test]
fn variables_of_other_programs_and_empty_ones_are_ignored() {
    let env = [
        ("FLOODGATE__HTTP__WORKERS", "3"),
        ("FLOODGATE__ADMIN__TOKEN", ""),
        ("FLOODGATE_HOME", "/x"),
        ("PATH", "/bin"),
    ];
    let loaded = LoadedSettings::read(&sources("", &env, &[]).1).unwrap();
    let origins = serde_json::json!({ "http.workers": "environment FLOODGATE__HTTP__WORKERS" });
    assert_eq!(loaded.effective.to_json()["origins"], origins);
    assert_eq!(loaded.settings.http.workers, 3);
}

#[test]
fn text_takes_the_type_of_the_default() {
    let given = ["faults.panic_percent= 0.5 ", "faults.panic_in=order_consumer, reconciler,"];
    let faults = Settings::load(&set(&given)).unwrap().faults;
    assert!((faults.panic_percent - 0.5).abs() < f64::EPSILON);
    assert_eq!(faults.panic_in, ["order_consumer", "reconciler"]);
    let digits = Settings::load(&set(&["admin.token=0012"])).unwrap();
    assert_eq!(digits.admin.bearer().unwrap().expose_secret(), "0012");
}

#[test]
fn every_unknown_key_is_named_with_its_source_and_the_nearest_known_one() {
    let env = [
        ("FLOODGATE__LEGDER__URL", "x"),
        ("FLOODGATE_TIER__X", ""),
        ("FLOODGATE_LEDGER__URL", "x"),
    ];
    let (_file, sources) = sources("[http]\nwrokers = 1\n", &env, &["ledger.bind=127.0.0.1:1"]);
    let faults = faults_of(&sources);
    let expected = [
        ("FLOODGATE_LEDGER__URL", "lacks an underscore", "FLOODGATE__LEDGER__URL"),
        ("http.wrokers", "file ", "`http.workers`"),
        ("legder.url", "environment FLOODGATE__LEGDER__URL", "`ledger.url`"),
        ("ledger.bind", "flag", ".bind`"),
    ];
    assert_eq!(faults.len(), expected.len(), "{faults:?}");
    for (fault, (key, origin, near)) in faults.iter().zip(expected) {
        assert_eq!(fault.key, key);
        assert!(fault.problem.contains(origin), "{fault}");
        assert!(fault.remedy.contains(near), "{fault}");
    }
}

#[test]
fn every_wrong_type_is_named_at_once() {
    let file = "role = \"king\"\n[http]\nworkers = \"4\"\nbacklog = -1\n[log]\nfilter = 1979-05-27";
    let env = [("FLOODGATE__HTTP__BIND", "localhost"), ("FLOODGATE__TIER", "gold")];
    let flags = ["gate.permits=many", "http.backlog=99999999999", "s3cret"];
    let (_file, sources) = sources(file, &env, &flags);
    let faults = faults_of(&sources);
    let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
    let file_keys = ["http.backlog", "http.workers", "log.filter", "role"];
    assert_eq!(keys[..5], [&["--set"], &file_keys[..]].concat());
    assert_eq!(keys[5..], ["http.bind", "tier", "gate.permits", "http.backlog"]);
    assert!(faults[0].remedy.contains("--set section.key=value"), "{}", faults[0]);
    assert!(faults.iter().all(|fault| !fault.to_string().contains("s3cret")), "{faults:?}");
    let tier = faults.iter().find(|fault| fault.key == "tier").unwrap();
    assert!(tier.remedy.contains("memory | ledger"), "{tier}");
}

#[test]
fn the_remedy_of_a_wrong_type_is_the_whole_documentation() {
    let faults = faults_of(&set(&["redis.durability=some"]));
    let remedy = "What Redis must have done before a request counts as accepted: plain (the \
                  master answered) | aof (the master also has an append-only file) | replicated \
                  (replicas confirmed). Default: \"plain\"";
    assert_eq!(faults[0].remedy, remedy);
}

#[test]
fn a_secret_of_the_wrong_type_is_not_repeated() {
    let (_file, sources) = sources("[admin]\ntoken = 424242\n", &[], &[]);
    let text = Settings::load(&sources).err().unwrap().to_string();
    assert!(text.contains("admin.token: the value is not a string"), "{text}");
    assert!(!text.contains("424242"), "{text}");
}

#[test]
fn a_missing_or_malformed_file_is_named() {
    let missing =
        ConfigSources { file: Some("/nowhere/f.toml".into()), ..ConfigSources::default() };
    assert!(Settings::load(&missing).err().unwrap().to_string().contains("/nowhere/f.toml"));

    let (file, malformed) = sources("[http\nworkers = 1\n", &[], &[]);
    let text = Settings::load(&malformed).err().unwrap().to_string();
    assert!(text.contains(&file.path().display().to_string()), "{text}");
    assert!(text.contains("line 1"), "{text}");
    let (_file, malformed) = sources("[admin]\ntoken = \"top-secret\n", &[], &[]);
    let text = Settings::load(&malformed).err().unwrap().to_string();
    assert!(text.contains("line 2") && !text.contains("top-secret"), "{text}");
}

#[test]
fn secrets_are_read_again_all_or_nothing() {
    const KEY: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    let jwks = |kid: &str| {
        format!(r#"{{"keys": [{{"kty": "OKP", "crv": "Ed25519", "kid": "{kid}", "x": "{KEY}"}}]}}"#)
    };
    let (old, new) = ("0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210");
    let (token, secret, keys) = (temp("first"), temp(old), temp(&jwks("a")));
    let settings = Settings::load(&set(&[
        &format!("admin.token_file={}", token.path().display()),
        &format!("auth.jwt_secret_file={}", secret.path().display()),
        &format!("auth.jwks_file={}", keys.path().display()),
        "auth.mode=jwt",
    ]))
    .unwrap();
    std::fs::write(secret.path(), format!("{old}\n{new}\n")).unwrap();
    std::fs::write(token.path(), "second\nfirst\n").unwrap();
    std::fs::write(keys.path(), jwks("b")).unwrap();
    let changed = settings.reread_secrets().unwrap();
    let bearers = changed.admin.bearers();
    let bearers: Vec<_> = bearers.iter().map(ExposeSecret::expose_secret).collect();
    assert_eq!(bearers, ["second", "first"]);
    assert_eq!(changed.admin.bearer().unwrap().expose_secret(), "second", "commands send it");
    let keys_of = |settings: &Settings| {
        let keys = &settings.auth.jwt_keys;
        (keys.secrets.len(), keys.public[0].kid.clone())
    };
    assert_eq!((keys_of(&settings), keys_of(&changed)), ((1, "a".into()), (2, "b".into())));
    std::fs::write(token.path(), "two words").unwrap();
    assert_eq!(changed.reread_secrets().err().unwrap().0[0].key, "admin.token");
    std::fs::write(token.path(), "second").unwrap();
    std::fs::write(keys.path(), "{").unwrap();
    let faults = changed.reread_secrets().err().unwrap().0;
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!((faults[0].key.as_str(), faults[0].remedy.is_empty()), ("auth.jwks_file", false));
}

#[test]
fn unreadable_and_empty_secret_files_are_named_together() {
    let empty = temp("\n");
    let faults = faults_of(&set(&[
        "admin.token_file=/nowhere/token",
        &format!("auth.signing_key_file={}", empty.path().display()),
    ]));
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].problem.contains("/nowhere/token"), "{}", faults[0]);
    assert!(faults[1].problem.ends_with("is empty"), "{}", faults[1]);
}

#[test]
fn files_with_more_lines_than_values_are_refused() {
    let fault = |key: &str, text: &str| {
        let file = temp(text);
        let faults = faults_of(&set(&[&format!("{key}={}", file.path().display())]));
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults[0].problem.clone()
    };
    assert!(fault("ledger.url_file", "sqlite://a\nb").ends_with("has more than one line"));
    assert_eq!(fault("admin.token_file", "one\ntwo\nthree"), "has more than two lines");
    for token in ["one word too many", "schlüssel"] {
        assert!(fault("admin.token_file", token).contains("no header carries"), "{token}");
    }
}
