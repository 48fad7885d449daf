//! `floodgate trace`: every stage that holds one request.

use clap::Args;
use serde_json::Value as Json;

use super::admin::{CALL_TIMEOUT, Error, ServerArgs};
use super::common::Common;
use super::exit::{CommandFailure, Exit};
use super::output::{Output, cells, field, list, number, on_one_line, table};

/// Limit of one text outside the table, in characters.
const TEXT_CHARS: usize = 200;

/// Limit of the next step, in characters.
const NEXT_CHARS: usize = 500;

const EXAMPLES: &str = "\
Examples:
  floodgate trace 7212345678901234567-0-AbCdEf...   as the buyer has it
  floodgate trace 7212345678901234567               or its number
  floodgate trace 7212345678901234567-1             or its message, as in `dlq list`
";

/// Show every stage of one request, and the next step: 0 = found, 1 = not found, 2 = not every
/// stage could be read
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct TraceArgs {
    /// The request's id, its number, or the id of the message that it is the first of
    request_id: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Calls the running server.
pub async fn run(args: &TraceArgs, common: &Common) -> anyhow::Result<Exit> {
    let (client, output) = args.server.connect(common)?;
    let path = ["requests", &args.request_id, "trace"];
    let trace = client.get(&path, CALL_TIMEOUT).await.map_err(with_remedy)?;
    output.data(&trace, || render(&output, &trace))?;
    let is_unread = |stage| field(stage, "state") == "unknown";
    Ok(if list(&trace, "stages").iter().any(is_unread) { Exit::Unclear } else { Exit::Done })
}

fn with_remedy(error: Error) -> CommandFailure {
    error.into_failure_with(|error| match error {
        Error::Refused { status: 404, .. } => Some(
            "no stage that could be read has it. After a loss of Redis, messages in a queue \
             cannot be traced: wait until the order queues are empty (`floodgate sale show`) and \
             trace again; if it is still not found, the buyer may buy again",
        ),
        Error::Refused { .. } => Some(
            "give the id that the buyer has, the number in front of it, or MESSAGE of `dlq list`",
        ),
        Error::Unknown { .. } => Some("repeat it: a trace changes nothing"),
        _ => None,
    })
}

fn render(output: &Output, trace: &Json) -> String {
    let named = [
        ("request", "request"),
        ("sale", "sale_id"),
        ("SKU", "sku_id"),
        ("buyer", "buyer_id"),
        ("trace", "trace_id"),
    ];
    let named: Vec<String> = named
        .into_iter()
        .map(|(title, name)| (title, field(trace, name)))
        .filter(|(_, value)| value != "-")
        .map(|(title, value)| format!("{title} {}", on_one_line(&value, TEXT_CHARS)))
        .collect();
    let names = ["stage", "state", "at", "holder", "quantity", "says", "reason"];
    let rows = list(trace, "stages").iter().map(|stage| cells(stage, &names));
    let heading = ["STAGE", "STATE", "AT", "WITH", "UNITS", "SAYS", "REASON"];
    let took = number(trace, "took_ms");
    let took = took.map(|ms| format!("took {ms} ms from the click to the ledger\n"));
    let (named, table, took) = (named.join(", "), table(&heading, rows), took.unwrap_or_default());
    let next = output.with_flags(&on_one_line(&field(trace, "next"), NEXT_CHARS));
    format!("{named}\n\n{table}\n{took}{next}\n")
}
