//! `floodgate trace`: every stage that holds one request.

use std::time::Duration;

use clap::Args;
use serde_json::Value as Json;

use super::admin::{AdminArgs, Error};
use super::exit::{CommandFailure, Exit};
use super::output::{field, list, on_one_line, table};

/// Long, because finding a request in an outbox reads the whole queue.
const TRACE_TIMEOUT: Duration = Duration::from_secs(30);

/// Limit of one text outside the table, in characters.
const TEXT_CHARS: usize = 200;

const EXAMPLES: &str = "\
Examples:
  floodgate trace 7212345678901234567-0-AbCdEf...   as the buyer has it
  floodgate trace 7212345678901234567               or its number
";

/// Show every stage of one request, and the next step: 0 = found, 1 = not found, 2 = not every
/// stage could be read
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct TraceArgs {
    /// The request's id, or its number
    request_id: String,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Calls the running server.
pub async fn run(args: &TraceArgs) -> anyhow::Result<Exit> {
    let path = ["requests", &args.request_id, "trace"];
    let trace = args.admin.client()?.get(&path, Some(TRACE_TIMEOUT)).await.map_err(with_remedy)?;
    args.admin.output().data(&trace, || render(&trace))?;
    Ok(if unread_stages(&trace).is_empty() { Exit::Done } else { Exit::Unclear })
}

fn with_remedy(error: Error) -> CommandFailure {
    let remedy = match &error {
        Error::Refused { status: 404, .. } => {
            "no stage that could be read has it. After a loss of Redis, messages in a queue \
             cannot be traced: wait until the order queues are empty (`floodgate sale show`) and \
             trace again; if it is still not found, the buyer may buy again"
        }
        Error::Refused { .. } => "give the id that the buyer has, or the number in front of it",
        Error::Unknown { .. } => "repeat it: a trace changes nothing",
        _ => return error.into_failure(),
    };
    CommandFailure { remedy: remedy.to_owned(), ..error.into_failure() }
}

/// The stages that could not be read.
fn unread_stages(trace: &Json) -> Vec<String> {
    let unread_stages =
        list(trace, "stages").iter().filter(|stage| field(stage, "state") == "unknown");
    unread_stages.map(|stage| on_one_line(&field(stage, "stage"), TEXT_CHARS)).collect()
}

fn render(trace: &Json) -> String {
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
    let rows: Vec<Vec<String>> = list(trace, "stages")
        .iter()
        .map(|stage| names.iter().map(|name| field(stage, name)).collect())
        .collect();
    let heading = ["STAGE", "STATE", "AT", "WITH", "UNITS", "SAYS", "REASON"];
    let took = trace.get("took_ms").and_then(Json::as_u64);
    let took = took.map(|ms| format!("took {ms} ms from the click to the ledger\n"));
    let (named, table, took) = (named.join(", "), table(&heading, &rows), took.unwrap_or_default());
    format!("{named}\n\n{table}\n{took}{}\n", remedy(trace))
}

/// The operator's next step, by the request's last final stage, or by the stage it waits in.
fn remedy(trace: &Json) -> String {
    let unread_stages = unread_stages(trace);
    if !unread_stages.is_empty() {
        return format!(
            "next: `floodgate doctor` says why the {} cannot be read; nothing is lost, and waiting \
             requests go on when it is back",
            unread_stages.join(" and the ")
        );
    }
    let stages = list(trace, "stages");
    let find = |name: &str| stages.iter().rev().find(|stage| field(stage, "stage") == name);
    if let Some(ledger) = find("ledger") {
        return match field(ledger, "state").as_str() {
            "failed" => "done: it was refused, the reason is the answer, its units are back",
            _ => "done: it is an order; the same purchase sent again reads it",
        }
        .to_owned();
    }
    let dead = stages.iter().rev().find(|stage| field(stage, "state") == "dead");
    if let Some(dead) = dead {
        let holder = on_one_line(&field(dead, "holder"), TEXT_CHARS);
        return match holder.strip_prefix("dead letter ") {
            Some(no) => format!("next: floodgate dlq show {no}, then replay or park it"),
            None => {
                "wait: it becomes a dead letter within seconds; see `floodgate dlq list`".to_owned()
            }
        };
    }
    let last = stages.last().map(|stage| field(stage, "stage"));
    match last.as_deref() {
        Some("outbox") => {
            "wait: a relay takes it; if it stays: is a relay running, is the broker up?"
        }
        Some("relay") => "wait: its relay publishes it; if it stays: is the broker up?",
        Some("broker") => "wait: a consumer takes it; if it stays: is a consumer running?",
        Some("gate") => "wait: the ledger has not answered; if it stays: is the ledger up?",
        _ => "see docs/runbooks/order-stuck.md",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn trace(stages: Json) -> Json {
        json!({ "request": "9", "sku_id": "phone", "sale_id": null, "stages": stages })
    }

    #[test]
    fn stages_are_a_table_above_the_next_step() {
        let text = render(&trace(json!([
            { "stage": "gate", "says": "waits for the ledger", "state": "queued", "quantity": 1,
              "at": "2030-01-01T00:00:00.000Z" },
            { "stage": "relay", "says": "is being published", "state": "queued",
              "holder": "node-1/2" },
        ])));
        assert!(text.starts_with("request 9, SKU phone\n\nSTAGE  STATE   AT"), "{text}");
        assert!(text.contains("\nrelay  queued  -                         node-1/2  -"), "{text}");
        assert!(text.ends_with("is the broker up?\n"), "{text}");
    }

    #[test]
    fn untrusted_text_does_not_move_the_cursor() {
        let mut trace = trace(json!([{
            "stage": "dead_letter", "state": "dead", "holder": "dead letter 17\u{1b}[1A",
            "reason": "no such SKU\u{1b}[2J\nnext: all is well",
        }]));
        trace["trace_id"] = json!("4bf9\u{1b}[8m");
        let text = render(&trace);
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        assert!(text.contains("  no such SKU.[2J.next: all is well\n"), "{text}");
        assert!(text.contains("trace 4bf9.[8m\n"), "{text}");
    }

    #[test]
    fn a_request_that_is_not_found_may_still_be_in_a_queue() {
        let title = "No such request".to_owned();
        let failure = with_remedy(Error::Refused { status: 404, title, detail: None });
        assert_eq!(failure.exit, Exit::Negative);
        assert!(failure.remedy.contains("order queues are empty"), "{failure}");
    }

    #[test]
    fn a_finished_request_shows_how_long_it_took() {
        let mut trace = trace(json!([
            { "stage": "relay", "state": "published", "at": "2030-01-01T00:00:00.020Z" },
            { "stage": "ledger", "state": "pending_payment", "at": "2030-01-01T00:00:00.041Z" },
        ]));
        assert!(!render(&trace).contains("took"));
        trace["took_ms"] = json!(41);
        let text = render(&trace);
        assert!(text.contains("\nrelay   published        2030-01-01T00:00:00.020Z"), "{text}");
        assert!(text.contains("\n\ntook 41 ms from the click to the ledger\ndone: "), "{text}");
    }

    #[test]
    fn the_remedy_is_that_of_the_furthest_stage() {
        let gate = json!({ "stage": "gate", "state": "queued" });
        let of = |stage: Json| remedy(&trace(json!([gate, stage])));
        let ledger = |state: &str| json!({ "stage": "ledger", "state": state });
        assert!(of(ledger("paid")).contains("it is an order"));
        assert!(of(ledger("failed")).contains("refused"));
        let dead = json!({ "stage": "dead_letter", "state": "dead", "holder": "dead letter 17" });
        assert!(of(dead.clone()).contains("floodgate dlq show 17"));
        let at_relay = json!({ "stage": "dead_letter", "state": "dead" });
        assert!(of(at_relay).contains("becomes a dead letter"));
        let replayed = json!({ "stage": "dead_letter", "state": "replayed" });
        assert!(of(replayed).contains("docs/runbooks/order-stuck.md"));
        for stage in ["outbox", "relay", "broker"] {
            assert!(of(json!({ "stage": stage, "state": "queued" })).starts_with("wait:"));
        }
        let unread_stages =
            json!([gate, { "stage": "ledger", "state": "unknown", "reason": "down" }]);
        assert!(remedy(&trace(unread_stages)).contains("why the ledger cannot be read"));
        let both = json!([gate, dead, ledger("paid")]);
        assert!(remedy(&trace(both)).contains("it is an order"));
        assert!(remedy(&trace(json!([gate]))).contains("the ledger has not answered"));
    }
}
