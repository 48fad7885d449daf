//! The configuration's layers: built-in defaults, file, environment, flags. Each layer is a flat
//! map from `section.key` to a value, which keeps origin and spelling of each key.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};

use config::{Environment, File, FileFormat, Source, ValueKind};
use serde_json::Value as Json;

use super::error::{ConfigFault, Error};

/// `config/default.toml`: every key with its default and one line of documentation.
pub const DEFAULT_TOML: &str = include_str!("../../config/default.toml");

const ENV_PREFIX: &str = "FLOODGATE";
const ENV_SEPARATOR: &str = "__";

/// The sources of settings besides the built-in defaults.
///
/// `ConfigSources::default()` has none and is meant for tests; the command line starts with
/// [`ConfigSources::process`].
#[derive(Debug, Clone, Default)]
pub struct ConfigSources {
    /// `--config FILE`.
    pub file: Option<PathBuf>,
    pub env: EnvSource,
    /// `--set section.key=value`, in order; the last one of a key wins.
    pub set: Vec<String>,
}

impl ConfigSources {
    /// The given file and flags, and the environment of this process.
    #[must_use]
    pub fn process(file: Option<PathBuf>, set: Vec<String>) -> Self {
        Self { file, env: EnvSource::Process, set }
    }
}

/// The environment to read.
#[derive(Clone, Default)]
pub enum EnvSource {
    #[default]
    Nothing,
    Process,
    Given(HashMap<String, String>),
}

impl fmt::Debug for EnvSource {
    /// Names the variant only: the values may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Process => "Process",
            Self::Given(_) => "Given(..)",
        })
    }
}

/// The layer that set a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueOrigin {
    Default,
    File(PathBuf),
    /// The variable's name.
    Env(String),
    Flag,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// The keys and values of one source.
pub(super) type Layer = BTreeMap<String, Json>;

/// One key as `config/default.toml` documents it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DocumentedKey {
    pub section: &'static str,
    pub name: &'static str,
    /// The last comment line above it.
    pub doc: &'static str,
}

impl DocumentedKey {
    pub fn key(&self) -> String {
        if self.section.is_empty() {
            self.name.to_owned()
        } else {
            format!("{}.{}", self.section, self.name)
        }
    }
}

/// All keys in the order of `config/default.toml`.
pub(super) fn catalogue() -> Vec<DocumentedKey> {
    let mut keys = Vec::new();
    let (mut section, mut doc) = ("", "");
    for line in DEFAULT_TOML.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            doc = comment;
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
        } else if let Some((name, _)) = line.split_once(" = ") {
            keys.push(DocumentedKey { section, name, doc });
        }
    }
    keys
}

pub(super) fn defaults() -> Result<Layer, Error> {
    parse_toml(DEFAULT_TOML).map_err(|error| Error::Defaults(error.to_string()))
}

pub(super) fn file(path: &Path) -> Result<Layer, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Error::FileUnreadable { path: path.to_owned(), source })?;
    parse_toml(&text)
        .map_err(|error| Error::FileMalformed { path: path.to_owned(), reason: error.to_string() })
}

/// An empty variable counts as unset: many deployment tools cannot omit a variable.
pub(super) fn environment(source: &EnvSource) -> Result<Layer, Error> {
    let given = match source {
        EnvSource::Nothing => return Ok(Layer::new()),
        EnvSource::Process => None,
        EnvSource::Given(vars) => Some(vars.clone()),
    };
    // No `try_parsing`: it guesses types from the text, and a token of digits would lose its
    // leading zeros. `typed_text` uses the type of the key instead.
    let values = Environment::with_prefix(ENV_PREFIX)
        .prefix_separator(ENV_SEPARATOR)
        .separator(ENV_SEPARATOR)
        .ignore_empty(true)
        .source(given)
        .collect()
        .map_err(|error| Error::Environment(error.to_string()))?;
    Ok(values.into_iter().map(|(key, value)| (key, json(value.kind))).collect())
}

/// The name of the environment variable that sets `key`.
pub(super) fn variable_of(key: &str) -> String {
    format!("{ENV_PREFIX}{ENV_SEPARATOR}{}", key.replace('.', ENV_SEPARATOR).to_uppercase())
}

pub(super) fn flags(set: &[String]) -> Result<Layer, Error> {
    let mut layer = Layer::new();
    let mut faults = Vec::new();
    for assignment in set {
        match assignment.split_once('=') {
            Some((key, value)) => {
                layer.insert(key.trim().to_owned(), Json::String(value.to_owned()));
            }
            // The text may be a secret, so it is not repeated.
            None => faults.push(ConfigFault::new(
                "--set",
                "has no `=` between key and value",
                "write --set section.key=value, such as --set http.workers=2",
            )),
        }
    }
    if faults.is_empty() { Ok(layer) } else { Err(Error::Faults(faults)) }
}

/// Parses text from the environment or a flag as the type of the default; other text stays a
/// string, which deserialization refuses.
pub(super) fn typed_text(text: &str, default: &Json) -> Json {
    let parsed = match default {
        Json::Number(_) | Json::Bool(_) => serde_json::from_str(text.trim()).ok(),
        Json::Array(known) => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            let are_texts = known.iter().all(Json::is_string);
            let parse = |item: &str| serde_json::from_str(item).ok().filter(|_| !are_texts);
            let item = |item: &str| parse(item).unwrap_or_else(|| Json::String(item.to_owned()));
            Some(items.map(item).collect())
        }
        _ => None,
    };
    parsed.unwrap_or_else(|| Json::String(text.to_owned()))
}

fn parse_toml(text: &str) -> Result<Layer, config::ConfigError> {
    let mut layer = Layer::new();
    for (key, value) in File::from_str(text, FileFormat::Toml).collect()? {
        flatten(key, value.kind, &mut layer);
    }
    Ok(layer)
}

fn flatten(key: String, value: ValueKind, into: &mut Layer) {
    match value {
        ValueKind::Table(table) => {
            for (name, inner) in table {
                flatten(format!("{key}.{name}"), inner.kind, into);
            }
        }
        leaf => {
            into.insert(key, json(leaf));
        }
    }
}

fn json(value: ValueKind) -> Json {
    match value {
        ValueKind::Nil => Json::Null,
        ValueKind::Boolean(value) => Json::from(value),
        ValueKind::I64(value) => Json::from(value),
        ValueKind::U64(value) => Json::from(value),
        ValueKind::Float(value) => Json::from(value),
        ValueKind::String(value) => Json::from(value),
        ValueKind::I128(value) => Json::from(value.to_string()),
        ValueKind::U128(value) => Json::from(value.to_string()),
        ValueKind::Array(items) => items.into_iter().map(|item| json(item.kind)).collect(),
        ValueKind::Table(table) => {
            table.into_iter().map(|(name, item)| (name, json(item.kind))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_names_exactly_the_keys_of_the_default_file_and_documents_each() {
        let mut names: Vec<String> = catalogue().iter().map(DocumentedKey::key).collect();
        names.sort();
        let parsed: Vec<String> = defaults().unwrap().into_keys().collect();
        assert_eq!(names, parsed);
        let mut seen = std::collections::HashSet::new();
        for key in catalogue() {
            assert!(!key.doc.is_empty(), "{} has no comment", key.key());
            assert!(seen.insert((key.section, key.doc)), "{} has no comment of its own", key.key());
        }
    }

    #[test]
    fn text_takes_the_type_of_the_default() {
        assert_eq!(typed_text("12", &Json::from(0)), Json::from(12));
        assert_eq!(typed_text("0.5", &Json::from(0.0)), Json::from(0.5));
        assert_eq!(typed_text("a, b,", &Json::Array(vec![])), serde_json::json!(["a", "b"]));
        assert_eq!(typed_text("007", &Json::from("")), Json::from("007"));
        assert_eq!(typed_text("many", &Json::from(0)), Json::from("many"));
    }

    #[test]
    fn variables_of_other_programs_and_empty_ones_are_ignored() {
        let vars = [
            ("FLOODGATE__HTTP__WORKERS", "3"),
            ("FLOODGATE__ADMIN__TOKEN", ""),
            ("FLOODGATE_HOME", "/x"),
            ("PATH", "/bin"),
        ];
        let vars = vars.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        let layer = environment(&EnvSource::Given(vars)).unwrap();
        assert_eq!(layer, Layer::from([("http.workers".to_owned(), Json::from("3"))]));
        assert_eq!(variable_of("http.workers"), "FLOODGATE__HTTP__WORKERS");
    }

    #[test]
    fn a_set_without_equals_sign_is_refused_without_repeating_it() {
        let error = flags(&["s3cret".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("--set section.key=value"), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}
