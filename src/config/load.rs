//! Merges the layers into settings in two stages: unknown keys and wrong types, then secrets and
//! rules between keys. Each stage reports all of its faults.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::effective::{Effective, is_secret};
use super::error::{ConfigFault, Error};
use super::layers::{self, ConfigSources, Layer, ValueOrigin};
use super::secrets;
use super::settings::Settings;
use super::validate::validate;

/// Settings that were read, with their origins and faults.
#[derive(Debug, Clone)]
pub struct LoadedSettings {
    /// The settings with secrets read from their files. They must not be used if there are faults.
    pub settings: Settings,
    pub effective: Effective,
    /// Broken rules and unreadable secret files.
    pub faults: Vec<ConfigFault>,
}

impl LoadedSettings {
    /// Reads all sources. Broken rules do not fail; they are in [`LoadedSettings::faults`], so that
    /// a faulty configuration can still be shown.
    ///
    /// # Errors
    /// A source cannot be read, a key is unknown, or a value has the wrong type.
    pub fn read(sources: &ConfigSources) -> Result<Self, Error> {
        let defaults = layers::defaults()?;
        let merged = merge(&defaults, sources)?;
        let values: Layer =
            merged.iter().map(|(key, (value, _))| (key.clone(), value.clone())).collect();
        let mut settings =
            deserialize(&values).map_err(|error| Error::Defaults(error.to_string()))?;
        let mut faults = secrets::read_secrets(&mut settings);
        faults.extend(validate(&settings));
        Ok(Self { settings, effective: Effective::new(&merged), faults })
    }
}

impl Settings {
    /// Reads all sources and checks all rules.
    ///
    /// # Errors
    /// As [`LoadedSettings::read`], and any fault.
    pub fn load(sources: &ConfigSources) -> Result<Self, Error> {
        let loaded = LoadedSettings::read(sources)?;
        if loaded.faults.is_empty() {
            Ok(loaded.settings)
        } else {
            Err(Error::Faults(loaded.faults))
        }
    }

    /// The defaults with this ledger and free ports on loopback, for tests and the demo.
    ///
    /// # Panics
    /// Never in a build whose unit tests pass: they load the compiled-in defaults.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the defaults are compiled in and loaded by a test")]
    pub fn for_test(ledger_url: &str) -> Self {
        let defaults = layers::defaults().and_then(|keys| {
            deserialize(&keys).map_err(|error| Error::Defaults(error.to_string()))
        });
        let mut settings = defaults.expect("the built-in defaults are valid settings");
        ledger_url.clone_into(&mut settings.ledger.url);
        settings.http.bind.set_port(0);
        settings.internal.bind.set_port(0);
        settings
    }
}

/// Each key's effective value and its origin.
pub(super) type MergedSettings = BTreeMap<String, (Json, ValueOrigin)>;

fn merge(defaults: &Layer, sources: &ConfigSources) -> Result<MergedSettings, Error> {
    let file = sources.file.as_deref().map(layers::file).transpose()?.unwrap_or_default();
    let path = sources.file.clone().unwrap_or_default();
    let environment = layers::environment(&sources.env)?;
    let flags = layers::flags(&sources.set)?;

    let given =
        (file.into_iter().map(|(key, value)| (key, value, ValueOrigin::File(path.clone()))))
            .chain(environment.into_iter().map(|(key, value)| {
                let origin = ValueOrigin::Env(layers::variable_of(&key));
                (key, value, origin)
            }))
            .chain(flags.into_iter().map(|(key, value)| (key, value, ValueOrigin::Flag)));

    let mut merged: MergedSettings = defaults
        .iter()
        .map(|(key, value)| (key.clone(), (value.clone(), ValueOrigin::Default)))
        .collect();
    let mut faults = Vec::new();
    for (key, value, origin) in given {
        let Some(default) = defaults.get(&key) else {
            faults.push(unknown_key(&key, &origin));
            continue;
        };
        let value = match (&value, &origin) {
            (Json::String(text), ValueOrigin::Env(_) | ValueOrigin::Flag) => {
                layers::typed_text(text, default)
            }
            _ => value,
        };
        if has_valid_type(defaults, &key, &value) {
            merged.insert(key, (value, origin));
        } else {
            faults.push(wrong_type(&key, &value, default, &origin));
        }
    }
    if faults.is_empty() { Ok(merged) } else { Err(Error::Faults(faults)) }
}

/// Whether the settings deserialize when only this key differs from the defaults. Checking key by
/// key finds every wrong type in one run; deserializing all keys together stops at the first.
fn has_valid_type(defaults: &Layer, key: &str, value: &Json) -> bool {
    let mut values = defaults.clone();
    values.insert(key.to_owned(), value.clone());
    deserialize(&values).is_ok()
}

fn deserialize(values: &Layer) -> Result<Settings, serde_json::Error> {
    let mut root = Map::new();
    for (key, value) in values {
        match key.split_once('.') {
            None => {
                root.insert(key.clone(), value.clone());
            }
            Some((section, name)) => {
                let table = root.entry(section).or_insert_with(|| Json::Object(Map::new()));
                if let Json::Object(table) = table {
                    table.insert(name.to_owned(), value.clone());
                }
            }
        }
    }
    serde_json::from_value(Json::Object(root))
}

fn unknown_key(key: &str, origin: &ValueOrigin) -> ConfigFault {
    let hint = nearest(key).map_or(String::new(), |near| format!("did you mean `{near}`? "));
    ConfigFault::new(
        key,
        format!("is not a key ({origin})"),
        format!("{hint}`floodgate check-config` without --config lists every key"),
    )
}

/// The known key with the least edit distance; a known name in a wrong section has distance one.
fn nearest(key: &str) -> Option<String> {
    let name = key.rsplit('.').next().unwrap_or(key);
    layers::catalogue()
        .into_iter()
        .min_by_key(|known| {
            let whole = strsim::damerau_levenshtein(key, &known.key());
            whole.min(strsim::damerau_levenshtein(name, known.name) + 1)
        })
        .map(|known| known.key())
}

fn wrong_type(key: &str, value: &Json, default: &Json, origin: &ValueOrigin) -> ConfigFault {
    let wanted = match default {
        Json::Number(number) if number.is_f64() => "a number",
        Json::Number(_) => "a whole number of fitting size",
        Json::Array(items) if items.iter().any(Json::is_number) => "a list of whole numbers",
        Json::Array(_) => "a list of strings",
        Json::Bool(_) => "true or false",
        _ if key.split('.').next_back() == Some("bind") => {
            "address:port, such as 127.0.0.1:8080 or [::1]:8080"
        }
        _ if value.is_string() => "one of the known values",
        _ => "a string in quotes",
    };
    let shown = if is_secret(key) { "the value".to_owned() } else { format!("`{value}`") };
    let known = layers::catalogue().into_iter().find(|known| known.key() == key);
    ConfigFault::new(
        key,
        format!("{shown} is not {wanted} ({origin})"),
        format!("{} Default: {default}", known.map_or("", |known| known.doc)),
    )
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;
    use std::io::Write;

    use secrecy::ExposeSecret;

    use super::super::{EnvSource, Tier};
    use super::*;

    pub fn set(pairs: &[&str]) -> ConfigSources {
        ConfigSources {
            set: pairs.iter().map(|&pair| pair.to_owned()).collect(),
            ..ConfigSources::default()
        }
    }

    fn env(pairs: &[(&str, &str)]) -> EnvSource {
        let vars: HashMap<_, _> =
            pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        EnvSource::Given(vars)
    }

    pub fn temp(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    pub fn faults_of(sources: &ConfigSources) -> Vec<ConfigFault> {
        Settings::load(sources).unwrap_err().faults().to_vec()
    }

    #[test]
    fn the_defaults_load_and_have_no_fault() {
        let settings = Settings::load(&ConfigSources::default()).unwrap();
        assert_eq!(settings.tier, Tier::Memory);
        assert_eq!(settings.ledger.url, "sqlite://./floodgate.db");
        assert_eq!(settings.http.bind.to_string(), "127.0.0.1:8080");
    }

    #[test]
    fn every_field_is_in_the_default_file_and_every_key_there_is_a_field() {
        let defaults = layers::defaults().unwrap();
        // `deny_unknown_fields`: every key is a field.
        deserialize(&defaults).unwrap();
        // Every field needs its key: no field has a default of its own.
        for key in defaults.keys() {
            let mut without = defaults.clone();
            without.remove(key);
            assert!(
                deserialize(&without).is_err(),
                "{key} has a second default outside default.toml"
            );
        }
    }

    #[test]
    fn later_sources_win() {
        let file = temp("[http]\nworkers = 1\nbacklog = 1\nconnections_max = 1\n");
        let mut sources = set(&["http.workers=3"]);
        sources.file = Some(file.path().to_owned());
        sources.env = env(&[("FLOODGATE__HTTP__WORKERS", "2"), ("FLOODGATE__HTTP__BACKLOG", "2")]);
        let http = Settings::load(&sources).unwrap().http;
        assert_eq!((http.workers, http.backlog, http.connections_max), (3, 2, 1));
        assert_eq!(http.body_max_bytes, 4096);
    }

    #[test]
    fn the_last_flag_of_a_key_wins() {
        let sources = set(&["http.workers=3", "http.workers=4"]);
        assert_eq!(Settings::load(&sources).unwrap().http.workers, 4);
    }

    #[test]
    fn every_unknown_key_is_named_with_its_source_and_the_nearest_known_one() {
        let file = temp("[http]\nwrokers = 1\n");
        let mut sources = set(&["ledger.bind=127.0.0.1:1"]);
        sources.file = Some(file.path().to_owned());
        sources.env = env(&[("FLOODGATE__LEGDER__URL", "x")]);
        let faults = faults_of(&sources);
        let expected = [
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
        let file = temp("role = \"king\"\n[http]\nworkers = \"4\"\nbacklog = -1\n");
        let sources = ConfigSources {
            file: Some(file.path().to_owned()),
            env: env(&[("FLOODGATE__HTTP__BIND", "localhost"), ("FLOODGATE__TIER", "gold")]),
            set: vec!["gate.permits=many".into(), "http.backlog=99999999999".into()],
        };
        let faults = faults_of(&sources);
        let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
        let file_keys = ["http.backlog", "http.workers", "role"];
        assert_eq!(keys[..3], file_keys);
        assert_eq!(keys[3..], ["http.bind", "tier", "gate.permits", "http.backlog"]);
        let tier = faults.iter().find(|fault| fault.key == "tier").unwrap();
        assert!(tier.remedy.contains("memory | ledger"), "{tier}");
    }

    #[test]
    fn a_number_too_large_for_its_field_is_refused_not_truncated() {
        let faults = faults_of(&set(&["ledger.cache_kib=4294967297"]));
        assert_eq!(faults[0].key, "ledger.cache_kib");
    }

    #[test]
    fn a_token_of_digits_keeps_its_zeros() {
        let env = env(&[("FLOODGATE__ADMIN__TOKEN", "0012")]);
        let sources = ConfigSources { env, ..ConfigSources::default() };
        let settings = Settings::load(&sources).unwrap();
        assert_eq!(settings.admin.bearer().unwrap().expose_secret(), "0012");
    }

    #[test]
    fn a_secret_of_the_wrong_type_is_not_repeated() {
        let file = temp("[admin]\ntoken = 424242\n");
        let sources =
            ConfigSources { file: Some(file.path().to_owned()), ..ConfigSources::default() };
        let text = Settings::load(&sources).unwrap_err().to_string();
        assert!(text.contains("admin.token: the value is not a string"), "{text}");
        assert!(!text.contains("424242"), "{text}");
    }

    #[test]
    fn a_missing_or_malformed_file_is_named() {
        let missing =
            ConfigSources { file: Some("/nowhere/f.toml".into()), ..ConfigSources::default() };
        assert!(Settings::load(&missing).unwrap_err().to_string().contains("/nowhere/f.toml"));

        let file = temp("[http\nworkers = 1\n");
        let malformed =
            ConfigSources { file: Some(file.path().to_owned()), ..ConfigSources::default() };
        let text = Settings::load(&malformed).unwrap_err().to_string();
        assert!(text.contains(&file.path().display().to_string()), "{text}");
        assert!(text.contains("line 1"), "{text}");
    }

    #[test]
    fn settings_for_tests_have_free_loopback_ports() {
        let settings = Settings::for_test("sqlite:///tmp/x.db");
        assert_eq!(settings.http.bind.port(), 0);
        assert!(settings.internal.bind.ip().is_loopback());
        assert_eq!(settings.ledger.sqlite_path().unwrap().to_str(), Some("/tmp/x.db"));
        assert_eq!(settings.ledger.lock_path().unwrap().to_str(), Some("/tmp/x.db.lock"));
        assert_eq!(validate(&settings), []);
    }
}
