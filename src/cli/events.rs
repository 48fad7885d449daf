//! `floodgate events`: the feed of order events.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value as Json;

use super::admin::{Error, ServerArgs};
use super::common::Common;
use super::exit::{CommandFailure, Exit};
use super::output::{field, short_cells};

/// Events per call.
const PAGE: &str = "500";

/// How long the server waits for an event, in milliseconds, with `--follow`.
const FOLLOW_WAIT_MS: &str = "20000";

/// Longer than the server waits.
const PAGE_TIMEOUT: Option<Duration> = Some(Duration::from_secs(40));

/// Limit of one text, in characters.
const TEXT_CHARS: usize = 200;

const EXAMPLES: &str = "\
Examples:
  floodgate events tail                        every event so far
  floodgate events tail --after 1000 --follow  those after number 1000, and those to come
  floodgate events tail --json | jq -c 'select(.type == \"order.paid\")'
";

/// Read the feed of order events: 0 = read to its end, 1 = refused, 2 = no answer
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct EventsArgs {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the events after a number, in their order; with --json one CloudEvent per line
    #[command(before_help = EXAMPLES)]
    Tail {
        /// Number of the last event to leave out
        #[arg(long, value_name = "N", default_value_t = 0,
              value_parser = clap::value_parser!(i64).range(0..))]
        after: i64,
        /// Wait for more events instead of ending, until Ctrl-C
        #[arg(long)]
        follow: bool,
    },
}

/// Calls the running server.
pub async fn run(args: &EventsArgs, common: &Common) -> anyhow::Result<Exit> {
    let (client, output) = args.server.connect(common)?;
    let Verb::Tail { after, follow } = &args.verb;
    let mut after = after.to_string();
    let wait_ms = if *follow { FOLLOW_WAIT_MS } else { "0" };
    loop {
        let query = [("after", after.as_str()), ("limit", PAGE), ("wait_ms", wait_ms)];
        let page = client.ask(&["order-events"], &query, PAGE_TIMEOUT).await;
        let page = page.map_err(|error| match error {
            Error::Refused { .. } => error.into_failure(),
            error => going_on(error.into_failure(), &after),
        })?;
        let page: &[Json] = page.as_array().map_or(&[], Vec::as_slice);
        if page.is_empty() && !follow {
            output.note(&format!("end of the feed; later ones: --after {after}"));
            return Ok(Exit::Done);
        }
        for event in page {
            let has_reader = output.data(event, || render(event));
            if !has_reader.map_err(|error| not_written(error, &after))? {
                return Ok(Exit::Done);
            }
            after = field(event, "sequence");
        }
    }
}

/// The event on one line.
fn render(event: &Json) -> String {
    let cells = |of, names: &[&str]| short_cells(of, names, TEXT_CHARS);
    let mut row = cells(event, &["sequence", "time", "type"]);
    let data = event.get("data").unwrap_or(&Json::Null);
    // A refused request is no order.
    let order = data.get("order").or_else(|| data.get("request")).unwrap_or(&Json::Null);
    row.extend(cells(order, &["request_id", "sale_id", "sku_id", "buyer_id", "quantity"]));
    row.extend(cells(data, &["actor", "reason"]));
    row.join("  ")
}

fn not_written(error: anyhow::Error, after: &str) -> anyhow::Error {
    error.downcast().map_or_else(|other| other, |failure| going_on(failure, after).into())
}

fn going_on(failure: CommandFailure, after: &str) -> CommandFailure {
    CommandFailure { remedy: format!("{}; go on with --after {after}", failure.remedy), ..failure }
}
