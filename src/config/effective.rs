//! The effective settings and their origins as TOML and JSON, with secrets hidden.

use std::fmt::Write;

use serde_json::{Map, Value as Json};

use super::layers::{self, ValueOrigin};
use super::load::MergedSettings;

/// Replaces the value of a secret that is set.
pub const HIDDEN: &str = "(hidden)";

/// One key with its effective value.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingEntry {
    /// Empty for top-level keys.
    pub section: &'static str,
    pub name: &'static str,
    /// [`HIDDEN`] for a secret.
    pub value: Json,
    pub origin: ValueOrigin,
}

/// Every key, in the order of `config/default.toml`.
#[derive(Debug, Clone)]
pub struct Effective {
    entries: Vec<SettingEntry>,
}

impl Effective {
    pub(super) fn new(merged: &MergedSettings) -> Self {
        let entries = layers::catalogue().into_iter().filter_map(|known| {
            let key = known.key();
            merged.get(&key).map(|(value, origin)| SettingEntry {
                section: known.section,
                name: known.name,
                value: hide(&key, value),
                origin: origin.clone(),
            })
        });
        Self { entries: entries.collect() }
    }

    #[must_use]
    pub fn entries(&self) -> &[SettingEntry] {
        &self.entries
    }

    /// TOML that loads again to the same values, except for hidden secrets. A comment names the
    /// origin of each key that is not at its default.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut section = "";
        for entry in &self.entries {
            if entry.section != section {
                section = entry.section;
                let _ = write!(text, "\n[{section}]\n");
            }
            let _ = write!(text, "{} = {}", entry.name, toml(&entry.value));
            if entry.origin != ValueOrigin::Default {
                let _ = write!(text, "  # {}", one_line(&entry.origin.to_string()));
            }
            text.push('\n');
        }
        text
    }

    /// `{"settings": {section: {key: value}}, "origins": {"section.key": "file x"}}`;
    /// `origins` names only keys that are not at their default.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let (mut settings, mut origins) = (Map::new(), Map::new());
        for entry in &self.entries {
            let key = if entry.section.is_empty() {
                settings.insert(entry.name.to_owned(), entry.value.clone());
                entry.name.to_owned()
            } else {
                let table =
                    settings.entry(entry.section).or_insert_with(|| Json::Object(Map::new()));
                if let Json::Object(table) = table {
                    table.insert(entry.name.to_owned(), entry.value.clone());
                }
                format!("{}.{}", entry.section, entry.name)
            };
            if entry.origin != ValueOrigin::Default {
                origins.insert(key, Json::from(entry.origin.to_string()));
            }
        }
        serde_json::json!({ "settings": settings, "origins": origins })
    }
}

/// Whether the key's value must never be shown.
pub(super) fn is_secret(key: &str) -> bool {
    key == "admin.token"
}

fn hide(key: &str, value: &Json) -> Json {
    match value.as_str() {
        Some("") | None => value.clone(),
        Some(_) if is_secret(key) => Json::from(HIDDEN),
        Some(url) if key.split('.').next_back() == Some("url") => Json::from(redact_url(url)),
        Some(_) => value.clone(),
    }
}

/// A URL without its password, fit for logs. `sqlite://` paths are left as they are.
#[must_use]
pub fn redact_url(url: &str) -> String {
    let split = url.split_once("://").filter(|(scheme, _)| *scheme != "sqlite");
    // The last `@`: an unescaped password may contain another one.
    match split.and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?))) {
        Some((scheme, (login, host))) => match login.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:***@{host}"),
            None => url.to_owned(),
        },
        None => url.to_owned(),
    }
}

/// JSON and TOML have the same notation for numbers, booleans, basic strings and arrays of them,
/// except that TOML requires DEL to be escaped.
fn toml(value: &Json) -> String {
    value.to_string().replace('\u{7f}', "\\u007f")
}

fn one_line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), "?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::tests::set;
    use crate::config::{ConfigSources, LoadedSettings};

    #[test]
    fn passwords_are_redacted_and_paths_are_kept() {
        assert_eq!(redact_url("mysql://fg:p@ss@db:3306/x"), "mysql://fg:***@db:3306/x");
        assert_eq!(redact_url("redis://:pw@cache"), "redis://:***@cache");
        assert_eq!(redact_url("sqlite://./a@b:c.db"), "sqlite://./a@b:c.db");
        assert_eq!(redact_url("mysql://db/x"), "mysql://db/x");
    }

    #[test]
    fn printed_toml_loads_again_to_the_same_values() {
        let odd = "ledger.url=sqlite://./a \"quoted\" \\ \u{7f}.db";
        let first = LoadedSettings::read(&set(&[odd, "http.workers=3", "faults.panic_in=a,b"]));
        let text = first.unwrap().effective.to_toml();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &text).unwrap();
        let reloaded =
            ConfigSources { file: Some(file.path().to_owned()), ..ConfigSources::default() };
        let reloaded = LoadedSettings::read(&reloaded).unwrap();
        assert_eq!(reloaded.settings.ledger.url, "sqlite://./a \"quoted\" \\ \u{7f}.db");
        assert_eq!(reloaded.settings.http.workers, 3);
        assert_eq!(reloaded.settings.faults.panic_in, ["a", "b"]);
        assert!(text.contains("workers = 3  # flag\n"), "{text}");
    }

    #[test]
    fn no_output_contains_a_secret() {
        let secrets = ["admin.token=s3cret", "ledger.url=mysql://u:s3cret@db/x"];
        let loaded = LoadedSettings::read(&set(&secrets)).unwrap();
        let shown = [
            loaded.effective.to_toml(),
            loaded.effective.to_json().to_string(),
            format!("{loaded:?}"),
            crate::config::Error::Faults(loaded.faults.clone()).to_string(),
        ];
        for text in shown {
            assert!(!text.contains("s3cret"), "{text}");
        }
        assert!(loaded.effective.to_toml().contains("token = \"(hidden)\""));
    }

    #[test]
    fn json_names_the_origin_of_changed_keys_only() {
        let shown = LoadedSettings::read(&set(&["http.workers=3"])).unwrap().effective.to_json();
        assert_eq!(shown["settings"]["http"]["workers"], 3);
        assert_eq!(shown["settings"]["tier"], "memory");
        assert_eq!(shown["origins"], serde_json::json!({ "http.workers": "flag" }));
    }
}
