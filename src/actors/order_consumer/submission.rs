//! Submits intents to the ledger writer, and handles the result of each: done, retried, counted as
//! a failure, or dead-lettered. Acknowledges the completed deliveries.

use std::time::Duration;

use actix::{AsyncContext, Context};
use bytes::Bytes;

use super::evidence::{FailedAttempt, NoOutcome, RetryDecision, decide};
use super::{Arc, ConsumerDeps, Delivery, OrderConsumer};
use crate::actors::order_consumer::ack_window::Ack;
use crate::actors::supervisor::supervised::{spawn_step, spawn_wait};
use crate::domain::{OrderIntent, PlaceOutcome};
use crate::messages::{WriteResult, WriterExited};

/// Name of the ledger token that the canary increments.
const CANARY: &str = "canary";

/// Single orders that probes may take off submissions without evidence. One that the ledger commits
/// is enough, and each is a transaction of its own once the ledger is back.
const PROBES_MAX: usize = 64;

/// One intent of an unacknowledged delivery.
#[derive(Debug, Clone)]
pub(super) struct InFlightIntent {
    pub(super) delivery: Arc<Delivery>,
    pub(super) bytes: Bytes,
    pub(super) intent: OrderIntent,
    /// Failures counted against the order.
    pub(super) attempts: u32,
}

impl InFlightIntent {
    pub(super) fn new(delivery: Arc<Delivery>, bytes: Bytes, intent: OrderIntent) -> Self {
        Self { delivery, bytes, intent, attempts: 0 }
    }
}

/// Intents that are submitted to the ledger writer in one message.
#[derive(Debug)]
pub(super) struct Submission {
    /// Number of the subscription that its deliveries belong to.
    subscription_no: u64,
    items: Vec<InFlightIntent>,
    /// Shares its transactions with no other submission: it failed, or its delivery is suspect.
    is_exclusive: bool,
    /// Commits of the ledger when it failed in a transaction of its own.
    failed_at: Option<u64>,
    /// Whether it comes from the retry queue.
    is_retry: bool,
}

impl Submission {
    /// A submission that may share its transactions.
    pub(super) fn batched(subscription_no: u64, items: Vec<InFlightIntent>) -> Self {
        Self { subscription_no, items, is_exclusive: false, failed_at: None, is_retry: false }
    }

    /// A submission in transactions of its own.
    pub(super) fn exclusive(subscription_no: u64, items: Vec<InFlightIntent>) -> Self {
        Self { is_exclusive: true, ..Self::batched(subscription_no, items) }
    }

    /// Whether a single order failed in a transaction of its own and the ledger has committed
    /// nothing since: the order or the ledger may be the cause.
    fn lacks_evidence(&self, num_commits: u64) -> bool {
        self.is_exclusive && self.items.len() == 1 && self.failed_at == Some(num_commits)
    }
}

impl OrderConsumer {
    /// Submits intents in chunks that fit one transaction each. While the ledger fails, they are
    /// held behind the submissions that failed before.
    pub(super) fn submit_batched(&mut self, ctx: &mut Context<Self>, items: Vec<InFlightIntent>) {
        let is_held = self.deps.breaker.is_open() && !self.subscription.retries.is_empty();
        for chunk in items.chunks(self.deps.limits.batch_max.max(1)) {
            let submission = Submission::batched(self.subscription.number, chunk.to_vec());
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
        self.in_progress.num_submitted += 1;
        let deps = self.deps.clone();
        let committed_intent = self.committed_intent;
        let intents: Vec<OrderIntent> = submission.items.iter().map(|item| item.intent).collect();
        let is_exclusive = submission.is_exclusive;
        let lacks_evidence = submission.lacks_evidence(deps.breaker.num_commits());
        let mut subscription_closed = self.subscription.closed.subscribe();
        let work = async move {
            let writing = async {
                let written = deps.orders.write(intents, is_exclusive).await;
                let failed = written.as_ref().map_or(true, |all| all.iter().any(Result::is_err));
                if failed && lacks_evidence {
                    commit_canary(&deps, committed_intent).await;
                }
                written
            };
            tokio::select! {
                written = writing => Some(written),
                // Nothing is sent on this channel: it ends only when its sender is dropped.
                _closed = subscription_closed.changed() => None,
            }
        };
        spawn_wait(self, ctx, work, move |consumer, ctx, written| {
            consumer.in_progress.num_submitted -= 1;
            // Delivery tags are valid for their own subscription only.
            if let Some(written) = written
                && submission.subscription_no == consumer.subscription.number
            {
                consumer.submitted(ctx, submission, written);
            }
            consumer.report_if_idle();
        });
    }

    /// Handles the results of a submission, or the crash of the ledger writer.
    fn submitted(
        &mut self,
        ctx: &mut Context<Self>,
        submission: Submission,
        written: Result<Vec<WriteResult>, WriterExited>,
    ) {
        let Submission { subscription_no, items, is_exclusive, failed_at, is_retry } = submission;
        let num_submitted = items.len();
        let (mut failed, mut last_error) = (Vec::new(), None);
        let (results, mut cause) = match written {
            Ok(results) => (results, NoOutcome::NotTried),
            Err(WriterExited::BeforeWrite) => (Vec::new(), NoOutcome::NotTried),
            Err(WriterExited::DuringWrite) => (Vec::new(), NoOutcome::Crashed),
        };
        let mut results = results.into_iter();
        for item in items {
            match results.next() {
                Some(Ok(outcome)) => self.complete(&item, &outcome),
                Some(Err(error)) => {
                    cause = cause.combined_with(error.class);
                    last_error = Some(error.text);
                    failed.push(item);
                }
                None => failed.push(item),
            }
        }
        let num_commits = self.deps.breaker.num_commits();
        let decision = decide(&FailedAttempt {
            cause,
            num_submitted,
            was_exclusive: is_exclusive,
            failed_at,
            num_commits,
            attempts: failed.first().map_or(0, |item| item.attempts),
            attempts_max: self.deps.limits.attempts_max,
        });
        let is_held =
            !failed.is_empty() && matches!(decision, RetryDecision::Hold | RetryDecision::Probe);
        if !failed.is_empty() {
            let last_error =
                last_error.unwrap_or_else(|| "the ledger writer crashed while writing it".into());
            // The commit count of the first failure is kept: evidence is a commit after it.
            let is_failure = is_exclusive && cause.may_be_caused_by_order();
            let failed_at = failed_at.or(is_failure.then_some(num_commits));
            let failed = Submission { failed_at, ..Submission::exclusive(subscription_no, failed) };
            self.apply(ctx, decision, failed, &last_error);
        }
        if is_retry {
            self.subscription.retries.complete(!is_held);
        }
        self.schedule_retry(ctx);
        self.publish(ctx);
        self.acknowledge(ctx);
    }

    /// Applies a decision to the intents without an outcome.
    fn apply(
        &mut self,
        ctx: &mut Context<Self>,
        decision: RetryDecision,
        failed: Submission,
        last_error: &str,
    ) {
        let exclusive = |items| Submission::exclusive(failed.subscription_no, items);
        match decision {
            RetryDecision::Probe
                if failed.items.len() > 1 && self.num_single_orders() < PROBES_MAX =>
            {
                let mut first = failed.items;
                let remainder = first.split_off(1);
                self.hold(Submission { failed_at: failed.failed_at, ..exclusive(remainder) });
                self.hold(exclusive(first));
            }
            RetryDecision::Hold | RetryDecision::Probe => self.hold(failed),
            RetryDecision::Split(parts) => {
                let size = failed.items.len().div_ceil(parts.max(1)).max(1);
                for part in failed.items.chunks(size) {
                    self.hold(exclusive(part.to_vec()));
                }
            }
            RetryDecision::Count => self.count_failure(ctx, failed.items, last_error),
            RetryDecision::DeadLetter => {
                for item in failed.items {
                    self.dead_letter_failed(&item, last_error);
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
            self.deps.metrics.placement(took_ms);
        }
        tracing::debug!(
            request = %intent.request,
            trace_id = %intent.trace,
            queue = self.deps.queue,
            ?outcome,
            "committed"
        );
        self.subscription.window.complete_part(delivery.tag);
    }

    /// Counts a failure against an order, and retries it after a wait that doubles with each.
    fn count_failure(
        &mut self,
        ctx: &mut Context<Self>,
        mut items: Vec<InFlightIntent>,
        last_error: &str,
    ) {
        let mut attempts = 0;
        for item in &mut items {
            item.attempts = item.attempts.saturating_add(1);
            attempts = item.attempts;
            self.deps.metrics.consumer_retries.inc();
            self.subscription.window.mark_stuck(item.delivery.tag);
            tracing::warn!(
                queue = self.deps.queue,
                request = %item.intent.request,
                trace_id = %item.intent.trace,
                attempts,
                error = last_error,
                "order failed while the ledger commits others, retrying"
            );
        }
        let retry = Submission {
            failed_at: Some(self.deps.breaker.num_commits()),
            ..Submission::exclusive(self.subscription.number, items)
        };
        let base = Duration::from_millis(self.deps.limits.retry_backoff_ms.1);
        ctx.run_later(base.saturating_mul(1 << attempts.min(16)), move |consumer, ctx| {
            if retry.subscription_no == consumer.subscription.number {
                consumer.hold(retry);
                consumer.schedule_retry(ctx);
            }
        });
    }

    /// Held submissions of one order.
    fn num_single_orders(&self) -> usize {
        self.subscription.retries.count(|waiting| waiting.items.len() == 1)
    }

    /// Holds a submission for a retry in a transaction of its own.
    fn hold(&mut self, submission: Submission) {
        for item in &submission.items {
            self.subscription.window.mark_stuck(item.delivery.tag);
        }
        let held = Submission { is_exclusive: true, is_retry: true, ..submission };
        self.subscription.retries.push(held);
    }

    /// Schedules the next round of retries, unless one is scheduled or in flight.
    fn schedule_retry(&mut self, ctx: &mut Context<Self>) {
        if self.in_progress.retrying || self.is_quiet {
            return;
        }
        let Some(wait) = self.subscription.retries.next_wait(fastrand::f64()) else { return };
        self.in_progress.retrying = true;
        ctx.run_later(wait, |consumer, ctx| {
            consumer.in_progress.retrying = false;
            if consumer.is_quiet {
                return;
            }
            for submission in consumer.subscription.retries.take() {
                consumer.submit(ctx, submission);
            }
            consumer.schedule_retry(ctx);
        });
    }

    /// Acknowledges the completed deliveries. One call at a time, so that the broker receives each
    /// acknowledgement once and in order.
    pub(super) fn acknowledge(&mut self, ctx: &mut Context<Self>) {
        if self.in_progress.acknowledging {
            return;
        }
        let Some(acknowledger) = self.subscription.acks.clone() else { return };
        let acks = self.subscription.window.take_acks();
        if acks.is_empty() {
            return;
        }
        self.report_unacknowledged();
        self.in_progress.acknowledging = true;
        // Crash here [committed_not_acknowledged]: the orders are committed; a redelivered intent
        // is a repeat, and acknowledged as a success.
        let work = async move {
            for ack in acks {
                match ack {
                    Ack::UpTo(tag) => acknowledger.up_to(tag).await,
                    Ack::One(tag) => acknowledger.one(tag).await,
                }
            }
        };
        spawn_step(self, ctx, work, |consumer, ctx, ()| {
            consumer.in_progress.acknowledging = false;
            consumer.acknowledge(ctx);
            consumer.report_if_idle();
        });
    }

    /// Sets the gauge of unacknowledged deliveries.
    pub(super) fn report_unacknowledged(&self) {
        self.deps.metrics.consumer_in_flight(self.deps.queue, self.subscription.window.len());
    }
}

/// Produces evidence when no other order does: a committed order is placed again, which its unique
/// key must refuse, and a token is incremented, which must be committed. A ledger that is read-only
/// or has lost its table of orders passes neither.
async fn commit_canary(deps: &ConsumerDeps, committed_intent: Option<OrderIntent>) {
    let Some(intent) = committed_intent else { return };
    let repeated = deps.orders.write(vec![intent], true).await;
    let is_repeat = repeated.is_ok_and(|all| all.iter().all(Result::is_ok));
    if is_repeat && deps.ledger.next_token(CANARY).await.is_ok() {
        deps.breaker.committed();
    }
}
