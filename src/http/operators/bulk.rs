//! Verbs on all dead letters that a filter matches, in steps.
//!
//! A step takes a page of the list, in its order, and tells the cursor of the next step. The
//! operator says how many dead letters there are to be: one that came or went meanwhile refuses the
//! step. May repeat: each verb is idempotent per dead letter, and those that a step has changed do
//! not match its filter any more.

use actix_web::HttpResponse;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::dead_letter_filter::{DeadLettersQuery, LIMIT_MAX};
use super::dead_letters::Verb;
use super::verbs::{VERB_BYTES_MAX, record};
use crate::domain::{ByOperator, DeadLetterNo, DeadLetterState, VerbSubject};
use crate::http::middleware::body::{JsonObject, UnreadCall};
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::middleware::watch::give_result;
use crate::http::state::{HttpState, State};
use crate::services::dead_letters::{DeadLetterError, DeadLetterOutcome};

/// Body of a verb in bulk.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkBody {
    /// As the query of the list: `cursor` is `next_cursor` of the previous step.
    #[schema(value_type = DeadLettersQuery)]
    filter: JsonObject<DeadLettersQuery>,
    /// The number of dead letters that match from the cursor on: `num_matching` of the list, or
    /// `num_left` of the previous step.
    expected_count: u64,
    /// Most dead letters of this step: 1 to 500. Default: `limit` of the filter.
    #[schema(minimum = 1, maximum = 500)]
    max: Option<u32>,
    /// Recorded with who did it, and the note of those that are parked or discarded; at most 1000
    /// characters.
    reason: Option<String>,
}

/// What a step did.
#[derive(Debug, Serialize, ToSchema)]
pub struct BulkView {
    /// Each dead letter of the step, oldest first.
    dead_letters: Vec<BulkItemView>,
    /// Dead letters that still match: from the next cursor on, or from the same one after a stop.
    num_left: u64,
    /// Cursor of the next step; absent after the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// Why the step ended early: broker or ledger do not answer. The dead letters that it did not
    /// reach still match; repeat the step with the new number.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped: Option<String>,
}

/// What became of one dead letter.
#[derive(Debug, Serialize, ToSchema)]
pub struct BulkItemView {
    id: String,
    /// As the answer to the same verb on this dead letter.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    done: Option<DeadLetterOutcome>,
    /// The state afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<DeadLetterState>,
    /// Why it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// Defines the handlers, one per verb.
macro_rules! bulk_handlers {
    ($($(#[$doc:meta])* $handler:ident $path:literal $id:literal => $verb:ident;)+) => {$(
        $(#[$doc])*
        #[utoipa::path(
            post, path = $path, tag = "operators", operation_id = $id,
            request_body = BulkBody,
            responses((status = 200, description = "what this step did", body = BulkView)),
        )]
        pub async fn $handler(mut call: UnreadCall, state: State) -> Handled {
            let mut body: BulkBody = call.body(VERB_BYTES_MAX).await?;
            if body.max.is_some_and(|max| !(1..=LIMIT_MAX).contains(&max)) {
                return Err(Problem::invalid(format!("max must be from 1 to {LIMIT_MAX}")));
            }
            body.filter.0.limit = body.max.or(body.filter.0.limit);
            body.filter.0.state.get_or_insert(DeadLetterState::Open);
            let by = call.by(body.reason.clone())?;
            let filter = body.filter.0.text();
            let done: BulkView = step(&state, Verb::$verb, &body, by).await?;
            give_result(&call.request, format!("{filter}: {}", done.summary()));
            Ok(HttpResponse::Ok().json(done))
        }
    )+};
}

bulk_handlers! {
    /// Replays dead letters that match, a page of them at a time.
    replay "/admin/v1/dead-letters/replay" "adminReplayDeadLetters" => Replay;
    /// Parks dead letters that match, a page of them at a time.
    park "/admin/v1/dead-letters/park" "adminParkDeadLetters" => Park;
    /// Discards dead letters that match, a page of them at a time.
    discard "/admin/v1/dead-letters/discard" "adminDiscardDeadLetters" => Discard;
}

async fn step(
    state: &HttpState,
    verb: Verb,
    body: &BulkBody,
    by: Option<ByOperator>,
) -> Result<BulkView, Problem> {
    let (query, reason) = (&body.filter.0, body.reason.as_deref());
    if !query.state.is_some_and(DeadLetterState::holds_requests) {
        return Err(Problem::invalid("state must be open or parked"));
    }
    let (limit, filter) = (query.limit()?, query.filter(state)?);
    let ledger = &state.deps.ledger;
    // Before the count: a dead letter that is stored between the two refuses the step.
    let page = ledger.dead_letter_page(filter.clone(), limit).await?;
    let actual = ledger.num_dead_letters(filter).await?;
    let expected = body.expected_count;
    if actual != expected {
        let detail = format!("{actual} dead letters match, {expected} were expected.");
        let problem = Problem::from(ProblemCode::OtherCount).with_detail(detail);
        return Err(problem.with("actual", actual));
    }
    let last = page.last().map(|(no, _)| no.to_string());
    let mut numbers: Vec<DeadLetterNo> = page.into_iter().map(|(no, _)| no).collect();
    numbers.sort_unstable();
    let (dead_letters, stopped) = run_each(state, verb, &numbers, reason).await?;
    let done = dead_letters.iter().filter(|item| item.is_done());
    let done = done.filter_map(|item| item.id.parse().ok()).map(DeadLetterNo);
    let subjects: Vec<VerbSubject> = done.map(VerbSubject::DeadLetter).collect();
    record(state, &subjects, verb.name(), by).await;
    let num_gone = match stopped {
        None => numbers.len(),
        Some(_) => dead_letters.iter().filter(|item| item.has_left(query.state)).count(),
    };
    let num_left = actual.saturating_sub(num_gone as u64);
    let next_cursor = last.filter(|_| num_left > 0 && stopped.is_none());
    Ok(BulkView { dead_letters, num_left, next_cursor, stopped })
}

impl BulkView {
    fn summary(&self) -> String {
        let num_done = self.dead_letters.iter().filter(|item| item.is_done()).count();
        let num_refused = self.dead_letters.iter().filter(|item| item.refused.is_some()).count();
        let stopped = self.stopped.as_deref().map_or_else(String::new, |why| format!(": {why}"));
        format!("{num_done} done, {num_refused} refused, {} left{stopped}", self.num_left)
    }
}

impl BulkItemView {
    fn is_done(&self) -> bool {
        self.done.is_some_and(|done| done != DeadLetterOutcome::Already)
    }

    fn has_left(&self, state: Option<DeadLetterState>) -> bool {
        self.state.is_some() && self.state != state
    }
}

/// Runs the verb on each; ends at the first error that the next one would meet, too.
///
/// # Errors
/// `no-broker`: this process does not replay the first one; nothing was done.
async fn run_each(
    state: &HttpState,
    verb: Verb,
    numbers: &[DeadLetterNo],
    reason: Option<&str>,
) -> Result<(Vec<BulkItemView>, Option<String>), Problem> {
    let mut items = Vec::with_capacity(numbers.len());
    for no in numbers {
        let (done, refused) = match verb.run(state, *no, reason).await {
            Ok(done) => (Some(done), None),
            Err(error @ DeadLetterError::NoBroker) if items.is_empty() => return Err(error.into()),
            Err(error) if is_of_all(&error) => return Ok((items, Some(error.to_string()))),
            Err(error) => (None, Some(error.to_string())),
        };
        let (done, after) = done.map(|(outcome, dead_letter)| (outcome, dead_letter.state)).unzip();
        items.push(BulkItemView { id: no.to_string(), done, state: after, refused });
    }
    Ok((items, None))
}

/// Whether an error is that of the broker or the ledger, not of one dead letter.
fn is_of_all(error: &DeadLetterError) -> bool {
    match error {
        DeadLetterError::NoBroker
        | DeadLetterError::PublishRefused { .. }
        | DeadLetterError::NotConfirmed { .. }
        | DeadLetterError::Ledger(_) => true,
        DeadLetterError::Unknown(_)
        | DeadLetterError::NotReplayable { .. }
        | DeadLetterError::Replayed
        | DeadLetterError::Discarded
        | DeadLetterError::Changed
        | DeadLetterError::Ordered
        | DeadLetterError::Unreadable
        | DeadLetterError::UnreadableRow(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_leaves_the_filter_with_its_state() {
        let item = |state| BulkItemView { id: String::new(), done: None, state, refused: None };
        let open = Some(DeadLetterState::Open);
        for (state, has_left) in
            [(None, false), (open, false), (Some(DeadLetterState::Parked), true)]
        {
            assert_eq!(item(state).has_left(open), has_left, "{state:?}");
        }
    }
}
