//! Stores pending dead letters in the ledger.

use std::time::{Duration, Instant};

use super::CollectorDeps;
use crate::actors::dead_letter_collector::failure_policy::{
    AfterFailure, RETRY_ASIDE_AFTER, after_failure, batch_len,
};
use crate::db;
use crate::domain::{NewDeadLetter, StoreDeadLetterOutcome};

/// Time after which a round starts no further transaction.
const ROUND_MAX: Duration = Duration::from_secs(5);

/// A dead letter that is not stored yet, and its source.
pub(super) struct PendingDeadLetter<T> {
    pub(super) dead_letter: NewDeadLetter,
    pub(super) source: T,
    failures: u32,
    /// Set if the ledger rejected it: the time of the next attempt.
    aside_until: Option<Instant>,
}

impl<T> PendingDeadLetter<T> {
    pub(super) fn new(dead_letter: NewDeadLetter, source: T) -> Self {
        Self { dead_letter, source, failures: 0, aside_until: None }
    }
}

pub(super) struct StoreOutcome<T> {
    /// Sources of the stored dead letters.
    pub(super) stored: Vec<T>,
    /// Why the ledger is unavailable; the remaining dead letters stay pending.
    pub(super) unavailable: Option<db::Error>,
}

/// Stores the pending dead letters that are due. Those that the ledger rejects stay pending, set
/// aside for [`RETRY_ASIDE_AFTER`].
pub(super) async fn store<T>(
    deps: &CollectorDeps,
    pending: &mut Vec<PendingDeadLetter<T>>,
) -> StoreOutcome<T> {
    let begun = deps.clock.now();
    let (mut due, aside): (Vec<_>, Vec<_>) =
        pending.drain(..).partition(|it| it.aside_until.is_none_or(|until| until <= begun));
    *pending = aside;
    let mut round = StoreOutcome { stored: Vec::new(), unavailable: None };
    let mut one_by_one = 0_usize;
    while !due.is_empty() && deps.clock.now().duration_since(begun) < ROUND_MAX {
        let sizes = due.iter().map(|it| it.dead_letter.body.len());
        let len = if one_by_one > 0 { 1 } else { batch_len(sizes) };
        let mut batch: Vec<PendingDeadLetter<T>> = due.drain(..len).collect();
        one_by_one = one_by_one.saturating_sub(1);
        let dead_letters = batch.iter().map(|it| it.dead_letter.clone()).collect();
        match deps.ledger.store_dead_letters(dead_letters, deps.clock.wall_ms()).await {
            Ok(outcomes) => {
                report_stored(deps, &batch, &outcomes);
                round.stored.extend(batch.into_iter().map(|it| it.source));
            }
            Err(error) => {
                deps.metrics.ledger_error(error.class());
                let ledger_answers = deps.ledger.ping().await.is_ok();
                let size = batch.len();
                if let [single] = batch.as_mut_slice() {
                    single.failures += u32::from(ledger_answers);
                }
                let failures = batch.first().map_or(0, |it| it.failures);
                match after_failure(error.class(), ledger_answers, size, failures) {
                    AfterFailure::OneByOne => {
                        one_by_one = size;
                        due.splice(0..0, batch);
                    }
                    AfterFailure::SetAside => {
                        set_aside(deps, &mut batch, &error);
                        pending.append(&mut batch);
                    }
                    AfterFailure::Hold => {
                        pending.append(&mut batch);
                        round.unavailable = Some(error);
                        break;
                    }
                }
            }
        }
    }
    pending.append(&mut due);
    round
}

/// Counts and logs each dead letter once, when it is stored or opened again: an operator must act.
fn report_stored<T>(
    deps: &CollectorDeps,
    batch: &[PendingDeadLetter<T>],
    outcomes: &[StoreDeadLetterOutcome],
) {
    for (PendingDeadLetter { dead_letter, .. }, outcome) in batch.iter().zip(outcomes) {
        if *outcome == StoreDeadLetterOutcome::AlreadyStored {
            continue;
        }
        deps.metrics.dead_letter(dead_letter.origin);
        tracing::error!(
            origin = dead_letter.origin.name(),
            reason = dead_letter.reason,
            message_id = dead_letter.message_id,
            requests = dead_letter.requests.len(),
            again = *outcome == StoreDeadLetterOutcome::Reopened,
            "dead letter stored, see `floodgate dlq list`"
        );
    }
}

fn set_aside<T>(deps: &CollectorDeps, batch: &mut [PendingDeadLetter<T>], error: &db::Error) {
    for PendingDeadLetter { dead_letter, failures, aside_until, .. } in batch {
        *failures = 0;
        *aside_until = Some(deps.clock.now() + RETRY_ASIDE_AFTER);
        deps.metrics.dead_letters_refused.inc();
        tracing::error!(
            origin = dead_letter.origin.name(),
            reason = dead_letter.reason,
            message_id = dead_letter.message_id,
            error = error as &dyn std::error::Error,
            "the ledger refuses a dead letter, retrying"
        );
    }
}
