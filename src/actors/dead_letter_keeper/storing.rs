//! Letters in hand on their way into the ledger.

use std::time::{Duration, Instant};

use super::LetterKeeperParts;
use super::deciding::{ASIDE, AfterFailure, after_failure, batch_len};
use crate::db;
use crate::domain::{Kept, NewLetter};

/// The longest time that storing may take before the lane looks up again.
const ROUND: Duration = Duration::from_secs(5);

/// A letter that is not in the ledger yet, and where it came from.
pub(super) struct InHand<T> {
    pub(super) letter: NewLetter,
    pub(super) from: T,
    failures: u32,
    /// The ledger refused it; not to be tried before.
    aside_until: Option<Instant>,
}

impl<T> InHand<T> {
    pub(super) fn new(letter: NewLetter, from: T) -> Self {
        Self { letter, from, failures: 0, aside_until: None }
    }
}

/// What storing came to.
pub(super) struct Stored<T> {
    /// Where the letters came from that the ledger has now.
    pub(super) kept: Vec<T>,
    /// The ledger is away; what is in hand stays there.
    pub(super) away: Option<db::Error>,
}

/// Stores what is in hand, as far as the ledger takes it. What it refuses stays in hand, aside.
pub(super) async fn store<T>(parts: &LetterKeeperParts, hand: &mut Vec<InHand<T>>) -> Stored<T> {
    let begun = parts.clock.now();
    let (mut due, aside): (Vec<_>, Vec<_>) =
        hand.drain(..).partition(|held| held.aside_until.is_none_or(|until| until <= begun));
    *hand = aside;
    let mut stored = Stored { kept: Vec::new(), away: None };
    let mut one_by_one = 0_usize;
    while !due.is_empty() && parts.clock.now().duration_since(begun) < ROUND {
        let len =
            if one_by_one > 0 { 1 } else { batch_len(due.iter().map(|h| h.letter.body.len())) };
        let mut batch: Vec<InHand<T>> = due.drain(..len).collect();
        one_by_one = one_by_one.saturating_sub(1);
        let letters = batch.iter().map(|held| held.letter.clone()).collect();
        match parts.ledger.keep_dead_letters(letters, parts.clock.wall_ms()).await {
            Ok(kept) => {
                tell(parts, &batch, &kept);
                stored.kept.extend(batch.into_iter().map(|held| held.from));
            }
            Err(error) => {
                parts.metrics.ledger_error(error.class());
                let answers = parts.ledger.ping().await.is_ok();
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
                        refuse(parts, &mut batch, &error);
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
fn tell<T>(parts: &LetterKeeperParts, batch: &[InHand<T>], kept: &[Kept]) {
    for (InHand { letter, .. }, kept) in batch.iter().zip(kept) {
        if *kept == Kept::Known {
            continue;
        }
        parts.metrics.dead_letter(letter.origin);
        tracing::error!(
            origin = letter.origin.name(),
            reason = letter.reason,
            message_id = letter.message_id,
            requests = letter.requests.len(),
            again = *kept == Kept::Again,
            "a dead letter; see `floodgate dlq list`"
        );
    }
}

fn refuse<T>(parts: &LetterKeeperParts, batch: &mut [InHand<T>], error: &db::Error) {
    for held in batch {
        held.failures = 0;
        held.aside_until = Some(parts.clock.now() + ASIDE);
        parts.metrics.dead_letter_refused();
        tracing::error!(
            origin = held.letter.origin.name(),
            reason = held.letter.reason,
            message_id = held.letter.message_id,
            error = error as &dyn std::error::Error,
            "the ledger refuses a dead letter: it stays where it is, and is tried again"
        );
    }
}
