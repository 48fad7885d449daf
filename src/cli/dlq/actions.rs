//! The same verb for one letter after the other.

use std::collections::HashSet;

use serde_json::{Value as Json, json};

use super::{PATIENCE, explain, letters, next_cursor, page, tell_more};
use crate::cli::admin::{AdminClient, Error, With};
use crate::cli::dlq::render::render_results;
use crate::cli::exit::{CommandFailure, Exit};
use crate::cli::output::field;

/// What a run over letters came to.
#[derive(Debug, Default)]
pub(super) struct Run {
    num_asked: usize,
    results: Vec<Json>,
    /// Why it ended before its end.
    pub(super) failed: Option<CommandFailure>,
    /// Where the next run goes on, if this one did not reach the last letter.
    pub(super) next_cursor: Option<String>,
}

impl Run {
    /// Does the same to each letter, until the server stops answering.
    pub(super) async fn each(
        &mut self,
        client: &AdminClient,
        ids: &[String],
        verb: &str,
        body: &Json,
    ) {
        self.num_asked += ids.len();
        for id in ids {
            let asked = client.post(&["dead-letters", id, verb], body, Some(PATIENCE)).await;
            match asked {
                Ok(answer) => self.results.push(json!({
                    "id": id,
                    "done": field(&answer, "done"),
                    "state": answer.get("dead_letter").map(|letter| field(letter, "state")),
                })),
                Err(error @ Error::Refused { .. }) => {
                    self.results.push(json!({ "id": id, "refused": error.to_string() }));
                }
                Err(error) => {
                    if may_be_done(&error) {
                        self.results.push(json!({ "id": id, "unknown": error.to_string() }));
                    }
                    // Neither will the next one be answered.
                    self.failed = Some(explain(error));
                    return;
                }
            }
        }
    }

    /// Replays open letters until `max` of them were published or had ended. A page holds no more
    /// than may still be replayed, so that every letter of it is tried and the cursor behind it is
    /// where the next run goes on. What dies again keeps its number, or is newer: it lies behind.
    pub(super) async fn replay_open(
        &mut self,
        client: &AdminClient,
        origin: Option<&str>,
        max: u32,
        from: Option<String>,
    ) {
        self.next_cursor = from;
        let mut seen = HashSet::new();
        loop {
            let room = max.saturating_sub(self.num_replayed());
            if room == 0 {
                return;
            }
            let cursor = self.next_cursor.take();
            let page = match page(client, "open", origin, room, cursor.as_deref()).await {
                Ok(page) => page,
                Err(failure) => {
                    self.failed = Some(failure);
                    return;
                }
            };
            let ids = letters(&page).iter().rev().map(|letter| field(letter, "id"));
            let ids: Vec<String> = ids.filter(|id| seen.insert(id.clone())).collect();
            self.each(client, &ids, "replay", &json!({})).await;
            if self.failed.is_some() || ids.is_empty() {
                return;
            }
            self.next_cursor = next_cursor(&page).map(str::to_owned);
            if self.next_cursor.is_none() {
                return;
            }
        }
    }

    fn num_replayed(&self) -> u32 {
        let is_replayed = |one: &&Json| matches!(&*field(one, "done"), "published" | "resolved");
        let num = self.results.iter().filter(is_replayed).count();
        u32::try_from(num).unwrap_or(u32::MAX)
    }

    /// Tells what each letter came to, and in sum.
    pub(super) fn end(self, with: &With) -> anyhow::Result<Exit> {
        let summary = self.summary();
        with.output().data(&summary, || render_results(&summary))?;
        tell_more(with, self.next_cursor.as_deref());
        match self.failed {
            Some(failure) => Err(failure.into()),
            None if field(&summary, "num_refused") == "0" => Ok(Exit::Done),
            None => Ok(Exit::Negative),
        }
    }

    pub(super) fn summary(&self) -> Json {
        let results = &self.results;
        let count = |of: &str| results.iter().filter(|one| field(one, "done") == of).count();
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
            "num_not_tried": self.num_asked.saturating_sub(results.len()),
        });
        if let (Some(next), Some(members)) = (&self.next_cursor, summary.as_object_mut()) {
            members.insert("next_cursor".to_owned(), json!(next));
        }
        summary
    }
}

/// Whether a letter may have been replayed, parked or discarded although the server did not say so.
fn may_be_done(error: &Error) -> bool {
    match error {
        Error::Unknown { .. } | Error::Unable { .. } | Error::Stranger { .. } => true,
        Error::Address(_) | Error::NoServer { .. } => false,
        Error::Token { .. } | Error::Refused { .. } => false,
    }
}

#[cfg(test)]
#[path = "actions_tests.rs"]
mod tests;
