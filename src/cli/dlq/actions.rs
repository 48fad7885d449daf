//! One operation, applied to dead letters one by one.

use std::collections::HashSet;

use serde_json::{Value as Json, json};

use super::render::render_results;
use super::{dead_letters, get_page, next_cursor, note_next_cursor, operation_failure};
use crate::cli::admin::{AdminClient, CALL_TIMEOUT, Error};
use crate::cli::exit::{CommandFailure, Exit};
use crate::cli::output::{Output, field};

/// The results of one run over dead letters.
#[derive(Debug, Default)]
pub(super) struct Run {
    num_requested: usize,
    results: Vec<Json>,
    /// The cursor for the next run, unless this run reached the last dead letter.
    next_cursor: Option<String>,
}

impl Run {
    /// Applies `verb` to each dead letter; stops at the first call without a usable answer.
    pub(super) async fn each(
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
                Err(error @ Error::Refused { .. }) => {
                    self.results.push(json!({ "id": id, "refused": error.to_string() }));
                }
                Err(error) => {
                    if is_broker_away(&error) {
                        self.results.push(json!({ "id": id, "refused": error.to_string() }));
                    } else if may_be_done(&error) {
                        self.results.push(json!({ "id": id, "unknown": error.to_string() }));
                    }
                    // The next call would fail in the same way.
                    return Err(operation_failure(error));
                }
            }
        }
        Ok(())
    }

    /// Replays open dead letters until `max` of them were published or resolved. A page has no more
    /// dead letters than may still be replayed: every one of it is tried, and its cursor is where
    /// the next run goes on. A replay that fails again keeps its number or gets a newer one, so the
    /// cursor is past it.
    pub(super) async fn replay_open(
        &mut self,
        client: &AdminClient,
        origin: Option<&str>,
        max: u32,
        from: Option<String>,
    ) -> Result<(), CommandFailure> {
        self.next_cursor = from;
        let mut seen = HashSet::new();
        loop {
            let room = max.saturating_sub(self.num_replayed());
            if room == 0 {
                return Ok(());
            }
            let cursor = self.next_cursor.take();
            let page = get_page(client, "open", origin, room, cursor.as_deref()).await?;
            let ids = dead_letters(&page).iter().rev().map(|it| field(it, "id"));
            let ids: Vec<String> = ids.filter(|id| seen.insert(id.clone())).collect();
            self.each(client, &ids, "replay", &json!({})).await?;
            self.next_cursor = next_cursor(&page).filter(|_| !ids.is_empty()).map(str::to_owned);
            if self.next_cursor.is_none() {
                return Ok(());
            }
        }
    }

    fn num_replayed(&self) -> u32 {
        let is_replayed =
            |result: &&Json| matches!(&*field(result, "done"), "published" | "resolved");
        let num = self.results.iter().filter(is_replayed).count();
        u32::try_from(num).unwrap_or(u32::MAX)
    }

    /// Prints each result and the counts; the exit is [`Exit::Negative`] if any was refused, or
    /// that of the failure that stopped the run early.
    pub(super) fn end(
        self,
        output: Output,
        ended: Result<(), CommandFailure>,
    ) -> anyhow::Result<Exit> {
        let summary = self.summary();
        output.data(&summary, || render_results(&summary))?;
        note_next_cursor(output, self.next_cursor.as_deref());
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
