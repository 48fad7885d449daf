//! `floodgate serve`: runs the server.

use clap::Args;
use clap::builder::PossibleValue;
use serde_json::json;

use super::common::Common;
use super::exit::Exit;
use super::open_files;
use super::output::Output;
use crate::app::{self, BoundAddresses};
use crate::config::{AuthMode, Settings};
use crate::observe::telemetry;

const EXAMPLES: &str = "\
Examples:
  floodgate serve                              tier memory, ./floodgate.db, loopback only
  floodgate serve --config floodgate.toml
  floodgate serve --config floodgate.toml --role relay    one part of tier pipeline
  FLOODGATE__HTTP__BIND=127.0.0.1:0 floodgate serve --set log.filter=debug
";

/// The names of [`crate::config::Role`].
fn roles() -> [PossibleValue; 5] {
    let [all, api, relay, consumer, maintenance] =
        ["all", "api", "relay", "consumer", "maintenance"].map(PossibleValue::new);
    [all, api, relay, consumer, maintenance.alias("keeper")]
}

/// Run the server until SIGINT or SIGTERM
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct ServeArgs {
    /// Which part of the pipeline this process runs; the same as --set role=ROLE
    #[arg(long, value_parser = roles())]
    role: Option<String>,
    /// `--json` also makes the log JSON.
    #[command(flatten)]
    common: Common,
}

/// Runs the server until it has stopped.
pub fn run(args: &ServeArgs) -> anyhow::Result<Exit> {
    let settings = settings(args)?;
    telemetry::init(&settings.log)?;
    if settings.role.sells() {
        open_files::raise(settings.http.connections_max);
    }
    warn_of_unsafe_settings(&settings);
    let output = args.common.output();
    app::run(settings, |listening| announce(output, listening))?;
    Ok(Exit::Done)
}

/// Prints the `listening` line that scripts and tests wait for, and logs it.
fn announce(output: Output, BoundAddresses { public, internal }: BoundAddresses) {
    let shown = public.map_or_else(|| "none".to_owned(), |public| public.to_string());
    tracing::info!(public = %shown, %internal, "listening");
    let data = json!({ "listening": { "public": public, "internal": internal } });
    if let Err(error) =
        output.data(&data, || format!("listening public={shown} internal={internal}"))
    {
        tracing::error!(%error, "listening addresses: cannot be printed");
    }
}

fn settings(args: &ServeArgs) -> Result<Settings, crate::config::Error> {
    let mut sources = args.common.sources();
    if args.common.json {
        // Inserted first, so that an explicit --set log.format overrides it.
        sources.set.insert(0, "log.format=json".to_owned());
    }
    sources.set.extend(args.role.iter().map(|role| format!("role={role}")));
    Settings::load(&sources)
}

fn warn_of_unsafe_settings(settings: &Settings) {
    if settings.role.sells() && settings.auth.mode == AuthMode::Header {
        tracing::warn!(
            "auth.mode is \"header\": X-Buyer-Id is not verified; for development and tests only"
        );
    }
    if settings.faults.panic_percent > 0.0 {
        tracing::warn!(
            panic_in = ?settings.faults.panic_in,
            panic_percent = settings.faults.panic_percent,
            "fault injection is on: components will panic on purpose"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LogFormat, Role};

    fn args(json: bool, set: &[&str], role: Option<&str>) -> ServeArgs {
        let set = set.iter().map(|&pair| pair.to_owned()).collect();
        let role = role.map(str::to_owned);
        ServeArgs { role, common: Common { json, set, config: None } }
    }

    #[test]
    fn json_makes_the_log_json_unless_log_format_is_set() {
        assert_eq!(settings(&args(true, &[], None)).unwrap().log.format, LogFormat::Json);
        let explicit = settings(&args(true, &["log.format=text"], None)).unwrap();
        assert_eq!(explicit.log.format, LogFormat::Text);
    }

    #[test]
    fn every_value_of_the_role_flag_is_a_role() {
        let roles = roles();
        for role in roles.iter().flat_map(PossibleValue::get_name_and_aliases) {
            match settings(&args(false, &["role=all"], Some(role))) {
                Ok(settings) => assert_eq!(settings.role, Role::All),
                Err(error) => {
                    assert!(error.to_string().contains("role: role `"), "{error}");
                }
            }
        }
    }
}
