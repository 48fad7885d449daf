//! Letters in hand on their way into the ledger.

use std::time::{Duration, Instant};

use super::CollectorDeps;
use crate::actors::dead_letter_collector::failure_policy::{
    ASIDE, AfterFailure, after_failure, batch_len,
};
use crate::db;
use crate::domain::{KeepOutcome, NewDeadLetter};

/// The longest time that storing may take before the lane looks up again.
const ROUND: Duration = Duration::from_secs(5);

/// A letter that is not in the ledger yet, and where it came from.
pub(super) struct PendingDeadLetter<T> {
    pub(super) letter: NewDeadLetter,
    pub(super) from: T,
    failures: u32,
    /// The ledger refused it; not to be tried before.
    aside_until: Option<Instant>,
}

impl<T> PendingDeadLetter<T> {
    pub(super) fn new(letter: NewDeadLetter, from: T) -> Self {
        Self { letter, from, failures: 0, aside_until: None }
    }
}

/// What storing came to.
pub(super) struct StoreOutcome<T> {
    /// Where the letters came from that the ledger has now.
    pub(super) kept: Vec<T>,
    /// The ledger is away; what is in hand stays there.
    pub(super) away: Option<db::Error>,
}

/// Stores what is in hand, as far as the ledger takes it. What it refuses stays in hand, aside.
pub(super) async fn store<T>(
    deps: &CollectorDeps,
    hand: &mut Vec<PendingDeadLetter<T>>,
) -> StoreOutcome<T> {
    let begun = deps.clock.now();
    let (mut due, aside): (Vec<_>, Vec<_>) =
        hand.drain(..).partition(|held| held.aside_until.is_none_or(|until| until <= begun));
    *hand = aside;
    let mut stored = StoreOutcome { kept: Vec::new(), away: None };
    let mut one_by_one = 0_usize;
    while !due.is_empty() && deps.clock.now().duration_since(begun) < ROUND {
        let len =
            if one_by_one > 0 { 1 } else { batch_len(due.iter().map(|h| h.letter.body.len())) };
        let mut batch: Vec<PendingDeadLetter<T>> = due.drain(..len).collect();
        one_by_one = one_by_one.saturating_sub(1);
        let letters = batch.iter().map(|held| held.letter.clone()).collect();
        match deps.ledger.keep_dead_letters(letters, deps.clock.wall_ms()).await {
            Ok(kept) => {
                tell(deps, &batch, &kept);
                stored.kept.extend(batch.into_iter().map(|held| held.from));
            }
            Err(error) => {
                deps.metrics.ledger_error(error.class());
                let answers = deps.ledger.ping().await.is_ok();
                let size = batch.len();
                if let [alone] = batch.as_mut_slice() {
                    alone.failures += u32::from(answers);
                }
                let failures = batch.first().map_or(0, |held| held.failures);
                match after_failure(error.class(), answers, size, failures) {
                    AfterFailure::OneByOne => {
                        one_by_one = size;
                        due.splice(0..0, batch);
                    }
                    AfterFailure::SetAside => {
                        refuse(deps, &mut batch, &error);
                        hand.append(&mut batch);
                    }
                    AfterFailure::Hold => {
                        hand.append(&mut batch);
                        stored.away = Some(error);
                        break;
                    }
                }
            }
        }
    }
    hand.append(&mut due);
    stored
}

/// Each letter is told once, where it becomes known: somebody has to look at it.
fn tell<T>(deps: &CollectorDeps, batch: &[PendingDeadLetter<T>], kept: &[KeepOutcome]) {
    for (PendingDeadLetter { letter, .. }, kept) in batch.iter().zip(kept) {
        if *kept == KeepOutcome::Known {
            continue;
        }
        deps.metrics.dead_letter(letter.origin);
        tracing::error!(
            origin = letter.origin.name(),
            reason = letter.reason,
            message_id = letter.message_id,
            requests = letter.requests.len(),
            again = *kept == KeepOutcome::Again,
            "a dead letter; see `floodgate dlq list`"
        );
    }
}

fn refuse<T>(deps: &CollectorDeps, batch: &mut [PendingDeadLetter<T>], error: &db::Error) {
    for held in batch {
        held.failures = 0;
        held.aside_until = Some(deps.clock.now() + ASIDE);
        deps.metrics.dead_letter_refused();
        tracing::error!(
            origin = held.letter.origin.name(),
            reason = held.letter.reason,
            message_id = held.letter.message_id,
            error = error as &dyn std::error::Error,
            "the ledger refuses a dead letter: it stays where it is, and is tried again"
        );
    }
}
