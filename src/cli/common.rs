//! The flags of every command, and `floodgate check-config`, which shows what they amount to.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::exit::Exit;
use super::output::Output;
use crate::config::{self, ConfigSources, LoadedSettings, Settings, is_secret_key, redact_url};

/// Examples of `check-config`.
pub const EXAMPLES: &str = "\
Examples:
  floodgate check-config                           every key with its default
  floodgate check-config --config floodgate.toml   exit 3 and every fault if it is wrong
  floodgate check-config --json | jq .origins      who set what
";

/// Flags of every command, before or behind its name.
#[derive(Debug, Default, Args)]
pub struct Common {
    /// Configuration file (TOML); see `floodgate check-config` for every key
    #[arg(long, value_name = "FILE", help_heading = "Common options")]
    pub config: Option<PathBuf>,
    /// Set one key, such as http.workers=2; may be repeated, wins over file and environment
    #[arg(long, value_name = "SECTION.KEY=VALUE", help_heading = "Common options")]
    pub set: Vec<String>,
    /// Print data as JSON on stdout; messages stay on stderr
    #[arg(long, help_heading = "Common options")]
    pub json: bool,
    /// `--internal-url` of the commands that call a server.
    #[arg(skip)]
    pub internal_url: Option<String>,
}

/// The argument as a shell takes it.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    let quoted = || format!("'{}'", argument.replace('\'', r"'\''"));
    if argument.chars().all(is_plain) { argument.to_owned() } else { quoted() }
}

impl Common {
    /// What this command prints; its next steps have its flags, without secrets.
    pub fn output(&self) -> Output {
        let config = self.config.iter().map(|file| ("--config", file.display().to_string()));
        // Without a key the text may be a secret.
        let is_secret =
            |set: &str| set.split_once('=').is_none_or(|(key, _)| is_secret_key(key.trim()));
        let is_shown = |set: &&String| !is_secret(set) && redact_url(set) == **set;
        let set = self.set.iter().filter(is_shown).map(|set| ("--set", set.clone()));
        let flags = config.chain(set).map(|(flag, value)| format!("{flag} {} ", quoted(&value)));
        let server = self.internal_url.iter().map(|url| format!(" --internal-url {}", quoted(url)));
        Output { json: self.json, flags: flags.collect(), server: server.collect() }
    }

    /// The layers this command's settings are read from.
    pub fn sources(&self) -> ConfigSources {
        ConfigSources::process(self.config.clone(), self.set.clone())
    }

    /// As [`Self::loaded_for`].
    pub fn settings_for(&self, sections: &[&str]) -> Result<Settings, config::Error> {
        self.loaded_for(sections).map(|loaded| loaded.settings)
    }

    /// The settings; fails only for faults of keys in `sections`: an operator who pauses a sale
    /// need not be able to read the server's other secrets.
    pub fn loaded_for(&self, sections: &[&str]) -> Result<LoadedSettings, config::Error> {
        let mut loaded = LoadedSettings::read(&self.sources())?;
        let is_relevant = |key: &str| sections.iter().any(|section| key.starts_with(section));
        loaded.faults.retain(|fault| is_relevant(&fault.key));
        loaded.without_faults()
    }

    /// `floodgate check-config`: prints the effective configuration, the origin of each key, and
    /// every fault; fails with [`config::Error`] when it has faults.
    pub fn check(&self) -> anyhow::Result<Exit> {
        let output = Output::new(self.json);
        let loaded = match LoadedSettings::read(&self.sources()) {
            Ok(loaded) => loaded,
            Err(error) => {
                output.data(&json!({ "faults": error.0 }), String::new)?;
                return Err(error.into());
            }
        };
        let mut data = loaded.effective.to_json();
        if let Some(fields) = data.as_object_mut() {
            fields.insert("faults".to_owned(), json!(loaded.faults));
        }
        output.data(&data, || loaded.effective.to_toml())?;
        loaded.without_faults()?;
        output.note("the configuration is valid");
        Ok(Exit::Done)
    }
}
