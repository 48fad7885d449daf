//! One operation on dead letters: one by one, or on all that a filter matches.

use clap::Args;
use serde_json::{Value as Json, json};

use super::filter::FilterArgs;
use super::render::render_results;
use super::{dead_letters, operation_failure, show_page};
use crate::cli::admin::{AdminClient, CALL_TIMEOUT, Error, given};
use crate::cli::exit::{CommandFailure, Exit};
use crate::cli::output::{Output, field, next_cursor, number};

/// Dead letters in one call of a verb on all that match.
const STEP: u64 = 50;

/// Dead letters that a dry run shows.
const SHOWN: &str = "50";

/// The dead letters that a verb is for.
#[derive(Debug, Args)]
pub(super) struct Selection {
    /// Their numbers
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,
    /// All that match the filter
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: FilterArgs,
    /// With --all: how many match; another number changes nothing
    #[arg(long, value_name = "NUMBER", conflicts_with = "dry_run")]
    expected: Option<u64>,
    /// With --all: show which match and how many, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// With --all: most dead letters of this run; `--cursor` continues
    #[arg(long, value_name = "NUMBER", requires = "expected",
          value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// With --all: cursor at the end of the previous run
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

impl Selection {
    /// Applies the verb to the selected dead letters and prints what was done.
    pub(super) async fn run(
        &self,
        client: &AdminClient,
        output: Output,
        verb: &str,
        reason: Option<&str>,
    ) -> anyhow::Result<Exit> {
        let is_for_all = self.dry_run
            || self.expected.is_some()
            || self.cursor.is_some()
            || !self.filter.is_empty();
        if is_for_all && !self.all {
            let problem = "a filter, --expected, --dry-run, --max and --cursor go with --all";
            return Err(CommandFailure::unclear(problem, "give numbers alone, or --all").into());
        }
        if self.dry_run {
            return self.show(client, output).await;
        }
        let has_reason = reason.is_some_and(|reason| !reason.trim().is_empty());
        if !has_reason && (self.all || verb == "discard") {
            let problem = "a discard, and a verb on all that match, need a reason";
            return Err(CommandFailure::unclear(problem, "give --reason").into());
        }
        let mut run = Run::default();
        let ended = if self.all {
            let Some(expected) = self.expected else {
                let remedy = "--dry-run tells how many match; give that number";
                return Err(CommandFailure::unclear("--all needs --expected", remedy).into());
            };
            if !self.filter.query().iter().any(|(name, _)| *name == "state") {
                return Err(CommandFailure::unclear(
                    "a verb takes --state open or parked",
                    "give one",
                )
                .into());
            }
            run.all(client, self, verb, reason, expected).await
        } else {
            run.each(client, &self.ids, verb, &given([("reason", json!(reason))])).await
        };
        run.end(output, ended)
    }

    /// Prints what would be changed.
    async fn show(&self, client: &AdminClient, output: Output) -> anyhow::Result<Exit> {
        let mut query = self.filter.query();
        query.push(("limit", SHOWN));
        query.extend(self.cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let page = client.ask(&["dead-letters"], &query, CALL_TIMEOUT).await;
        let page = page.map_err(operation_failure)?;
        let exit = show_page(&output, &page)?;
        let num = field(&page, "num_matching");
        output
            .note(&format!("{num} match, nothing was changed: --expected {num} --reason WHY does"));
        Ok(exit)
    }
}

/// The results of one run over dead letters.
#[derive(Debug, Default)]
struct Run {
    num_requested: usize,
    results: Vec<Json>,
    /// The cursor for the next run, unless this run reached the last dead letter.
    next_cursor: Option<String>,
    /// How many match from that cursor on: what the next run or step expects.
    num_left: u64,
}

impl Run {
    /// Applies `verb` to each dead letter; stops at the first call without a usable answer.
    async fn each(
        &mut self,
        client: &AdminClient,
        ids: &[String],
        verb: &str,
        body: &Json,
    ) -> Result<(), CommandFailure> {
        self.num_requested += ids.len();
        for id in ids {
            match client.post(&["dead-letters", id, verb], body, CALL_TIMEOUT).await {
                Ok(answer) => self.results.push(json!({
                    "id": id,
                    "done": field(&answer, "done"),
                    "state": answer.get("dead_letter").map(|it| field(it, "state")),
                })),
                Err(error) => {
                    if error.is_about_one() || is_broker_away(&error) {
                        self.results.push(json!({ "id": id, "refused": error.to_string() }));
                    } else if may_be_done(&error) {
                        self.results.push(json!({ "id": id, "unknown": error.to_string() }));
                    }
                    if !error.is_about_one() {
                        // The next call would fail in the same way.
                        return Err(operation_failure(error));
                    }
                }
            }
        }
        Ok(())
    }

    /// Applies the verb to all that match, step by step. Each step tells how many are left for the
    /// next one.
    async fn all(
        &mut self,
        client: &AdminClient,
        selection: &Selection,
        verb: &str,
        reason: Option<&str>,
        expected: u64,
    ) -> Result<(), CommandFailure> {
        self.next_cursor.clone_from(&selection.cursor);
        self.num_left = expected;
        let mut room = selection.max.unwrap_or(u64::MAX);
        self.num_requested = usize::try_from(expected.min(room)).unwrap_or(usize::MAX);
        while room > 0 {
            let cursor = self.next_cursor.take();
            let mut filter = selection.filter.query();
            filter.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let body = json!({
                "filter": filter.into_iter().collect::<Json>(),
                "expected_count": self.num_left,
                "max": room.min(STEP),
                "reason": reason,
            });
            let step = client.post(&["dead-letters", verb], &body, None).await;
            let step = step.map_err(operation_failure)?;
            self.results.extend(dead_letters(&step).iter().cloned());
            self.num_left = number(&step, "num_left").unwrap_or(0);
            if let Some(why) = step.get("stopped").and_then(Json::as_str) {
                // The dead letters that the step did not reach match from its own cursor on.
                self.next_cursor = cursor;
                let remedy = "`floodgate doctor` checks broker and ledger; then begin again";
                return Err(CommandFailure::unclear(format!("stopped: {why}"), remedy));
            }
            self.next_cursor = next_cursor(&step).map(str::to_owned);
            if self.next_cursor.is_none() {
                return Ok(());
            }
            room = room.saturating_sub(dead_letters(&step).len().max(1) as u64);
        }
        Ok(())
    }

    /// Prints each result and the counts; the exit is [`Exit::Negative`] if any was refused, or
    /// that of the failure that stopped the run early.
    fn end(self, output: Output, ended: Result<(), CommandFailure>) -> anyhow::Result<Exit> {
        let summary = self.summary();
        output.data(&summary, || render_results(&summary))?;
        if let Some(next) = &self.next_cursor {
            let num_left = self.num_left;
            output.note(&format!("there are more: --cursor {next} --expected {num_left}"));
        }
        ended?;
        Ok(if field(&summary, "num_refused") == "0" { Exit::Done } else { Exit::Negative })
    }

    fn summary(&self) -> Json {
        let results = &self.results;
        let count = |done: &str| results.iter().filter(|one| field(one, "done") == done).count();
        let having = |name: &str| results.iter().filter(|one| one.get(name).is_some()).count();
        let mut summary = json!({
            "dead_letters": results,
            "num_published": count("published"),
            "num_resolved": count("resolved"),
            "num_parked": count("parked"),
            "num_discarded": count("discarded"),
            "num_already": count("already"),
            "num_refused": having("refused"),
            "num_unknown": having("unknown"),
            "num_not_tried": self.num_requested.saturating_sub(results.len()),
        });
        if let (Some(next), Some(members)) = (&self.next_cursor, summary.as_object_mut()) {
            members.insert("next_cursor".to_owned(), json!(next));
            members.insert("num_left".to_owned(), json!(self.num_left));
        }
        summary
    }
}

/// Whether the broker certainly did not take the message.
fn is_broker_away(error: &Error) -> bool {
    matches!(error, Error::Unable { code, .. } if code == "broker-away")
}

/// Whether the server may have carried out the operation despite this error.
fn may_be_done(error: &Error) -> bool {
    matches!(error, Error::Unknown { .. } | Error::Unable { .. } | Error::NotFloodgate { .. })
}
