//! `floodgate check-config`: the effective configuration, the origin of each key, and every fault.

use clap::Args;
use serde_json::json;

use super::common::Common;
use super::exit::Exit;
use crate::config::{Error, LoadedSettings};

const EXAMPLES: &str = "\
Examples:
  floodgate check-config                           every key with its default
  floodgate check-config --config floodgate.toml   exit 3 and every fault if it is wrong
  floodgate check-config --json | jq .origins      who set what
";

/// Show the effective configuration, secrets hidden, and every fault of it
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct CheckConfigArgs {
    #[command(flatten)]
    common: Common,
}

/// Prints the effective configuration; fails with [`Error`] when it has faults.
pub fn run(args: &CheckConfigArgs) -> anyhow::Result<Exit> {
    let output = args.common.output();
    let loaded = match LoadedSettings::read(&args.common.sources()) {
        Ok(loaded) => loaded,
        Err(error) => {
            if output.is_json() {
                output.data(&json!({ "faults": error.0 }), String::new)?;
            }
            return Err(error.into());
        }
    };
    let mut data = loaded.effective.to_json();
    if let Some(fields) = data.as_object_mut() {
        fields.insert("faults".to_owned(), json!(loaded.faults));
    }
    output.data(&data, || loaded.effective.to_toml())?;
    if loaded.faults.is_empty() {
        output.note("the configuration is valid");
        Ok(Exit::Done)
    } else {
        Err(Error(loaded.faults).into())
    }
}
