//! The effective settings: every key with its documentation, value and origin, as one table that
//! begins with `config/default.toml` and is printed as TOML and JSON.

use std::error::Error;
use std::fmt::Write;

use serde_json::{Map, Value as Json, json};

use super::error::ConfigFault;
use super::load::parse_toml;
use super::settings::Settings;
use super::webhook_secret::WebhookSecret;

/// Every key with its default and its documentation, which are nowhere else.
const DEFAULT_TOML: &str = include_str!("../../config/default.toml");

/// Replaces the value of a secret that is set.
const HIDDEN: &str = "(hidden)";

/// One key with its effective value.
#[derive(Debug, Clone)]
pub(super) struct SettingEntry {
    /// `section.name`, or only the name.
    pub key: String,
    /// The comment above it.
    doc: String,
    default: Json,
    pub value: Json,
    /// The source that set it; `None` at the default.
    pub origin: Option<String>,
    /// Whether the value was read from a file of its own, whose key shows where it is.
    is_in_file: bool,
}

/// Every key, in the order of `config/default.toml`.
#[derive(Debug, Clone)]
pub struct Effective {
    entries: Vec<SettingEntry>,
}

impl SettingEntry {
    fn pair(&self) -> (&str, &Json) {
        (&self.key, &self.value)
    }

    /// Section and name; the section is empty at the top level.
    pub fn path(&self) -> (&str, &str) {
        self.key.split_once('.').unwrap_or(("", &self.key))
    }

    /// Whether a source gives it a value besides its default and "not set".
    pub fn is_given(&self) -> bool {
        self.value != self.default && self.value != ""
    }

    /// Whether the value is a secret or contains one.
    pub fn holds_secret(&self) -> bool {
        let mut hidden = self.clone();
        hidden.hide();
        hidden.value != self.value
    }

    fn hide(&mut self) {
        if self.is_in_file {
            self.value = Json::from("");
            return;
        }
        // Each item is a secret or the path of one.
        if self.key == "payment.webhook_secrets" {
            let items = self.value.as_array().into_iter().flatten().filter_map(Json::as_str);
            self.value = items.map(|item| WebhookSecret::redacted(item, HIDDEN)).collect();
            return;
        }
        match self.value.as_str() {
            Some("") | None => {}
            Some(_) if is_secret_key(&self.key) => self.value = Json::from(HIDDEN),
            Some(url) if self.path().1 == "url" => self.value = Json::from(redact_url(url)),
            Some(_) => {}
        }
    }

    fn wrong_type(&self, value: &Json, origin: &str) -> ConfigFault {
        let wanted = match &self.default {
            Json::Number(number) if number.is_f64() => "a number",
            Json::Number(_) => "a whole number of fitting size",
            Json::Array(_) => match self.path().1 {
                "trusted_proxies" => "a list of addresses of proxies, such as [\"192.0.2.1\"]",
                "challenges" => "a list of known values",
                _ => "a list of strings",
            },
            Json::Bool(_) => "true or false",
            _ if self.path().1 == "bind" => "address:port, such as 127.0.0.1:8080 or [::1]:8080",
            _ if value.is_string() => "one of the known values",
            _ => "a string in quotes",
        };
        // A list of addresses in place of one may hold passwords.
        let may_be_secret = self.default.is_string() && !value.is_string();
        let is_hidden = may_be_secret || is_secret_key(&self.key);
        let shown = if is_hidden { "the value".to_owned() } else { format!("`{value}`") };
        ConfigFault::new(
            &self.key,
            format!("{shown} is not {wanted} ({origin})"),
            format!("{} Default: {}", self.doc, self.default),
        )
    }
}

impl Effective {
    /// Every key at its default, and the settings of these values.
    pub(super) fn defaults() -> Result<(Self, Settings), Box<dyn Error>> {
        let mut values = parse_toml(DEFAULT_TOML)?;
        let (mut entries, mut section, mut doc) = (Vec::new(), String::new(), Vec::new());
        for line in DEFAULT_TOML.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                doc.push(comment);
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = format!("{name}.");
            } else if let Some((name, _)) = line.split_once(" = ") {
                let key = format!("{section}{name}");
                let value = values.remove(&key).unwrap_or_default();
                let (doc, default) = (doc.join(" "), value.clone());
                entries.push(SettingEntry {
                    key,
                    doc,
                    default,
                    value,
                    origin: None,
                    is_in_file: false,
                });
            }
            doc.clear();
        }
        let settings = serde_json::from_value(nested(entries.iter().map(SettingEntry::pair)))?;
        Ok((Self { entries }, settings))
    }

    /// Sets a key and returns the settings with it; without an origin, to the text of a file of its
    /// own. Setting key by key finds every wrong type in one run; deserializing all keys together
    /// stops at the first.
    pub(super) fn set(
        &mut self,
        key: &str,
        value: Json,
        origin: Option<String>,
    ) -> Result<Settings, ConfigFault> {
        let shown = origin.as_deref().unwrap_or_default();
        let Some(entry) = self.entry(key) else { return Err(self.unknown_key(key, shown)) };
        let values = self.entries.iter().map(SettingEntry::pair).chain([(key, &value)]);
        let Ok(settings) = serde_json::from_value(nested(values)) else {
            return Err(entry.wrong_type(&value, shown));
        };
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) {
            (entry.value, entry.is_in_file, entry.origin) = (value, origin.is_none(), origin);
        }
        Ok(settings)
    }

    /// Text from the environment or a flag as the type of the key's default; other text stays a
    /// string, which deserialization refuses. A guess from the text alone would take the leading
    /// zeros of a token of digits. A list is written as in the file, or as its items with commas
    /// between.
    pub(super) fn typed(&self, key: &str, text: &str) -> Json {
        match self.entry(key).map(|entry| &entry.default) {
            Some(Json::Number(_) | Json::Bool(_)) => {
                serde_json::from_str(text.trim()).unwrap_or_else(|_| Json::from(text))
            }
            Some(Json::Array(_)) => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                let listed = serde_json::from_str::<Vec<String>>(text);
                listed.unwrap_or_else(|_| items.map(str::to_owned).collect()).into()
            }
            _ => Json::from(text),
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &SettingEntry> {
        self.entries.iter()
    }

    pub(super) fn entry(&self, key: &str) -> Option<&SettingEntry> {
        self.entries().find(|entry| entry.key == key)
    }

    pub(super) fn hide_secrets(&mut self) {
        self.entries.iter_mut().for_each(SettingEntry::hide);
    }

    /// Suggests the known key with the least edit distance, if that is at most a third of the key.
    /// A known name in a wrong section has distance one.
    fn unknown_key(&self, key: &str, origin: &str) -> ConfigFault {
        let name = key.rsplit('.').next().unwrap_or(key);
        let distance_to = |known: &SettingEntry| {
            let whole = strsim::damerau_levenshtein(key, &known.key);
            whole.min(strsim::damerau_levenshtein(name, known.path().1) + 1)
        };
        let nearest = self.entries.iter().min_by_key(|known| distance_to(known));
        let near = nearest.filter(|near| distance_to(near) * 3 <= key.len());
        let hint = near.map_or(String::new(), |near| format!("did you mean `{}`? ", near.key));
        ConfigFault::new(
            key,
            format!("is not a key ({origin})"),
            format!("{hint}`floodgate check-config` without --config lists every key"),
        )
    }

    /// TOML that loads again to the same values, except for hidden secrets. A comment names the
    /// origin of each key that is not at its default.
    pub fn to_toml(&self) -> String {
        let (mut text, mut section) = (String::new(), "");
        for entry in &self.entries {
            let (entry_section, name) = entry.path();
            if entry_section != section {
                section = entry_section;
                let _ = write!(text, "\n[{section}]\n");
            }
            // JSON and TOML have the same notation for numbers, booleans, basic strings and arrays
            // of them, except that TOML requires DEL to be escaped.
            let value = entry.value.to_string().replace('\u{7f}', "\\u007f");
            let _ = write!(text, "{name} = {value}");
            if let Some(origin) = &entry.origin {
                let origin = origin.replace(|c: char| c.is_control(), "?");
                let _ = write!(text, "  # {origin}");
            }
            text.push('\n');
        }
        text
    }

    /// The keys to which a source, such as a file, gives a value.
    pub fn given_keys(&self) -> impl Iterator<Item = &str> {
        self.entries().filter(|entry| entry.origin.is_some()).map(|entry| &*entry.key)
    }

    /// Whether a source, such as a file, gives this key a value.
    pub fn has_source(&self, key: &str) -> bool {
        self.given_keys().any(|given| given == key)
    }

    /// `{"settings": {section: {key: value}}, "origins": {"section.key": "file x"}}`;
    /// `origins` names only keys that are not at their default.
    pub fn to_json(&self) -> Json {
        let origins = self.entries.iter().filter_map(|entry| {
            let origin = entry.origin.as_deref()?;
            Some((entry.key.clone(), Json::from(origin)))
        });
        json!({
            "settings": nested(self.entries.iter().map(SettingEntry::pair)),
            "origins": origins.collect::<Json>(),
        })
    }
}

/// Values by `section.key` as an object with an object for each section. Later values win.
fn nested<'a>(values: impl Iterator<Item = (&'a str, &'a Json)>) -> Json {
    let mut root = Map::new();
    for (key, value) in values {
        if let Some((section, name)) = key.split_once('.') {
            if let Json::Object(table) = root.entry(section).or_insert_with(|| json!({})) {
                table.insert(name.to_owned(), value.clone());
            }
        } else {
            root.insert(key.to_owned(), value.clone());
        }
    }
    Json::Object(root)
}

/// Whether the value of this key must never be shown.
pub fn is_secret_key(key: &str) -> bool {
    ["admin.token", "payment.webhook_secrets"].contains(&key)
}

/// A URL without its password and the values of its parameters, fit for logs. `sqlite://` paths are
/// left as they are.
pub fn redact_url(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some(("sqlite", _)) => return url.to_owned(),
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    // The last `@`: an unescaped password may contain another one.
    let (login, server) = match rest.rsplit_once('@') {
        Some((login, server)) => match login.split_once(':') {
            Some((user, _)) => (format!("{user}:***@"), server.to_owned()),
            None => (format!("{login}@"), server.to_owned()),
        },
        None => (String::new(), without_password(rest)),
    };
    let server = &*server;
    match server.split_once('?') {
        Some((server, _)) => format!("{scheme}{login}{server}?***"),
        None => format!("{scheme}{login}{server}"),
    }
}

/// The rest of a URL that may have lost its `@host`: what follows the host is hidden unless it is a
/// port.
fn without_password(rest: &str) -> String {
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.bytes().all(|byte| byte.is_ascii_digit() || byte == b']') => {
            format!("{host}:***{path}")
        }
        _ => rest.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::config::LoadedSettings;
    use crate::config::load::tests::{set, sources};

    #[test]
    fn every_key_is_a_field_has_its_only_default_in_the_file_and_its_own_documentation() {
        // `deny_unknown_fields`: every key is a field. Every field: the settings deserialize.
        let (Effective { entries }, _) = Effective::defaults().unwrap();
        let mut seen = HashSet::new();
        for entry in &entries {
            let others = entries.iter().filter(|other| other.key != entry.key);
            let others = nested(others.map(SettingEntry::pair));
            let is_needed = serde_json::from_value::<Settings>(others).is_err();
            assert!(is_needed, "{} has a second default outside default.toml", entry.key);
            assert!(!entry.doc.is_empty(), "{} has no comment", entry.key);
            let is_own = seen.insert((entry.path().0, &entry.doc));
            assert!(is_own, "{} has no comment of its own", entry.key);
        }
    }

    #[test]
    fn passwords_are_redacted_and_paths_are_kept() {
        assert_eq!(redact_url("mysql://fg:p@ss@db:3306/x"), "mysql://fg:***@db:3306/x");
        assert_eq!(redact_url("redis://:pw@cache"), "redis://:***@cache");
        assert_eq!(redact_url("sqlite://./a@b:c.db"), "sqlite://./a@b:c.db");
        assert_eq!(redact_url("mysql://db/x"), "mysql://db/x");
        assert_eq!(redact_url("mysql://u@db/x?password=p&a=b"), "mysql://u@db/x?***");
        assert_eq!(redact_url("u:p@db/x"), "u:***@db/x");
        assert_eq!(redact_url("mysql://u:pa55"), "mysql://u:***");
        assert_eq!(redact_url("redis://:pa55/0"), "redis://:***/0");
        assert_eq!(redact_url("redis://cache:6379/0"), "redis://cache:6379/0");
        assert_eq!(redact_url("redis://[::1]:6379"), "redis://[::1]:6379");
    }

    #[test]
    fn printed_toml_loads_again_to_the_same_values() {
        let odd = "ledger.url=sqlite://./a \"quoted\" \\ \u{7f}.db";
        let first = LoadedSettings::read(&set(&[odd, "http.workers=3", "faults.panic_in=a,b"]));
        let text = first.unwrap().effective.to_toml();
        let (_file, reloaded) = sources(&text, &[], &[]);
        let reloaded = LoadedSettings::read(&reloaded).unwrap();
        assert_eq!(reloaded.settings.ledger.url, "sqlite://./a \"quoted\" \\ \u{7f}.db");
        assert_eq!(reloaded.settings.http.workers, 3);
        assert_eq!(reloaded.settings.faults.panic_in, ["a", "b"]);
        assert!(text.contains("workers = 3  # flag\n"), "{text}");
    }

    #[test]
    fn no_output_contains_a_secret() {
        let webhook = "payment.webhook_secrets=whsec_s3cret until 2030-01-01T00:00:00Z,/run/file";
        let secrets = ["admin.token=s3cret", "ledger.url=mysql://u:s3cret@db/x", webhook];
        let loaded = LoadedSettings::read(&set(&secrets)).unwrap();
        let shown = [
            loaded.effective.to_toml(),
            loaded.effective.to_json().to_string(),
            format!("{:?}", loaded.effective),
            crate::config::Error(loaded.faults.clone()).to_string(),
        ];
        for text in shown {
            assert!(!text.contains("s3cret"), "{text}");
        }
        let toml = loaded.effective.to_toml();
        assert!(toml.contains("token = \"(hidden)\""));
        assert!(toml.contains("[\"(hidden) until 2030-01-01T00:00:00Z\",\"/run/file\"]"), "{toml}");
    }

    #[test]
    fn json_names_the_origin_of_changed_keys_only() {
        let shown = LoadedSettings::read(&set(&["http.workers=3"])).unwrap().effective.to_json();
        assert_eq!(shown["settings"]["http"]["workers"], 3);
        assert_eq!(shown["settings"]["tier"], "memory");
        assert_eq!(shown["origins"], serde_json::json!({ "http.workers": "flag" }));
    }
}
