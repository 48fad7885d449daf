//! Collects the dead letters of one source: receives them, stores them in the ledger, removes them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::CollectorDeps;
use crate::actors::supervisor::supervised::LastError;
use crate::db::{self, ErrorClass};
use crate::domain::{NewDeadLetter, StoreDeadLetterOutcome};
use crate::runtime::backoff::Backoff;

/// Time after which a round starts no further transaction.
const ROUND_MAX: Duration = Duration::from_secs(5);

/// Attempts to store one dead letter, while the ledger commits, before it is set aside.
const STORE_ATTEMPTS_MAX: u32 = 3;

/// Wait before a dead letter that the ledger rejected is retried.
const RETRY_ASIDE_AFTER: Duration = Duration::from_secs(30);

/// Bytes of bodies in one transaction of several dead letters.
const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Where dead letters wait until they are stored.
pub(super) trait DeadLetterSource: 'static {
    /// Identifies a dead letter at its source.
    type Key;

    /// The log message of a failed round.
    const FAILURE: &'static str;
    /// Whether a pause of `maintenance.rescue_every_ms` follows a successful round; otherwise
    /// [`Self::receive`] itself waits.
    const IS_POLLED: bool;

    /// Adds dead letters that are not pending yet.
    async fn receive(&mut self, pending: &mut Pending<Self::Key>) -> Result<(), String>;

    /// Removes stored dead letters; `num_pending` are not stored.
    async fn remove(&mut self, stored: Vec<Self::Key>, num_pending: usize) -> Result<(), String>;
}

pub(super) type Pending<K> = Vec<PendingDeadLetter<K>>;

/// A dead letter that is not stored yet, and its key at the source.
pub(super) struct PendingDeadLetter<K> {
    dead_letter: NewDeadLetter,
    pub(super) key: K,
    failures: u32,
    /// Set if the ledger rejected it: the time of the next attempt.
    aside_until: Option<Instant>,
}

impl<K> PendingDeadLetter<K> {
    pub(super) fn new(dead_letter: NewDeadLetter, key: K) -> Self {
        Self { dead_letter, key, failures: 0, aside_until: None }
    }
}

/// Collects the dead letters of one source.
pub(super) struct SourceCollector<S: DeadLetterSource> {
    source: S,
    deps: Arc<CollectorDeps>,
    /// Dead letters to store, and those set aside; all are still at their source.
    pending: Pending<S::Key>,
    backoff: Backoff,
    last_error: LastError,
}

impl<S: DeadLetterSource> SourceCollector<S> {
    pub(super) fn new(source: S, deps: Arc<CollectorDeps>) -> Self {
        let backoff = deps.backoff();
        Self { source, deps, pending: Vec::new(), backoff, last_error: LastError::default() }
    }

    /// Receives, stores and removes dead letters. Returns the pause before the next round.
    pub(super) async fn round(&mut self) -> Duration {
        let pause = if S::IS_POLLED { self.deps.every() } else { Duration::ZERO };
        let Err(error) = self.try_round().await else {
            if self.last_error.clear() {
                tracing::info!("dead letters stored again");
            }
            self.backoff = self.deps.backoff();
            return pause;
        };
        if let Some(error) = self.last_error.changed(Err(error)) {
            tracing::warn!(error, "{}", S::FAILURE);
        }
        pause.max(self.backoff.next_wait(fastrand::f64()))
    }

    async fn try_round(&mut self) -> Result<(), String> {
        let received = self.source.receive(&mut self.pending).await;
        let mut stored = Vec::new();
        let outcome = self.store(&mut stored).await;
        // Crash here [stored_not_acknowledged]: the dead letter is in the ledger and in its queue;
        // it is redelivered, and recognized by its digest.
        let removed = self.source.remove(stored, self.pending.len()).await;
        match outcome {
            Err(error) => Err(format!("{error} ({:?})", error.class())),
            Ok(()) => received.and(removed),
        }
    }

    /// Stores the pending dead letters that are due, and adds the keys of the stored ones to
    /// `stored`. Those that the ledger rejects stay pending, set aside for [`RETRY_ASIDE_AFTER`].
    ///
    /// # Errors
    /// Why the ledger is unavailable; the remaining dead letters stay pending.
    async fn store(&mut self, stored: &mut Vec<S::Key>) -> Result<(), db::Error> {
        let deps = &self.deps;
        let begun = deps.clock.now();
        let (mut due, aside): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|it| it.aside_until.is_none_or(|until| until <= begun));
        self.pending = aside;
        let (mut outcome, mut num_singles) = (Ok(()), 0_usize);
        while !due.is_empty() && deps.clock.now().duration_since(begun) < ROUND_MAX {
            let sizes = due.iter().map(|it| it.dead_letter.body.len());
            let len = if num_singles > 0 { 1 } else { batch_len(sizes) };
            let mut batch: Vec<_> = due.drain(..len).collect();
            num_singles = num_singles.saturating_sub(1);
            let dead_letters = batch.iter().map(|it| it.dead_letter.clone()).collect();
            match deps.ledger.store_dead_letters(dead_letters, deps.clock.wall_ms()).await {
                Ok(outcomes) => {
                    for (it, outcome) in batch.iter().zip(outcomes) {
                        report_stored(deps, &it.dead_letter, outcome);
                    }
                    stored.extend(batch.into_iter().map(|it| it.key));
                }
                Err(error) => {
                    deps.metrics.ledger_error(error.class());
                    let ledger_commits = deps.ledger.commit_canary().await.is_ok();
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
                                set_aside(deps, it, &error);
                            }
                            self.pending.append(&mut batch);
                        }
                        AfterFailure::Hold => {
                            self.pending.append(&mut batch);
                            outcome = Err(error);
                            break;
                        }
                    }
                }
            }
        }
        self.pending.append(&mut due);
        outcome
    }
}

/// Counts and logs a dead letter once, when it is stored or opened again: an operator must act.
fn report_stored(
    deps: &CollectorDeps,
    dead_letter: &NewDeadLetter,
    outcome: StoreDeadLetterOutcome,
) {
    if outcome == StoreDeadLetterOutcome::AlreadyStored {
        return;
    }
    deps.metrics.dead_letter(dead_letter.origin);
    tracing::error!(
        origin = dead_letter.origin.name(),
        reason = dead_letter.reason,
        message_id = dead_letter.message_id,
        requests = dead_letter.requests.len(),
        again = outcome == StoreDeadLetterOutcome::Reopened,
        "dead letter stored, see `floodgate dlq list`"
    );
}

fn set_aside<K>(deps: &CollectorDeps, pending: &mut PendingDeadLetter<K>, error: &db::Error) {
    pending.failures = 0;
    pending.aside_until = Some(deps.clock.now() + RETRY_ASIDE_AFTER);
    deps.metrics.dead_letters_refused.inc();
    tracing::error!(
        origin = pending.dead_letter.origin.name(),
        reason = pending.dead_letter.reason,
        message_id = pending.dead_letter.message_id,
        error = error as &dyn std::error::Error,
        "the ledger refuses a dead letter, retrying"
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
