//! Reads the sources and merges them into settings in two steps: unknown keys and wrong types,
//! then secrets and rules between keys. Each step reports all of its faults.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use secrecy::ExposeSecret;
use serde_json::Value as Json;

use super::access::NamedToken;
use super::effective::Effective;
use super::error::{ConfigFault, Error, or_fault};
use super::jwks;
use super::jwks::JwtKeys;
use super::secret_files::{ExposedSecret, UNREADABLE, exposed_secrets, read_secret};
use super::settings::Settings;
use super::transport::read_certificates;
use super::validate::validate;
use super::webhook_secret::WebhookSecret;

const ENV_PREFIX: &str = "floodgate__";
const ENV_SEPARATOR: &str = "__";
/// How the origin of a value in the configuration file begins.
pub(super) const FILE: &str = "file ";
/// The origin of a value in a flag.
pub(super) const FLAG: &str = "flag";

/// The sources of settings besides the built-in defaults.
///
/// `ConfigSources::default()` has none and is meant for tests; the command line starts with
/// [`ConfigSources::process`]. Variables may be secrets: no `Debug`.
#[derive(Clone, Default)]
pub struct ConfigSources {
    /// `--config FILE`.
    pub file: Option<PathBuf>,
    /// Environment variables and their values.
    pub env: Vec<(OsString, OsString)>,
    /// `--set section.key=value`, in order; the last one of a key wins.
    pub set: Vec<String>,
}

impl ConfigSources {
    /// The given file and flags, and the environment of this process.
    pub fn process(file: Option<PathBuf>, set: Vec<String>) -> Self {
        Self { file, env: std::env::vars_os().collect(), set }
    }
}

/// Settings that were read, with their origins and faults.
#[derive(Clone)]
pub struct LoadedSettings {
    /// The settings with secrets read from their files. They must not be used if there are faults.
    pub settings: Settings,
    pub effective: Effective,
    /// Secrets that others may read.
    pub exposed: Vec<ExposedSecret>,
    /// Broken rules and unreadable secret files.
    pub faults: Vec<ConfigFault>,
}

impl LoadedSettings {
    /// Itself, if it has no fault.
    pub fn without_faults(self) -> Result<Self, Error> {
        if self.faults.is_empty() { Ok(self) } else { Err(Error(self.faults)) }
    }

    /// Reads all sources. Broken rules do not fail; they are in [`LoadedSettings::faults`], so that
    /// a faulty configuration can still be shown.
    pub fn read(sources: &ConfigSources) -> Result<Self, Error> {
        let (mut effective, mut settings) = defaults();
        let (given, mut faults) = given(sources, &effective);
        for Given { key, value, origin } in given {
            match effective.set(&key, value, Some(origin)) {
                Ok(changed) => settings = changed,
                Err(fault) => faults.push(fault),
            }
        }
        if !faults.is_empty() {
            return Err(Error(faults));
        }
        let secret_files = effective.secret_files();
        let webhooks = settings.payment.webhook_secrets.iter();
        let webhooks = webhooks.filter_map(|entry| WebhookSecret::file(entry));
        // The ledger has the key that signs request ids.
        let ledger = settings.ledger.url.strip_prefix("sqlite://").map(Path::new);
        let paths = secret_files.iter().map(|file| file.path.as_path()).chain(webhooks);
        let paths = paths.chain(ledger);
        let exposed = exposed_secrets(&effective, paths, sources.file.as_deref());
        for file in &secret_files {
            match effective.read_value(file) {
                Ok(changed) => settings = changed.unwrap_or(settings),
                Err(fault) => faults.push(fault),
            }
        }
        effective.hide_secrets();
        faults.extend(read_secrets(&mut settings));
        faults.extend(read_certificates(&mut settings));
        faults.extend(validate(&settings));
        Ok(Self { settings, effective, exposed, faults })
    }
}

impl Settings {
    /// Reads all sources and checks all rules.
    pub fn load(sources: &ConfigSources) -> Result<Self, Error> {
        Ok(LoadedSettings::read(sources)?.without_faults()?.settings)
    }

    /// These settings with the secrets that their files have now.
    pub fn reread_secrets(&self) -> Result<Self, Error> {
        let mut settings = self.clone();
        settings.payment.webhook_keys.clear();
        let mut faults = read_secrets(&mut settings);
        if settings.admin.token_file != *"" {
            let token = read_secret(&settings.admin.token_file);
            settings.admin.token = or_fault(token, &mut faults, "admin.token_file", UNREADABLE);
        }
        faults.extend(validate(&settings));
        if faults.is_empty() { Ok(settings) } else { Err(Error(faults)) }
    }

    /// The defaults with this ledger and free ports on loopback, for tests and the demo.
    pub fn with_ledger(ledger_url: &str) -> Self {
        let (_, mut settings) = defaults();
        ledger_url.clone_into(&mut settings.ledger.url);
        settings.http.bind.set_port(0);
        settings.internal.bind.set_port(0);
        settings
    }
}

#[expect(clippy::expect_used, reason = "the defaults are compiled in and loaded by a test")]
fn defaults() -> (Effective, Settings) {
    Effective::defaults().expect("the built-in defaults are valid settings")
}

/// A value that a source gives a key.
struct Given {
    key: String,
    value: Json,
    /// The source, as faults and `check-config` name it.
    origin: String,
}

/// What file, environment and flags set, in this order; and their unusable parts.
fn given(sources: &ConfigSources, known: &Effective) -> (Vec<Given>, Vec<ConfigFault>) {
    let (mut given, mut faults) = (Vec::new(), Vec::new());
    if let Some(path) = &sources.file {
        let values = read_file(path).map_err(|fault| faults.push(fault));
        for (key, value) in values.unwrap_or_default() {
            let origin = format!("{FILE}{}", path.display());
            given.push(Given { key, value, origin });
        }
    }
    // An empty variable counts as unset: many deployment tools cannot omit a variable.
    for (name, value) in sources.env.iter().filter(|(_, value)| !value.is_empty()) {
        let Some(name) = name.to_str() else { continue };
        faults.extend(mistyped_prefix(name));
        let lower = name.to_lowercase();
        let Some(key) = lower.strip_prefix(ENV_PREFIX) else { continue };
        let (key, origin) = (key.replace(ENV_SEPARATOR, "."), format!("environment {name}"));
        if let Some(text) = value.to_str() {
            given.push(Given { value: known.typed(&key, text), key, origin });
        } else {
            let problem = format!("is not UTF-8 ({origin})");
            faults.push(ConfigFault::new(&key, problem, "FLOODGATE__ variables must be UTF-8"));
        }
    }
    for assignment in &sources.set {
        if let Some((key, text)) = assignment.split_once('=') {
            let key = key.trim().to_owned();
            given.push(Given { value: known.typed(&key, text), key, origin: FLAG.to_owned() });
        } else {
            // The text may be a secret, so it is not repeated.
            faults.push(ConfigFault::new(
                "--set",
                "has no `=` between key and value",
                "write --set section.key=value, such as --set http.workers=2",
            ));
        }
    }
    (given, faults)
}

fn read_file(path: &Path) -> Result<BTreeMap<String, Json>, ConfigFault> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        let remedy = "check the path and that this user may read it";
        ConfigFault::new("--config", format!("cannot read {shown}: {error}"), remedy)
    })?;
    parse_toml(&text).map_err(|error| {
        // Without the line itself, which the parser would quote: it may hold a secret.
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let (line, message) = (before.matches('\n').count() + 1, error.message());
        let problem = format!("{shown} is not valid TOML: line {line}: {message}");
        let remedy = "`floodgate check-config` without --config prints a complete valid example";
        ConfigFault::new("--config", problem, remedy)
    })
}

/// The fault of a variable such as `FLOODGATE_HTTP__WORKERS`, which sets nothing. Variables without
/// a second separator may be another program's.
fn mistyped_prefix(name: &str) -> Option<ConfigFault> {
    let rest = name.to_uppercase().strip_prefix("FLOODGATE_")?.to_owned();
    let is_mistyped = !rest.starts_with('_') && rest.contains(ENV_SEPARATOR);
    let remedy = format!("name it FLOODGATE__{rest}, or remove it");
    is_mistyped.then(|| ConfigFault::new(name, "sets nothing: it lacks an underscore", remedy))
}

/// The values by `section.key`.
pub(super) fn parse_toml(text: &str) -> Result<BTreeMap<String, Json>, toml::de::Error> {
    fn flatten(prefix: &str, table: toml::Table, into: &mut BTreeMap<String, Json>) {
        for (name, value) in table {
            match value {
                toml::Value::Table(inner) => flatten(&format!("{prefix}{name}."), inner, into),
                // TOML has no value that JSON cannot hold, except that `nan` and `inf` become null.
                leaf => {
                    let leaf = serde_json::to_value(leaf).unwrap_or_default();
                    into.insert(format!("{prefix}{name}"), leaf);
                }
            }
        }
    }
    let mut values = BTreeMap::new();
    flatten("", text.parse()?, &mut values);
    Ok(values)
}

/// Reads the files whose content has no key of its own, and the secrets of webhooks, into the
/// settings; one fault per unusable file or secret.
fn read_secrets(settings: &mut Settings) -> Vec<ConfigFault> {
    let mut faults = Vec::new();
    let mut read = |key: &str, path: &Path| {
        let is_set = !path.as_os_str().is_empty();
        let secret = is_set.then(|| read_secret(path)).transpose();
        or_fault(secret, &mut faults, key, UNREADABLE)
    };
    let named_tokens = read("admin.tokens_file", &settings.admin.tokens_file);
    let jwt_secrets = read("auth.jwt_secret_file", &settings.auth.jwt_secret_file);
    let key_set = read("auth.jwks_file", &settings.auth.jwks_file);
    settings.auth.signing_key = read("auth.signing_key_file", &settings.auth.signing_key_file);
    let tokens = named_tokens.map(|text| NamedToken::read_all(text.expose_secret())).transpose();
    let remedy = "write one line for each token: `name scope token`, scope `read` or `operate`";
    let tokens = or_fault(tokens, &mut faults, "admin.tokens_file", remedy);
    settings.admin.tokens = tokens.unwrap_or_default();
    let secrets = jwt_secrets.as_ref().map(jwks::secrets).unwrap_or_default();
    let public = key_set.map(|text| jwks::public_keys(text.expose_secret())).transpose();
    let remedy = "write the public signature keys of your login service into it, as its JWKS \
                  address shows them; remove the others";
    let public = or_fault(public, &mut faults, "auth.jwks_file", remedy).unwrap_or_default();
    settings.auth.jwt_keys = JwtKeys { secrets, public };
    let remedy = "name `whsec_<base64>` or a file with it, either with ` until <RFC 3339 time>`";
    for entry in &settings.payment.webhook_secrets {
        let secret = WebhookSecret::read(entry, read_secret).map(Some);
        let secret = or_fault(secret, &mut faults, "payment.webhook_secrets", remedy);
        settings.payment.webhook_keys.extend(secret);
    }
    faults
}

#[cfg(test)]
#[path = "load_tests.rs"]
pub(super) mod tests;
