//! Flow step 10/12: broker -> ledger.
//!
//! Stores the dead letters of the broker's queue in the ledger, where operators find them. They are
//! acknowledged only after COMMIT.
//!
//! Owns: nothing; every dead letter stays in its queue until it is stored. Limits:
//! `maintenance.dead_letters_max` unacknowledged dead letters, a mebibyte each. On error: while the
//! ledger is unavailable, all are held and retried; a dead letter that the ledger rejects is set
//! aside, unacknowledged, and the others are stored. On crash: unacknowledged dead letters are
//! redelivered, and recognized by their digest. May repeat: every dead letter.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::periodic::{RunResult, Task};
use crate::broker::{self, Inbox, Route, Subscriber};
use crate::config::Settings;
use crate::db::{self, ErrorClass, Ledger};
use crate::domain::{NewDeadLetter, StoreDeadLetterOutcome};
use crate::messages::envelope::EnvelopeReader;
use crate::observe::metrics::Metrics;
use crate::runtime::clock::SharedClock;
use crate::services::dead_letters::new_dead_letter;

/// Rounds of the collector per count: the query reads all rows.
pub(super) const ROUNDS_PER_COUNT: u64 = 10;

/// Longest wait of a run for the first dead letter.
const WAIT: Duration = Duration::from_secs(1);

/// Time after which no further transaction is started before the acknowledgements.
const ROUND_MAX: Duration = Duration::from_secs(5);

/// Attempts to store one dead letter, while the ledger commits, before it is set aside.
const STORE_ATTEMPTS_MAX: u32 = 3;

/// Wait before a dead letter that the ledger rejected is retried.
const RETRY_ASIDE_AFTER: Duration = Duration::from_secs(30);

/// Bytes of bodies in one transaction of several dead letters.
const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Stores dead letters.
pub struct DeadLetterCollector {
    pub ledger: Arc<dyn Ledger>,
    pub subscriber: Arc<dyn Subscriber>,
    pub reader: EnvelopeReader,
    pub settings: Arc<Settings>,
    pub clock: SharedClock,
    pub metrics: Arc<Metrics>,
}

/// The subscription of one incarnation.
pub type DeadLetters = Cell<Option<OpenDeadLetters>>;

/// An open subscription.
pub struct OpenDeadLetters {
    inbox: Inbox,
    /// Unacknowledged dead letters: to be stored, or set aside.
    pending: Vec<PendingDeadLetter>,
}

/// A dead letter that is not stored yet.
struct PendingDeadLetter {
    dead_letter: NewDeadLetter,
    /// Its delivery tag.
    tag: u64,
    failures: u32,
    /// Set if the ledger rejected it: the time of the next attempt.
    aside_until: Option<Instant>,
}

impl Task for DeadLetterCollector {
    type State = DeadLetters;

    const FAILURE: &'static str = "dead letters not stored, retrying";

    /// Stores dead letters until no more arrive.
    async fn run(&self, dead_letters: &DeadLetters) -> RunResult {
        let mut open = match dead_letters.take() {
            Some(open) => open,
            None => self.subscribe().await?,
        };
        let mut wait = if open.pending.is_empty() { WAIT } else { Duration::ZERO };
        loop {
            // Without a subscription the broker redelivers all unacknowledged dead letters.
            let num_received = self.receive(&mut open, wait).await?;
            let stored = self.store(&mut open).await;
            if num_received == 0 || stored.is_err() {
                dead_letters.set(Some(open));
                return Ok(stored?);
            }
            wait = Duration::ZERO;
        }
    }
}

impl DeadLetterCollector {
    async fn subscribe(&self) -> Result<OpenDeadLetters, broker::Error> {
        let max = self.settings.maintenance.dead_letters_max;
        let inbox = Inbox::open(&self.subscriber, Route::Dead, max, &self.clock).await?;
        Ok(OpenDeadLetters { inbox, pending: Vec::new() })
    }

    /// Waits for a dead letter, and takes those that are already there. Returns their number.
    async fn receive(
        &self,
        open: &mut OpenDeadLetters,
        wait: Duration,
    ) -> Result<usize, broker::Error> {
        let deliveries = open.inbox.next_batch(wait, open.pending.len()).await?;
        let num_received = deliveries.len();
        open.pending.extend(deliveries.into_iter().map(|delivery| {
            let now_ms = self.clock.wall_ms();
            let dead_letter = new_dead_letter::from_delivery(&delivery, &self.reader, now_ms);
            PendingDeadLetter { dead_letter, tag: delivery.tag, failures: 0, aside_until: None }
        }));
        Ok(num_received)
    }

    /// Stores the pending dead letters that are due, and acknowledges those that are stored.
    async fn store(&self, open: &mut OpenDeadLetters) -> Result<(), db::Error> {
        let mut stored = Vec::new();
        let outcome = self.store_due(&mut open.pending, &mut stored).await;
        // Crash here [stored_not_acknowledged]: the dead letter is in the ledger and in its queue;
        // it is redelivered, and recognized by its digest.
        let acks = open.inbox.acks();
        for tag in stored {
            acks.one(tag).await;
        }
        outcome
    }

    /// Stores the pending dead letters that are due, and adds the tags of the stored ones to
    /// `stored`. Those that the ledger rejects stay pending, set aside for [`RETRY_ASIDE_AFTER`].
    ///
    /// # Errors
    /// Why the ledger is unavailable; the remaining dead letters stay pending.
    async fn store_due(
        &self,
        pending: &mut Vec<PendingDeadLetter>,
        stored: &mut Vec<u64>,
    ) -> Result<(), db::Error> {
        let begun = self.clock.now();
        let (mut due, aside): (Vec<_>, Vec<_>) = std::mem::take(pending)
            .into_iter()
            .partition(|it| it.aside_until.is_none_or(|until| until <= begun));
        *pending = aside;
        let (mut outcome, mut num_singles) = (Ok(()), 0_usize);
        while !due.is_empty() && self.clock.now().duration_since(begun) < ROUND_MAX {
            let sizes = due.iter().map(|it| it.dead_letter.body.len());
            let len = if num_singles > 0 { 1 } else { batch_len(sizes) };
            let mut batch: Vec<_> = due.drain(..len).collect();
            num_singles = num_singles.saturating_sub(1);
            let dead_letters = batch.iter().map(|it| it.dead_letter.clone()).collect();
            match self.ledger.store_dead_letters(dead_letters, self.clock.wall_ms()).await {
                Ok(outcomes) => {
                    for (it, outcome) in batch.iter().zip(outcomes) {
                        report_stored(&self.metrics, &it.dead_letter, outcome);
                    }
                    stored.extend(batch.into_iter().map(|it| it.tag));
                }
                Err(error) => {
                    self.metrics.ledger_error(error.class());
                    let ledger_commits = self.ledger.commit_canary().await.is_ok();
                    let size = batch.len();
                    if let [single] = batch.as_mut_slice() {
                        single.failures += u32::from(ledger_commits);
                    }
                    let failures = batch.first().map_or(0, |it| it.failures);
                    match after_failure(error.class(), ledger_commits, size, failures) {
                        AfterFailure::OneByOne => {
                            num_singles = size;
                            due.splice(0..0, batch);
                        }
                        AfterFailure::SetAside => {
                            for it in &mut batch {
                                self.set_aside(it, &error);
                            }
                            pending.append(&mut batch);
                        }
                        AfterFailure::Hold => {
                            pending.append(&mut batch);
                            outcome = Err(error);
                            break;
                        }
                    }
                }
            }
        }
        pending.append(&mut due);
        outcome
    }

    fn set_aside(&self, pending: &mut PendingDeadLetter, error: &db::Error) {
        pending.failures = 0;
        pending.aside_until = Some(self.clock.now() + RETRY_ASIDE_AFTER);
        self.metrics.dead_letters_refused.inc();
        tracing::error!(
            origin = pending.dead_letter.origin.name(),
            reason = pending.dead_letter.reason,
            message_id = pending.dead_letter.message_id,
            error = error as &dyn std::error::Error,
            "the ledger refuses a dead letter, retrying"
        );
    }
}

/// Sets the gauges of dead letters, in every tier: a webhook that cannot be read is one, too.
pub struct DeadLetterCounter {
    pub ledger: Arc<dyn Ledger>,
    pub metrics: Arc<Metrics>,
}

impl Task for DeadLetterCounter {
    type State = ();

    const FAILURE: &'static str = "dead letters not counted, retrying";

    async fn run(&self, (): &()) -> RunResult {
        self.metrics.dead_letters(self.ledger.count_dead_letters().await?);
        Ok(())
    }
}

/// Counts and logs a dead letter once, when it is stored or opened again: an operator must act.
fn report_stored(metrics: &Metrics, dead_letter: &NewDeadLetter, outcome: StoreDeadLetterOutcome) {
    if outcome == StoreDeadLetterOutcome::AlreadyStored {
        return;
    }
    metrics.dead_letter(dead_letter.origin);
    tracing::error!(
        origin = dead_letter.origin.name(),
        reason = dead_letter.reason,
        message_id = dead_letter.message_id,
        requests = dead_letter.requests.len(),
        again = outcome == StoreDeadLetterOutcome::Reopened,
        "dead letter stored, see `floodgate dlq list`"
    );
}

/// What to do with dead letters that could not be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterFailure {
    /// The ledger is unavailable, or the cause is not certain yet: hold them and retry.
    Hold,
    /// The ledger commits: one of them is rejected. Store each in a transaction of its own.
    OneByOne,
    /// The ledger rejects this one: set it aside, so that the others are stored.
    SetAside,
}

/// Decides after a failed transaction of `size` dead letters. `ledger_commits`: the canary right
/// after the failure was committed. `failures`: those of a single dead letter, this one included.
///
/// The error class alone is not enough: a packet that is too large breaks the connection, as a
/// server that goes down does.
fn after_failure(
    class: ErrorClass,
    ledger_commits: bool,
    size: usize,
    failures: u32,
) -> AfterFailure {
    match (ledger_commits, size) {
        (false, _) => AfterFailure::Hold,
        (true, 2..) => AfterFailure::OneByOne,
        // Another session holds a lock.
        (true, _) if class == ErrorClass::Retry => AfterFailure::Hold,
        (true, _) if class == ErrorClass::Bug || failures >= STORE_ATTEMPTS_MAX => {
            AfterFailure::SetAside
        }
        (true, _) => AfterFailure::Hold,
    }
}

/// Number of dead letters in the next transaction: at least one, in all at most [`BATCH_BYTES_MAX`]
/// of bodies.
fn batch_len(body_sizes: impl IntoIterator<Item = usize>) -> usize {
    let mut bytes = 0_usize;
    let fits = body_sizes.into_iter().enumerate().take_while(|(index, size)| {
        bytes = bytes.saturating_add(*size);
        *index == 0 || bytes <= BATCH_BYTES_MAX
    });
    fits.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_dead_letter_is_set_aside_and_an_unavailable_ledger_holds_all() {
        use AfterFailure::{Hold, OneByOne, SetAside};
        for class in [ErrorClass::Retry, ErrorClass::Down, ErrorClass::Unknown, ErrorClass::Bug] {
            for size in [1, 2, 64] {
                assert_eq!(after_failure(class, false, size, 99), Hold, "{class:?} {size}");
            }
            assert_eq!(after_failure(class, true, 2, 0), OneByOne);
            let is_contended = class == ErrorClass::Retry;
            let last = if is_contended { Hold } else { SetAside };
            assert_eq!(after_failure(class, true, 1, STORE_ATTEMPTS_MAX), last);
        }
        assert_eq!(after_failure(ErrorClass::Bug, true, 1, 1), SetAside);
        assert_eq!(after_failure(ErrorClass::Unknown, true, 1, 1), Hold);
    }

    #[test]
    fn a_transaction_is_bounded_and_has_at_least_one_dead_letter() {
        assert_eq!(batch_len([]), 0);
        assert_eq!(batch_len([BATCH_BYTES_MAX * 9, 1]), 1);
        assert_eq!(batch_len([BATCH_BYTES_MAX / 2; 9]), 2);
        assert_eq!(batch_len([0; 64]), 64);
    }
}
