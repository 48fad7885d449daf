//! Flags of every command.

use std::path::PathBuf;

use clap::Args;

use super::output::Output;
use crate::config::{self, ConfigSources, LoadedSettings, Settings};

/// Flags of every command.
#[derive(Debug, Clone, Default, Args)]
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
}

impl Common {
    pub fn output(&self) -> Output {
        Output::new(self.json)
    }

    /// The layers this command's settings are read from.
    pub fn sources(&self) -> ConfigSources {
        ConfigSources::process(self.config.clone(), self.set.clone())
    }

    /// The settings; fails when any key has a fault.
    pub fn settings(&self) -> Result<Settings, config::Error> {
        Settings::load(&self.sources())
    }

    /// The settings; fails only for faults of keys in `sections`: an operator who pauses a sale
    /// need not be able to read the server's other secrets.
    pub fn settings_for(&self, sections: &[&str]) -> Result<Settings, config::Error> {
        let LoadedSettings { settings, faults, .. } = LoadedSettings::read(&self.sources())?;
        let relevant: Vec<_> = faults
            .into_iter()
            .filter(|fault| sections.iter().any(|section| fault.key.starts_with(section)))
            .collect();
        if relevant.is_empty() { Ok(settings) } else { Err(config::Error(relevant)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_other_sections_do_not_stop_an_operator() {
        let common = Common {
            set: vec!["auth.jwt_secret_file=/nowhere/secret".into()],
            ..Common::default()
        };
        assert!(common.settings().is_err());
        assert!(common.settings_for(&["admin.", "internal."]).is_ok());
        let error = common.settings_for(&["auth."]).err().unwrap();
        assert!(error.to_string().contains("/nowhere/secret"), "{error}");
    }
}
