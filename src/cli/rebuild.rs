//! `floodgate rebuild`: buckets from the ledger, while everything runs.

use std::time::Duration;

use clap::Args;
use serde_json::{Value as Json, json};

use super::admin::{Error, With};
use super::exit::{CommandFailure, Exit};
use super::output::list;

/// A large sale is read from the ledger row by row.
const PATIENCE: Duration = Duration::from_secs(600);

const EXAMPLES: &str = "\
Examples:
  floodgate rebuild --sale spring                 every article of the sale
  floodgate rebuild --sale spring --sku phone     one of them
";

/// Load the buckets of a sale in Redis from the ledger, while everything runs: buyers hear `busy`
/// for a moment, and what was accepted stays accepted. 0 = loaded and open, 1 = no such sale, or it
/// has no buckets, 2 = not known: the keepers go on with it
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct RebuildArgs {
    /// The sale's id
    #[arg(long, value_name = "ID")]
    sale: String,
    /// Only this article of it
    #[arg(long, value_name = "ID")]
    sku: Option<String>,
    #[command(flatten)]
    with: With,
}

/// Asks the running server.
pub async fn run(args: &RebuildArgs) -> anyhow::Result<Exit> {
    let body = args.sku.as_ref().map_or_else(|| json!({}), |sku| json!({ "sku_id": sku }));
    let path = ["sales", &args.sale, "rebuild"];
    let rebuilt = args.with.client()?.post(&path, &body, Some(PATIENCE)).await.map_err(explain)?;
    args.with.output().data(&rebuilt, || render(&args.sale, &rebuilt))?;
    args.with.output().note(&format!("check it: floodgate audit --sale {}", args.sale));
    Ok(Exit::Done)
}

fn render(sale: &str, rebuilt: &Json) -> String {
    let names: Vec<_> = list(rebuilt, "skus").iter().filter_map(Json::as_str).collect();
    format!("sale {sale} is rebuilt from the ledger: {}", names.join(", "))
}

fn explain(error: Error) -> CommandFailure {
    let remedy = match &error {
        Error::Refused { status: 409, .. } => {
            "there is nothing to rebuild: the sale is a draft, not prepared yet or long over, or \
             its tier keeps its counts inside the process (restart that process)"
        }
        Error::Unable { .. } | Error::Unknown { .. } => {
            "the keepers go on with it: see the log of a process with role all or maintenance, and \
             whether ledger and Redis answer; repeats do no harm"
        }
        _ => return error.into_failure(),
    };
    CommandFailure { remedy: remedy.to_owned(), ..error.into_failure() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_rebuilt_is_named() {
        let text = render("spring", &json!({ "sale_id": "spring", "skus": ["phone", "case"] }));
        assert_eq!(text, "sale spring is rebuilt from the ledger: phone, case");
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let refused = |status| Error::Refused { status, title: "no".into(), detail: None };
        assert_eq!(explain(refused(409)).exit, Exit::Negative);
        assert!(explain(refused(409)).remedy.contains("restart that process"));
        assert!(explain(refused(404)).remedy.contains("sale list"));
        let unable = Error::Unable { status: 503, title: "busy".into(), detail: None };
        assert_eq!(explain(unable).exit, Exit::Unclear);
    }
}
