//! `floodgate dlq`: the dead letters of relay, consumer and broker.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value as Json, json};

use super::admin::{AdminClient, Error, With};
use super::exit::{Exit, Failure};
use super::output::table;
use super::sale::field;

/// One letter is published and confirmed, or not, within this time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most letters that one command replays; the next one goes on.
const AT_ONCE_MAX: u32 = 500;

/// Characters of a reason in a table.
const REASON_CHARS: usize = 60;

const EXAMPLES: &str = "\
Examples:
  floodgate dlq list                           what waits for you, newest first
  floodgate dlq show 17                        why, with its bytes and orders
  floodgate dlq replay 17 18                   put them on their way again
  floodgate dlq replay --all --origin relay --max 100
  floodgate dlq park 19 --note 'another party, see mail of 3 May'
";

/// See dead letters, replay them, set them aside: 0 = done, 1 = some were refused, 2 = no answer
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct DlqArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List dead letters, newest first
    #[command(before_help = "Examples:\n  floodgate dlq list\n  \
                             floodgate dlq list --state all --origin consumer --limit 200\n")]
    List {
        /// Only those in this state
        #[arg(long, value_enum, default_value_t = StateArg::Open)]
        state: StateArg,
        /// Only those that this part of the way gave up
        #[arg(long, value_enum)]
        origin: Option<OriginArg>,
        /// Most letters to show
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
        limit: u32,
        /// Where the page before ended
        #[arg(long, value_name = "CURSOR")]
        cursor: Option<String>,
        #[command(flatten)]
        with: With,
    },
    /// Show one dead letter with its bytes, and the orders in it
    #[command(before_help = "Examples:\n  floodgate dlq show 17\n  \
                             floodgate dlq show 17 --json | jq -r .body | base64 -d\n")]
    Show {
        /// Its number
        id: String,
        #[command(flatten)]
        with: With,
    },
    /// Put dead letters on their way again; whoever has an order meanwhile gets no second one
    #[command(before_help = "Examples:\n  floodgate dlq replay 17 18\n  \
                             floodgate dlq replay --all --origin relay --max 100\n")]
    Replay {
        /// Their numbers
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        ids: Vec<String>,
        /// Every open one, oldest of the newest first, up to --max
        #[arg(long)]
        all: bool,
        /// With --all: only those that this part of the way gave up
        #[arg(long, value_enum, requires = "all")]
        origin: Option<OriginArg>,
        /// With --all: most letters to replay
        #[arg(long, default_value_t = 100, requires = "all",
              value_parser = clap::value_parser!(u32).range(1..=i64::from(AT_ONCE_MAX)))]
        max: u32,
        #[command(flatten)]
        with: With,
    },
    /// Set dead letters aside for good; they can still be replayed
    #[command(before_help = "Examples:\n  floodgate dlq park 19 --note 'a test of the shop'\n")]
    Park {
        /// Their numbers
        #[arg(required = true)]
        ids: Vec<String>,
        /// Why, for whoever comes next
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        with: With,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StateArg {
    Open,
    Replayed,
    Parked,
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OriginArg {
    Relay,
    Consumer,
    Broker,
    Unroutable,
}

/// The word of a value, as the API has it.
fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Carries out one verb.
///
/// # Errors
/// The server refused, did not answer, or the request makes no sense.
pub async fn run(args: &DlqArgs) -> anyhow::Result<Exit> {
    match &args.verb {
        Verb::List { state, origin, limit, cursor, with } => {
            let page = page(&with.client()?, *state, *origin, *limit, cursor.as_deref()).await?;
            with.output().data(&page, || render_list(&page))?;
            if let Some(next) = page.get("next_cursor").and_then(Json::as_str) {
                with.output().note(&format!("there are more: --cursor {next}"));
            }
            Ok(Exit::Done)
        }
        Verb::Show { id, with } => {
            let asked = with.client()?.get(&["dead-letters", id], Some(PATIENCE)).await;
            let letter = asked.map_err(explain)?;
            with.output().data(&letter, || render_letter(&letter))?;
            Ok(Exit::Done)
        }
        Verb::Replay { ids, all, origin, max, with } => {
            let client = with.client()?;
            let ids = if *all { open_ones(&client, *origin, *max).await? } else { ids.clone() };
            each(&client, with, &ids, "replay", &json!({})).await
        }
        Verb::Park { ids, note, with } => {
            let body = note.as_ref().map_or_else(|| json!({}), |note| json!({ "note": note }));
            each(&with.client()?, with, ids, "park", &body).await
        }
    }
}

async fn page(
    client: &AdminClient,
    state: StateArg,
    origin: Option<OriginArg>,
    limit: u32,
    cursor: Option<&str>,
) -> anyhow::Result<Json> {
    let (state, limit) = ((state != StateArg::All).then(|| word(state)), limit.to_string());
    let origin = origin.map(word);
    let query: Vec<(&str, &str)> = [
        ("state", state.as_deref()),
        ("origin", origin.as_deref()),
        ("limit", Some(limit.as_str())),
        ("cursor", cursor),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect();
    Ok(client.ask(&["dead-letters"], &query, Some(PATIENCE)).await.map_err(explain)?)
}

/// Open letters, older ones first.
async fn open_ones(
    client: &AdminClient,
    origin: Option<OriginArg>,
    max: u32,
) -> anyhow::Result<Vec<String>> {
    let page = page(client, StateArg::Open, origin, max, None).await?;
    Ok(letters(&page).iter().rev().map(|letter| field(letter, "id")).collect())
}

/// Does the same to each letter, until the server stops answering; tells what each came to.
async fn each(
    client: &AdminClient,
    with: &With,
    ids: &[String],
    verb: &str,
    body: &Json,
) -> anyhow::Result<Exit> {
    let mut results = Vec::new();
    let mut failed = None;
    for id in ids {
        match client.post(&["dead-letters", id, verb], body, Some(PATIENCE)).await {
            Ok(answer) => results.push(json!({
                "id": id,
                "done": field(&answer, "done"),
                "state": answer.get("dead_letter").map(|letter| field(letter, "state")),
            })),
            Err(error @ Error::Refused { .. }) => {
                results.push(json!({ "id": id, "refused": error.to_string() }));
            }
            // Neither will the next one be answered.
            Err(error) => {
                failed = Some(explain(error));
                break;
            }
        }
    }
    let summary = summary(&results, ids.len());
    with.output().data(&summary, || render_results(&summary))?;
    match failed {
        Some(failure) => Err(failure.into()),
        None if field(&summary, "num_refused") == "0" => Ok(Exit::Done),
        None => Ok(Exit::Negative),
    }
}

fn summary(results: &[Json], num_asked: usize) -> Json {
    let count = |of: &str| results.iter().filter(|one| field(one, "done") == of).count();
    let num_refused = results.iter().filter(|one| one.get("refused").is_some()).count();
    json!({
        "dead_letters": results,
        "num_published": count("published"),
        "num_resolved": count("resolved"),
        "num_parked": count("parked"),
        "num_already": count("already"),
        "num_refused": num_refused,
        "num_not_tried": num_asked - results.len(),
    })
}

/// The exit and the next step for a person.
fn explain(error: Error) -> Failure {
    let remedy = match &error {
        Error::Refused { status: 404, .. } => "`floodgate dlq list --state all` shows every letter",
        Error::Unknown { .. } => "`floodgate dlq list` shows what is open; repeats do no harm",
        _ => return error.into_failure(),
    };
    Failure { remedy: remedy.to_owned(), ..error.into_failure() }
}

fn letters(page: &Json) -> &[Json] {
    page.get("dead_letters").and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

fn render_list(page: &Json) -> String {
    let counts = page.get("counts").cloned().unwrap_or_default();
    let count = |state: &str| field(&counts, state);
    let total = format!(
        "{} open, {} replayed, {} parked",
        count("open"),
        count("replayed"),
        count("parked")
    );
    let rows: Vec<Vec<String>> = letters(page)
        .iter()
        .map(|letter| {
            let mut row: Vec<String> =
                ["id", "state", "origin", "attempts", "dead_at", "message_id"]
                    .iter()
                    .map(|name| field(letter, name))
                    .collect();
            row.push(on_one_line(&field(letter, "reason"), REASON_CHARS));
            row
        })
        .collect();
    if rows.is_empty() {
        return format!("none of these ({total})");
    }
    let heading = ["ID", "STATE", "ORIGIN", "ATTEMPTS", "DEAD AT", "MESSAGE", "REASON"];
    format!("{}\n{total}\n", table(&heading, &rows))
}

/// Other parties write reasons and ids, too: nothing in them moves the cursor of a terminal.
fn on_one_line(text: &str, max: usize) -> String {
    let shown: String =
        text.chars().map(|c| if c.is_control() { '.' } else { c }).take(max).collect();
    if text.chars().count() > max { format!("{shown}..") } else { shown }
}

fn render_letter(letter: &Json) -> String {
    let line = |name: &str| on_one_line(&field(letter, name), 2000);
    let mut shown = format!("dead letter {} ({})\n\n", line("id"), line("state"));
    for (title, name) in [
        ("given up by", "origin"),
        ("reason", "reason"),
        ("at", "dead_at"),
        ("attempts", "attempts"),
        ("arrivals", "arrivals"),
        ("message", "message_id"),
        ("headers", "headers"),
        ("bytes", "body_bytes"),
        ("begins with", "preview"),
        ("note", "note"),
    ] {
        shown.push_str(&format!("{title:<12} {}\n", line(name)));
    }
    let intents = letter.get("intents").and_then(Json::as_array).cloned().unwrap_or_default();
    if !intents.is_empty() {
        let names = ["request", "sale_id", "sku_id", "buyer_id", "quantity", "amount", "asked_at"];
        let row = |intent| names.iter().map(|name| field(intent, name)).collect();
        let rows: Vec<Vec<String>> = intents.iter().map(row).collect();
        let heading = ["REQUEST", "SALE", "SKU", "BUYER", "UNITS", "AMOUNT", "ACCEPTED"];
        shown.push_str(&format!("\n{}", table(&heading, &rows)));
    }
    let next = match letter.get("why_not").and_then(Json::as_str) {
        None => format!("next: floodgate dlq replay {}", line("id")),
        Some(why) => format!("it cannot be replayed: {}", on_one_line(why, 500)),
    };
    format!("{shown}\n{next}\n")
}

fn render_results(summary: &Json) -> String {
    let mut shown = String::new();
    for one in letters(summary) {
        let id = field(one, "id");
        match one.get("refused").and_then(Json::as_str) {
            Some(why) => shown.push_str(&format!("letter {id}: refused: {why}\n")),
            None if field(one, "done") == "published" && field(one, "state") != "replayed" => shown
                .push_str(&format!(
                    "letter {id}: published, and it is {} again\n",
                    field(one, "state")
                )),
            None => shown.push_str(&format!("letter {id}: {}\n", field(one, "done"))),
        }
    }
    let counted: Vec<String> = [
        ("num_published", "published"),
        ("num_resolved", "resolved (their requests had ended)"),
        ("num_parked", "parked"),
        ("num_already", "were so already"),
        ("num_refused", "refused"),
        ("num_not_tried", "not tried"),
    ]
    .into_iter()
    .filter(|(name, _)| field(summary, name) != "0")
    .map(|(name, what)| format!("{} {what}", field(summary, name)))
    .collect();
    if counted.is_empty() {
        return "nothing to do: no open letter".to_owned();
    }
    format!("{shown}{}\n", counted.join(", "))
}

#[cfg(test)]
#[path = "dlq_tests.rs"]
mod tests;
