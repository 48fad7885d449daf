//! `floodgate dlq`: lists, shows, replays, parks and discards dead letters.

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};

use super::admin::{AdminClient, CALL_TIMEOUT, Error, ServerArgs};
use super::common::Common;
use super::exit::{CommandFailure, Exit};
use super::output::{Output, list};
use crate::domain::{DeadLetterOrigin, DeadLetterState};

mod actions;
mod render;

use actions::Run;
use render::{render_dead_letter, render_list};

/// Upper limit of `--max`; the next run continues with `--cursor`.
const REPLAY_MAX: u32 = 500;

const EXAMPLES: &str = "\
Examples:
  floodgate dlq list                           open dead letters, newest first
  floodgate dlq show 17                        its reason, bytes and orders
  floodgate dlq replay 17 18                   publish them again
  floodgate dlq replay --all --origin relay --max 100
  floodgate dlq park 19 --note 'another party, see mail of 3 May'
  floodgate dlq discard 20 --reason 'the shop cancelled the event'
";

/// See, replay, park, discard dead letters: 0 = done, 1 = some were refused, 2 = no answer
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct DlqArgs {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List dead letters, newest first
    #[command(before_help = "Examples:\n  floodgate dlq list\n  \
                             floodgate dlq list --state all --origin consumer --limit 200\n")]
    List {
        /// Only those in this state
        #[arg(long, value_parser = PossibleValuesParser::new(states()), default_value = "open")]
        state: String,
        /// Only those that this component gave up
        #[arg(long, value_parser = PossibleValuesParser::new(origins()))]
        origin: Option<String>,
        /// Most dead letters to show
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
        limit: u32,
        /// Cursor at the end of the previous page
        #[arg(long, value_name = "CURSOR")]
        cursor: Option<String>,
    },
    /// Show one dead letter with its bytes, and the orders in it
    #[command(before_help = "Examples:\n  floodgate dlq show 17\n  \
                             floodgate dlq show 17 --json | jq -r .body | base64 -d\n")]
    Show {
        /// Its number, as in `dlq list`
        id: String,
    },
    /// Publish dead letters again; a request that already has an order gets no second one
    #[command(before_help = "Examples:\n  floodgate dlq replay 17 18\n  \
                             floodgate dlq replay --all --origin relay --max 100\n")]
    Replay {
        /// Their numbers
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        ids: Vec<String>,
        /// Open ones, until --max are published: page by page from the newest, in each page the
        /// oldest first
        #[arg(long)]
        all: bool,
        /// With --all: only those that this component gave up
        #[arg(long, value_parser = PossibleValuesParser::new(origins()), requires = "all")]
        origin: Option<String>,
        /// With --all: most dead letters to replay; refused ones do not count
        #[arg(long, default_value_t = 100, requires = "all",
              value_parser = clap::value_parser!(u32).range(1..=i64::from(REPLAY_MAX)))]
        max: u32,
        /// With --all: cursor at the end of the previous run
        #[arg(long, value_name = "CURSOR", requires = "all")]
        cursor: Option<String>,
    },
    /// Set dead letters aside; they can still be replayed or discarded
    #[command(before_help = "Examples:\n  floodgate dlq park 19 --note 'a test of the shop'\n")]
    Park {
        /// Their numbers
        #[arg(required = true)]
        ids: Vec<String>,
        /// Why, for other operators
        #[arg(long)]
        note: Option<String>,
    },
    /// End requests as failed: their buyers read `failed`, the units are on sale again; orders stay
    #[command(before_help = "Examples:\n  \
                             floodgate dlq discard 20 --reason 'the shop cancelled the event'\n  \
                             floodgate dlq discard 20 21 --json\n")]
    Discard {
        /// Their numbers
        #[arg(required = true)]
        ids: Vec<String>,
        /// Why, for other operators
        #[arg(long)]
        reason: Option<String>,
    },
}

fn origins() -> [&'static str; 3] {
    DeadLetterOrigin::ALL.map(DeadLetterOrigin::name)
}

fn states() -> Vec<&'static str> {
    DeadLetterState::ALL.into_iter().map(DeadLetterState::name).chain(["all"]).collect()
}

/// Calls the running server.
pub async fn run(args: &DlqArgs, common: &Common) -> anyhow::Result<Exit> {
    let (client, output) = args.server.connect(common)?;
    let (ids, verb, body) = match &args.verb {
        Verb::List { state, origin, limit, cursor } => {
            let page =
                get_page(&client, state, origin.as_deref(), *limit, cursor.as_deref()).await?;
            output.data(&page, || render_list(&page))?;
            note_next_cursor(output, next_cursor(&page));
            return Ok(Exit::Done);
        }
        Verb::Show { id } => {
            let answer = client.get(&["dead-letters", id], CALL_TIMEOUT).await;
            let dead_letter = answer.map_err(operation_failure)?;
            output.data(&dead_letter, || render_dead_letter(&dead_letter))?;
            return Ok(Exit::Done);
        }
        Verb::Replay { all: true, origin, max, cursor, .. } => {
            let mut run = Run::default();
            let ended = run.replay_open(&client, origin.as_deref(), *max, cursor.clone()).await;
            return run.end(output, ended);
        }
        Verb::Replay { ids, .. } => (ids, "replay", json!({})),
        Verb::Park { ids, note } => (ids, "park", body("note", note.as_ref())),
        Verb::Discard { ids, reason } => (ids, "discard", body("reason", reason.as_ref())),
    };
    let mut run = Run::default();
    let ended = run.each(&client, ids, verb, &body).await;
    run.end(output, ended)
}

fn body(name: &str, text: Option<&String>) -> Json {
    text.map_or_else(|| json!({}), |text| json!({ name: text }))
}

fn note_next_cursor(output: Output, next: Option<&str>) {
    if let Some(next) = next {
        output.note(&format!("there are more: --cursor {next}"));
    }
}

async fn get_page(
    client: &AdminClient,
    state: &str,
    origin: Option<&str>,
    limit: u32,
    cursor: Option<&str>,
) -> Result<Json, CommandFailure> {
    let limit = limit.to_string();
    let query: Vec<(&str, &str)> = [
        ("state", Some(state).filter(|state| *state != "all")),
        ("origin", origin),
        ("limit", Some(limit.as_str())),
        ("cursor", cursor),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect();
    client.ask(&["dead-letters"], &query, CALL_TIMEOUT).await.map_err(operation_failure)
}

/// The exit code and the next step for the operator.
fn operation_failure(error: Error) -> CommandFailure {
    let remedy = match &error {
        Error::Refused { status: 404, .. } => "`floodgate dlq list --state all` shows all of them",
        Error::Unknown { .. } => "`floodgate dlq list` shows what is open; repeats do no harm",
        Error::Unable { status: 503, .. } => {
            "`floodgate doctor` checks broker and ledger; then repeat it: repeats do no harm"
        }
        _ => return error.into_failure(),
    };
    CommandFailure { remedy: remedy.to_owned(), ..error.into_failure() }
}

fn dead_letters(page: &Json) -> &[Json] {
    list(page, "dead_letters")
}

fn next_cursor(page: &Json) -> Option<&str> {
    page.get("next_cursor").and_then(Json::as_str)
}
