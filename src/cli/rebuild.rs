//! `floodgate rebuild`: reloads buckets from the ledger without a restart.

use std::time::Duration;

use clap::Args;
use serde_json::{Value as Json, json};

use super::admin::{Error, ServerArgs};
use super::common::Common;
use super::exit::{CommandFailure, Exit};
use super::output::list;

/// Long, because a large sale is read from the ledger row by row.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(600);

const EXAMPLES: &str = "\
Examples:
  floodgate rebuild --sale spring                 every SKU of the sale
  floodgate rebuild --sale spring --sku phone     one of them
  floodgate rebuild --sale spring --sku phone --bucket 3 --reason 'doctor names it'
";

/// Reload the buckets of a sale in Redis from the ledger, without a restart
///
/// Buyers get `busy` for a moment, and accepted requests stay accepted. 0 = loaded and open, 1 = no
/// such sale, it has no buckets, or the ledger is behind them, 2 = outcome unknown: see `floodgate
/// doctor`
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct RebuildArgs {
    /// The sale's id
    #[arg(long, value_name = "ID")]
    sale: String,
    /// Only this SKU of it
    #[arg(long, value_name = "ID")]
    sku: Option<String>,
    /// Only SKUs with this bucket; all buckets of a SKU are loaded together, because the ledger
    /// counts units by SKU
    #[arg(long, value_name = "NUMBER")]
    bucket: Option<u16>,
    /// Why; recorded with who did it
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Calls the running server.
pub async fn run(args: &RebuildArgs, common: &Common) -> anyhow::Result<Exit> {
    let (client, output) = args.server.connect(common)?;
    let body = json!({ "sku_id": args.sku, "bucket": args.bucket, "reason": args.reason });
    let path = ["sales", &args.sale, "rebuild"];
    let rebuilt = client.post(&path, &body, Some(REBUILD_TIMEOUT)).await;
    let rebuilt = rebuilt.map_err(|error| with_remedy(error, &args.sale))?;
    output.data(&rebuilt, || {
        let names: Vec<_> = list(&rebuilt, "skus").iter().filter_map(Json::as_str).collect();
        format!("sale {} is rebuilt from the ledger: {}", args.sale, names.join(", "))
    })?;
    output.note(&format!("check it: floodgate audit --sale {}", args.sale));
    Ok(Exit::Done)
}

fn with_remedy(error: Error, sale: &str) -> CommandFailure {
    let later_epoch =
        format!("`floodgate sale open {sale}` takes a later epoch and loads the buckets");
    error.into_failure_with(|error| match error {
        Error::Refused { code, .. } if code == "ledger-behind" => Some(later_epoch.as_str()),
        Error::Refused { status: 409, .. } => Some(
            "there is nothing to rebuild: the sale is a draft, not prepared yet or long over, or \
             its tier keeps its counts inside the process (restart that process)",
        ),
        Error::Unable { .. } | Error::Unknown { .. } => Some(
            "the maintenance role goes on with it, unless `floodgate doctor` fails on the buckets; \
             see its log, and whether ledger and Redis answer; repeats do no harm",
        ),
        _ => None,
    })
}
