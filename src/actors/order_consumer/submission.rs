//! Submits intents to the ledger writer until each has an outcome: an order, a recorded refusal, or
//! a dead letter.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::deliveries::{Deliveries, Work};
use super::evidence::{FailedAttempt, RetryDecision, decide};
use crate::broker::Delivery;
use crate::db::ErrorClass;
use crate::domain::{OrderIntent, PlaceOutcome};
use crate::messages::WriteError;
use crate::messages::envelope::dead_letter_of_intent;
use crate::runtime::backoff::doubled;

/// Most single orders that probes split off larger submissions. One commit among them is evidence
/// enough; more would delay the recovery, because each is a transaction of its own.
const PROBES_MAX: usize = 64;

/// One intent of an unacknowledged delivery.
#[derive(Debug, Clone)]
pub(super) struct InFlightIntent {
    pub(super) delivery: Arc<Delivery>,
    /// Position in the delivery.
    pub(super) position: usize,
    pub(super) intent: OrderIntent,
}

/// Intents that are submitted to the ledger writer in one message.
#[derive(Debug, Default)]
pub(super) struct Submission {
    items: Vec<InFlightIntent>,
    /// Shares its transactions with no other submission: it failed, the ledger fails, or its
    /// delivery is suspect.
    is_exclusive: bool,
    /// Commits of the ledger at its last counted failure, or else at its first failure in a
    /// transaction of its own.
    commits_at_failure: Option<u64>,
    /// Failures counted against its one order.
    attempts: u32,
    /// Failures of its one order while the ledger committed others: these, and those of contention.
    num_failures: u32,
}

impl Submission {
    /// The work of submitting these intents, at most `size` in each submission.
    pub(super) fn work(items: &[InFlightIntent], size: usize, is_exclusive: bool) -> Vec<Work> {
        let submission = |chunk: &[InFlightIntent]| Self {
            items: chunk.to_vec(),
            is_exclusive,
            ..Self::default()
        };
        items.chunks(size.max(1)).map(submission).map(Work::Submit).collect()
    }
}

impl Deliveries {
    /// Submits until each intent has its outcome, or the consumer is quiet. Returns the work that
    /// follows: submissions that go on in parts, or dead letters.
    pub(super) async fn submit(&self, mut submission: Submission) -> Vec<Work> {
        // While the ledger fails, a new submission waits behind those that failed before.
        submission.is_exclusive |= self.deps.breaker.is_open() && self.turn.try_lock().is_err();
        while let Some((decision, error)) = self.attempt(&mut submission).await {
            submission.is_exclusive = true;
            let num_items = submission.items.len();
            match decision {
                RetryDecision::Probe if num_items > 1 && self.num_single.get() < PROBES_MAX => {
                    let items = submission.items.split_off(1);
                    let mut parts = Submission::work(&submission.items, 1, true);
                    parts.push(Work::Submit(Submission { items, ..submission }));
                    return parts;
                }
                RetryDecision::Hold | RetryDecision::Probe => {}
                RetryDecision::Split(parts) => {
                    let size = num_items.div_ceil(parts.max(1));
                    return Submission::work(&submission.items, size, true);
                }
                RetryDecision::Count | RetryDecision::Later => {
                    submission.attempts += u32::from(decision == RetryDecision::Count);
                    let wait = self.record_failure(&mut submission, &error);
                    self.supervision.wait(sleep(wait)).await;
                }
                RetryDecision::DeadLetter { failures } => {
                    let reason = format!("it failed {failures} times, the last time: {error}");
                    let dead_letters = submission.items.iter().map(|item| {
                        let (delivery, queue) = (&item.delivery, self.deps.queue);
                        let message = dead_letter_of_intent(
                            delivery,
                            item.position,
                            queue,
                            failures,
                            &reason,
                        );
                        self.dead_letter(delivery.tag, message, "failed")
                    });
                    return vec![Work::Publish(dead_letters.collect())];
                }
            }
        }
        Vec::new()
    }

    /// Submits once. Exclusive submissions take turns: while it may be the ledger that fails, each
    /// turn ends with a wait, and the waits grow. Returns what to do with the intents that are left
    /// in the submission, and their error; `None`: none is left, or the consumer is quiet.
    async fn attempt(&self, submission: &mut Submission) -> Option<(RetryDecision, String)> {
        if !submission.is_exclusive {
            return self.place(submission).await;
        }
        self.mark_stuck(submission);
        let num_single = usize::from(submission.items.len() == 1);
        self.num_single.update(|num| num + num_single);
        let turn = self.supervision.wait(self.turn.lock()).await;
        self.num_single.update(|num| num - num_single);
        let mut backoff = turn?;
        let failed = self.place(submission).await;
        if matches!(failed, Some((RetryDecision::Hold | RetryDecision::Probe, _))) {
            let wait = backoff.next_wait(fastrand::f64());
            self.supervision.wait(sleep(wait)).await;
        } else {
            backoff.reset();
        }
        failed
    }

    /// Submits to the ledger writer, completes the intents that have an outcome, and removes them
    /// from the submission. Dropping the future withdraws the submission, unless the writer has
    /// begun it.
    async fn place(&self, submission: &mut Submission) -> Option<(RetryDecision, String)> {
        let deps = &self.deps;
        let Submission { is_exclusive, commits_at_failure, attempts, .. } = *submission;
        let intents: Vec<OrderIntent> = submission.items.iter().map(|item| item.intent).collect();
        let num_submitted = intents.len();
        // A single order failed in a transaction of its own and the ledger has committed nothing
        // since: the order or the ledger may be the cause.
        if is_exclusive
            && num_submitted == 1
            && commits_at_failure == Some(deps.breaker.num_commits())
        {
            self.seek_evidence().await;
        }
        // Crash here [delivered_not_submitted]: nothing is written and nothing acknowledged; the
        // broker redelivers.
        let num_commits = deps.breaker.num_commits();
        let written = deps.ledger_writer.place(intents, is_exclusive).await;
        let mut error: Option<WriteError> = None;
        for (item, written) in std::mem::take(&mut submission.items).into_iter().zip(written) {
            match written {
                Ok(outcome) => self.complete(&item, &outcome),
                Err(next) => {
                    // A ledger that is down proves nothing about the other orders.
                    if !error.as_ref().is_some_and(is_down) {
                        error = Some(next);
                    }
                    submission.items.push(item);
                }
            }
        }
        self.mark_stuck(submission);
        // The commit count of the first failure is kept: evidence is a commit after it.
        if is_exclusive && error.as_ref().is_some_and(may_be_of_order) {
            submission.commits_at_failure = commits_at_failure.or(Some(deps.breaker.num_commits()));
        }
        self.acknowledge().await;
        let cause = error?;
        let decision = decide(&FailedAttempt {
            cause: &cause,
            num_submitted,
            was_exclusive: is_exclusive,
            commits_at_failure,
            num_commits,
            attempts,
            attempts_max: deps.settings.attempts_max,
        });
        Some((decision, cause.to_string()))
    }

    fn mark_stuck(&self, submission: &Submission) {
        let mut unacked = self.unacked.borrow_mut();
        submission.items.iter().for_each(|item| unacked.mark_stuck(item.delivery.tag));
    }

    /// Completes an intent that is an order or a recorded refusal in the ledger.
    fn complete(&self, item: &InFlightIntent, outcome: &PlaceOutcome) {
        let InFlightIntent { delivery, intent, .. } = item;
        if outcome.order().is_some() {
            self.committed_intent.set(Some(*intent));
        }
        if matches!(outcome, PlaceOutcome::Placed(_)) {
            let took_ms = self.deps.clock.wall_ms().saturating_sub(intent.placed_at_ms);
            self.deps.metrics.placement.observe(took_ms.max(0) as f64 / 1000.0);
        }
        tracing::debug!(
            request = %intent.request,
            trace_id = %intent.trace,
            queue = self.deps.queue,
            ?outcome,
            "committed"
        );
        self.unacked.borrow_mut().complete_part(delivery.tag);
    }

    /// Records the failure of a single order. Returns the wait before the next attempt:
    /// `consumer.retry_backoff_max_ms` times two to the power of its failures, at most of
    /// `consumer.attempts_max`.
    fn record_failure(&self, failed: &mut Submission, error: &str) -> Duration {
        let (deps, settings) = (&self.deps, &self.deps.settings);
        failed.commits_at_failure = Some(deps.breaker.num_commits());
        failed.num_failures = failed.num_failures.saturating_add(1);
        let (failures, attempts) = (failed.num_failures, failed.attempts);
        deps.metrics.consumer_retries.inc();
        for InFlightIntent { intent, .. } in &failed.items {
            tracing::warn!(
                queue = deps.queue,
                request = %intent.request,
                trace_id = %intent.trace,
                failures,
                attempts,
                error,
                "order failed while the ledger commits others, retrying"
            );
        }
        let base = Duration::from_millis(settings.retry_backoff_max_ms);
        doubled(base, Duration::MAX, failures.min(settings.attempts_max))
    }

    /// Produces evidence where no other order does, before an order is tried again: a committed
    /// order is placed again, which its unique key must refuse, and the canary must be committed.
    /// A ledger that is read-only, or has lost a table that a placement writes, fails one of them.
    async fn seek_evidence(&self) {
        let (deps, Some(intent)) = (&self.deps, self.committed_intent.get()) else { return };
        // An order that a purge has deleted would be placed, or refused, anew.
        if deps.catalog.of_sku(intent.sku).is_none_or(|(sale, _)| sale.retention.is_purged()) {
            return;
        }
        let repeated = deps.ledger_writer.place(vec![intent], true).await;
        if repeated.iter().all(Result::is_ok) && deps.ledger.commit_canary().await.is_ok() {
            deps.breaker.committed();
        }
    }
}

fn is_down(error: &WriteError) -> bool {
    matches!(error, WriteError::Ledger { class: ErrorClass::Down, .. })
}

/// Whether an order may be the cause.
fn may_be_of_order(error: &WriteError) -> bool {
    *error != WriteError::NotTried && !is_down(error)
}
