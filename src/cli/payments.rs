//! `floodgate payments`: payments that wait for an operator.

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use serde_json::{Map, Value as Json, json};

use super::admin::{AdminClient, CALL_TIMEOUT, Error, ServerArgs};
use super::common::Common;
use super::exit::{CommandFailure, Exit};
use super::output::{Output, field, list, next_cursor, on_one_line, short_cells, table};
use crate::domain::PaymentState;

/// The lists of payments that wait for an operator, in the order of their printing.
const WAITING: [&str; 3] = ["refund_failed", "in_doubt", "unmatched"];

/// Limit of one table cell, in characters.
const CELL_CHARS: usize = 60;

/// The end of each verb's remedy.
const NO_HARM: &str = "; repeats do no harm";

const EXAMPLES: &str = "\
Examples:
  floodgate payments list                      those that wait for an operator
  floodgate payments list --state refund_due   refunds that are tried again
  floodgate payments retry 7-42-7212345678901234567-1
  floodgate payments resolve event:demo:evt_1 --reason 'refunded at the provider'
";

/// Payments that wait for an operator: 0 = done, 1 = refused, 2 = no answer
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct PaymentsArgs {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List payments: given-up refunds, payments in doubt, and reports of unknown payments
    #[command(before_help = "Examples:\n  floodgate payments list\n  \
                             floodgate payments list --state in_doubt --limit 200 --json\n")]
    List {
        /// Only those in this state
        #[arg(long, value_parser = PossibleValuesParser::new(states()))]
        state: Option<String>,
        /// Most payments of each state to show
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
        limit: u32,
        /// Cursor at the end of the previous page
        #[arg(long, value_name = "CURSOR", requires = "state")]
        cursor: Option<String>,
    },
    /// Try them now: make the refund, ask the provider, or look for the payment of a report
    #[command(before_help = "Examples:\n  \
                             floodgate payments retry 7-42-7212345678901234567-1\n  \
                             floodgate payments retry event:demo:evt_1\n")]
    Retry {
        /// Their ids, as in `payments list`
        #[arg(required = true)]
        ids: Vec<String>,
        /// Why; recorded with who did it
        #[arg(long)]
        reason: Option<String>,
    },
    /// Close reports of unknown payments whose money was settled elsewhere
    #[command(before_help = "Examples:\n  floodgate payments resolve event:demo:evt_1 \
                             --reason 'refunded at the provider'\n")]
    Resolve {
        /// Their ids, as in `payments list --state unmatched`
        #[arg(required = true)]
        ids: Vec<String>,
        /// How the money was settled; recorded with who did it
        #[arg(long)]
        reason: String,
    },
}

fn states() -> impl Iterator<Item = &'static str> {
    let known = PaymentState::ALL.into_iter().map(PaymentState::name);
    let others = WAITING.into_iter().chain(["resolved"]);
    known.chain(others.filter(|name| PaymentState::from_name(name).is_none()))
}

/// Calls the running server.
pub async fn run(args: &PaymentsArgs, common: &Common) -> anyhow::Result<Exit> {
    let (client, output) = args.server.connect(common)?;
    match &args.verb {
        Verb::List { state, limit, cursor } => {
            let (limit, cursor) = (limit.to_string(), cursor.as_deref());
            let states = state.as_deref().map_or(WAITING.to_vec(), |state| vec![state]);
            let (mut payments, mut cursors) = (Vec::new(), Map::new());
            for state in states {
                let mut query = vec![("state", state), ("limit", &limit)];
                query.extend(cursor.map(|cursor| ("cursor", cursor)));
                let page = client.ask(&["payments"], &query, CALL_TIMEOUT).await;
                let page = page.map_err(call_failure)?;
                payments.extend(list(&page, "payments").iter().cloned().map(|mut payment| {
                    // A payment in doubt is `started`: the list tells which of those these are.
                    if let Some(members) = payment.as_object_mut() {
                        members.insert("state".to_owned(), json!(state));
                    }
                    payment
                }));
                if let Some(next) = next_cursor(&page) {
                    output.note(&format!("there are more: --state {state} --cursor {next}"));
                    cursors.insert(state.to_owned(), json!(next));
                }
            }
            let shown = json!({ "payments": payments, "next_cursors": cursors });
            output.data(&shown, || render(list(&shown, "payments")))?;
            Ok(Exit::Done)
        }
        Verb::Retry { ids, reason } => each(&client, output, ids, "retry", json!(reason)).await,
        Verb::Resolve { ids, reason } => each(&client, output, ids, "resolve", json!(reason)).await,
    }
}

/// Calls a verb on each; stops at the first call without a usable answer.
async fn each(
    client: &AdminClient,
    output: Output,
    ids: &[String],
    verb: &str,
    reason: Json,
) -> anyhow::Result<Exit> {
    let body = json!({ "reason": reason });
    let (mut results, mut ended) = (Vec::new(), Ok(Exit::Done));
    for id in ids {
        match client.post(&["payments", id, verb], &body, CALL_TIMEOUT).await {
            Ok(answer) => results.push(json!({ "id": id, "done": field(&answer, "done") })),
            Err(error) if error.is_about_one() => {
                results.push(json!({ "id": id, "refused": error.to_string() }));
                ended = Ok(Exit::Negative);
            }
            Err(error) => {
                let mut failure = call_failure(error);
                if !failure.remedy.ends_with(NO_HARM) {
                    failure.remedy.push_str(NO_HARM);
                }
                ended = Err(failure);
                break;
            }
        }
    }
    let shown = json!({ "payments": results });
    output.data(&shown, || render_results(list(&shown, "payments")))?;
    if matches!(ended, Ok(Exit::Negative)) {
        output.note("`floodgate payments list` shows those that wait");
    }
    Ok(ended?)
}

/// The exit code and the next step for the operator.
fn call_failure(error: Error) -> CommandFailure {
    let remedy = "`floodgate payments list` shows what is open; repeats do no harm";
    error.into_failure_with(|error| matches!(error, Error::Unknown { .. }).then_some(remedy))
}

fn render(payments: &[Json]) -> String {
    if payments.is_empty() {
        return "no payment waits for an operator".to_owned();
    }
    let names = ["id", "state", "order_state", "payment_id", "amount", "currency", "reason"];
    let heading = ["ID", "STATE", "ORDER", "PAYMENT", "AMOUNT", "CURRENCY", "REASON"];
    table(&heading, payments.iter().map(|payment| short_cells(payment, &names, CELL_CHARS)))
}

fn render_results(results: &[Json]) -> String {
    let line = |result: &Json| {
        let outcome = match result.get("refused") {
            Some(_) => format!("refused: {}", field(result, "refused")),
            None => field(result, "done"),
        };
        let id = on_one_line(&field(result, "id"), CELL_CHARS);
        format!("payment {id}: {}\n", on_one_line(&outcome, 2 * CELL_CHARS))
    };
    results.iter().map(line).collect()
}
