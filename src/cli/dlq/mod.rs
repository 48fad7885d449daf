//! `floodgate dlq`: lists, shows, replays, parks and discards dead letters.

use clap::{Args, Subcommand};
use serde_json::Value as Json;

use super::admin::{CALL_TIMEOUT, Error, ServerArgs};
use super::common::Common;
use super::exit::{CommandFailure, Exit};
use super::output::{Output, list, next_cursor};

mod actions;
mod filter;
mod render;

use actions::Selection;
use filter::FilterArgs;
use render::{render_dead_letter, render_list};

const EXAMPLES: &str = "\
Examples:
  floodgate dlq list                           open dead letters, newest first
  floodgate dlq list --contains 'no sale has' --until 1h
  floodgate dlq show 17                        its reason, bytes and orders
  floodgate dlq replay 17 18                   publish them again
  floodgate dlq replay --all --origin relay --dry-run
  floodgate dlq replay --all --origin relay --expected 40 --reason 'the queue is mended'
  floodgate dlq park 19 --reason 'another party, see mail of 3 May'
  floodgate dlq discard 20 --reason 'the shop cancelled the event'
";

/// See, replay, park, discard dead letters: 0 = done, 1 = some were refused, 2 = no answer, or some
/// cannot be read
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct DlqArgs {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List dead letters
    #[command(before_help = "Examples:\n  floodgate dlq list\n  \
                             floodgate dlq list --state all --origin consumer --limit 200\n  \
                             floodgate dlq list --sale spring --sku phone --order oldest\n")]
    List {
        #[command(flatten)]
        filter: FilterArgs,
        /// Which come first
        #[arg(long, default_value = "newest", value_parser = ["newest", "oldest"])]
        order: String,
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
                             floodgate dlq replay --all --origin relay --dry-run\n  \
                             floodgate dlq replay --all --expected 40 --reason 'mended'\n")]
    Replay(ActionArgs),
    /// Set dead letters aside; they can still be replayed or discarded
    #[command(before_help = "Examples:\n  floodgate dlq park 19 --reason 'a test of the shop'\n")]
    Park(ActionArgs),
    /// End requests as failed: their buyers read `failed`, the units are on sale again; orders stay
    #[command(before_help = "Examples:\n  \
                             floodgate dlq discard 20 --reason 'the shop cancelled the event'\n  \
                             floodgate dlq discard 20 21 --reason 'test orders' --json\n")]
    Discard(ActionArgs),
}

#[derive(Debug, Args)]
struct ActionArgs {
    #[command(flatten)]
    selection: Selection,
    /// Why; recorded with who did it
    #[arg(long)]
    reason: Option<String>,
}

/// Calls the running server.
pub async fn run(args: &DlqArgs, common: &Common) -> anyhow::Result<Exit> {
    let (client, output) = args.server.connect(common)?;
    let (ActionArgs { selection, reason }, verb) = match &args.verb {
        Verb::List { filter, order, limit, cursor } => {
            let (mut query, limit) = (filter.query(), limit.to_string());
            query.extend([("order", order.as_str()), ("limit", &limit)]);
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page = client.ask(&["dead-letters"], &query, CALL_TIMEOUT).await;
            let page = page.map_err(operation_failure)?;
            let exit = show_page(&output, &page)?;
            if let Some(next) = next_cursor(&page) {
                output.note(&format!("there are more: --cursor {next}"));
            }
            return Ok(exit);
        }
        Verb::Show { id } => {
            let answer = client.get(&["dead-letters", id], CALL_TIMEOUT).await;
            let dead_letter = answer.map_err(operation_failure)?;
            output.data(&dead_letter, || render_dead_letter(&output, &dead_letter))?;
            return Ok(Exit::Done);
        }
        Verb::Replay(action) => (action, "replay"),
        Verb::Park(action) => (action, "park"),
        Verb::Discard(action) => (action, "discard"),
    };
    selection.run(&client, output, verb, reason.as_deref()).await
}

/// What to do about a row that cannot be read; its error names the columns.
const ROW_REMEDY: &str = "back the ledger up, then correct the named columns; if a newer \
    version wrote them, run that one";

/// Prints a page; the exit is [`Exit::Unclear`] if a dead letter of it cannot be read.
fn show_page(output: &Output, page: &Json) -> anyhow::Result<Exit> {
    output.data(page, || render_list(page))?;
    if list(page, "unreadable").is_empty() {
        return Ok(Exit::Done);
    }
    output.note(ROW_REMEDY);
    Ok(Exit::Unclear)
}

/// The exit code and the next step for the operator.
fn operation_failure(error: Error) -> CommandFailure {
    error.into_failure_with(|error| match error {
        Error::Refused { code, .. } => match code.as_str() {
            "other-count" => {
                Some("--dry-run shows those that match now; nothing of this step was changed")
            }
            "unknown-dead-letter" => Some("`floodgate dlq list --state all` shows all of them"),
            "dead-letter-unreadable" => Some(ROW_REMEDY),
            "no-broker" => Some("settle it at the payment provider, then park or discard it"),
            _ => None,
        },
        Error::Unknown { .. } => {
            Some("`floodgate dlq list` shows what is open; repeats do no harm")
        }
        Error::Unable { status: 503, .. } => {
            Some("`floodgate doctor` checks broker and ledger; then repeat it: repeats do no harm")
        }
        _ => None,
    })
}

fn dead_letters(page: &Json) -> &[Json] {
    list(page, "dead_letters")
}
