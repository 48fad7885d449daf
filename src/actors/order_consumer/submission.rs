//! Submits intents to the ledger writer, and handles the result of each: done, retried, counted as
//! a failure, or dead-lettered. Acknowledges the completed deliveries.

use std::time::Duration;

use actix::Context;

use super::evidence::{FailedAttempt, RetryDecision, decide};
use super::{Arc, ConsumerDeps, Delivery, Operation, OrderConsumer};
use crate::actors::supervisor::supervised::spawn_wait;
use crate::db::ErrorClass;
use crate::domain::{OrderIntent, PlaceOutcome};
use crate::messages::envelope::dead_letter_of_intent;
use crate::messages::{WriteError, WriteResult};

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
    /// Shares its transactions with no other submission: it failed, or its delivery is suspect.
    is_exclusive: bool,
    /// Commits of the ledger at its last counted failure, or else at its first failure in a
    /// transaction of its own.
    failed_at: Option<u64>,
    /// Failures counted against its one order.
    attempts: u32,
    /// Failures of its one order while the ledger committed others: these, and those of contention.
    num_failures: u32,
    /// Whether it comes from the retry queue.
    is_retry: bool,
}

impl Submission {
    /// A submission that may share its transactions with others.
    fn shared(items: Vec<InFlightIntent>) -> Self {
        Self { items, ..Self::default() }
    }

    /// A submission in transactions of its own.
    pub(super) fn exclusive(items: Vec<InFlightIntent>) -> Self {
        Self { items, is_exclusive: true, ..Self::default() }
    }
}

impl OrderConsumer {
    /// Submits intents in chunks that fit one transaction each. While the ledger fails, they are
    /// held behind the submissions that failed before.
    pub(super) fn submit_batched(&mut self, ctx: &mut Context<Self>, items: Vec<InFlightIntent>) {
        let is_held = self.deps.breaker.is_open() && !self.subscription.retries.is_empty();
        for chunk in items.chunks(self.deps.settings.batch_max.max(1)) {
            let submission = Submission::shared(chunk.to_vec());
            if is_held {
                self.hold(submission);
            } else {
                self.submit(ctx, submission);
            }
        }
        self.schedule_retry(ctx);
    }

    pub(super) fn submit(&mut self, ctx: &mut Context<Self>, submission: Submission) {
        if submission.items.is_empty() {
            return;
        }
        // Crash here [delivered_not_submitted]: nothing is written and nothing acknowledged; the
        // broker redelivers.
        self.subscription.num_submissions += 1;
        let deps = self.deps.clone();
        let committed_intent = self.committed_intent;
        let intents: Vec<OrderIntent> = submission.items.iter().map(|item| item.intent).collect();
        let Submission { is_exclusive, failed_at, .. } = submission;
        // A single order failed in a transaction of its own and the ledger has committed nothing
        // since: the order or the ledger may be the cause.
        let lacks_evidence =
            is_exclusive && intents.len() == 1 && failed_at == Some(deps.breaker.num_commits());
        let mut subscription_closed = self.subscription.closed.subscribe();
        let work = async move {
            let writing = async {
                if lacks_evidence {
                    commit_canary(&deps, committed_intent).await;
                }
                let num_commits = deps.breaker.num_commits();
                (deps.ledger_writer.place(intents, is_exclusive).await, num_commits)
            };
            tokio::select! {
                written = writing => Some(written),
                // Nothing is sent on this channel: it ends only when its sender is dropped.
                _closed = subscription_closed.changed() => None,
            }
        };
        let then = self.scoped(move |consumer, ctx, written| {
            consumer.subscription.num_submissions -= 1;
            if let Some((written, num_commits)) = written {
                consumer.handle_results(ctx, submission, written, num_commits);
            }
        });
        spawn_wait(self, ctx, work, then);
    }

    /// Handles the results of a submission, one for each intent. `num_commits`: of the ledger when
    /// the submission was sent.
    fn handle_results(
        &mut self,
        ctx: &mut Context<Self>,
        submission: Submission,
        written: Vec<WriteResult>,
        num_commits: u64,
    ) {
        let Submission { items, is_exclusive, failed_at, attempts, num_failures, is_retry } =
            submission;
        let num_submitted = items.len();
        let mut failed = Vec::new();
        let mut error: Option<WriteError> = None;
        for (item, written) in items.into_iter().zip(written) {
            match written {
                Ok(outcome) => self.complete(&item, &outcome),
                Err(next) => {
                    // A ledger that is down proves nothing about the other orders.
                    if !error.as_ref().is_some_and(is_down) {
                        error = Some(next);
                    }
                    failed.push(item);
                }
            }
        }
        // Whether the ledger itself may be failing: then the retries slow down.
        let mut lacks_evidence = false;
        if let Some(error) = error {
            let decision = decide(&FailedAttempt {
                cause: &error,
                num_submitted,
                was_exclusive: is_exclusive,
                failed_at,
                num_commits,
                attempts,
                attempts_max: self.deps.settings.attempts_max,
            });
            lacks_evidence = matches!(decision, RetryDecision::Hold | RetryDecision::Probe);
            // The commit count of the first failure is kept: evidence is a commit after it.
            let may_be_cause = error != WriteError::NotTried && !is_down(&error);
            let num_commits_now = self.deps.breaker.num_commits();
            let failed_at = failed_at.or((is_exclusive && may_be_cause).then_some(num_commits_now));
            let failed =
                Submission { failed_at, attempts, num_failures, ..Submission::exclusive(failed) };
            self.apply(ctx, decision, failed, &error.to_string());
        }
        if is_retry {
            self.subscription.retries.complete(!lacks_evidence);
        }
        self.schedule_retry(ctx);
        self.publish_dead_letters(ctx);
        self.acknowledge(ctx);
    }

    /// Applies a decision to the intents without an outcome.
    fn apply(
        &mut self,
        ctx: &mut Context<Self>,
        decision: RetryDecision,
        mut failed: Submission,
        last_error: &str,
    ) {
        let num_single = self.subscription.retries.count(|held| held.items.len() == 1);
        match decision {
            RetryDecision::Probe if failed.items.len() > 1 && num_single < PROBES_MAX => {
                let mut first = failed.items;
                let remainder = first.split_off(1);
                let failed_at = failed.failed_at;
                self.hold(Submission { failed_at, ..Submission::exclusive(remainder) });
                self.hold(Submission::exclusive(first));
            }
            RetryDecision::Hold | RetryDecision::Probe => self.hold(failed),
            RetryDecision::Split(parts) => {
                let size = failed.items.len().div_ceil(parts.max(1)).max(1);
                for part in failed.items.chunks(size) {
                    self.hold(Submission::exclusive(part.to_vec()));
                }
            }
            RetryDecision::Count | RetryDecision::Later => {
                failed.attempts += u32::from(decision == RetryDecision::Count);
                self.retry_order_later(ctx, failed, last_error);
            }
            RetryDecision::DeadLetter { failures } => {
                for InFlightIntent { delivery, position, .. } in failed.items {
                    let reason = format!("it failed {failures} times, the last time: {last_error}");
                    let queue = self.deps.queue;
                    let message =
                        dead_letter_of_intent(&delivery, position, queue, failures, &reason);
                    self.dead_letter(delivery.tag, message, "failed");
                }
            }
        }
    }

    /// Completes an intent that is an order or a recorded refusal in the ledger.
    fn complete(&mut self, item: &InFlightIntent, outcome: &PlaceOutcome) {
        let InFlightIntent { delivery, intent, .. } = item;
        if outcome.order().is_some() {
            self.committed_intent = Some(*intent);
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
        self.subscription.unacked.complete_part(delivery.tag);
    }

    /// Retries an order after `consumer.retry_backoff_max_ms` times two to the power of its
    /// failures, at most of `consumer.attempts_max`.
    fn retry_order_later(&mut self, ctx: &mut Context<Self>, mut failed: Submission, error: &str) {
        failed.num_failures = failed.num_failures.saturating_add(1);
        let (failures, attempts) = (failed.num_failures, failed.attempts);
        self.deps.metrics.consumer_retries.inc();
        for item in &failed.items {
            self.subscription.unacked.mark_stuck(item.delivery.tag);
            tracing::warn!(
                queue = self.deps.queue,
                request = %item.intent.request,
                trace_id = %item.intent.trace,
                failures,
                attempts,
                error,
                "order failed while the ledger commits others, retrying"
            );
        }
        failed.failed_at = Some(self.deps.breaker.num_commits());
        let base = Duration::from_millis(self.deps.settings.retry_backoff_max_ms);
        let doublings = failures.min(self.deps.settings.attempts_max).min(16);
        let wait = base.saturating_mul(1 << doublings);
        let then = self.scoped(move |consumer, ctx, ()| {
            consumer.hold(failed);
            consumer.schedule_retry(ctx);
        });
        spawn_wait(self, ctx, tokio::time::sleep(wait), then);
    }

    /// Holds a submission for a retry in a transaction of its own.
    fn hold(&mut self, submission: Submission) {
        for item in &submission.items {
            self.subscription.unacked.mark_stuck(item.delivery.tag);
        }
        let held = Submission { is_exclusive: true, is_retry: true, ..submission };
        self.subscription.retries.push(held);
    }

    /// Schedules the next round of retries, unless one is scheduled or in flight.
    fn schedule_retry(&mut self, ctx: &mut Context<Self>) {
        if self.subscription.is_running(Operation::Retry) || self.incarnation.is_quiet() {
            return;
        }
        let Some(wait) = self.subscription.retries.next_wait(fastrand::f64()) else { return };
        self.retry_later(ctx, Operation::Retry, wait, |consumer, ctx| {
            for submission in consumer.subscription.retries.take() {
                consumer.submit(ctx, submission);
            }
            consumer.schedule_retry(ctx);
        });
    }

    /// Acknowledges the completed deliveries. One call at a time, so that the broker receives each
    /// acknowledgement once and in order.
    pub(super) fn acknowledge(&mut self, ctx: &mut Context<Self>) {
        if self.subscription.is_running(Operation::Acknowledge) {
            return;
        }
        let Some(acknowledger) = self.subscription.acknowledger.clone() else { return };
        let (up_to, singly) = self.subscription.unacked.take_acks();
        if up_to.is_none() && singly.is_empty() {
            return;
        }
        self.report_unacknowledged();
        // Crash here [committed_not_acknowledged]: the orders are committed; a redelivered intent
        // is a repeat, and acknowledged as a success.
        let work = async move {
            if let Some(tag) = up_to {
                acknowledger.up_to(tag).await;
            }
            for tag in singly {
                acknowledger.one(tag).await;
            }
        };
        self.spawn(ctx, Operation::Acknowledge, work, |consumer, ctx, ()| {
            consumer.acknowledge(ctx);
        });
    }

    /// Sets the gauge of unacknowledged deliveries.
    pub(super) fn report_unacknowledged(&self) {
        self.deps.metrics.consumer_in_flight(self.deps.queue, self.subscription.unacked.len());
    }
}

fn is_down(error: &WriteError) -> bool {
    matches!(error, WriteError::Ledger { class: ErrorClass::Down, .. })
}

/// Produces evidence where no other order does, before an order is tried again: a committed order
/// is placed again, which its unique key must refuse, and the canary must be committed. A ledger
/// that is read-only, or has lost a table that a placement writes, fails one of them.
async fn commit_canary(deps: &ConsumerDeps, committed_intent: Option<OrderIntent>) {
    let Some(intent) = committed_intent else { return };
    // An order that a purge has deleted would be placed, or refused, anew.
    if deps.catalog.of_sku(intent.sku).is_none_or(|(sale, _)| sale.retention.is_purged()) {
        return;
    }
    let repeated = deps.ledger_writer.place(vec![intent], true).await;
    if repeated.iter().all(Result::is_ok) && deps.ledger.commit_canary().await.is_ok() {
        deps.breaker.committed();
    }
}
