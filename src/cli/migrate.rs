//! `floodgate migrate`: runs the ledger's pending migrations.

use clap::Args;
use serde_json::json;

use super::common::Common;
use super::exit::Exit;
use crate::config::redact_url;
use crate::tier;

const EXAMPLES: &str = "\
Examples:
  floodgate migrate --config floodgate.toml    safe to repeat; stop the server first
  floodgate migrate --set ledger.url=sqlite:///var/lib/floodgate/floodgate.db
";

/// Bring the ledger's schema up to date
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct MigrateArgs {
    #[command(flatten)]
    common: Common,
}

/// Runs the pending migrations.
pub fn run(args: &MigrateArgs) -> anyhow::Result<Exit> {
    let settings = args.common.settings_for(&["ledger."])?;
    let ran = tier::migrate(&settings)?;
    let ledger = redact_url(&settings.ledger.url);
    args.common.output().data(&json!({ "ledger": ledger, "migrations_run": ran }), || {
        if ran.is_empty() {
            format!("{ledger}: the schema is up to date")
        } else {
            format!("{ledger}: ran {}", ran.join(", "))
        }
    })?;
    Ok(Exit::Done)
}
